"""Exercise of topic 03: one vector for each sequence, from its real tokens alone."""

import functools
import random

import numpy as np
from numpy.typing import NDArray

from grading.judge import part_values, right
from grading.mistakes import misbehaviours
from grading.properties import SEQUENCES_APART, input_matters
from grading.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.classifier import POOLED, POOLS
from transformer_lm.checks.exercise import OTHER_SIZES

MEAN, MAX, SELECT = PARTS = tuple(f"{how}-pool-check" for how in POOLS)


def draw_visible(rng: random.Random, b: int, n: int) -> NDArray[np.bool_]:
    """Return where real tokens stand, (b, n): the first sequence has padding, the last has none."""
    lengths = [2 + int(rng.random() * (n - 2)) for _ in range(b - 1)] + [n]
    return np.arange(n) < np.array(lengths)[:, None]


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input whose padding is larger than its real tokens; of these, the first feature is always negative.

    No number comes twice in a feature, so there is one largest.
    """
    b, n, hidden = (sizes[name] for name in ("b", "n", "hidden"))
    visible = draw_visible(rng, b, n)
    x = dyadic(rng, b, n, hidden, bound=2) + np.arange(n)[:, None] / 64**2  # less than the steps between them
    x[~visible] += 6
    x[:, :, 0] -= np.where(visible, 6, 0)
    return {"x": x * sizes.get("magnitude", 1), "visible": visible}


def reference(case: Arrays) -> Arrays:
    """Return the three pools, one sequence after the other."""
    sequences = [x[visible] for x, visible in zip(case["x"], case["visible"], strict=True)]
    return {
        "mean": np.stack([x.mean(axis=0) for x in sequences]),
        "max": np.stack([x.max(axis=0) for x in sequences]),
        "select": np.stack([x[0] for x in sequences]),
    }


def is_right(how: str, outputs: Arrays, case: Arrays, expected: Arrays, allowed: dict[str, float]) -> bool:
    """Tell whether one of the pools is right."""
    return right(how, outputs, expected, allowed)


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def pooled(x, visible, how):
    padding = ~visible[:, :, None]
    if how == "mean":
        return x.masked_fill(padding, 0).sum(dim=1) / visible.sum(dim=1, keepdim=True)
    if how == "max":
        return x.masked_fill(padding, -math.inf).amax(dim=1)
    return x[:, 0]
"""

RIGHT_POOLS = {
    "mean": "x.masked_fill(padding, 0).sum(dim=1) / visible.sum(dim=1, keepdim=True)",
    "max": "x.masked_fill(padding, -math.inf).amax(dim=1)",
    "select": "x[:, 0]",
}
COUNT = "visible.sum(dim=1, keepdim=True)"
TOTAL = "x.masked_fill(padding, 0).sum(dim=1)"
POSITIONS = "These are the positions of the largest numbers, not the numbers: look for `argmax`, or for [1]."


def wrong(name: str, hint: str, **pools: str) -> WrongAnswer:
    """Return the answer that computes some pools otherwise, and loses their points."""
    edits = [(f"return {RIGHT_POOLS[how]}\n", f"return {pool}\n") for how, pool in pools.items()]
    return edited(name, hint, MODEL_ANSWER, *edits, fails=tuple(f"{how}-pool-check" for how in pools))


