"""Checks of topic 01: keys, queries and values in one product, scores, one attention head."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from transformer_lm.checks.exercise import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.report import CheckFailed, described_errors, kind, passed
from transformer_lm.shapes import describe

Sizes = tuple[tuple[int, int], ...]  # of input_size and hidden

CONSTANT = (
    "All weights start with one value, so every output gets the same gradient and stays the same as the others: "
    "leave the random start of nn.Linear as it is."
)
TWO_SIZES = ((7, 11), (5, 3))  # a size that is fixed in an answer fits one of them only


def _tried_kqv(inputs: Inputs, output: str) -> str:
    three_hidden, input_size = inputs["weight"].shape
    return f"kqv(x, nn.Linear({input_size}, {three_hidden})) on {describe('x', inputs['x'], 'b n d')}"


def _build_kqv(answer: Callable, inputs: Inputs) -> tuple[Callable, nn.Linear]:
    three_hidden, input_size = inputs["weight"].shape
    weights = {"weight": inputs["weight"], "bias": inputs["bias"]}
    return answer, load_parameters(nn.Linear(input_size, three_hidden), weights, _tried_kqv(inputs, "keys"))


def _call_kqv(subject: tuple[Callable, nn.Linear], inputs: Inputs) -> Iterator[Tensor]:
    answer, layer = subject
    returned = answer(inputs["x"], layer)
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        hint = "Cut the last axis into three pieces of equal size, and hand back all three."
        raise CheckFailed(
            _tried_kqv(inputs, "keys"), f"what it returns is {kind(returned)}", "a tuple of 3 values", hint
        )
    yield from returned


KQV = PublicExercise(
    id="kqv",
    axes={"keys": "b n dh", "queries": "b n dh", "values": "b n dh"},
    trains=("keys", "queries", "values"),
    reads=("x",),
    build=_build_kqv,
    call=_call_kqv,
    tried=_tried_kqv,
    products=1,
    returned_together=(("keys", "queries", "values"),),
)


def _tried_scores(inputs: Inputs, output: str) -> str:
    queries, keys = inputs["queries"], inputs["keys"]
    return f"attention_scores({describe('queries', queries, 'b i dh')}, {describe('keys', keys, 'b j dh')})"


def _call_scores(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    yield answer(inputs["queries"], inputs["keys"])


ATTENTION_SCORES = PublicExercise(
    id="attention-scores",
    axes={"scores": "b i j"},
    trains=("scores",),
    reads=("queries", "keys"),
    build=lambda answer, inputs: answer,
    call=_call_scores,
    tried=_tried_scores,
    forbids_attention=True,
)


def _tried_self_attention(inputs: Inputs, output: str) -> str:
    hidden, input_size = inputs["q_weight"].shape
    x = describe("x", inputs["x"], "b n input_size")
    return f"SelfAttention({input_size}, {hidden}) with given weights on {x}"


def _build_self_attention(answer: Callable, inputs: Inputs) -> nn.Module:
    hidden, input_size = inputs["q_weight"].shape
    weights = {f"{layer}.{kind}": inputs[f"{layer}_{kind}"] for layer in "kqv" for kind in ("weight", "bias")}
    return load_parameters(answer(input_size, hidden), weights, _tried_self_attention(inputs, "output"))


def _call_self_attention(module: nn.Module, inputs: Inputs) -> Iterator[Tensor]:
    yield module(inputs["x"])


SELF_ATTENTION = PublicExercise(
    id="self-attention",
    axes={"output": "b n hidden"},
    trains=("output",),
    reads=("x",),
    build=_build_self_attention,
    call=_call_self_attention,
    tried=_tried_self_attention,
    forbids_attention=True,
)


def kqv_parameters(create_kqv_parameters: Callable, sizes: Sizes = TWO_SIZES) -> None:
    """Check what `create_kqv_parameters` returns: one linear layer of the right sizes."""
    for input_size, hidden in sizes:
        tried = f"create_kqv_parameters(input_size={input_size}, hidden={hidden})"
        with described_errors(tried, "one linear layer"):
            layer = create_kqv_parameters(input_size, hidden)
        _check_linear(tried, "what it returns", layer, input_size, 3 * hidden)
    passed("kqv", "the parameters are one linear layer of the right sizes.")


def kqv(answer: Callable) -> None:
    """Check the student's `kqv`: the right three tensors, from one matrix product."""
    KQV.check(answer)


def attention_scores(answer: Callable) -> None:
    """Check the student's `attention_scores`."""
    ATTENTION_SCORES.check(answer)


def self_attention_layers(answer: Callable, sizes: Sizes = TWO_SIZES) -> None:
    """Check the `__init__` of the student's `SelfAttention`: three linear layers k, q and v."""
    for input_size, hidden in sizes:
        tried = f"SelfAttention(input_size={input_size}, hidden={hidden})"
        expected = "an nn.Module with three linear layers k, q and v"
        with described_errors(tried, expected):
            module = answer(input_size, hidden)
        if not isinstance(module, nn.Module):
            hint = "Derive your class from nn.Module."
            raise CheckFailed(tried, f"an object of type {type(module).__name__}", expected, hint)
        for name in "kqv":
            if not hasattr(module, name):
                hint = "Make the three layers in __init__, each under its own name."
                raise CheckFailed(tried, f"there is no self.{name}", expected, hint)
            _check_linear(tried, f"self.{name}", getattr(module, name), input_size, hidden)
        if len({id(part) for name in "kqv" for part in getattr(module, name).parameters()}) < 6:
            hint = "Give each of the three a layer of its own, with its own weight and bias."
            raise CheckFailed(tried, "two of k, q and v share parameters", expected, hint)
    passed("self-attention", "the three layers are there.")


def self_attention(answer: Callable) -> None:
    """Check the student's `SelfAttention`: its output for given weights, and its gradients."""
    SELF_ATTENTION.check(answer)


def _check_linear(tried: str, name: str, layer: object, size_in: int, size_out: int) -> None:
    """Raise CheckFailed unless a layer is linear, of these sizes, with a bias."""
    expected = f"Linear(in_features={size_in}, out_features={size_out}, bias=True)"
    if not isinstance(layer, nn.Linear):
        raise CheckFailed(tried, f"{name} is {kind(layer)}", expected, "It must be an nn.Linear itself.")
    sizes = (layer.in_features, layer.out_features)
    constant = bool((layer.weight == layer.weight.flatten()[0]).all())
    if sizes == (size_in, size_out) and layer.bias is not None and layer.weight.requires_grad and not constant:
        return
    if constant and layer.weight.numel() > 1:
        raise CheckFailed(tried, f"all weights of {name} are {layer.weight[0, 0]:g}", "weights that differ", CONSTANT)
    if not layer.weight.requires_grad:
        hint = "The layer is frozen, so it cannot learn: leave its requires_grad as it is."
    elif layer.bias is None:
        hint = "The layer has no bias; nn.Linear has one unless you switch it off."
    elif sizes == (size_out, size_in):
        hint = "The two sizes are swapped: nn.Linear takes the size in, then the size out."
    elif sizes[0] == size_in and sizes[1] < size_out:
        hint = "The layer is too narrow for all that must come out of it."
    else:
        hint = "A position of input_size numbers goes in; count the numbers that must come out of it."
    raise CheckFailed(tried, f"{name} is {layer!r}", expected, hint)
