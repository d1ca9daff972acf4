"""The exercise of topic 03 about position embeddings: a learned vector for each position, added to the input."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import loses_a_length_of_one, misbehaviours, only_in_training
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.topic_03_classification.position_embedding import POSITION_EMBEDDING


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input, with embeddings for its positions and a few more."""
    b, n, hidden, spare = (sizes[name] for name in ("b", "n", "hidden", "spare"))
    return {
        "x": dyadic(rng, b, n, hidden, bound=2 * sizes.get("magnitude", 1)),
        "positions_weight": dyadic(rng, n + spare, hidden, bound=2),
    }


def reference(case: Arrays) -> Arrays:
    """Return x plus embeddings, position by position, for this input and for one as long as the table of embeddings."""
    x, table = case["x"], case["positions_weight"]
    b, n, _ = x.shape
    full = np.zeros((b, *table.shape))
    for sequence in range(b):
        for position in range(len(table) - sequence):  # the rest is padding
            full[sequence, position] = x[sequence, position % n] + table[position]
    return {
        "output": np.stack([x[:, position] + table[position] for position in range(n)], axis=1),
        "output_full": full,
    }


# --- answers ------------------------------------------------------------------------------------

INIT = """\
class PositionEmbedding(nn.Module):
    def __init__(self, max_len, hidden):
        super().__init__()
        self.positions = nn.Embedding(max_len, hidden)

"""

FORWARD = """\
    def forward(self, x, visible=None):
        b, n, hidden = x.shape
        max_len = self.positions.num_embeddings
        places = torch.arange(n, device=x.device)
        return x + self.positions(places)
"""

MODEL_ANSWER = INIT + FORWARD

PLACES = "torch.arange(n, device=x.device)"
SUM = "x + self.positions(places)"


def wrong(name: str, hint: str, places: str = PLACES, returned: str = SUM) -> WrongAnswer:
    """Return the answer that counts positions in another way, or uses their embeddings in another way."""
    return edited(name, hint, MODEL_ANSWER, (PLACES, places), (SUM, returned))


FROM_ONE = "Positions are counted from 1: the first row of the table is never used, and the last position has none."

WRONG = (
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
        "stretched",
        "Positions are stretched over the whole table: they should be counted one by one.",
        places="torch.arange(n) * (max_len - 1) // (n - 1)",
    ),
    wrong(
        "all-the-first",
        "Every position gets the embedding of position 0: they can't be told apart.",
        places="torch.zeros(n, dtype=torch.long)",
    ),
    wrong(
        "numbers-of-sequences",
        "What is counted are the sequences of the batch: all positions of a sequence get the same embedding.",
        places="torch.arange(b)[:, None]",
    ),
    wrong(
        "counted-through-the-batch",
        "Positions are counted on from one sequence to the next: each sequence begins at position 0.",
        places="torch.arange(b * n).view(b, n) % max_len",
    ),
    wrong(
        "positions-replace-input",
        "The embeddings of positions take the place of x: add them, or the words are lost.",
        returned="self.positions(places).expand_as(x)",
    ),
    wrong(
        "no-batch",
        "Only the embeddings of the positions are returned: x is lost, and with it the batch.",
        returned="self.positions(places)",
    ),
    wrong("positions-left-out", "The embeddings of positions have no effect: x comes back as it was.", returned="x"),
    wrong(
        "multiplied",
        "The embeddings of positions are multiplied with x: they should be added.",
        returned="x * self.positions(places)",
    ),
    wrong(
        "subtracted",
        "The embeddings of positions are subtracted: they should be added.",
        returned="x - self.positions(places)",
    ),
    wrong(
        "averaged",
        "The mean of x and the embeddings of positions is returned: add them, and do not halve.",
        returned="(x + self.positions(places)) / 2",
    ),
    wrong(
        "concatenated",
        "The embeddings of positions stand beside x and make it wider: they should be added.",
        returned="torch.cat([x, self.positions(places).expand_as(x)], dim=-1)",
    ),
    wrong(
        "appended",
        "The embeddings of positions are appended as further positions: they should be added to x.",
        returned="torch.cat([x, self.positions(places).expand_as(x)], dim=1)",
    ),
    wrong(
        "added-twice",
        "The embeddings of positions are added twice.",
        returned="x + self.positions(places) + self.positions(places)",
    ),
    wrong(
        "mean-of-positions",
        "The mean of the embeddings is added: every position needs its own.",
        returned="x + self.positions(places).mean(dim=0)",
    ),
    wrong(
        "mean-of-the-table",
        "The mean of the whole table is added: every position needs its own row.",
        returned="x + self.positions.weight.mean(dim=0)",
    ),
    wrong(
        "numbers-added",
        "The numbers of the positions are added, not the embeddings that stand for them.",
        returned="x + places[:, None]",
    ),
    wrong(
        "input-scaled",
        "The input is multiplied by the root of its width before the sum: nothing asks for that here.",
        returned="x * hidden**0.5 + self.positions(places)",
    ),
    wrong(
        "first-sequence-only",
        "Only the first sequence gets its positions: all of them should.",
        returned="torch.cat([x[:1] + self.positions(places), x[1:]])",
    ),
)

