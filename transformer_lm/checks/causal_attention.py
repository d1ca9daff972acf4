"""Checks of topic 02: a causal mask, attention that keeps to a mask, several heads side by side."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from transformer_lm.checks.exercise import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.report import CheckFailed
from transformer_lm.shapes import describe

# --- causal-mask --------------------------------------------------------------------------------


def _tried_mask(inputs: Inputs, output: str) -> str:
    return f"create_causal_mask({int(inputs['max_len'])})"


def _call_mask(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the mask as the numbers 1 and 0, after checking that it is of True and False."""
    visible = answer(int(inputs["max_len"]))
    if isinstance(visible, Tensor):
        if visible.dtype != torch.bool:
            hint = "A mask is of True and False, dtype torch.bool: with numbers in it, `~visible` fails or turns odd."
            yours = f"visible of dtype {visible.dtype}"
            raise CheckFailed(_tried_mask(inputs, "visible"), yours, "visible of dtype torch.bool", hint)
        visible = visible.to(torch.get_default_dtype())
    yield visible


CAUSAL_MASK = PublicExercise(
    id="causal-mask",
    axes={"visible": "b i j"},
    trains=(),
    reads=("max_len",),
    build=lambda answer, inputs: answer,
    call=_call_mask,
    tried=_tried_mask,
    batched=False,
    keeps_device=False,
)

# --- masked-self-attention ----------------------------------------------------------------------

MASK_MISFITS = (
    "The mask does not fit the scores there: it may be larger than they are, and queries and keys may differ in number."
)
ATTENDED = ("output", "output_masked", "output_masked_apart")  # no mask, one for all sequences, one for each of them


def _mask_for(output: str, inputs: Inputs) -> Tensor | None:
    """Return the mask that an output is made with, if any."""
    if output == "output":
        return None
    visible = inputs["visible"]
    if output == "output_masked":
        return visible
    b = len(inputs["scores"])
    return torch.cat([visible.roll(sequence, dims=1) for sequence in range(b)])  # (b, at least i, at least j)


def _tried_self_attention(inputs: Inputs, output: str) -> str:
    given = [describe("values", inputs["values"], "b j dh"), describe("scores", inputs["scores"], "b i j")]
    visible = _mask_for(output, inputs)
    if visible is not None:
        given.append(describe("visible", visible, "b i j"))
    return f"self_attention({', '.join(given)})"


def _call_self_attention(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    for output in ATTENDED:
        visible = _mask_for(output, inputs)
        masks = () if visible is None else (visible,)
        try:
            returned = answer(inputs["values"], inputs["scores"], *masks)
        except RuntimeError as error:
            if masks and "must match" in str(error):
                error.hint = MASK_MISFITS
            raise
        yield returned


MASKED_SELF_ATTENTION = PublicExercise(
    id="masked-self-attention",
    axes=dict.fromkeys(ATTENDED, "b i dh"),
    trains=ATTENDED,
    reads=("values", "scores"),
    build=lambda answer, inputs: answer,
    call=_call_self_attention,
    tried=_tried_self_attention,
    forbids_attention=True,
)

# --- multi-head-attention-layer -----------------------------------------------------------------


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

# --- the checks ---------------------------------------------------------------------------------


def causal_mask(answer: Callable) -> None:
    """Check the student's `create_causal_mask`."""
    CAUSAL_MASK.check(answer)


def masked_self_attention(answer: Callable) -> None:
    """Check the student's `self_attention`: without a mask, with one for all sequences, with one for each."""
    MASKED_SELF_ATTENTION.check(answer)


def multi_head_attention_layer(answer: Callable) -> None:
    """Check the student's `multi_head_attention_layer`, with and without a mask."""
    MULTI_HEAD_ATTENTION_LAYER.check(answer)
