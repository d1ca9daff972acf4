"""Check of topic 02: self-attention with a mask."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise
from transformer_lm.shapes import describe

MASK_MISFITS = hint("mask-does-not-fit", "masked-self-attention")
ATTENDED = ("output", "output_masked", "output_masked_apart")  # no mask, one mask for all sequences, one for each


def _mask_for(output: str, inputs: Inputs) -> Tensor | None:
    """Return the mask of the call that makes an output, if any."""
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
                error.hint = MASK_MISFITS  # type: ignore[attr-defined]  # torch's own error
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


def masked_self_attention(answer: Callable) -> None:
    """Check the student's `self_attention`: without a mask, with one for all sequences, with one for each."""
    MASKED_SELF_ATTENTION.check(answer)
