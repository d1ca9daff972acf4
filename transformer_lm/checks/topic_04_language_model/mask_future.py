"""Check of topic 04: scores with -inf for future positions."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.shapes import describe


def _tried(inputs: Inputs, output: str) -> str:
    called = f"mask_future({describe('scores', inputs['scores'], 'b h i j')})"
    return f"{called} == -inf, as 1 and 0" if output == "hidden" else f"{called}, with 0 instead of -inf"


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield where the scores are -inf, then the other scores: infinity cannot be compared within a tolerance."""
    masked = answer(inputs["scores"])
    if not isinstance(masked, Tensor):
        known = hint("not-scores", "mask-future")
        raise CheckFailed(_tried(inputs, "kept"), f"the return value is {kind(masked)}", "a tensor", known)
    masked = masked.to(torch.get_default_dtype())
    hidden = masked.isneginf()
    yield hidden.to(masked.dtype)
    yield torch.where(hidden, 0, masked)


MASK_FUTURE = PublicExercise(
    id="mask-future",
    axes={"hidden": "b h i j", "kept": "b h i j"},
    trains=("kept",),
    reads=("scores",),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
    returned_together=(("hidden", "kept"),),
)


def mask_future(answer: Callable) -> None:
    """Check the student's `mask_future`: where the scores are -inf, and that all others are unchanged."""
    require_own(answer)
    MASK_FUTURE.check(answer)
