"""Check of topic 02: a causal mask."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise
from transformer_lm.checks.engine.failure import CheckFailed


def _tried_mask(inputs: Inputs, output: str) -> str:
    return f"create_causal_mask({int(inputs['max_len'])})"


def _call_mask(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the mask as the numbers 1 and 0, after checking that it is Boolean."""
    visible = answer(int(inputs["max_len"]))
    if isinstance(visible, Tensor):
        if visible.dtype != torch.bool:
            known = hint("not-boolean", "causal-mask")
            yours = f"visible of dtype {visible.dtype}"
            raise CheckFailed(_tried_mask(inputs, "visible"), yours, "visible of dtype torch.bool", known)
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


def causal_mask(answer: Callable) -> None:
    """Check the student's `create_causal_mask`."""
    CAUSAL_MASK.check(answer)
