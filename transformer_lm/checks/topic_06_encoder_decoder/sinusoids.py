"""Check of topic 06: sinusoidal positional encodings."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed

SMALL = (2, 4)  # sizes of a first table, small enough to identify wavelengths that are far too short

NOT_REAL = hint("not-real", "sinusoids")


def _sizes(inputs: Inputs, output: str) -> tuple[int, int]:
    """Return max_len and hidden of an output."""
    return SMALL if output == "small_table" else (len(inputs["positions"]), int(inputs["hidden"]))


def _tried(inputs: Inputs, output: str) -> str:
    max_len, hidden = _sizes(inputs, output)
    return f"sinusoidal_positions({max_len}, {hidden})"


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the tables, after checking that they hold floats of sufficient precision."""
    for output in SINUSOIDS.axes:
        table = answer(*_sizes(inputs, output))
        if isinstance(table, Tensor):
            if table.dtype not in (torch.float32, torch.float64):
                yours, expected = f"{output} of dtype {table.dtype}", f"{output} of dtype torch.float32"
                raise CheckFailed(_tried(inputs, output), yours, expected, NOT_REAL)
            table = table.to(torch.get_default_dtype())
        yield table


SINUSOIDS = PublicExercise(
    id="sinusoids",
    axes={"small_table": "max_len hidden", "table": "max_len hidden"},
    trains=(),
    reads=("positions",),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
    batched=False,
    keeps_device=False,
)


def sinusoids(answer: Callable) -> None:
    """Check the student's `sinusoidal_positions`."""
    require_own(answer)
    SINUSOIDS.check(answer)
