"""The exercise of topic 02 about the causal mask."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
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

MASK_WRONG = (
    edited("hides-diagonal", MASK_ANSWER, (LOWER, ".tril(diagonal=-1)")),
    edited("inverted", MASK_ANSWER, (LOWER, ".triu(diagonal=1)")),
    edited("wrong-triangle", MASK_ANSWER, (LOWER, ".triu()")),
    edited("all-visible", MASK_ANSWER, (LOWER, "")),
    edited("nothing-visible", MASK_ANSWER, ("torch.ones", "torch.zeros")),
    edited("one-too-many", MASK_ANSWER, (LOWER, ".tril(diagonal=1)")),
    edited("itself-only", MASK_ANSWER, (ONES + LOWER, "torch.eye(max_len, dtype=torch.bool)[None]")),
    edited("one-step-back", MASK_ANSWER, (LOWER, ".tril().triu(diagonal=-1)")),
    edited("flipped", MASK_ANSWER, (LOWER, ".tril().flip(-1)")),
    edited("upside-down", MASK_ANSWER, (LOWER, ".tril().flip(1)")),
    edited("one-too-small", MASK_ANSWER, (ONES, "torch.ones(1, max_len - 1, max_len - 1, dtype=torch.bool)")),
    edited("one-too-large", MASK_ANSWER, (ONES, "torch.ones(1, max_len + 1, max_len + 1, dtype=torch.bool)")),
    edited("no-batch-axis", MASK_ANSWER, ("1, max_len, max_len", "max_len, max_len")),
    edited("two-axes-too-many", MASK_ANSWER, ("1, max_len, max_len", "1, 1, max_len, max_len")),
    edited(
        "batch-axis-last",
        MASK_ANSWER,
        (ONES + LOWER, "torch.ones(max_len, max_len, dtype=torch.bool).tril()[:, :, None]"),
    ),
    edited("batch-of-max-len", MASK_ANSWER, ("1, max_len, max_len", "max_len, max_len, max_len")),
)

COUNTED = """\
made = []


def create_causal_mask(max_len):
    made.append(max_len)
    {change}
    return torch.ones(1, max_len, max_len, dtype=torch.bool).tril()
"""


def remembering(name: str, change: str, hint: str = "") -> WrongAnswer:
    """Return the answer that remembers its first call and then does something else."""
    return WrongAnswer(name, COUNTED.format(change=change), hint=hint)


MASK_MISBEHAVING = (
    edited("of-floats", MASK_ANSWER, (", dtype=torch.bool", ""), hint="not-boolean"),
    edited("of-whole-numbers", MASK_ANSWER, ("torch.bool", "torch.int64"), hint="not-boolean"),
    edited("of-bytes", MASK_ANSWER, ("torch.bool", "torch.uint8"), hint="not-boolean"),
    edited(
        "to-be-added",
        MASK_ANSWER,
        (ONES + LOWER, "torch.full((1, max_len, max_len), -math.inf).triu(diagonal=1)"),
        hint="not-boolean",
    ),
    edited(
        "lower-triangle-of-infinity",
        MASK_ANSWER,
        (ONES + LOWER, "torch.full((1, max_len, max_len), -math.inf).tril(diagonal=-1)"),
        hint="not-boolean",
    ),
    edited("fixed-size", MASK_ANSWER, (ONES, "torch.ones(1, 5, 5, dtype=torch.bool)"), hint="other-length"),
    edited("short-memory", MASK_ANSWER, (LOWER, ".tril().triu(diagonal=-8)"), hint="other-length"),
    remembering("kept-from-the-first-call", "max_len = made[0]", hint="other-length"),
    remembering("differs-the-second-time", "max_len -= len(made) - 1", hint="called-again"),
    remembering("fits-known-sizes", "max_len = min(max_len, 17)", hint="other-sizes"),
    edited("rows-as-lists", MASK_ANSWER, (LOWER, ".tril().tolist()"), hint="not-a-tensor"),
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
