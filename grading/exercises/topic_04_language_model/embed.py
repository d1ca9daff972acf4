"""The exercise of topic 04 about embeddings: the vector of each token plus the vector of its position."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import loses_a_length_of_one, misbehaviours, only_in_training
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.topic_04_language_model.embed import EMBED


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


def wrong(name: str, places: str = PLACES, returned: str = SUM, hint: str = "") -> WrongAnswer:
    """Return the answer that counts positions in another way, or uses the vectors in another way."""
    return edited(name, MODEL_ANSWER, (PLACES, places), (SUM, returned), hint=hint)


WRONG = (
    wrong("positions-replace-tokens", returned="self.positions(places).expand(b, -1, -1)"),
    wrong("no-batch", returned="self.positions(places)"),
    wrong("positions-left-out", returned="self.tokens(tokens)"),
    # Where counting from 1 raises an error, everything before the error is the same as here.
    wrong("counted-from-one", places="torch.arange(1, n + 1) % max_len"),
    wrong("counted-from-the-end", places="torch.arange(n).flip(0)"),
    wrong("last-rows", places="torch.arange(max_len - n, max_len)"),
    wrong("all-the-first", places="torch.zeros(n, dtype=torch.long)"),
    wrong("numbers-of-sequences", places="torch.arange(b)[:, None]"),
    wrong("counted-through-the-batch", places="torch.arange(b * n).view(b, n) % max_len"),
    wrong("tokens-in-both-tables", places="tokens % max_len"),
    wrong("tables-swapped", returned="self.positions(tokens % max_len) + self.tokens(places % vocab_size)"),
    wrong("one-table-for-both", returned="self.tokens(tokens) + self.tokens(places % vocab_size)"),
    wrong("multiplied", returned=SUM.replace("+", "*")),
    wrong("subtracted", returned=SUM.replace("+", "-")),
    wrong("averaged", returned=f"({SUM}) / 2"),
    wrong(
        "concatenated", returned="torch.cat([self.tokens(tokens), self.positions(places).expand(b, -1, -1)], dim=-1)"
    ),
    wrong("appended", returned="torch.cat([self.tokens(tokens), self.positions(places).expand(b, -1, -1)], dim=1)"),
    wrong("added-twice", returned=f"{SUM} + self.positions(places)"),
    wrong("tokens-added-twice", returned=f"{SUM} + self.tokens(tokens)"),
    wrong("mean-of-positions", returned="self.tokens(tokens) + self.positions(places).mean(dim=0)"),
    wrong("tokens-averaged", returned="self.tokens(tokens).mean(dim=1, keepdim=True) + self.positions(places)"),
    wrong("numbers-of-positions-added", returned="self.tokens(tokens) + places[:, None]"),
    wrong("numbers-of-tokens-added", returned="tokens[:, :, None] + self.positions(places)"),
    wrong("scaled-by-root", returned="self.tokens(tokens) * self.tokens.embedding_dim**0.5 + self.positions(places)"),
    wrong("divided-by-root", returned=f"({SUM}) / self.tokens.embedding_dim**0.5"),
    wrong("normalised", returned=f"F.layer_norm({SUM}, (self.tokens.embedding_dim,))"),
    wrong("relu", returned=f"({SUM}).relu()"),
    wrong("one-vector-for-a-sequence", returned=f"({SUM}).sum(dim=1)"),
    wrong("width-before-positions", returned=f"({SUM}).mT"),
    wrong(
        "first-sequence-only",
        returned="torch.cat([self.tokens(tokens[:1]) + self.positions(places), self.tokens(tokens[1:])])",
        hint="positions-of-the-first-sequence-only",
    ),
)


MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "Embed.forward", longer=(3, 13)),
    loses_a_length_of_one(MODEL_ANSWER, "Embed.forward"),
    only_in_training(MODEL_ANSWER, "Embed.forward"),
    wrong("counted-from-one-until-it-overflows", places="torch.arange(1, n + 1)", hint="counted-from-one"),
    wrong(
        "tables-swapped-until-it-overflows",
        returned="self.positions(tokens) + self.tokens(places)",
        hint="tables-swapped",
    ),
    wrong(
        "one-table-until-it-overflows", returned="self.tokens(tokens) + self.tokens(places)", hint="one-table-for-both"
    ),
    wrong("numbers-of-sequences-unshaped", places="torch.arange(b)", hint="shapes-do-not-fit"),
    wrong("whole-table", returned="self.tokens(tokens) + self.positions.weight", hint="shapes-do-not-fit"),
    wrong("one-number-for-all", places="n", hint="raises"),
    wrong("tokens-detached", returned="self.tokens(tokens).detach() + self.positions(places)", hint="graph-cut"),
    wrong("positions-detached", returned="self.tokens(tokens) + self.positions.weight.data[:n]", hint="graph-cut"),
    edited("token-zero-never-learns", MODEL_ANSWER, ("(vocab_size, hidden)", "(vocab_size, hidden, padding_idx=0)")),
    edited(
        "sizes-in-another-order",
        MODEL_ANSWER,
        ("vocab_size, hidden, max_len", "hidden, vocab_size, max_len"),
        hint="not-an-embedding-table",
    ),
    edited(
        "tokens-turned-round",
        MODEL_ANSWER,
        ("(vocab_size, hidden)", "(hidden, vocab_size)"),
        hint="not-an-embedding-table",
    ),
    edited(
        "positions-turned-round",
        MODEL_ANSWER,
        ("(max_len, hidden)", "(hidden, max_len)"),
        hint="not-an-embedding-table",
    ),
    edited(
        "a-position-for-each-token",
        MODEL_ANSWER,
        ("(max_len, hidden)", "(vocab_size, hidden)"),
        hint="not-an-embedding-table",
    ),
    edited("one-row-more", MODEL_ANSWER, ("(max_len, hidden)", "(max_len + 1, hidden)"), hint="not-an-embedding-table"),
    edited(
        "linear-for-a-table",
        MODEL_ANSWER,
        ("tokens = nn.Embedding", "tokens = nn.Linear"),
        hint="not-an-embedding-table",
    ),
    edited("another-name", MODEL_ANSWER, ("self.positions = nn", "self.places = nn")),
    WrongAnswer("the-package-s-own", "from transformer_lm.modeling_lm import Embed\n", hint="not-yours"),
    edited("forward-misspelt", MODEL_ANSWER, ("def forward", "def foward"), hint="not-reached"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {SUM}", SUM), hint="not-a-tensor"),
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
