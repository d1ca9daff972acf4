"""The exercise of topic 02 about attention with a mask."""

import random

import numpy as np
from numpy.typing import NDArray

from grading.judging.judge import LONGEST, values
from grading.judging.mistakes import (
    SOFTMAX,
    loses_a_length_of_one,
    misbehaviours,
    overflowing_softmax,
    softmax_mistakes,
)
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, dyadic, edited, softmax
from transformer_lm.checks.topic_02_multi_head_attention.masked_self_attention import (
    MASKED_SELF_ATTENTION,
)

MASK_SIZE = LONGEST + 3  # larger than any case, so that only the upper left corner counts


def draw_visible(rng: random.Random) -> NDArray[np.bool_]:
    """Return a mask that is not causal and shows about every other key, and always the first."""
    visible = np.array([rng.random() < 0.5 for _ in range(MASK_SIZE**2)]).reshape(1, MASK_SIZE, MASK_SIZE)
    visible[:, :, 0] = True
    return visible


def draw_self_attention(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return values and scores of two different lengths, and a mask.

    Where numbers are larger, all scores of a query also lie far above or far below 0, which changes nothing in a right
    answer. An answer that masks with a number in between is exposed.
    """
    magnitude = sizes.get("magnitude", 1)
    b, i, j = sizes["b"], sizes["i"], sizes["j"]
    level = np.array([int(rng.random() * 3) - 1 for _ in range(b * i)]).reshape(b, i, 1)
    return {
        "values": dyadic(rng, b, j, sizes["dh"], bound=2 * magnitude),
        "scores": dyadic(rng, b, i, j, bound=2 * magnitude) + 64 * (magnitude - 1) * level,
        "visible": draw_visible(rng),
    }


def reference_self_attention(case: Arrays) -> Arrays:
    """Return the averages with all weights, with the weights of visible keys, and with one mask per sequence."""
    scores, shared = case["scores"], case["visible"]
    b, i, j = scores.shape
    apart = np.concatenate([np.roll(shared, sequence, axis=1) for sequence in range(b)])
    masks = {"output": np.ones_like(shared), "output_masked": shared, "output_masked_apart": apart}
    return {
        name: softmax(np.where(visible[:, :i, :j], scores, -np.inf)) @ case["values"] for name, visible in masks.items()
    }


ATTENTION_ANSWER = """\
def self_attention(values, scores, visible=None):
    b, i, j = scores.shape
    if visible is not None:
        scores = scores.masked_fill(~visible[:, :i, :j], -math.inf)
    weights = scores.softmax(dim=-1)
    return weights @ values
"""

CORNER = "visible[:, :i, :j]"
FILL = "scores.masked_fill(~visible[:, :i, :j], -math.inf)"
AVERAGE = "weights @ values"

ATTENTION_WRONG = (
    edited("mask-ignored", ATTENTION_ANSWER, ("if visible is not None:", "if False:")),
    edited("mask-inverted", ATTENTION_ANSWER, ("~visible", "visible")),
    edited(
        "mask-after-softmax",
        ATTENTION_ANSWER,
        (FILL, "scores"),
        (AVERAGE, f"(weights if visible is None else weights * {CORNER}) @ values"),
    ),
    edited("masked-with-zero", ATTENTION_ANSWER, ("-math.inf", "0")),
    edited("masked-with-minus-one", ATTENTION_ANSWER, ("-math.inf", "-1")),
    edited("mask-added", ATTENTION_ANSWER, (FILL, f"scores + {CORNER}")),
    edited("lower-right-corner", ATTENTION_ANSWER, (CORNER, "visible[:, -i:, -j:]")),
    edited("mask-transposed", ATTENTION_ANSWER, (CORNER, "visible.mT[:, :i, :j]")),
    edited("first-row-for-all", ATTENTION_ANSWER, (CORNER, "visible[:, :1, :j]")),
    edited("one-mask-for-all", ATTENTION_ANSWER, (CORNER, "visible[:1, :i, :j]")),
    edited(
        "causal-instead",
        ATTENTION_ANSWER,
        (FILL, "scores.masked_fill(torch.ones(i, j, dtype=torch.bool).triu(1), -math.inf)"),
    ),
    edited(
        "always-causal",
        ATTENTION_ANSWER,
        ("    if visible", "    scores = scores + torch.full((i, j), -math.inf).triu(1)\n    if visible"),
    ),
    edited("masked-in-place", ATTENTION_ANSWER, ("masked_fill", "masked_fill_")),
    *softmax_mistakes(ATTENTION_ANSWER),
    edited("softmax-over-everything", ATTENTION_ANSWER, (SOFTMAX, "scores.flatten(1).softmax(dim=-1).view_as(scores)")),
    edited("scaled-again", ATTENTION_ANSWER, (SOFTMAX, "(scores / values.shape[-1] ** 0.5).softmax(dim=-1)")),
    edited("weights-returned", ATTENTION_ANSWER, (AVERAGE, "weights")),
    edited("plain-average", ATTENTION_ANSWER, (SOFTMAX, "(0 * scores).nan_to_num(nan=-math.inf).softmax(dim=-1)")),
    edited("hardmax", ATTENTION_ANSWER, (SOFTMAX, "F.one_hot(scores.argmax(dim=-1), j).to(values.dtype)")),
)

ATTENTION_MISBEHAVING = (
    *misbehaviours(ATTENTION_ANSWER, "self_attention", longer=(3, 17), calls=3),
    loses_a_length_of_one(ATTENTION_ANSWER, "self_attention"),
    edited("mask-of-one-size", ATTENTION_ANSWER, (CORNER, "visible"), hint="mask-does-not-fit"),
    edited("mask-cut-to-the-queries", ATTENTION_ANSWER, (CORNER, "visible[:, :i, :i]"), hint="mask-does-not-fit"),
    edited("mask-cut-to-the-keys", ATTENTION_ANSWER, (CORNER, "visible[:, :j, :j]"), hint="mask-does-not-fit"),
    edited(
        "mask-for-each-needed",
        ATTENTION_ANSWER,
        (FILL, "torch.stack([scores[s].masked_fill(~visible[s, :i, :j], -math.inf) for s in range(b)])"),
        hint="shapes-do-not-fit",
    ),
    edited("mask-needed", ATTENTION_ANSWER, ("if visible is not None:", "if True:"), hint="something-is-none"),
    edited("masked-with-minus-fifty", ATTENTION_ANSWER, ("-math.inf", "-50"), hint="other-sizes"),
    overflowing_softmax(ATTENTION_ANSWER),
    edited(
        "ready-made",
        ATTENTION_ANSWER,
        (
            "    if visible",
            "    if visible is None:\n"
            "        return F.scaled_dot_product_attention(scores, torch.eye(j).expand(b, j, j), values, scale=1)\n"
            "    if visible",
        ),
        hint="ready-made-attention",
    ),
)

ATTENTION_RIGHT = {
    "large-negative-number": """\
def self_attention(values, scores, visible=None):
    if visible is not None:
        _, i, j = scores.shape
        scores = scores.masked_fill(visible[:, :i, :j] == 0, -1e9)
    return torch.bmm(F.softmax(scores, dim=2), values)
""",
    "not-so-large-a-number": """\
def self_attention(values, scores, visible=None):
    if visible is not None:
        scores = torch.masked_fill(scores, visible[:, : scores.size(1), : scores.size(2)].logical_not(), -1e4)
    return torch.matmul(torch.softmax(scores, dim=-1), values)
""",
    "smallest-number": """\
def self_attention(values, scores, visible=None):
    if visible is None:
        visible = torch.ones_like(scores, dtype=torch.bool)
    hidden = ~visible[..., : scores.shape[-2], : scores.shape[-1]]
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim=2) @ values
""",
    "where": """\
