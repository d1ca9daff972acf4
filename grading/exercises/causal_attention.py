"""Exercises of topic 02 on the way to several heads: a causal mask, masked attention, heads side by side."""

import math
import random

import numpy as np
from numpy.typing import NDArray

from grading.judge import LONGEST, values
from grading.mistakes import SOFTMAX, loses_a_length_of_one, misbehaviours, overflowing_softmax, softmax_mistakes
from grading.properties import SEQUENCES_APART, input_matters
from grading.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited, softmax
from transformer_lm.checks.exercise import CALLED_AGAIN, OTHER_LENGTH, OTHER_SIZES
from transformer_lm.checks.ready_made import READY_MADE
from transformer_lm.checks.report import NONE
from transformer_lm.checks.topic_02_multi_head_attention.causal_mask import CAUSAL_MASK
from transformer_lm.checks.topic_02_multi_head_attention.masked_self_attention import (
    MASK_MISFITS,
    MASKED_SELF_ATTENTION,
)
from transformer_lm.checks.topic_02_multi_head_attention.multi_head_attention_layer import MULTI_HEAD_ATTENTION_LAYER

SHAPES = "Two shapes do not fit together there. Print the shape of each tensor just before that line."

# --- causal-mask --------------------------------------------------------------------------------


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
    """Return the answer that keeps what it was asked for, and then does something else."""
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
    hides=("attention.create_causal_mask",),
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

# --- masked-self-attention ----------------------------------------------------------------------

MASK_SIZE = LONGEST + 3  # larger than any case, so that only the upper left corner counts


def draw_visible(rng: random.Random) -> NDArray[np.bool_]:
    """Return a mask that shows every other key or so, the first one always; it is not causal."""
    visible = np.array([rng.random() < 0.5 for _ in range(MASK_SIZE**2)]).reshape(1, MASK_SIZE, MASK_SIZE)
    visible[:, :, 0] = True
    return visible


