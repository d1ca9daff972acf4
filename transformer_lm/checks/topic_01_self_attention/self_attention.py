"""Check of topic 01: one attention head with its own layers."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.engine.failure import CheckFailed, described_errors, passed
from transformer_lm.checks.topic_01_self_attention.linear_layers import TWO_SIZES, Sizes, check_linear
from transformer_lm.shapes import describe


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


def self_attention_layers(answer: Callable, sizes: Sizes = TWO_SIZES) -> None:
    """Check the `__init__` of the student's `SelfAttention`: three linear layers k, q and v."""
    for input_size, hidden in sizes:
        tried = f"SelfAttention(input_size={input_size}, hidden={hidden})"
        expected = "an nn.Module with three linear layers k, q and v"
        with described_errors(tried, expected):
            module = answer(input_size, hidden)
        if not isinstance(module, nn.Module):
            known = hint("no-module", "self-attention")
            raise CheckFailed(tried, f"an object of type {type(module).__name__}", expected, known)
        for name in "kqv":
            if not hasattr(module, name):
                known = hint("layer-misnamed", "self-attention")
                raise CheckFailed(tried, f"self.{name} is missing", expected, known)
            check_linear(tried, f"self.{name}", getattr(module, name), input_size, hidden)
        if len({id(part) for name in "kqv" for part in getattr(module, name).parameters()}) < 6:
            known = hint("one-layer-for-two", "self-attention")
            raise CheckFailed(tried, "two of k, q and v share parameters", expected, known)
    passed("self-attention", "the three layers are there.")


def self_attention(answer: Callable) -> None:
    """Check the student's `SelfAttention`: its output for given weights, and its gradients."""
    SELF_ATTENTION.check(answer)
