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


def wrong(name: str, places: str = PLACES, returned: str = SUM, hint: str = "") -> WrongAnswer:
    """Return the answer that counts positions in another way, or uses their embeddings in another way."""
    return edited(name, MODEL_ANSWER, (PLACES, places), (SUM, returned), hint=hint)


WRONG = (
    # Where counting from 1 raises an error, everything before the error is the same as here.
    wrong("counted-from-one", places="torch.arange(1, n + 1) % max_len"),
    wrong("counted-from-the-end", places="torch.arange(n).flip(0)"),
    wrong("last-rows", places="torch.arange(max_len - n, max_len)"),
    wrong("stretched", places="torch.arange(n) * (max_len - 1) // (n - 1)"),
    wrong("all-the-first", places="torch.zeros(n, dtype=torch.long)"),
    wrong("numbers-of-sequences", places="torch.arange(b)[:, None]"),
    wrong("counted-through-the-batch", places="torch.arange(b * n).view(b, n) % max_len"),
    wrong("positions-replace-input", returned="self.positions(places).expand_as(x)"),
    wrong("no-batch", returned="self.positions(places)"),
    wrong("positions-left-out", returned="x"),
    wrong("multiplied", returned="x * self.positions(places)"),
    wrong("subtracted", returned="x - self.positions(places)"),
    wrong("averaged", returned="(x + self.positions(places)) / 2"),
    wrong("concatenated", returned="torch.cat([x, self.positions(places).expand_as(x)], dim=-1)"),
    wrong("appended", returned="torch.cat([x, self.positions(places).expand_as(x)], dim=1)"),
    wrong("added-twice", returned="x + self.positions(places) + self.positions(places)"),
    wrong("mean-of-positions", returned="x + self.positions(places).mean(dim=0)"),
    wrong("mean-of-the-table", returned="x + self.positions.weight.mean(dim=0)"),
    wrong("numbers-added", returned="x + places[:, None]"),
    wrong("input-scaled", returned="x * hidden**0.5 + self.positions(places)"),
    wrong(
        "first-sequence-only",
        returned="torch.cat([x[:1] + self.positions(places), x[1:]])",
        hint="positions-of-the-first-sequence-only",
    ),
)

BEHAVIOURS = misbehaviours(MODEL_ANSWER, "PositionEmbedding.forward", longer=(3, 13))

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name != "changes-its-input"),  # the gradient of a sum does not need its input
    loses_a_length_of_one(MODEL_ANSWER, "PositionEmbedding.forward"),
    only_in_training(MODEL_ANSWER, "PositionEmbedding.forward"),
    wrong("counted-from-one-until-it-overflows", places="torch.arange(1, n + 1)", hint="counted-from-one"),
    edited(
        "adds-to-its-input",
        MODEL_ANSWER,
        (f"return {SUM}", "x += self.positions(places)\n        return x"),
        hint="input-changed",
    ),
    wrong("numbers-of-features", places="torch.arange(hidden)", hint="shapes-do-not-fit"),
    wrong("numbers-of-sequences-unshaped", places="torch.arange(b)", hint="shapes-do-not-fit"),
    wrong("whole-table", returned="x + self.positions.weight", hint="shapes-do-not-fit"),
    edited("one-row-more", MODEL_ANSWER, ("(max_len, hidden)", "(max_len + 1, hidden)"), hint="not-an-embedding-table"),
    edited(
        "table-turned-round", MODEL_ANSWER, ("(max_len, hidden)", "(hidden, max_len)"), hint="not-an-embedding-table"
    ),
    edited("linear-for-a-table", MODEL_ANSWER, ("nn.Embedding", "nn.Linear"), hint="not-an-embedding-table"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {SUM}", SUM), hint="not-a-tensor"),
    edited("visible-not-taken", MODEL_ANSWER, (", visible=None", ""), hint="not-reached"),
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
