"""Check of topic 02: several heads, with and without a causal mask."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from transformer_lm.checks.diagnosis import close
from transformer_lm.checks.exercise import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.report import CheckFailed, kind
from transformer_lm.shapes import describe


def _sizes(inputs: Inputs) -> tuple[int, int, int]:
    hidden, input_size = inputs["q_weight"].shape
    return input_size, hidden, int(inputs["num_heads"])


def _tried(inputs: Inputs, output: str) -> str:
    sizes = ", ".join(map(str, _sizes(inputs))) + (", causal=True" if output.endswith("_causal") else "")
    x = describe("x", inputs["x"], "b n input_size") + (", return_attention=True" if "weights" in output else "")
    return f"MultiHeadSelfAttention({sizes}) with frozen weights on {x}"


def _build(answer: Callable, inputs: Inputs) -> nn.ModuleDict:
    """Return two modules with the same weights, one that sees everything and a causal one."""
    layers = ("k", "q", "v", "mix")
    weights = {f"{layer}.{part}": inputs[f"{layer}_{part}"] for layer in layers for part in ("weight", "bias")}
    full, causal = answer(*_sizes(inputs)), answer(*_sizes(inputs), causal=True)
    return nn.ModuleDict(
        {
            "full": load_parameters(full, weights, _tried(inputs, "output")),
            "causal": load_parameters(causal, weights, _tried(inputs, "output_causal")),
        }
    )


def _call(subject: nn.ModuleDict, inputs: Inputs) -> Iterator[Tensor]:
    plain = subject["full"](inputs["x"])
    yield plain
    plain_causal = subject["causal"](inputs["x"])
    yield plain_causal
    yield _weights(subject["full"], plain, inputs, "weights")
    yield _weights(subject["causal"], plain_causal, inputs, "weights_causal")


def _weights(module: nn.Module, plain: Tensor, inputs: Inputs, output: str) -> Tensor:
    """Return the weights, after checking that they come with the same output as without them."""
    returned = module(inputs["x"], return_attention=True)
    hint = "With return_attention=True the weights come back too, after the output."
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise CheckFailed(_tried(inputs, output), f"what it returns is {kind(returned)}", "a tuple of 2 values", hint)
    if not isinstance(returned[0], Tensor) or not close(returned[0], plain):
        raise CheckFailed(_tried(inputs, output), "another output than without the weights", "the same output", hint)
    return returned[1]


MULTI_HEAD_ATTENTION = PublicExercise(
    id="multi-head-attention",
    axes={"output": "b n hidden", "output_causal": "b n hidden", "weights": "b*h i j", "weights_causal": "b*h i j"},
    trains=("output", "output_causal"),  # weights are for looking at, and may be detached
    reads=("x",),
    build=_build,
    call=_call,
    tried=_tried,
)


def multi_head_attention(answer: Callable) -> None:
    """Check the student's `MultiHeadSelfAttention`: outputs and weights, with and without a causal mask."""
    MULTI_HEAD_ATTENTION.check(answer)
