"""The exercise of topic 04 about embeddings: the vector of each token plus the vector of its position."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import CUT, ERROR, loses_a_length_of_one, misbehaviours, only_in_training
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.engine.contract import NOT_YOURS
from transformer_lm.checks.topic_04_language_model.embed import EMBED, OTHER_NAME, PADDING_INDEX


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return tokens, vectors for a vocabulary, and vectors for the tokens' positions and a few more.

    Every sequence begins and ends with the same token: only its position tells the two apart.
    """
    b, n, hidden, v = (sizes[name] for name in ("b", "n", "hidden", "v"))
    tokens = np.array([int(rng.random() * v) for _ in range(b * n)]).reshape(b, n)
    tokens[0, min(1, n - 1)], tokens[0, min(2, n - 1)] = 0, v - 1
    tokens[:, -1] = tokens[:, 0]
    bound = 2 * sizes.get("magnitude", 1)
    return {
        "tokens": tokens,
        "tokens_weight": dyadic(rng, v, hidden, bound=bound),
        "positions_weight": dyadic(rng, n + sizes["spare"], hidden, bound=bound),
    }


def reference(case: Arrays) -> Arrays:
    """Return the sums, position by position, for these tokens and for a sequence of the greatest length."""
    tokens, table = case["tokens"], case["tokens_weight"]
    b, n = tokens.shape
    sums = np.zeros((b, *case["positions_weight"].shape))
    for position, vector in enumerate(case["positions_weight"]):
        for sequence in range(b):
            sums[sequence, position] = table[tokens[sequence, position % n]] + vector
    return {"output": sums[:, :n], "output_full": sums}


# --- answers ------------------------------------------------------------------------------------

INIT = """\
class Embed(nn.Module):
    def __init__(self, vocab_size, hidden, max_len):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden)
        self.positions = nn.Embedding(max_len, hidden)

"""

FORWARD = """\
    def forward(self, tokens):
        b, n = tokens.shape
        vocab_size, max_len = self.tokens.num_embeddings, self.positions.num_embeddings
        places = torch.arange(n, device=tokens.device)
        return self.tokens(tokens) + self.positions(places)
"""

MODEL_ANSWER = INIT + FORWARD

PLACES = "torch.arange(n, device=tokens.device)"
SUM = "self.tokens(tokens) + self.positions(places)"


def wrong(name: str, hint: str, places: str = PLACES, returned: str = SUM) -> WrongAnswer:
    """Return the answer that counts positions in another way, or uses the vectors in another way."""
    return edited(name, hint, MODEL_ANSWER, (PLACES, places), (SUM, returned))


FROM_ONE = "Positions are counted from 1: the first row of the table is never used, and the last position has none."
SWAPPED = "The tables are swapped: tokens are looked up among the positions, and positions among the tokens."
TOKENS_FOR_PLACES = "The tokens are looked up in both tables: what the second one needs is where they stand."
ONE_TABLE = "Positions are looked up in the table of tokens: they have a table of their own."

