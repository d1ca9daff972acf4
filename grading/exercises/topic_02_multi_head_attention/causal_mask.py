"""The exercise of topic 02 about the causal mask."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.engine.calling import CALLED_AGAIN, OTHER_LENGTH, OTHER_SIZES
from transformer_lm.checks.topic_02_multi_head_attention.causal_mask import CAUSAL_MASK


def draw_mask(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return the length of the longest sequence."""
    return {"max_len": np.array(sizes["max_len"])}


def reference_mask(case: Arrays) -> Arrays:
    """Return 1 where the query does not come before the key, else 0."""
    positions = np.arange(int(case["max_len"]))
    return {"visible": (positions[:, None] >= positions)[None].astype(np.float64)}


MASK_ANSWER = """\
def create_causal_mask(max_len):
    return torch.ones(1, max_len, max_len, dtype=torch.bool).tril()
"""

LOWER = ".tril()"
ONES = "torch.ones(1, max_len, max_len, dtype=torch.bool)"
OTHER_SIZE = "The mask has a row and a column {} for the longest sequence: both its axes have max_len entries."

MASK_WRONG = (
    edited(
        "hides-diagonal",
        "The diagonal is False: a position may read itself, and the first one would see nothing at all.",
        MASK_ANSWER,
        (LOWER, ".tril(diagonal=-1)"),
    ),
    edited(
        "inverted",
        "The mask is inverted: True means that a query may read a key, not that the key is hidden from it.",
        MASK_ANSWER,
        (LOWER, ".triu(diagonal=1)"),
    ),
    edited(
        "wrong-triangle",
        "The past is hidden and the future visible: rows are the queries that read, columns the keys they read.",
        MASK_ANSWER,
        (LOWER, ".triu()"),
    ),
    edited("all-visible", "Everything is visible: nothing hides the future.", MASK_ANSWER, (LOWER, "")),
    edited("nothing-visible", "Nothing is visible: every entry is False.", MASK_ANSWER, ("torch.ones", "torch.zeros")),
    edited(
        "one-too-many",
        "One position of the future is visible to each query: the triangle reaches a step too far.",
        MASK_ANSWER,
        (LOWER, ".tril(diagonal=1)"),
    ),
    edited(
        "itself-only",
        "Each position sees itself alone: what came before it is hidden too.",
        MASK_ANSWER,
        (ONES + LOWER, "torch.eye(max_len, dtype=torch.bool)[None]"),
    ),
    edited(
        "one-step-back",
        "Only the last two positions are visible: a query may read all that came before it, however far back.",
        MASK_ANSWER,
        (LOWER, ".tril().triu(diagonal=-1)"),
    ),
    edited(
        "flipped",
        "The triangle is mirrored: it follows the diagonal from the upper right, not the one from the upper left.",
        MASK_ANSWER,
        (LOWER, ".tril().flip(-1)"),
    ),
    edited(
        "upside-down",
        "The triangle stands on its head: the first query sees everything, the last one a single key.",
        MASK_ANSWER,
        (LOWER, ".tril().flip(1)"),
    ),
    edited(
        "one-too-small",
        OTHER_SIZE.format("too few"),
        MASK_ANSWER,
        (ONES, "torch.ones(1, max_len - 1, max_len - 1, dtype=torch.bool)"),
    ),
    edited(
        "one-too-large",
        OTHER_SIZE.format("too many"),
        MASK_ANSWER,
        (ONES, "torch.ones(1, max_len + 1, max_len + 1, dtype=torch.bool)"),
    ),
    edited(
        "no-batch-axis",
        "The first axis is missing, the one of size 1 that stands for every sequence of a batch.",
        MASK_ANSWER,
        ("1, max_len, max_len", "max_len, max_len"),
    ),
    edited(
        "two-axes-too-many",
        "There is an axis too many: one of size 1 for the batch, then queries, then keys.",
        MASK_ANSWER,
        ("1, max_len, max_len", "1, 1, max_len, max_len"),
    ),
    edited(
        "batch-axis-last",
        "The axis of size 1 stands last: the batch comes first, as everywhere.",
        MASK_ANSWER,
        (ONES + LOWER, "torch.ones(max_len, max_len, dtype=torch.bool).tril()[:, :, None]"),
    ),
    edited(
        "batch-of-max-len",
        "The first axis has max_len entries: one mask is enough for every sequence of a batch.",
        MASK_ANSWER,
        ("1, max_len, max_len", "max_len, max_len, max_len"),
    ),
)

