"""Check of topic 04: the probabilities of the next token, with temperature and top-k."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.shapes import describe

SHARP = 2.0**-16  # so low that only one token is left, and exponentials overflow
FLAT = 64.0
IN_PLACE = hint("masks-in-place", "next-probabilities")
WHOLE_NUMBERS = hint("zero-gives-whole-numbers", "next-probabilities")


def _settings(inputs: Inputs, output: str) -> tuple[float, int]:
    """Return the temperature and the top_k of an output."""
    temperature, top_k, v = float(inputs["temperature"].detach()), int(inputs["top_k"]), inputs["logits"].shape[1]
    return {
        "probabilities": (temperature, top_k),
        "of_all_tokens": (temperature, v),
        "of_one_token": (temperature, 1),
        "flat": (FLAT, top_k),
        "sharp": (SHARP, v),
        "greedy": (0.0, top_k),
    }[output]


def _tried(inputs: Inputs, output: str) -> str:
    temperature, top_k = _settings(inputs, output)
    logits = describe("logits", inputs["logits"], "b v")
    return f"next_probabilities({logits}, temperature={temperature:.3g}, top_k={top_k})"


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the probabilities for several settings, after checking the dtype, and that the logits are unchanged."""
    for output in NEXT_PROBABILITIES.axes:
        logits = inputs["logits"].detach().clone()
        probabilities, tried = answer(logits, *_settings(inputs, output)), _tried(inputs, output)
        if not torch.equal(logits, inputs["logits"]):
            raise CheckFailed(tried, "logits is changed by the call", "logits as it was before", IN_PLACE)
        fits = isinstance(probabilities, Tensor) and probabilities.shape == logits.shape  # else reported first
        if fits and not probabilities.is_floating_point():
            yours, expected = f"{output} of dtype {probabilities.dtype}", f"{output} of dtype {logits.dtype}"
            raise CheckFailed(tried, yours, expected, WHOLE_NUMBERS)
        yield probabilities


NEXT_PROBABILITIES = PublicExercise(
    id="next-probabilities",
    axes=dict.fromkeys(("probabilities", "of_all_tokens", "of_one_token", "flat", "sharp", "greedy"), "b v"),
    trains=(),
    reads=("logits",),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
)


def next_probabilities(answer: Callable) -> None:
    """Check the student's `next_probabilities`: several temperatures, down to 0, and several top_k."""
    require_own(answer)
    NEXT_PROBABILITIES.check(answer)