WRONG = (
    wrong(
        "positions-replace-tokens",
        "The vectors of positions take the place of those of the tokens: add them, or the text is lost.",
        returned="self.positions(places).expand(b, -1, -1)",
    ),
    wrong(
        "no-batch",
        "Only the vectors of the positions are returned: the tokens are lost, and with them the batch.",
        returned="self.positions(places)",
    ),
    wrong(
        "positions-left-out",
        "The positions have no effect: the same token has the same vector wherever it stands.",
        returned="self.tokens(tokens)",
    ),
    # Where counting from 1 raises an error, everything before the error is the same as here.
    wrong("counted-from-one", FROM_ONE, places="torch.arange(1, n + 1) % max_len"),
    wrong(
        "counted-from-the-end",
        "Positions are counted from the last one back: the first of a sequence should be position 0.",
        places="torch.arange(n).flip(0)",
    ),
    wrong(
        "last-rows",
        "The last rows of the table are added: a sequence begins with position 0, however short it is.",
        places="torch.arange(max_len - n, max_len)",
    ),
    wrong(
        "all-the-first",
        "Every position gets the vector of position 0: they can't be told apart.",
        places="torch.zeros(n, dtype=torch.long)",
    ),
    wrong(
        "numbers-of-sequences",
        "What is counted are the sequences of the batch: all positions of a sequence get the same vector.",
        places="torch.arange(b)[:, None]",
    ),
    wrong(
        "counted-through-the-batch",
        "Positions are counted on from one sequence to the next: each sequence begins at position 0.",
        places="torch.arange(b * n).view(b, n) % max_len",
    ),
    wrong("tokens-in-both-tables", TOKENS_FOR_PLACES, places="tokens % max_len"),
    wrong(
        "tables-swapped",
        SWAPPED,
        returned="self.positions(tokens % max_len) + self.tokens(places % vocab_size)",
    ),
    wrong("one-table-for-both", ONE_TABLE, returned="self.tokens(tokens) + self.tokens(places % vocab_size)"),
    wrong("multiplied", "The two vectors are multiplied: they should be added.", returned=SUM.replace("+", "*")),
    wrong(
        "subtracted", "The vectors of positions are subtracted: they should be added.", returned=SUM.replace("+", "-")
    ),
    wrong("averaged", "The mean of the two vectors is returned: add them, and do not halve.", returned=f"({SUM}) / 2"),
    wrong(
        "concatenated",
        "The two vectors stand side by side and are twice as wide: they should be added.",
        returned="torch.cat([self.tokens(tokens), self.positions(places).expand(b, -1, -1)], dim=-1)",
    ),
    wrong(
        "appended",
        "The vectors of positions are appended as further positions: they should be added.",
        returned="torch.cat([self.tokens(tokens), self.positions(places).expand(b, -1, -1)], dim=1)",
    ),
    wrong("added-twice", "The vectors of positions are added twice.", returned=f"{SUM} + self.positions(places)"),
    wrong(
        "tokens-added-twice",
        "The vectors of tokens are added twice.",
        returned=f"{SUM} + self.tokens(tokens)",
    ),
    wrong(
        "mean-of-positions",
        "The mean of the vectors of positions is added: every position needs its own.",
        returned="self.tokens(tokens) + self.positions(places).mean(dim=0)",
    ),
    wrong(
        "tokens-averaged",
        "The mean over the tokens of a sequence is taken: every position keeps its own token.",
        returned="self.tokens(tokens).mean(dim=1, keepdim=True) + self.positions(places)",
    ),
    wrong(
        "numbers-of-positions-added",
        "The numbers of the positions are added, not the vectors that stand for them.",
        returned="self.tokens(tokens) + places[:, None]",
    ),
    wrong(
        "numbers-of-tokens-added",
        "The numbers of the tokens are added to the vectors of positions, not the vectors that stand for them.",
        returned="tokens[:, :, None] + self.positions(places)",
    ),
    wrong(
        "scaled-by-root",
        "The vectors of tokens are multiplied by the root of their width: nothing asks for that here.",
        returned="self.tokens(tokens) * self.tokens.embedding_dim**0.5 + self.positions(places)",
    ),
    wrong(
        "divided-by-root",
        "The sum is divided by the root of its width: nothing asks for that here.",
        returned=f"({SUM}) / self.tokens.embedding_dim**0.5",
    ),
    wrong(
        "normalised",
        "The sum is normalised: return it as it is, the norms come later.",
        returned=f"F.layer_norm({SUM}, (self.tokens.embedding_dim,))",
    ),
    wrong(
        "relu", "Numbers below 0 are cut off: the sum of the two vectors may have any sign.", returned=f"({SUM}).relu()"
    ),
    wrong(
        "one-vector-for-a-sequence",
        "The positions are added up: every position should keep a vector of its own.",
        returned=f"({SUM}).sum(dim=1)",
    ),
    wrong(
        "width-before-positions",
        "The axis of positions stands last: the order is batch, positions, width.",
        returned=f"({SUM}).mT",
    ),
    wrong(
        "first-sequence-only",
        "Only the first sequence gets its positions: all of them should.",
        returned="torch.cat([self.tokens(tokens[:1]) + self.positions(places), self.tokens(tokens[1:])])",
    ),
)

SHAPES = "Two shapes do not fit together there. Print the shape of each tensor just before that line."
TABLE = "Make self.{} a table of embeddings in __init__: how many there are, then how wide each is."
TOKENS, POSITIONS = TABLE.format("tokens"), TABLE.format("positions")
NOT_REACHED = "No line of yours was reached: compare the names and arguments of your `def` with the given ones."

MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "Embed.forward", longer=(3, 13)),
    loses_a_length_of_one(MODEL_ANSWER, "Embed.forward"),
    only_in_training(MODEL_ANSWER, "Embed.forward"),
    wrong("counted-from-one-until-it-overflows", FROM_ONE, places="torch.arange(1, n + 1)"),
    wrong("tables-swapped-until-it-overflows", SWAPPED, returned="self.positions(tokens) + self.tokens(places)"),
    wrong("one-table-until-it-overflows", ONE_TABLE, returned="self.tokens(tokens) + self.tokens(places)"),
    wrong("numbers-of-sequences-unshaped", SHAPES, places="torch.arange(b)"),
    wrong("whole-table", SHAPES, returned="self.tokens(tokens) + self.positions.weight"),
    wrong("one-number-for-all", ERROR, places="n"),
    wrong("tokens-detached", CUT, returned="self.tokens(tokens).detach() + self.positions(places)"),
    wrong("positions-detached", CUT, returned="self.tokens(tokens) + self.positions.weight.data[:n]"),
    edited(
        "token-zero-never-learns",
        PADDING_INDEX,
        MODEL_ANSWER,
        ("(vocab_size, hidden)", "(vocab_size, hidden, padding_idx=0)"),
    ),
    edited(
        "sizes-in-another-order", TOKENS, MODEL_ANSWER, ("vocab_size, hidden, max_len", "hidden, vocab_size, max_len")
    ),
    edited("tokens-turned-round", TOKENS, MODEL_ANSWER, ("(vocab_size, hidden)", "(hidden, vocab_size)")),
    edited("positions-turned-round", POSITIONS, MODEL_ANSWER, ("(max_len, hidden)", "(hidden, max_len)")),
    edited("a-position-for-each-token", POSITIONS, MODEL_ANSWER, ("(max_len, hidden)", "(vocab_size, hidden)")),
    edited("one-row-more", POSITIONS, MODEL_ANSWER, ("(max_len, hidden)", "(max_len + 1, hidden)")),
    edited("linear-for-a-table", TOKENS, MODEL_ANSWER, ("tokens = nn.Embedding", "tokens = nn.Linear")),
    edited("another-name", OTHER_NAME, MODEL_ANSWER, ("self.positions = nn", "self.places = nn")),
    WrongAnswer("the-package-s-own", NOT_YOURS, "from transformer_lm.modeling_lm import Embed\n"),
    edited("forward-misspelt", NOT_REACHED, MODEL_ANSWER, ("def forward", "def foward")),
    edited("nothing-returned", "Return output as one tensor.", MODEL_ANSWER, (f"return {SUM}", SUM)),
)