def self_attention(values, scores, visible=None):
    if visible is not None:
        corner = visible[:, : scores.shape[1], : scores.shape[2]]
        scores = torch.where(corner, scores, float("-inf"))
    return scores.softmax(-1) @ values
""",
    "added-mask": """\
def self_attention(values, scores, visible=None):
    b, i, j = scores.shape
    bias = scores.new_zeros(1, i, j)
    if visible is not None:
        bias = (~visible[:, :i, :j]).to(scores.dtype) * -1e9
    return torch.softmax(scores + bias, dim=-1) @ values
""",
    "logarithm-of-the-mask": """\
def self_attention(values, scores, visible=None):
    if visible is not None:
        scores = scores + visible[:, : scores.shape[1], : scores.shape[2]].to(scores.dtype).log()
    return scores.log_softmax(dim=-1).exp() @ values
""",
    "shared-out-again": """\
def self_attention(values, scores, visible=None):
    b, i, j = scores.shape
    weights = scores.softmax(dim=-1)
    if visible is not None:
        weights = weights * visible[:, :i, :j]
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights @ values
""",
    "own-softmax": """\
def self_attention(values, scores, visible=None):
    exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    if visible is not None:
        exponentials = exponentials * visible[:, : scores.shape[1], : scores.shape[2]]
    return exponentials @ values / exponentials.sum(dim=-1, keepdim=True)
""",
    "einsum": """\
def self_attention(values, scores, visible=None):
    b, i, j = scores.shape
    if visible is not None:
        scores = scores.masked_fill(~visible.narrow(1, 0, i).narrow(2, 0, j), -torch.inf)
    return torch.einsum("bij,bjd->bid", scores.softmax(dim=2), values)
""",
    "loop-over-batch": """\
def self_attention(values, scores, visible=None):
    rows = []
    for number, (v, s) in enumerate(zip(values, scores)):
        if visible is not None:
            mask = visible[number] if len(visible) > 1 else visible[0]
            s = s.masked_fill(~mask[: s.shape[0], : s.shape[1]], -math.inf)
        rows.append(s.softmax(dim=1) @ v)
    return torch.stack(rows)
""",
    "masked-copy": """\
def self_attention(values, scores, visible=None):
    b, i, j = scores.shape
    if visible is not None:
        scores = scores.clone()
        scores[~visible[:, :i, :j].expand(b, i, j)] = -math.inf
    return scores.softmax(dim=-1) @ values
""",
    "float64": """\
def self_attention(values, scores, visible=None):
    scores = scores.double()
    if visible is not None:
        scores = scores.masked_fill(~visible[:, : scores.shape[1], : scores.shape[2]], -torch.inf)
    return scores.softmax(-1) @ values.double()
""",
}

MASKED_SELF_ATTENTION_RECORD = ValueRecord(
    public=MASKED_SELF_ATTENTION,
    title="Attention with a mask",
    defines="self_attention",
    parts=(Part("masked-self-attention-check", 2, values),),
    properties=(SEQUENCES_APART, input_matters("output", "output_masked", "output_masked_apart")),
    first_sizes={"b": 2, "i": 5, "j": 7, "dh": 11},
    other_length={"b": 3, "i": 13, "j": 17},
    other_sizes={"b": 6, "i": 10, "j": 13, "dh": 3, "magnitude": 4},
    ones=("i", "j"),
    draw=draw_self_attention,
    reference=reference_self_attention,
    model_answer=ATTENTION_ANSWER,
    wrong=ATTENTION_WRONG,
    misbehaving=ATTENTION_MISBEHAVING,
    right=ATTENTION_RIGHT,
)