def draw_self_attention(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return values and scores of two different lengths, and a mask.

    Where numbers are larger, the scores of a query also lie far above 0 or far below, which changes nothing: a mask
    that puts some number between them shows.
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
    """Return the averages with all weights, with the weights of visible keys, and with a mask for each sequence."""
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
    edited(
        "mask-ignored",
        "The mask has no effect: hidden keys are read like the others.",
        ATTENTION_ANSWER,
        ("if visible is not None:", "if False:"),
    ),
    edited(
        "mask-inverted",
        "The mask is inverted: True stands for a key that may be read, and yours are hidden.",
        ATTENTION_ANSWER,
        ("~visible", "visible"),
    ),
    edited(
        "mask-after-softmax",
        "The mask comes after the softmax: hidden keys take their share first, and the rest sums to less than 1.",
        ATTENTION_ANSWER,
        (FILL, "scores"),
        (AVERAGE, f"(weights if visible is None else weights * {CORNER}) @ values"),
    ),
    edited(
        "masked-with-zero",
        "Hidden scores are set to 0 before the softmax, but a score of 0 still gets weight: e to the 0 is 1.",
        ATTENTION_ANSWER,
        ("-math.inf", "0"),
    ),
    edited(
        "masked-with-minus-one",
        "Hidden scores are set to -1, which is no small score: the softmax still gives it weight.",
        ATTENTION_ANSWER,
        ("-math.inf", "-1"),
    ),
    edited(
        "mask-added",
        "The mask is added to the scores as the numbers 0 and 1: that hides nothing.",
        ATTENTION_ANSWER,
        (FILL, f"scores + {CORNER}"),
    ),
    edited(
        "lower-right-corner",
        "The mask is cut at its end: the part that belongs to these scores is the upper left corner.",
        ATTENTION_ANSWER,
        (CORNER, "visible[:, -i:, -j:]"),
    ),
    edited(
        "mask-transposed",
        "The mask is transposed: its rows belong to queries, its columns to keys, as in the scores.",
        ATTENTION_ANSWER,
        (CORNER, "visible.mT[:, :i, :j]"),
    ),
    edited(
        "first-row-for-all",
        "Every query gets the first row of the mask: each has a row of its own.",
        ATTENTION_ANSWER,
        (CORNER, "visible[:, :1, :j]"),
    ),
    edited(
        "one-mask-for-all",
        "Every sequence gets the mask of the first one: there may be one for each of them.",
        ATTENTION_ANSWER,
        (CORNER, "visible[:1, :i, :j]"),
    ),
    edited(
        "causal-instead",
        "The future is hidden, whatever the mask says: it is `visible` that tells who may read what.",
        ATTENTION_ANSWER,
        (FILL, "scores.masked_fill(torch.ones(i, j, dtype=torch.bool).triu(1), -math.inf)"),
    ),
    edited(
        "always-causal",
        "The future is hidden even without a mask: then every query reads every key.",
        ATTENTION_ANSWER,
        ("    if visible", "    scores = scores + torch.full((i, j), -math.inf).triu(1)\n    if visible"),
    ),
    edited(
        "masked-in-place",
        "The scores are masked in place: the next call with the same scores still finds the mask in them.",
        ATTENTION_ANSWER,
        ("masked_fill", "masked_fill_"),
    ),
    *softmax_mistakes(ATTENTION_ANSWER),
    edited(
        "softmax-over-everything",
        "The softmax runs over all scores of a sequence at once: each row of weights must sum to 1 by itself.",
        ATTENTION_ANSWER,
        (SOFTMAX, "scores.flatten(1).softmax(dim=-1).view_as(scores)"),
    ),
    edited(
        "scaled-again",
        "The scores are scaled once more by the root of the width: that was done when they were made.",
        ATTENTION_ANSWER,
        (SOFTMAX, "(scores / values.shape[-1] ** 0.5).softmax(dim=-1)"),
    ),
    edited(
        "weights-returned",
        "These are the weights: the values are still to be averaged.",
        ATTENTION_ANSWER,
        (AVERAGE, "weights"),
    ),
    edited(
        "plain-average",
        "All keys that a query sees get the same weight: the scores have no effect.",
        ATTENTION_ANSWER,
        (SOFTMAX, "(0 * scores).nan_to_num(nan=-math.inf).softmax(dim=-1)"),
    ),
    edited(
        "hardmax",
        "Each query reads its best key only: the weights are an argmax, not a softmax.",
        ATTENTION_ANSWER,
        (SOFTMAX, "F.one_hot(scores.argmax(dim=-1), j).to(values.dtype)"),
    ),
)