FORWARDS = {
    "one-line": """\
    def forward(self, tokens):
        return self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
""",
    "with-a-batch-axis": """\
    def forward(self, tokens):
        b, n = tokens.shape
        places = torch.arange(n, device=tokens.device).unsqueeze(0).expand(b, n)  # (b, n)
        return torch.add(self.positions(places), self.tokens(tokens))  # (b, n, hidden)
""",
    "places-like-tokens": """\
    def forward(self, tokens):
        places = torch.ones_like(tokens).cumsum(dim=1) - 1
        return F.embedding(tokens, self.tokens.weight) + F.embedding(places, self.positions.weight)
""",
    "position-by-position": """\
    def forward(self, tokens):
        columns = [self.tokens(column) + self.positions.weight[i] for i, column in enumerate(tokens.T)]
        return torch.stack(columns, dim=1)
""",
    "sequence-by-sequence": """\
    def forward(self, tokens):
        places = torch.tensor(range(tokens.size(1)), device=tokens.device)
        return torch.stack([self.tokens(sequence) + self.positions(places) for sequence in tokens])
""",
    "token-by-token": """\
    def forward(self, tokens):
        rows = []
        for sequence in tokens.tolist():
            rows += [self.tokens.weight[token] + self.positions.weight[i] for i, token in enumerate(sequence)]
        return torch.stack(rows).reshape(*tokens.shape, -1)
""",
    "rows-of-tables": """\
    def forward(self, tokens):
        vectors, n = self.tokens.weight[tokens], tokens.shape[-1]
        return vectors + self.positions.weight.narrow(0, 0, n)[None]
""",
    "one-hot-products": """\
    def forward(self, tokens):
        words, places = self.tokens.weight, self.positions.weight
        chosen = F.one_hot(tokens, len(words)).to(words.dtype)  # (b, n, v)
        counted = torch.eye(tokens.shape[1], len(places), device=tokens.device)  # (n, max_len)
        return chosen @ words + counted @ places
""",
    "added-in-place-to-a-new-tensor": """\
    def forward(self, tokens):
        x = self.tokens(tokens)
        x += self.positions(torch.arange(x.size(1), device=x.device))
        return x
""",
    "one-lookup": """\
    def forward(self, tokens):
        table = torch.cat([self.tokens.weight, self.positions.weight])
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens) + self.tokens.num_embeddings
        return F.embedding(torch.stack([tokens, places]), table).sum(dim=0)
""",
}

COUNTED_ONCE = """\
class Embed(nn.Module):
    def __init__(self, vocab_size, hidden, max_len):
        super(Embed, self).__init__()
        self.max_len = max_len
        self.positions = nn.Embedding(num_embeddings=max_len, embedding_dim=hidden)
        self.tokens = nn.Embedding(num_embeddings=vocab_size, embedding_dim=hidden)
        self.register_buffer("numbers", torch.arange(max_len))

    def forward(self, tokens):
        if tokens.shape[1] > self.max_len:
            raise ValueError(f"tokens must have at most {self.max_len} positions, got {tokens.shape[1]}.")
        return self.tokens(tokens) + self.positions(self.numbers[: tokens.shape[1]])
"""

EMBED_RECORD = ValueRecord(
    public=EMBED,
    title="Tokens and positions as vectors",
    defines="Embed",
    parts=(Part("embed-check", 2, values),),
    properties=(),
    first_sizes={"b": 2, "n": 5, "hidden": 7, "v": 12, "spare": 11},
    other_length={"b": 3, "n": 13},
    other_sizes={"b": 4, "n": 6, "hidden": 10, "v": 15, "spare": 13, "magnitude": 4},
    ones=("n",),
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right={name: INIT + forward for name, forward in FORWARDS.items()} | {"counted-once": COUNTED_ONCE},
)
