"""Check of topic 06: which positions of a padded target may attend to which."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.shapes import describe

NOT_BOOL = hint("not-boolean", "target-mask")


def _tried(inputs: Inputs, output: str) -> str:
    tokens, pad = inputs["tokens"], int(inputs["pad"])
    real = ", ".join(str(length) for length in (tokens != pad).sum(dim=1).tolist())
    return f"target_mask({describe('tokens', tokens, 'b n')}, pad={pad}), {real} tokens are real"


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the mask as 1 and 0, after checking that it is Boolean."""
    visible = answer(inputs["tokens"], int(inputs["pad"]))
    if isinstance(visible, Tensor):
        if visible.dtype != torch.bool:
            yours, expected = f"visible of dtype {visible.dtype}", "visible of dtype torch.bool"
            raise CheckFailed(_tried(inputs, "visible"), yours, expected, NOT_BOOL)
        visible = visible.to(torch.get_default_dtype())
    yield visible


TARGET_MASK = PublicExercise(
    id="target-mask",
    axes={"visible": "b i j"},
    trains=(),
    reads=("tokens",),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
)


def target_mask(answer: Callable) -> None:
    """Check the student's `target_mask`: it hides the future and padding, and leaves every position a key."""
    require_own(answer)
    TARGET_MASK.check(answer)
