"""The exercise of topic 01 about computing keys, queries and values in one product."""

import random

import numpy as np

from grading.judging.judge import layers, values
from grading.judging.mistakes import loses_a_length_of_one, misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.topic_01_self_attention.kqv import KQV, kqv_parameters


def draw_kqv(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input and the weights of one linear layer that computes keys, queries and values."""
    b, n, input_size, hidden = (sizes[name] for name in ("b", "n", "input_size", "hidden"))
    return {
        "x": dyadic(rng, b, n, input_size, bound=2 * sizes.get("magnitude", 1)),
        "weight": dyadic(rng, 3 * hidden, input_size, bound=0.75),
        "bias": dyadic(rng, 3 * hidden, bound=1),
    }


def reference_kqv(case: Arrays) -> Arrays:
    """Return keys, queries and values, each from its own third of the layer."""
    thirds = zip(np.split(case["weight"], 3), np.split(case["bias"], 3), strict=True)
    outputs = [case["x"] @ weight.T + bias for weight, bias in thirds]
    return dict(zip(("keys", "queries", "values"), outputs, strict=True))


KQV_PARAMETERS = """\
def create_kqv_parameters(input_size, hidden):
    return nn.Linear(input_size, 3 * hidden)


"""

KQV_ANSWER = (
    KQV_PARAMETERS
    + """\
def kqv(x, kqv_parameters):
    keys, queries, values = kqv_parameters(x).chunk(3, dim=-1)
    return keys, queries, values
"""
)


def wrong_order(name: str, order: str) -> WrongAnswer:
    """Return the answer that returns the three in another order."""
    return edited(name, KQV_ANSWER, ("return keys, queries, values", f"return {order}"))


KQV_WRONG = (
    wrong_order("queries-first", "queries, keys, values"),
    wrong_order("values-second", "keys, values, queries"),
    wrong_order("backwards", "values, queries, keys"),
    wrong_order("values-first", "values, keys, queries"),
    wrong_order("queries-first-keys-last", "queries, values, keys"),
    edited("no-bias", KQV_ANSWER, ("kqv_parameters(x)", "(x @ kqv_parameters.weight.T)")),
    edited("interleaved", KQV_ANSWER, (".chunk(3, dim=-1)", ".unflatten(-1, (-1, 3)).unbind(-1)")),
    edited(
        "view-without-position",
        KQV_ANSWER,
        ("kqv_parameters(x).chunk(3, dim=-1)", "kqv_parameters(x).view(x.shape[0], 3, x.shape[1], -1).unbind(1)"),
    ),
    edited(
        "reshape-three-first",
        KQV_ANSWER,
        ("kqv_parameters(x).chunk(3, dim=-1)", "kqv_parameters(x).reshape(3, *x.shape[:2], -1).unbind(0)"),
    ),
    edited("batch-overwritten", KQV_ANSWER, ("kqv_parameters(x)", "kqv_parameters(x)[:1].expand(x.shape[0], -1, -1)")),
)

LINEAR = "nn.Linear(input_size, 3 * hidden)"


def wrong_parameters(name: str, layer: str, hint: str = "") -> WrongAnswer:
    """Return the answer that creates a different layer."""
    return edited(name, KQV_ANSWER, (LINEAR, layer), fails=("kqv-check-parameters",), hint=hint)


KQV_MISBEHAVING = (
    *misbehaviours(KQV_ANSWER, "kqv", longer=(3, 13)),
    loses_a_length_of_one(KQV_ANSWER, "kqv"),
    edited(
        "three-products",
        KQV_ANSWER,
        ("keys, queries, values = kqv_parameters(x)", "keys, queries, values = torch.cat(parts, dim=-1)"),
        (
            "def kqv(x, kqv_parameters):\n",
            "def kqv(x, kqv_parameters):\n"
            "    weights = zip(kqv_parameters.weight.chunk(3), kqv_parameters.bias.chunk(3))\n"
            "    parts = [F.linear(x, weight, bias) for weight, bias in weights]\n",
        ),
        hint="too-many-products",
    ),
    edited(
        "one-product-a-sequence",
        KQV_ANSWER,
        ("kqv_parameters(x)", "torch.stack([kqv_parameters(sequence) for sequence in x])"),
        hint="too-many-products",
    ),
    *(
        edited(
            f"weights-all-{value}",
            KQV_ANSWER,
            (f"return {LINEAR}", f"layer = {LINEAR}\n    nn.init.constant_(layer.weight, {value})\n    return layer"),
            fails=("kqv-check-parameters",),
            hint="constant-weights",
        )
        for value in (0, 0.02)
    ),
    wrong_parameters("one-key-wide", "nn.Linear(input_size, hidden)", hint="too-narrow"),
    wrong_parameters("queries-and-keys-only", "nn.Linear(input_size, 2 * hidden)", hint="too-narrow"),
    wrong_parameters("sizes-swapped", "nn.Linear(3 * hidden, input_size)"),
    wrong_parameters("parameters-without-bias", "nn.Linear(input_size, 3 * hidden, bias=False)"),
    wrong_parameters("fixed-sizes", "nn.Linear(7, 33)", hint="sizes-not-counted"),
    wrong_parameters(
        "frozen-parameters", "nn.Linear(input_size, 3 * hidden).requires_grad_(False)", hint="frozen-layer"
    ),
    wrong_parameters("bare-tensor", "nn.Parameter(torch.randn(3 * hidden, input_size))", hint="not-a-linear-layer"),
    wrong_parameters(
        "three-layers", "nn.ModuleList([nn.Linear(input_size, hidden) for _ in range(3)])", hint="not-a-linear-layer"
    ),
)

KQV_RIGHT = {
    name: KQV_PARAMETERS + answer
    for name, answer in {
        "split": """\
def kqv(x, kqv_parameters):
    hidden = kqv_parameters.out_features // 3
    return torch.split(kqv_parameters(x), hidden, dim=2)
""",
        "slices": """\
def kqv(x, kqv_parameters):
    y = kqv_parameters(x)
    h = y.shape[-1] // 3
    return y[..., :h], y[..., h : 2 * h], y[:, :, 2 * h :]
""",
        "view": """\
def kqv(x, kqv_parameters):
    b, n, _ = x.shape
    return kqv_parameters(x).view(b, n, 3, -1).unbind(2)
""",
        "einsum": """\
def kqv(x, linear):
    y = torch.einsum("bnd,hd->bnh", x, linear.weight) + linear.bias
    return y.tensor_split(3, dim=-1)
""",
        "float64": """\
def kqv(x, linear):
    y = F.linear(x.double(), linear.weight.double(), linear.bias.double())
    return tuple(y.chunk(3, -1))
""",
        "list": """\
def kqv(x, kqv_parameters):
    return list(torch.chunk(kqv_parameters.forward(x), 3, dim=2))
""",
        "product-by-hand": """\
def kqv(x, kqv_parameters):
    together = x @ kqv_parameters.weight.T + kqv_parameters.bias
    return torch.tensor_split(together, 3, -1)
""",
        "narrow": """\
def kqv(x, kqv_parameters):
    together = kqv_parameters(x)
    size = together.size(-1) // 3
    return tuple(together.narrow(-1, third * size, size) for third in range(3))
""",
    }.items()
}

KQV_RECORD = ValueRecord(
    public=KQV,
    title="Keys, queries and values in one product",
    defines="kqv",
    parts=(
        Part(
            "kqv-check-parameters",
            1,
            layers(kqv_parameters, "create_kqv_parameters", ("",)),
            calls="create_kqv_parameters",
        ),
        Part("kqv-check", 1, values),
    ),
    properties=(SEQUENCES_APART, input_matters("keys", "queries", "values")),
    first_sizes={"b": 2, "n": 5, "input_size": 7, "hidden": 11},
    other_length={"b": 3, "n": 13},
    other_sizes={"b": 4, "n": 13, "input_size": 6, "hidden": 10, "magnitude": 4},
    ones=("n",),
    draw=draw_kqv,
    reference=reference_kqv,
    model_answer=KQV_ANSWER,
    wrong=KQV_WRONG,
    misbehaving=KQV_MISBEHAVING,
    right=KQV_RIGHT,
)