WRONG = (
    wrong(
        "mean-over-padding",
        "The mean runs over padding too: the same sequence gets another vector in a batch of longer ones.",
        mean="x.mean(dim=1)",
    ),
    wrong(
        "mean-divided-by-length",
        "The sum leaves out padding, but is divided by all positions: padding still counts in the number of tokens.",
        mean=f"{TOTAL} / x.shape[1]",
    ),
    wrong(
        "mean-of-everything-by-real-tokens",
        "The sum includes padding; only what it is divided by leaves padding out.",
        mean=f"x.sum(dim=1) / {COUNT}",
    ),
    wrong("mean-not-divided", "This is the sum of the real tokens: longer sequences get larger vectors.", mean=TOTAL),
    wrong(
        "mean-divided-by-the-batch",
        "The sum is divided by the number of real tokens in the whole batch: each sequence has its own number.",
        mean=f"{TOTAL} / visible.sum()",
    ),
    wrong(
        "mean-divided-by-the-first-length",
        "All sums are divided by the length of the first sequence: each sequence has its own number of tokens.",
        mean=f"{TOTAL} / visible[0].sum()",
    ),
    wrong(
        "mean-divided-by-width",
        "The sum is divided by the number of features: a mean over tokens divides by how many tokens there are.",
        mean=f"{TOTAL} / x.shape[2]",
    ),
    wrong(
        "mean-without-the-first",
        "The mean leaves out the first token, which is as real as the others.",
        mean=f"{TOTAL.replace('x.', 'x[:, 1:].').replace('padding', 'padding[:, 1:]')} / ({COUNT} - 1)",
    ),
    wrong(
        "mean-over-features",
        "The mean runs over the features of each token: it should run over tokens.",
        mean="x.mean(dim=2)",
    ),
    wrong(
        "mean-over-batch",
        "The mean runs over the sequences of the batch: each should get a vector of its own.",
        mean="x.mean(dim=0)",
    ),
    wrong(
        "mean-keeps-the-axis",
        "The axis of positions is still there, with size 1: look for `keepdim`.",
        mean=f"({TOTAL} / {COUNT})[:, None]",
    ),
    wrong(
        "max-over-padding",
        "The maximum runs over padding too: what stands there decides, though it means nothing.",
        max="x.amax(dim=1)",
    ),
    wrong(
        "max-with-zeros",
        "Padding is set to 0 before the maximum: where all real numbers are negative, 0 wins.",
        max="x.masked_fill(padding, 0).amax(dim=1)",
    ),
    wrong(
        "max-is-the-minimum",
        "These are the smallest numbers of each feature, not the largest.",
        max="x.masked_fill(padding, math.inf).amin(dim=1)",
    ),
    wrong(
        "max-of-sizes",
        "The largest absolute value is taken: -3 is smaller than 2.",
        max="x.masked_fill(padding, 0).abs().amax(dim=1)",
    ),
    wrong(
        "max-over-features",
        "The maximum runs over the features of each token: it should run over tokens.",
        max="x.amax(dim=2)",
    ),
    wrong(
        "max-over-batch",
        "The maximum runs over the sequences of the batch: each should get a vector of its own.",
        max="x.amax(dim=0)",
    ),
    wrong(
        "max-of-one-feature",
        "One token is taken whole: each feature has a largest number of its own.",
        max="x[torch.arange(len(x)), x[:, :, 1].masked_fill(~visible, -math.inf).argmax(dim=1)]",
    ),
    wrong(
        "max-position",
        POSITIONS,
        max="x.masked_fill(padding, -math.inf).argmax(dim=1) + 0 * x[:, 0]",  # so that there is a gradient, of 0
    ),
    wrong(
        "max-keeps-the-axis",
        "The axis of positions is still there, with size 1, after the maximum.",
        max="x.masked_fill(padding, -math.inf).amax(dim=1, keepdim=True)",
    ),
    wrong(
        "select-last",
        "The last position is selected: in a shorter sequence that is padding. Which one is always a real token?",
        select="x[:, -1]",
    ),
    wrong(
        "select-last-real",
        "The last real token is selected: look again at which one is asked for.",
        select="x[torch.arange(len(x)), visible.sum(dim=1) - 1]",
    ),
    wrong("select-second", "The second position is selected: Python counts from 0.", select="x[:, 1]"),
    wrong(
        "select-first-sequence",
        "The first sequence is selected: each sequence should give one of its positions.",
        select="x[0]",
    ),
    wrong(
        "select-first-feature",
        "The first feature of every position is selected: the whole first position is meant.",
        select="x[:, :, 0]",
    ),
    wrong(
        "select-keeps-the-axis",
        "The axis of positions is still there, with size 1, after the selection.",
        select="x[:, :1]",
    ),
    wrong(
        "padding-counts",
        "Mean and maximum both run over padding: nothing is done with the mask.",
        mean="x.mean(dim=1)",
        max="x.amax(dim=1)",
    ),
    wrong(
        "padding-as-zeros",
        "Padding is set to 0 and then counts as a token: in the mean, and in the maximum where all are negative.",
        mean="(x * ~padding).mean(dim=1)",
        max="(x * ~padding).amax(dim=1)",
    ),
    wrong(
        "visible-inverted",
        "The mask is the wrong way round: mean and maximum run over padding alone. True stands for a real token.",
        mean="(x * padding).sum(dim=1) / padding.sum(dim=1)",
        max="x.masked_fill(~padding, -math.inf).amax(dim=1)",
    ),
    wrong(
        "visible-of-the-first",
        "The mask of the first sequence is used for all: each has its own length.",
        mean="x.masked_fill(padding[:1], 0).sum(dim=1) / visible[:1].sum(dim=1, keepdim=True)",
        max="x.masked_fill(padding[:1], -math.inf).amax(dim=1)",
    ),
    edited(
        "swapped",
        'The mean is returned for "max", and the maximum for "mean".',
        MODEL_ANSWER,
        ('if how == "mean"', 'if how not in ("mean", "select")'),
        ('if how == "max"', 'if how != "select"'),
        fails=(MEAN, MAX),
    ),
    wrong(
        "always-the-mean",
        "The mean is returned whatever `how` says.",
        max=RIGHT_POOLS["mean"],
        select=RIGHT_POOLS["mean"],
    ),
)

