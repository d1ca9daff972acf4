"""Check of topic 04: the token that each position should predict."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.shapes import describe


def _tried_labels(inputs: Inputs, output: str) -> str:
    return f"batch_to_labeled_samples({describe('batch', inputs['batch'], 'b n+1')})"


def _call_labels(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield inputs and labels as floats, after checking that they hold integers."""
    returned, tried = answer(inputs["batch"]), _tried_labels(inputs, "inputs")
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        known = hint("not-two-values", "labels")
        raise CheckFailed(tried, f"the return value is {kind(returned)}", "a tuple of 2 values", known)
    for output, tokens in zip(LABELS.axes, returned, strict=True):
        if isinstance(tokens, Tensor):
            if tokens.dtype != torch.long:
                known = hint("labels-not-long", "labels")
                raise CheckFailed(tried, f"{output} of dtype {tokens.dtype}", f"{output} of dtype torch.int64", known)
            tokens = tokens.to(torch.get_default_dtype())
        yield tokens


LABELS = PublicExercise(
    id="labels",
    axes={"inputs": "b n", "labels": "b n"},
    trains=(),
    reads=("batch",),
    build=lambda answer, inputs: answer,
    call=_call_labels,
    tried=_tried_labels,
    returned_together=(("inputs", "labels"),),
)


def labels(answer: Callable) -> None:
    """Check the student's `batch_to_labeled_samples`."""
    require_own(answer)
    LABELS.check(answer)