ATTENTION_MISBEHAVING = (
    *misbehaviours(ATTENTION_ANSWER, "self_attention", longer=(3, 17), calls=3),
    loses_a_length_of_one(ATTENTION_ANSWER, "self_attention"),
    edited("mask-of-one-size", MASK_MISFITS, ATTENTION_ANSWER, (CORNER, "visible")),
    edited("mask-cut-to-the-queries", MASK_MISFITS, ATTENTION_ANSWER, (CORNER, "visible[:, :i, :i]")),
    edited("mask-cut-to-the-keys", MASK_MISFITS, ATTENTION_ANSWER, (CORNER, "visible[:, :j, :j]")),
    edited(
        "mask-for-each-needed",
        SHAPES,
        ATTENTION_ANSWER,
        (FILL, "torch.stack([scores[s].masked_fill(~visible[s, :i, :j], -math.inf) for s in range(b)])"),
    ),
    edited("mask-needed", NONE, ATTENTION_ANSWER, ("if visible is not None:", "if True:")),
    edited("masked-with-minus-fifty", OTHER_SIZES, ATTENTION_ANSWER, ("-math.inf", "-50")),
    overflowing_softmax(ATTENTION_ANSWER),
    edited(
        "ready-made",
        READY_MADE,
        ATTENTION_ANSWER,
        (
            "    if visible",
            "    if visible is None:\n"
            "        return F.scaled_dot_product_attention(scores, torch.eye(j).expand(b, j, j), values, scale=1)\n"
            "    if visible",
        ),
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
    title="Attention that keeps to a mask",
    defines="self_attention",
    parts=(Part("masked-self-attention-check", 2, values),),
    hides=("attention.attention_weights", "attention._corner", "attention.self_attention"),
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

# --- multi-head-attention-layer -----------------------------------------------------------------


def draw_layer(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input, for each head the weights of the layer of its keys, queries and values, and a mask."""
    input_size, num_heads, outputs = sizes["input_size"], sizes["num_heads"], 3 * sizes["head_size"]
    return {
        "x": dyadic(rng, sizes["b"], sizes["n"], input_size, bound=2 * sizes.get("magnitude", 1)),
        "weights": dyadic(rng, num_heads, outputs, input_size, bound=0.75),
        "biases": dyadic(rng, num_heads, outputs, bound=1),
        "visible": draw_visible(rng),
    }


def reference_layer(case: Arrays) -> Arrays:
    """Return what each head reads, one head after the other."""
    x = case["x"]
    n = x.shape[1]
    outputs = {}
    for name, visible in (("output", np.ones((1, n, n), dtype=bool)), ("output_masked", case["visible"][:, :n, :n])):
        heads = []
        for weight, bias in zip(case["weights"], case["biases"], strict=True):
            keys, queries, averaged = np.split(x @ weight.T + bias, 3, axis=-1)
            scores = np.einsum("bik,bjk->bij", queries, keys) / math.sqrt(keys.shape[-1])
            heads.append(softmax(np.where(visible, scores, -np.inf)) @ averaged)
        outputs[name] = np.concatenate(heads, axis=-1)
    return outputs


# The notebook gives one head, made of what students have written before.
ONE_HEAD = """\
def self_attention_layer(x, kqv_parameters, visible=None):
    keys, queries, values = kqv_parameters(x).chunk(3, dim=-1)
    scores = queries @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5
    if visible is not None:
        scores = scores.masked_fill(~visible[:, : x.shape[1], : x.shape[1]], -math.inf)
    return scores.softmax(dim=-1) @ values


"""

LAYER_ANSWER = (
    ONE_HEAD
    + """\
def multi_head_attention_layer(x, kqv_parameters, visible=None):
    heads = [self_attention_layer(x, parameters, visible) for parameters in kqv_parameters]
    return torch.cat(heads, dim=-1)
"""
)

SIDE_BY_SIDE = "torch.cat(heads, dim=-1)"
EACH_HEAD = "self_attention_layer(x, parameters, visible) for parameters in kqv_parameters"
THREE = "keys, queries, values ="
RECUT = "The heads are brought into shape by view or reshape alone, which mixes up {}."

LAYER_WRONG = (
    edited(
        "joined-over-positions",
        "The heads are joined one after the other in time: they must stand side by side at each position.",
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "torch.cat(heads, dim=1)"),
    ),
    edited(
        "joined-over-batch",
        "The heads are joined along the batch: each must add features, not sequences.",
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "torch.cat(heads, dim=0)"),
    ),
    edited(
        "summed",
        "The heads are summed: what each has found can no longer be told apart.",
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "torch.stack(heads).sum(dim=0)"),
    ),
    edited(
        "averaged",
        "The heads are averaged: what each has found can no longer be told apart.",
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "torch.stack(heads).mean(dim=0)"),
    ),
    edited(
        "stacked",
        "The heads have an axis of their own: they and their features must share the last one.",
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "torch.stack(heads, dim=2)"),
    ),
    edited(
        "stacked-in-front",
        "The heads have an axis of their own in front: they and their features must share the last one.",
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "torch.stack(heads)"),
    ),
    edited(
        "interleaved",
        "The heads are interleaved number by number: each must be a block of neighbouring features.",
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "torch.stack(heads, dim=-1).flatten(2)"),
    ),
    edited(
        "recut-over-batch",
        RECUT.format("sequences, positions and heads"),
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "torch.stack(heads).view(*x.shape[:2], -1)"),
    ),
    edited(
        "recut-over-positions",
        RECUT.format("positions and heads of a sequence"),
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "torch.stack(heads, dim=1).reshape(*x.shape[:2], -1)"),
    ),
    edited(
        "reversed",
        "The heads stand in reverse: head 0 comes first.",
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "torch.cat(heads[::-1], dim=-1)"),
    ),
    edited(
        "first-head-for-all",
        "Every head computes the same, with the parameters of the first one.",
        LAYER_ANSWER,
        ("x, parameters, visible", "x, kqv_parameters[0], visible"),
    ),
    edited(
        "last-head-for-all",
        "Every head computes the same, with the parameters of the last one.",
        LAYER_ANSWER,
        ("x, parameters, visible", "x, kqv_parameters[-1], visible"),
    ),
    edited(
        "first-head-only",
        "Only the first head comes back: is there a `return` inside the loop?",
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "heads[0]"),
    ),
    edited(
        "last-head-only",
        "Only the last head comes back: the others are overwritten on the way.",
        LAYER_ANSWER,
        (SIDE_BY_SIDE, "heads[-1]"),
    ),
    edited(
        "first-head-missing",
        "The first head is missing: counting starts at 0.",
        LAYER_ANSWER,
        ("in kqv_parameters]", "in kqv_parameters[1:]]"),
    ),
    edited(
        "last-head-missing",
        "The last head is missing: does your loop end too early?",
        LAYER_ANSWER,
        ("in kqv_parameters]", "in kqv_parameters[:-1]]"),
    ),
    edited(
        "no-mask",
        "The mask is not passed on to the heads: hidden keys are read like the others.",
        LAYER_ANSWER,
        ("x, parameters, visible) for", "x, parameters) for"),
    ),
    edited(
        "mask-for-the-first-only",
        "Only the first head gets the mask: it holds for all of them.",
        LAYER_ANSWER,
        (
            EACH_HEAD,
            "self_attention_layer(x, parameters, None if head else visible) "
            "for head, parameters in enumerate(kqv_parameters)",
        ),
    ),
    edited(
        "mask-for-the-last-only",
        "Only the last head gets the mask: it holds for all of them.",
        LAYER_ANSWER,
        (
            EACH_HEAD,
            "self_attention_layer(x, parameters, visible if parameters is kqv_parameters[-1] else None) "
            "for parameters in kqv_parameters",
        ),
    ),
    edited(
        "queries-as-keys",
        "Queries and keys are swapped: the layer of a head makes the key first, then the query, then the value.",
        LAYER_ANSWER,
        (THREE, "queries, keys, values ="),
    ),
    edited(
        "values-as-keys",
        "Values and keys are swapped: the layer of a head makes the key first, then the query, then the value.",
        LAYER_ANSWER,
        (THREE, "values, queries, keys ="),
    ),
    edited(
        "values-as-queries",
        "Values and queries are swapped: the layer of a head makes the key first, then the query, then the value.",
        LAYER_ANSWER,
        (THREE, "keys, values, queries ="),
    ),
)

LAYER_MISBEHAVING = (
    *misbehaviours(LAYER_ANSWER, "multi_head_attention_layer", longer=(4, 17), calls=2),
    loses_a_length_of_one(LAYER_ANSWER, "multi_head_attention_layer"),
    edited(
        "heads-in-a-chain",
        SHAPES,
        LAYER_ANSWER,
        (
            "    heads = ",
            "    for parameters in kqv_parameters:\n"
            "        x = self_attention_layer(x, parameters, visible)\n"
            "    return x\n"
            "    heads = ",
        ),
    ),
    edited(
        "fixed-number-of-heads",
        OTHER_SIZES,
        LAYER_ANSWER,
        (EACH_HEAD, "self_attention_layer(x, kqv_parameters[head], visible) for head in range(5)"),
    ),
    edited("list-of-heads", "Return output as one tensor.", LAYER_ANSWER, (SIDE_BY_SIDE, "heads")),
    edited(
        "ready-made",
        READY_MADE,
        LAYER_ANSWER,
        ("return scores.softmax(dim=-1) @ values", "return F.scaled_dot_product_attention(queries, keys, values)"),
    ),
)

LAYER_FUNCTIONS = {
    "loop": """\
def multi_head_attention_layer(x, kqv_parameters, visible=None):
    heads = []
    for parameters in kqv_parameters:
        heads.append(self_attention_layer(x, parameters, visible))
    return torch.cat(heads, dim=2)
""",
    "grown-head-by-head": """\
def multi_head_attention_layer(x, kqv_parameters, visible=None):
    output = self_attention_layer(x, kqv_parameters[0], visible)
    for parameters in kqv_parameters[1:]:
        output = torch.cat((output, self_attention_layer(x, parameters, visible)), dim=-1)
    return output
""",
    "map": """\
import functools


def multi_head_attention_layer(x, kqv_parameters, visible=None):
    head = functools.partial(self_attention_layer, x, visible=visible)
    return torch.concat(tuple(map(head, kqv_parameters)), dim=-1)
""",
    "reduce": """\
from functools import reduce


def multi_head_attention_layer(x, layers, visible=None):
    heads = (self_attention_layer(x, layer, visible) for layer in layers)
    return reduce(lambda left, right: torch.cat([left, right], -1), heads)
""",
    "stacked-and-flattened": """\
def multi_head_attention_layer(x, kqv_parameters, visible=None):
    heads = torch.stack([self_attention_layer(x, parameters, visible) for parameters in kqv_parameters], dim=2)
    return heads.flatten(2)
""",
    "moved-axis": """\
def multi_head_attention_layer(x, kqv_parameters, visible=None):
    b, n, _ = x.shape
    heads = torch.stack([self_attention_layer(x, layer, visible=visible) for layer in kqv_parameters])
    return heads.permute(1, 2, 0, 3).reshape(b, n, -1)
""",
    "filled-in": """\
def multi_head_attention_layer(x, kqv_parameters, visible=None):
    b, n, _ = x.shape
    dh = kqv_parameters[0].out_features // 3
    output = x.new_empty(b, n, dh * len(kqv_parameters))
    for h, parameters in enumerate(kqv_parameters):
        output[:, :, h * dh : (h + 1) * dh] = self_attention_layer(x, parameters, visible)
    return output
""",
    "hstack-of-transposed": """\
def multi_head_attention_layer(x, kqv_parameters, visible=None):
    heads = [self_attention_layer(x, parameters, visible).mT for parameters in kqv_parameters]
    return torch.hstack(heads).transpose(1, 2)
""",
    "one-joined-layer": """\
def multi_head_attention_layer(x, kqv_parameters, visible=None):
    b, n, _ = x.shape
    weight = torch.cat([parameters.weight for parameters in kqv_parameters])
    bias = torch.cat([parameters.bias for parameters in kqv_parameters])
    made = F.linear(x, weight, bias).view(b, n, len(kqv_parameters), 3, -1)
    k, q, v = made.permute(3, 0, 2, 1, 4)  # (b, h, n, dh) each
    scores = q @ k.mT / math.sqrt(k.shape[-1])
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None, :n, :n], -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1)
""",
    "einsum": """\
def multi_head_attention_layer(x, kqv_parameters, visible=None):
    n = x.shape[1]
    weight = torch.stack([parameters.weight for parameters in kqv_parameters])
    bias = torch.stack([parameters.bias for parameters in kqv_parameters])
    k, q, v = (torch.einsum("bnd,hod->bhno", x, weight) + bias[:, None]).chunk(3, -1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * k.shape[-1] ** -0.5
    if visible is not None:
        scores = torch.where(visible[:, None, :n, :n], scores, -math.inf)
    return torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v).flatten(2)
""",
}

MULTI_HEAD_ATTENTION_LAYER_RECORD = ValueRecord(
    public=MULTI_HEAD_ATTENTION_LAYER,
    title="Several heads side by side",
    defines="multi_head_attention_layer",
    parts=(Part("multi-head-attention-layer-check", 2, values),),
    hides=("attention.self_attention_layer", "attention.multi_head_attention_layer"),
    properties=(SEQUENCES_APART, input_matters("output", "output_masked")),
    first_sizes={"b": 2, "n": 7, "input_size": 11, "num_heads": 5, "head_size": 6},
    other_length={"b": 4, "n": 17},
    other_sizes={"b": 8, "n": 13, "input_size": 10, "num_heads": 4, "head_size": 7, "magnitude": 4},
    ones=("num_heads", "n"),
    draw=draw_layer,
    reference=reference_layer,
    model_answer=LAYER_ANSWER,
    wrong=LAYER_WRONG,
    misbehaving=LAYER_MISBEHAVING,
    right={name: ONE_HEAD + function for name, function in LAYER_FUNCTIONS.items()},
)