CHANGED = "Something works in place, such as `+=` or a method that ends in `_`: make a new tensor instead."
BEHAVIOURS = misbehaviours(MODEL_ANSWER, "pooled", longer=(4, 13), calls=3, parts=PARTS)

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name != "changes-its-input"),  # "select" shares memory with its input
    edited(
        "masks-in-place",
        CHANGED,
        MODEL_ANSWER,
        ("x.masked_fill(padding, 0)", "x.masked_fill_(padding, 0)"),
        ("x.masked_fill(padding, -math.inf)", "x.masked_fill_(padding, -math.inf)"),
    ),
    wrong("max-position-alone", POSITIONS, max="x.masked_fill(padding, -math.inf).max(dim=1)[1]"),
    wrong("max-below-a-hundred", OTHER_SIZES, max="x.masked_fill(padding, -100).amax(dim=1)"),
    wrong(
        "max-with-its-positions",
        "Return max as one tensor.",
        max="x.masked_fill(padding, -math.inf).max(dim=1)",
        select="x[:, 0]",
    ),
)

RIGHT = {
    "multiplied-by-the-mask": """\
def pooled(x, visible, how):
    real = visible.unsqueeze(-1).to(x.dtype)
    if how == "mean":
        return (x * real).sum(1) / real.sum(1)
    elif how == "max":
        return (x - 1e9 * (1 - real)).max(dim=1).values
    elif how == "select":
        return x[:, 0, :]
""",
    "one-sequence-after-the-other": """\
def pooled(x, visible, how):
    rows = []
    for sequence, real in zip(x, visible):
        tokens = sequence[real]
        if how == "mean":
            rows.append(tokens.mean(dim=0))
        elif how == "max":
            rows.append(tokens.max(dim=0)[0])
        else:
            rows.append(tokens[0])
    return torch.stack(rows)
""",
    "by-lengths": """\
def pooled(x, visible, how):
    lengths = visible.sum(dim=1).tolist()
    pool = {
        "mean": lambda tokens: tokens.sum(dim=0) / len(tokens),
        "max": lambda tokens: tokens.amax(dim=0),
        "select": lambda tokens: tokens[0],
    }[how]
    return torch.stack([pool(sequence[:length]) for sequence, length in zip(x, lengths)])
""",
    "where": """\
def pooled(x, visible, how):
    real = visible[..., None]
    match how:
        case "mean":
            return torch.where(real, x, 0).sum(dim=1) / real.sum(dim=1)
        case "max":
            return torch.where(real, x, float("-inf")).max(dim=1)[0]
        case "select":
            return x.select(1, 0)
""",
    "weights-and-products": """\
def pooled(x, visible, how):
    if how == "mean":
        weights = visible.to(x.dtype)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return torch.einsum("bn,bnh->bh", weights, x)
    if how == "max":
        return x.masked_fill(visible.logical_not().unsqueeze(2), torch.finfo(x.dtype).min).max(dim=1).values
    first = torch.zeros_like(visible, dtype=x.dtype)
    first[:, 0] = 1
    return torch.bmm(first.unsqueeze(1), x).squeeze(1)
""",
    "softmax-of-the-mask": """\
def pooled(x, visible, how):
    hidden = torch.zeros(visible.shape, dtype=x.dtype, device=x.device).masked_fill(~visible, -math.inf)
    if how == "mean":
        return (hidden.softmax(dim=1)[:, None, :] @ x)[:, 0]
    if how == "max":
        return (x + hidden[:, :, None]).amax(dim=1)
    return x.narrow(1, 0, 1).flatten(1)
""",
    "nan-mean": """\
def pooled(x, visible, how):
    real = visible[:, :, None].expand_as(x)
    if how == "mean":
        return torch.where(real, x, torch.nan).nanmean(dim=1)
    if how == "max":
        largest = x[:, 0]
        for position in range(1, x.shape[1]):
            largest = torch.where(real[:, position], torch.maximum(largest, x[:, position]), largest)
        return largest
    return x[:, :1].mean(dim=1)
""",
    "first-in-place-of-padding": """\
def pooled(x, visible, how):
    first = x[:, :1]
    if how == "mean":
        x = x * visible[:, :, None]
        return x.mean(dim=1) * x.shape[1] / visible.sum(dim=1)[:, None]
    if how == "max":
        return torch.where(visible[:, :, None], x, first).sort(dim=1, descending=True).values[:, 0]
    return first.squeeze(1)
""",
    "in-place-on-a-copy": """\
def pooled(x, visible, how):
    tokens = x.clone()
    if how == "mean":
        tokens[~visible] = 0
        return tokens.sum(dim=1).div(visible.sum(dim=1).unsqueeze(1))
    if how == "max":
        tokens[~visible] = -float("inf")
        return tokens.topk(1, dim=1).values.squeeze(1)
    return tokens[:, 0]
""",
    "gathered": """\
def pooled(x, visible, how):
    count = visible.sum(dim=1, keepdim=True)
    if how == "mean":
        sums = x.cumsum(dim=1)
        return sums[torch.arange(len(x)), count[:, 0] - 1] / count
    if how == "max":
        best = x.masked_fill(~visible[:, :, None], -torch.inf).argmax(dim=1, keepdim=True)
        return x.gather(1, best)[:, 0]
    return x.gather(1, torch.zeros_like(x[:, :1], dtype=torch.long))[:, 0]
""",
    "positions-last": """\
def pooled(x, visible, how):
    columns, real = x.transpose(1, 2), visible.unsqueeze(1)
    if how == "mean":
        return (columns * real).sum(-1) / real.sum(-1)
    if how == "max":
        return F.adaptive_max_pool1d(columns.masked_fill(~real, -1e30), 1)[..., 0]
    return columns[..., 0]
""",
}

POOLED_RECORD = ValueRecord(
    public=POOLED,
    title="Three pools that leave out padding",
    defines="pooled",
    parts=tuple(
        Part(part, 1, part_values(functools.partial(is_right, how))) for part, how in zip(PARTS, POOLS, strict=True)
    ),
    hides=("modeling_classifier.pooled", "modeling_classifier.FlattenPool"),
    properties=(SEQUENCES_APART, input_matters(*POOLS)),
    first_sizes={"b": 3, "n": 5, "hidden": 7},
    other_length={"b": 4, "n": 13},
    other_sizes={"b": 5, "n": 6, "hidden": 10, "magnitude": 512},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