NOT_BOOLEAN = "A mask is of True and False, dtype torch.bool: with numbers in it, `~visible` fails or turns odd."
COUNTED = """\
made = []


def create_causal_mask(max_len):
    made.append(max_len)
    {change}
    return torch.ones(1, max_len, max_len, dtype=torch.bool).tril()
"""


def remembering(name: str, hint: str, change: str) -> WrongAnswer:
    """Return the answer that remembers its first call and then does something else."""
    return WrongAnswer(name, hint, COUNTED.format(change=change))


MASK_MISBEHAVING = (
    edited("of-floats", NOT_BOOLEAN, MASK_ANSWER, (", dtype=torch.bool", "")),
    edited("of-whole-numbers", NOT_BOOLEAN, MASK_ANSWER, ("torch.bool", "torch.int64")),
    edited("of-bytes", NOT_BOOLEAN, MASK_ANSWER, ("torch.bool", "torch.uint8")),
    edited(
        "to-be-added",
        NOT_BOOLEAN,
        MASK_ANSWER,
        (ONES + LOWER, "torch.full((1, max_len, max_len), -math.inf).triu(diagonal=1)"),
    ),
    edited(
        "lower-triangle-of-infinity",
        NOT_BOOLEAN,
        MASK_ANSWER,
        (ONES + LOWER, "torch.full((1, max_len, max_len), -math.inf).tril(diagonal=-1)"),
    ),
    edited("fixed-size", OTHER_LENGTH, MASK_ANSWER, (ONES, "torch.ones(1, 5, 5, dtype=torch.bool)")),
    edited(
        "short-memory",
        OTHER_LENGTH,
        MASK_ANSWER,
        (LOWER, ".tril().triu(diagonal=-8)"),
    ),
    remembering("kept-from-the-first-call", OTHER_LENGTH, "max_len = made[0]"),
    remembering("differs-the-second-time", CALLED_AGAIN, "max_len -= len(made) - 1"),
    remembering("fits-known-sizes", OTHER_SIZES, "max_len = min(max_len, 17)"),
    edited(
        "rows-as-lists",
        "Return visible as one tensor.",
        MASK_ANSWER,
        (LOWER, ".tril().tolist()"),
    ),
)

MASK_RIGHT = {
    "compared-positions": """\
def create_causal_mask(max_len):
    position = torch.arange(max_len)
    return (position[:, None] >= position[None, :]).unsqueeze(0)
""",
    "zeros-above": """\
def create_causal_mask(max_len):
    return (torch.triu(torch.ones(max_len, max_len), diagonal=1) == 0)[None]
""",
    "inverted-upper-triangle": """\
def create_causal_mask(max_len):
    future = torch.ones((1, max_len, max_len), dtype=torch.bool).triu(1)
    return ~future
""",
    "numbers-first": """\
def create_causal_mask(max_len):
    return torch.tril(torch.ones(max_len, max_len)).view(1, max_len, max_len).bool()
""",
    "loop": """\
def create_causal_mask(max_len):
    visible = torch.zeros(1, max_len, max_len, dtype=torch.bool)
    for i in range(max_len):
        visible[0, i, : i + 1] = True
    return visible
""",
    "list-of-lists": """\
def create_causal_mask(max_len):
    return torch.tensor([[[key <= query for key in range(max_len)] for query in range(max_len)]])
""",
    "running-sum": """\
def create_causal_mask(max_len):
    return torch.eye(max_len).cumsum(dim=0).gt(0).reshape(1, max_len, -1)
""",
    "indices": """\
def create_causal_mask(max_len):
    visible = torch.full((max_len, max_len), False)
    rows, columns = torch.tril_indices(max_len, max_len)
    visible[rows, columns] = True
    return visible.expand(1, -1, -1)
""",
    "torch-own": """\
def create_causal_mask(max_len):
    return nn.Transformer.generate_square_subsequent_mask(max_len).isfinite().unsqueeze(0)
""",
    "numpy": """\
import numpy as np


def create_causal_mask(max_len):
    return torch.from_numpy(np.tri(max_len, dtype=bool)[np.newaxis])
""",
}

CAUSAL_MASK_RECORD = ValueRecord(
    public=CAUSAL_MASK,
    title="A causal mask",
    defines="create_causal_mask",
    parts=(Part("causal-mask-check", 1, values),),
    properties=(),
    first_sizes={"max_len": 5},
    other_length={"max_len": 13},
    other_sizes={"max_len": 6},
    draw=draw_mask,
    reference=reference_mask,
    model_answer=MASK_ANSWER,
    wrong=MASK_WRONG,
    misbehaving=MASK_MISBEHAVING,
    right=MASK_RIGHT,
)