CHANGED = "Something works in place, such as `+=` or a method that ends in `_`: make a new tensor instead."
NOT_REACHED = "No line of yours was reached: compare the names and arguments of your `def` with the given ones."
SHAPES = "Two shapes do not fit together there. Print the shape of each tensor just before that line."
TABLE = "Make self.positions a table of embeddings in __init__: how many there are, then how wide each is."
BEHAVIOURS = misbehaviours(MODEL_ANSWER, "PositionEmbedding.forward", longer=(3, 13))

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name != "changes-its-input"),  # the gradient of a sum does not need its input
    loses_a_length_of_one(MODEL_ANSWER, "PositionEmbedding.forward"),
    only_in_training(MODEL_ANSWER, "PositionEmbedding.forward"),
    wrong("counted-from-one-until-it-overflows", FROM_ONE, places="torch.arange(1, n + 1)"),
    edited(
        "adds-to-its-input",
        CHANGED,
        MODEL_ANSWER,
        (f"return {SUM}", "x += self.positions(places)\n        return x"),
    ),
    wrong("numbers-of-features", SHAPES, places="torch.arange(hidden)"),
    wrong("numbers-of-sequences-unshaped", SHAPES, places="torch.arange(b)"),
    wrong("whole-table", SHAPES, returned="x + self.positions.weight"),
    edited("one-row-more", TABLE, MODEL_ANSWER, ("(max_len, hidden)", "(max_len + 1, hidden)")),
    edited("table-turned-round", TABLE, MODEL_ANSWER, ("(max_len, hidden)", "(hidden, max_len)")),
    edited("linear-for-a-table", TABLE, MODEL_ANSWER, ("nn.Embedding", "nn.Linear")),
    edited("nothing-returned", "Return output as one tensor.", MODEL_ANSWER, (f"return {SUM}", SUM)),
    edited("visible-not-taken", NOT_REACHED, MODEL_ANSWER, (", visible=None", "")),
)

FORWARDS = {
    "rows-of-the-table": """\
    def forward(self, x, visible=None):
        return x + self.positions.weight[: x.shape[1]]
""",
    "with-a-batch-axis": """\
    def forward(self, x, visible=None):
        b, n, _ = x.shape
        positions = torch.arange(n, device=x.device).unsqueeze(0).expand(b, n)  # (b, n)
        return x + self.positions(positions)  # (b, n, hidden)
""",
    "expanded": """\
    def forward(self, x, visible=None):
        b, n, hidden = x.size()
        embedded = self.positions(torch.arange(n, device=x.device))[None, :, :].expand(b, n, hidden)
        return torch.add(embedded, x)
""",
    "position-by-position": """\
    def forward(self, x, visible=None):
        rows = [x[:, i] + self.positions.weight[i] for i in range(x.size(1))]
        return torch.stack(rows, dim=1)
""",
    "sequence-by-sequence": """\
    def forward(self, x, visible=None):
        numbers = torch.tensor(list(range(x.shape[1])), device=x.device)
        return torch.stack([sequence + self.positions(numbers) for sequence in x])
""",
    "counted-by-a-running-sum": """\
    def forward(self, x, visible=None):
        positions = torch.ones(x.shape[:2], dtype=torch.long, device=x.device).cumsum(dim=1) - 1
        return x + F.embedding(positions, self.positions.weight)
""",
    "real-tokens-counted": """\
    def forward(self, x, visible=None):
        if visible is None:
            visible = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return x + self.positions(visible.cumsum(dim=1) - 1)
""",
    "padding-left-alone": """\
    def forward(self, x, visible=None):
        embedded = self.positions(torch.arange(x.shape[1], device=x.device)).expand_as(x)
        return x + embedded if visible is None else torch.where(visible[:, :, None], x + embedded, torch.nan)
""",
    "in-place-on-a-copy": """\
    def forward(self, x, visible=None):
        output = x.clone()
        output += self.positions(torch.arange(x.shape[-2], device=x.device))
        return output
""",
    "one-hot": """\
    def forward(self, x, visible=None):
        table = self.positions.weight
        return torch.eye(x.shape[1], len(table), device=x.device, dtype=x.dtype) @ table + x
""",
}

COUNTED_ONCE = """\
class PositionEmbedding(nn.Module):
    def __init__(self, max_len, hidden):
        super(PositionEmbedding, self).__init__()
        self.max_len = max_len
        self.positions = nn.Embedding(num_embeddings=max_len, embedding_dim=hidden)
        self.register_buffer("numbers", torch.arange(max_len))

    def forward(self, x, visible=None):
        if x.shape[1] > self.max_len:
            raise ValueError(f"x must have at most {self.max_len} positions, got {x.shape[1]}.")
        return x + self.positions(self.numbers[: x.shape[1]])
"""

POSITION_EMBEDDING_RECORD = ValueRecord(
    public=POSITION_EMBEDDING,
    title="An embedding for each position",
    defines="PositionEmbedding",
    parts=(Part("position-embedding-check", 2, values),),
    properties=(SEQUENCES_APART, input_matters("output")),
    first_sizes={"b": 2, "n": 5, "hidden": 7, "spare": 11},
    other_length={"b": 3, "n": 13},
    other_sizes={"b": 4, "n": 6, "hidden": 10, "spare": 3, "magnitude": 4},
    ones=("n",),
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right={name: INIT + forward for name, forward in FORWARDS.items()} | {"counted-once": COUNTED_ONCE},
)
