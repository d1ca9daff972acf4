"""Shared by the three exercises about pooling: one vector per sequence, from its real tokens alone."""

import random

import numpy as np
from numpy.typing import NDArray

from grading.judging.judge import values
from grading.judging.mistakes import misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.engine.contract import PublicExercise


def draw_visible(rng: random.Random, b: int, n: int) -> NDArray[np.bool_]:
    """Return a mask of real tokens, (b, n): the first sequence has padding, the last has none."""
    lengths = [2 + int(rng.random() * (n - 2)) for _ in range(b - 1)] + [n]
    return np.arange(n) < np.array(lengths)[:, None]


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input whose padding is larger than its real tokens; the first feature of these is always negative.

    No number occurs twice in a feature, so the maximum is unique. In the last feature of the last sequence, it is at
    the end, where no other sequence has a token.
    """
    b, n, hidden = (sizes[name] for name in ("b", "n", "hidden"))
    visible = draw_visible(rng, b, n)
    x = dyadic(rng, b, n, hidden, bound=2) + np.arange(n)[:, None] / 64**2  # less than the steps between the numbers
    x[~visible] += 6
    x[:, :, 0] -= np.where(visible, 6, 0)
    x[-1, -1, -1] += 6
    return {"x": x * sizes.get("magnitude", 1), "visible": visible}


REFERENCES = {  # of one sequence without its padding
    "mean": lambda tokens: tokens.mean(axis=0),
    "max": lambda tokens: tokens.max(axis=0),
    "select": lambda tokens: tokens[0],
}

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

COUNT = "visible.sum(dim=1, keepdim=True)"
TOTAL = "x.masked_fill(padding, 0).sum(dim=1)"
POOLS = {"mean": f"{TOTAL} / {COUNT}", "max": "x.masked_fill(padding, -math.inf).amax(dim=1)", "select": "x[:, 0]"}


def wrong(how: str, name: str, pool: str, hint: str = "") -> WrongAnswer:
    """Return the answer with a mistake in one of the pools."""
    return edited(name, MODEL_ANSWER, (f"return {POOLS[how]}\n", f"return {pool}\n"), hint=hint)


def alone(how: str) -> str:
    """Return the answer that implements one of the pools and raises NotImplementedError for the others."""
    others = [(f"return {pool}\n", "raise NotImplementedError\n") for other, pool in POOLS.items() if other != how]
    return edited("alone", MODEL_ANSWER, *others).source


# The mistake, and the expression returned for that pool.
WRONG = {
    "mean": (
        ("over-padding", "x.mean(dim=1)"),
        ("divided-by-length", f"{TOTAL} / x.shape[1]"),
        ("of-everything-by-real-tokens", f"x.sum(dim=1) / {COUNT}"),
        ("not-divided", TOTAL),
        ("divided-by-the-batch", f"{TOTAL} / visible.sum()"),
        ("divided-by-the-first-length", f"{TOTAL} / visible[0].sum()"),
        ("divided-by-width", f"{TOTAL} / x.shape[2]"),
        ("without-the-first", f"x[:, 1:].masked_fill(padding[:, 1:], 0).sum(dim=1) / ({COUNT} - 1)"),
        ("over-features", "x.mean(dim=2)"),
        ("over-batch", "x.mean(dim=0)"),
        ("keeps-the-axis", f"({TOTAL} / {COUNT})[:, None]"),
        ("visible-inverted", "(x * padding).sum(dim=1) / padding.sum(dim=1)"),
        ("visible-of-the-first", "x.masked_fill(padding[:1], 0).sum(dim=1) / visible[:1].sum(dim=1, keepdim=True)"),
        ("is-the-maximum", POOLS["max"]),
    ),
    "max": (
        ("over-padding", "x.amax(dim=1)"),
        ("with-zeros", "x.masked_fill(padding, 0).amax(dim=1)"),
        ("is-the-minimum", "x.masked_fill(padding, math.inf).amin(dim=1)"),
        ("of-sizes", "x.masked_fill(padding, 0).abs().amax(dim=1)"),
        ("over-features", "x.amax(dim=2)"),
        ("over-batch", "x.amax(dim=0)"),
        ("of-one-feature", "x[torch.arange(len(x)), x[:, :, 1].masked_fill(~visible, -math.inf).argmax(dim=1)]"),
        (
            "position",
            "x.masked_fill(padding, -math.inf).argmax(dim=1) + 0 * x[:, 0]",  # so that there is a gradient, of 0
        ),
        ("keeps-the-axis", "x.masked_fill(padding, -math.inf).amax(dim=1, keepdim=True)"),
        ("visible-inverted", "x.masked_fill(~padding, -math.inf).amax(dim=1)"),
        ("visible-of-the-first", "x.masked_fill(padding[:1], -math.inf).amax(dim=1)"),
        ("is-the-mean", POOLS["mean"]),
    ),
    "select": (
        ("last", "x[:, -1]"),
        ("last-real", "x[torch.arange(len(x)), visible.sum(dim=1) - 1]"),
        ("second", "x[:, 1]"),
        ("first-sequence", "x[0]"),
        ("first-feature", "x[:, :, 0]"),
        ("keeps-the-axis", "x[:, :1]"),
        ("is-the-mean", POOLS["mean"]),
        ("is-the-maximum", POOLS["max"]),
    ),
}

# The name, the id of its hint, and the expression returned for that pool.
MISBEHAVING = {
    "mean": (
        ("squeezed", "one-sequence", f"({POOLS['mean']}).squeeze()"),
        ("squeezed-positions", "size-one", f"({POOLS['mean']} if x.squeeze(1).dim() == 3 else x)"),
        ("masks-in-place", "input-changed", f"x.mul_(~padding).sum(dim=1) / {COUNT}"),  # what `x *= ~padding` does
    ),
    "max": (
        ("detached", "graph-cut", f"{POOLS['max']}.detach()"),
        ("masks-in-place", "input-changed", POOLS["max"].replace("masked_fill", "masked_fill_")),
        ("position-alone", "position", "x.masked_fill(padding, -math.inf).max(dim=1)[1]"),
        ("below-a-hundred", "other-sizes", "x.masked_fill(padding, -100).amax(dim=1)"),
        ("with-its-positions", "not-a-tensor", "x.masked_fill(padding, -math.inf).max(dim=1)"),
    ),
    "select": (("transposes-in-place", "input-changed", "x.transpose_(0, 1)[0]"),),
}
# Left out: a selected position shares memory with the input, so changing the input shows in the numbers.
BEHAVIOURS = tuple(
    each for each in misbehaviours(MODEL_ANSWER, "pooled", longer=(4, 13)) if each.name != "changes-its-input"
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


def pool_record(public: PublicExercise, title: str) -> ValueRecord:
    """Return the record of one of the pools."""
    (how,) = public.axes

    def reference(case: Arrays) -> Arrays:
        sequences = zip(case["x"], case["visible"], strict=True)
        return {how: np.stack([REFERENCES[how](x[visible]) for x, visible in sequences])}

    return ValueRecord(
        public=public,
        title=title,
        defines="pooled",
        cell="pooled",
        parts=(Part(f"{how}-pool-check", 1, values),),
        properties=(SEQUENCES_APART, input_matters(how)),
        first_sizes={"b": 3, "n": 5, "hidden": 7},
        other_length={"b": 4, "n": 13},
        other_sizes={"b": 5, "n": 6, "hidden": 10, "magnitude": 512},
        ones=("n",),
        draw=draw,
        reference=reference,
        model_answer=MODEL_ANSWER,
        wrong=tuple(wrong(how, name, pool) for name, pool in WRONG[how]),
        misbehaving=(*BEHAVIOURS, *(wrong(how, name, pool, hint) for name, hint, pool in MISBEHAVING[how])),
        right=RIGHT | {"alone": alone(how)},
    )
