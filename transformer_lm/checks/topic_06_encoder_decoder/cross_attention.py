"""Check of topic 06: attention whose queries come from one sequence, and keys and values from another."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters, require_own
from transformer_lm.checks.engine.failure import CheckFailed, described_errors, kind
from transformer_lm.shapes import describe

BOTH = hint("not-two-values", "cross-attention")
LENGTHS = hint("keys-from-target", "cross-attention")


def _tried(inputs: Inputs, output: str) -> str:
    sizes = f"{len(inputs['q_weight'])}, {int(inputs['num_heads'])}"
    x, memory = (describe(name, inputs[name], f"b {length} hidden") for name, length in (("x", "n"), ("memory", "m")))
    real = ", ".join(str(length) for length in inputs["visible"].sum(dim=1).tolist())
    return f"MultiHeadCrossAttention({sizes}) with given weights on {x} and {memory}, {real} positions visible"


def _build(answer: Callable, inputs: Inputs) -> nn.Module:
    layers = ("k", "q", "v", "mix")
    weights = {f"{layer}.{part}": inputs[f"{layer}_{part}"] for layer in layers for part in ("weight", "bias")}
    return load_parameters(answer(len(inputs["q_weight"]), int(inputs["num_heads"])), weights, _tried(inputs, "output"))


def _call(layer: nn.Module, inputs: Inputs) -> Iterator[Tensor]:
    """Yield output and weights. If shapes do not fit, the two lengths are the likely reason."""
    tried = _tried(inputs, "output")
    try:
        with described_errors(tried, "a tuple of 2 values, output and weights"):
            returned = layer(inputs["x"], inputs["memory"], inputs["visible"])
    except CheckFailed as failed:
        if failed.failure.mistake == "shapes-do-not-fit":
            raise failed.with_hint(LENGTHS) from failed
        raise
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise CheckFailed(tried, f"the return value is {kind(returned)}", "a tuple of 2 values", BOTH)
    yield from returned


CROSS_ATTENTION = PublicExercise(
    id="cross-attention",
    axes={"output": "b n hidden", "weights": "b h n m"},
    trains=("output",),  # weights are only for inspection and may be detached
    reads=("x", "memory", "visible"),
    build=_build,
    call=_call,
    tried=_tried,
    forbids_attention=True,
)


def cross_attention(answer: Callable) -> None:
    """Check the student's `MultiHeadCrossAttention`: its output and its weights, for sequences of two lengths."""
    require_own(answer)
    CROSS_ATTENTION.check(answer)
