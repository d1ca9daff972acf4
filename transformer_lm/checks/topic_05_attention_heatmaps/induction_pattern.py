"""Check of topic 05: where the key follows an earlier occurrence of the query's token."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.shapes import describe

NOT_BOOL = hint("not-boolean", "induction-pattern")


def _tried(inputs: Inputs, output: str) -> str:
    return f"induction_pattern({describe('tokens', inputs['tokens'], 'b n')})"


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the pattern as 1 and 0, after checking that it is Boolean."""
    pattern = answer(inputs["tokens"])
    if isinstance(pattern, Tensor):
        if pattern.dtype != torch.bool:
            yours, expected = f"pattern of dtype {pattern.dtype}", "pattern of dtype torch.bool"
            raise CheckFailed(_tried(inputs, "pattern"), yours, expected, NOT_BOOL)
        pattern = pattern.to(torch.get_default_dtype())
    yield pattern


INDUCTION_PATTERN = PublicExercise(
    id="induction-pattern",
    axes={"pattern": "b i j"},
    trains=(),
    reads=("tokens",),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
)


def induction_pattern(answer: Callable) -> None:
    """Check the student's `induction_pattern`: which keys an induction head would attend to."""
    require_own(answer)
    INDUCTION_PATTERN.check(answer)
