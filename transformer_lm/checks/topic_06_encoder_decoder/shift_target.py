"""Check of topic 06: the decoder's inputs and labels in training (teacher forcing)."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.shapes import describe

NO_WORD = -1  # where a sentence has ended; in the targets that an answer gets, it is the case's pad

BOTH = hint("not-two-values", "shift-target")
NOT_LONG = hint("labels-not-long", "shift-target")
CHANGED = hint("end-written-into-targets", "shift-target")


def _given(inputs: Inputs) -> tuple[Tensor, int, int, int]:
    """Return the arguments of a call."""
    start, end, pad = (int(inputs[name]) for name in ("start", "end", "pad"))
    targets = inputs["targets"].clone()  # with the same memory layout
    targets[targets == NO_WORD] = pad
    return targets, start, end, pad


def _tried(inputs: Inputs, output: str) -> str:
    targets, start, end, pad = _given(inputs)
    return f"shift_target({describe('targets', targets, 'b n')}, start={start}, end={end}, pad={pad})"


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield inputs and labels as floats, after checking that they hold integers and targets are unchanged."""
    targets, *special = _given(inputs)
    before, tried = targets.clone(), _tried(inputs, "inputs")
    returned = answer(targets, *special)
    if not torch.equal(targets, before):
        raise CheckFailed(tried, "targets is changed by the call", "targets as it was before", CHANGED)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise CheckFailed(tried, f"the return value is {kind(returned)}", "a tuple of 2 values", BOTH)
    for output, tokens in zip(SHIFT_TARGET.axes, returned, strict=True):
        if isinstance(tokens, Tensor):
            if tokens.dtype != torch.long:
                yours, expected = f"{output} of dtype {tokens.dtype}", f"{output} of dtype torch.int64"
                raise CheckFailed(tried, yours, expected, NOT_LONG)
            tokens = tokens.to(torch.get_default_dtype())
        yield tokens


SHIFT_TARGET = PublicExercise(
    id="shift-target",
    axes={"inputs": "b n+1", "labels": "b n+1"},
    trains=(),
    reads=("targets",),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
    returned_together=(("inputs", "labels"),),
)


def shift_target(answer: Callable) -> None:
    """Check the student's `shift_target`: with sentences that fill their row, and with much padding."""
    require_own(answer)
    SHIFT_TARGET.check(answer)
