"""Check of topic 02: several heads side by side."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters
from transformer_lm.shapes import describe


def _tried_layer(inputs: Inputs, output: str) -> str:
    h, three_dh, d = inputs["weights"].shape
    x = describe("x", inputs["x"], "b n d")
    visible = f", {describe('visible', inputs['visible'], 'b i j')}" if output == "output_masked" else ""
    return f"multi_head_attention_layer({x}, {h} x nn.Linear({d}, {three_dh}){visible})"


def _build_layer(answer: Callable, inputs: Inputs) -> tuple[Callable, list[nn.Linear]]:
    """Return the answer with a linear layer for each head."""
    _, three_dh, d = inputs["weights"].shape
    tried = _tried_layer(inputs, "output")
    heads = zip(inputs["weights"], inputs["biases"], strict=True)
    layers = [load_parameters(nn.Linear(d, three_dh), {"weight": w, "bias": b}, tried) for w, b in heads]
    return answer, layers


def _call_layer(subject: tuple[Callable, list[nn.Linear]], inputs: Inputs) -> Iterator[Tensor]:
    answer, layers = subject
    yield answer(inputs["x"], layers)
    yield answer(inputs["x"], layers, inputs["visible"])


MULTI_HEAD_ATTENTION_LAYER = PublicExercise(
    id="multi-head-attention-layer",
    axes={"output": "b n h*dh", "output_masked": "b n h*dh"},
    trains=("output", "output_masked"),
    reads=("x",),
    build=_build_layer,
    call=_call_layer,
    tried=_tried_layer,
    forbids_attention=True,
)


def multi_head_attention_layer(answer: Callable) -> None:
    """Check the student's `multi_head_attention_layer`, with and without a mask."""
    MULTI_HEAD_ATTENTION_LAYER.check(answer)
