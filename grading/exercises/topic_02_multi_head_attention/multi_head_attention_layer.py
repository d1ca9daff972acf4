"""The exercise of topic 02 about a layer of several heads."""

import math
import random

import numpy as np

from grading.exercises.topic_02_multi_head_attention.masked_self_attention import draw_visible
from grading.judging.judge import values
from grading.judging.mistakes import loses_a_length_of_one, misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, dyadic, edited, softmax
from transformer_lm.checks.topic_02_multi_head_attention.multi_head_attention_layer import MULTI_HEAD_ATTENTION_LAYER


def draw_layer(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input, the weights of each head's layer for keys, queries and values, and a mask."""
    input_size, num_heads, outputs = sizes["input_size"], sizes["num_heads"], 3 * sizes["head_size"]
    return {
        "x": dyadic(rng, sizes["b"], sizes["n"], input_size, bound=2 * sizes.get("magnitude", 1)),
        "weights": dyadic(rng, num_heads, outputs, input_size, bound=0.75),
        "biases": dyadic(rng, num_heads, outputs, bound=1),
        "visible": draw_visible(rng),
    }


def reference_layer(case: Arrays) -> Arrays:
    """Return the outputs of the heads, computed head by head."""
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


# The notebook provides one head, built from the students' earlier answers.
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

LAYER_WRONG = (
    edited("joined-over-positions", LAYER_ANSWER, (SIDE_BY_SIDE, "torch.cat(heads, dim=1)")),
    edited("joined-over-batch", LAYER_ANSWER, (SIDE_BY_SIDE, "torch.cat(heads, dim=0)")),
    edited("summed", LAYER_ANSWER, (SIDE_BY_SIDE, "torch.stack(heads).sum(dim=0)")),
    edited("averaged", LAYER_ANSWER, (SIDE_BY_SIDE, "torch.stack(heads).mean(dim=0)")),
    edited("stacked", LAYER_ANSWER, (SIDE_BY_SIDE, "torch.stack(heads, dim=2)")),
    edited("stacked-in-front", LAYER_ANSWER, (SIDE_BY_SIDE, "torch.stack(heads)")),
    edited("interleaved", LAYER_ANSWER, (SIDE_BY_SIDE, "torch.stack(heads, dim=-1).flatten(2)")),
    edited("recut-over-batch", LAYER_ANSWER, (SIDE_BY_SIDE, "torch.stack(heads).view(*x.shape[:2], -1)")),
    edited("recut-over-positions", LAYER_ANSWER, (SIDE_BY_SIDE, "torch.stack(heads, dim=1).reshape(*x.shape[:2], -1)")),
    edited("reversed", LAYER_ANSWER, (SIDE_BY_SIDE, "torch.cat(heads[::-1], dim=-1)")),
    edited("first-head-for-all", LAYER_ANSWER, ("x, parameters, visible", "x, kqv_parameters[0], visible")),
    edited("last-head-for-all", LAYER_ANSWER, ("x, parameters, visible", "x, kqv_parameters[-1], visible")),
    edited("first-head-only", LAYER_ANSWER, (SIDE_BY_SIDE, "heads[0]")),
    edited("last-head-only", LAYER_ANSWER, (SIDE_BY_SIDE, "heads[-1]")),
    edited("first-head-missing", LAYER_ANSWER, ("in kqv_parameters]", "in kqv_parameters[1:]]")),
    edited("last-head-missing", LAYER_ANSWER, ("in kqv_parameters]", "in kqv_parameters[:-1]]")),
    edited("no-mask", LAYER_ANSWER, ("x, parameters, visible) for", "x, parameters) for")),
    edited(
        "mask-for-the-first-only",
        LAYER_ANSWER,
        (
            EACH_HEAD,
            "self_attention_layer(x, parameters, None if head else visible) "
            "for head, parameters in enumerate(kqv_parameters)",
        ),
    ),
    edited(
        "mask-for-the-last-only",
        LAYER_ANSWER,
        (
            EACH_HEAD,
            "self_attention_layer(x, parameters, visible if parameters is kqv_parameters[-1] else None) "
            "for parameters in kqv_parameters",
        ),
    ),
    edited("queries-as-keys", LAYER_ANSWER, (THREE, "queries, keys, values =")),
    edited("values-as-keys", LAYER_ANSWER, (THREE, "values, queries, keys =")),
    edited("values-as-queries", LAYER_ANSWER, (THREE, "keys, values, queries =")),
)

LAYER_MISBEHAVING = (
    *misbehaviours(LAYER_ANSWER, "multi_head_attention_layer", longer=(4, 17), calls=2),
    loses_a_length_of_one(LAYER_ANSWER, "multi_head_attention_layer"),
    edited(
        "heads-in-a-chain",
        LAYER_ANSWER,
        (
            "    heads = ",
            "    for parameters in kqv_parameters:\n"
            "        x = self_attention_layer(x, parameters, visible)\n"
            "    return x\n"
            "    heads = ",
        ),
        hint="shapes-do-not-fit",
    ),
    edited(
        "fixed-number-of-heads",
        LAYER_ANSWER,
        (EACH_HEAD, "self_attention_layer(x, kqv_parameters[head], visible) for head in range(5)"),
        hint="other-sizes",
    ),
    edited("list-of-heads", LAYER_ANSWER, (SIDE_BY_SIDE, "heads"), hint="not-a-tensor"),
    edited(
        "ready-made",
        LAYER_ANSWER,
        ("return scores.softmax(dim=-1) @ values", "return F.scaled_dot_product_attention(queries, keys, values)"),
        hint="ready-made-attention",
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
