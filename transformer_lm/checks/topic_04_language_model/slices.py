"""Check of topic 04: random slices of a text.

The tokens of a text are all different here, so that a slice shows where it starts.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_lm.checks.engine.calling import ONE_SEQUENCE
from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, passed
from transformer_lm.checks.engine.sampled import (
    Ask,
    Case,
    asked_here,
    require_fresh,
    require_long,
    start_over,
    surprising,
    without_seed,
)

__all__ = ["slices"]

DRAWS = 400  # per start
SMALLEST_TOKEN = 100  # larger than any position, so that the two cannot be confused

TOO_FAR = hint("starts-too-far", "slices")
WRAPS = hint("wraps-around", "slices")
FIRST = hint("never-the-first", "slices")
LAST = hint("never-the-last", "slices")
CLAMPED = hint("moved-back-from-the-end", "slices")
BLOCKS = hint("blocks", "slices")
UNEVEN = hint("uneven", "slices")
ONE_START = hint("one-start-for-all", "slices")
IN_ORDER = hint("in-order", "slices")
DEPENDENT = hint("dependent", "slices")
WITHOUT_REPLACEMENT = hint("without-replacement", "slices")
POSITIONS = hint("positions-returned", "slices")
NOT_FROM_THE_TEXT = hint("not-from-the-text", "slices")
REVERSED = hint("backwards", "slices")
REPEATED = hint("first-token-again-and-again", "slices")
SHUFFLED = hint("shuffled", "slices")
NOT_CONSECUTIVE = hint("not-consecutive", "slices")
SWAPPED = hint("positions-first", "slices")
ONE_TOKEN = hint("one-token", "slices")
ONE_SLICE = hint("one-slice", "slices")
FLAT = hint("flattened", "slices")
ONE_MORE = hint("one-token-more", "slices")
ONE_LESS = hint("one-token-less", "slices")
OTHER_SHAPE = hint("other-shape", "slices")
SHORT = hint("loses-slices-of-one", "slices")
WHOLE = hint("whole-text", "slices")


def _tried(inputs: Mapping[str, Tensor | NDArray], output: str) -> str:
    return f"random_slices(tokens, b={int(inputs['b'])}, n={int(inputs['n'])}) with {len(inputs['tokens'])} tokens"


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    start_over(inputs)
    yield answer(inputs["tokens"], int(inputs["b"]), int(inputs["n"]))


SLICES = PublicExercise(
    id="slices",
    axes={"slices": "b n"},
    trains=(),
    reads=("tokens",),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
    batched=False,
)


def slices(answer: Callable) -> None:
    """Check the student's `random_slices`: what it cuts from a text, and how often each slice is drawn."""
    require_own(answer)
    with torch.random.fork_rng():
        examine_slices(asked_here(SLICES, answer), random.Random(4))
    passed(SLICES.id, "every slice is drawn, all equally often, and torch.manual_seed repeats them.")


def examine_slices(ask: Ask, rng: random.Random) -> None:
    """Raise CheckFailed unless the answer draws slices, with the right probabilities and independently."""
    number = rng.randint(55, 65)
    few = _case(rng, b=8, starts=number)
    rows = _asked(ask, few)
    steps = np.diff(_starts(few, rows)) % number  # the last start is followed by the first
    step = steps[0]
    if (steps == step).all():  # by chance, once in 10**10 times
        yours, known = f"each row starts {step} tokens after the one before it", IN_ORDER if step else ONE_START
        raise CheckFailed(_words(few), yours, "starts that are drawn", known)

    require_fresh(_words(few), rows, _asked(ask, without_seed(few)), _asked(ask, few))

    number = rng.randint(10, 16)
    many = _case(rng, b=DRAWS * number, starts=number)
    _require_equal_chances(many, _starts(many, _asked(ask, many)))

    number = rng.randint(30, 40)
    full = _case(rng, b=number, starts=number)
    if len(set(_starts(full, _asked(ask, full)))) == number:  # by chance, once in 10**11 times
        yours = f"each of the {number} starts once"
        raise CheckFailed(_words(full), yours, "some of them twice, others never", WITHOUT_REPLACEMENT)

    n = int(few["n"])
    for known, case in {
        ONE_SEQUENCE: few | {"b": np.array(1)},
        SHORT: few | {"n": np.array(1)},
        WHOLE: few | {"tokens": few["tokens"][:n]},
    }.items():
        try:
            _starts(case, ask(case))
        except CheckFailed as failed:
            raise CheckFailed(failed.tried, failed.yours, failed.expected, known) from failed


def _case(rng: random.Random, b: int, starts: int) -> Case:
    """Return a text with this number of possible starts, of which b are to be drawn, and a seed."""
    n = rng.randint(3, 6)
    tokens = rng.sample(range(SMALLEST_TOKEN, 10 * SMALLEST_TOKEN), starts + n - 1)
    return {
        "tokens": np.array(tokens),
        "b": np.array(b),
        "n": np.array(n),
        "seed": np.array(rng.getrandbits(32)),
    }


def _words(case: Case) -> str:
    return _tried(case, "slices")


def _asked(ask: Ask, case: Case) -> NDArray:
    """Return the slices that an answer draws; an error from a slice beyond the end is reported as such."""
    try:
        return ask(case)
    except CheckFailed as failed:
        if re.search(r"out of (bounds|range)|equal size|exceeds dimension", failed.yours):
            raise CheckFailed(failed.tried, failed.yours, failed.expected, TOO_FAR) from failed
        raise


def _starts(case: Case, rows: NDArray) -> NDArray:
    """Return where in the text each row starts, or raise CheckFailed if a row is not a slice."""
    tried, tokens, n = _words(case), case["tokens"], int(case["n"])
    require_long(tried, "slices", rows)
    shape = (int(case["b"]), n)
    if rows.shape != shape:
        yours, expected = f"slices of shape {rows.shape}", f"slices of shape {shape}"
        raise CheckFailed(tried, yours, expected, _shape_hint(rows.shape, shape, len(tokens) - n + 1))
    order = np.argsort(tokens)
    places = order[np.searchsorted(tokens, rows, sorter=order).clip(max=len(tokens) - 1)]  # (b, n)
    if not np.array_equal(tokens[places], rows):
        known = POSITIONS if rows.min() >= 0 and rows.max() < len(tokens) else NOT_FROM_THE_TEXT
        raise CheckFailed(tried, "numbers that are not in the text", "tokens of the text", known)
    steps = np.diff(places, axis=1)  # (b, n - 1)
    off = (steps != 1).any(axis=1)
    if off.any():
        yours = f"{off.sum()} of {len(rows)} rows do not occur in the text"
        raise CheckFailed(tried, yours, "n consecutive tokens", _order_hint(places, steps, len(tokens)))
    return places[:, 0]


def _shape_hint(yours: tuple[int, ...], shape: tuple[int, int], starts: int) -> str:
    b, n = shape
    known = {
        (n, b): SWAPPED,
        (b,): ONE_TOKEN,
        (b, 1): ONE_TOKEN,
        (n,): ONE_SLICE,
        (1, n): ONE_SLICE,
        (b * n,): FLAT,
        (b, n + 1): ONE_MORE,
        (b, n - 1): ONE_LESS,
        (starts, n): WITHOUT_REPLACEMENT,
    }
    return known.get(yours, OTHER_SHAPE)


def _order_hint(places: NDArray, steps: NDArray, length: int) -> str:
    if (steps % length == 1).all():
        return WRAPS
    if (steps == -1).all():
        return REVERSED
    if (steps == 0).all():
        return REPEATED
    if ((steps == 1) | (places[:, 1:] == length - 1)).all():
        return TOO_FAR  # the last token is repeated
    return SHUFFLED if (np.diff(np.sort(places, axis=1), axis=1) == 1).all() else NOT_CONSECUTIVE


def _require_equal_chances(case: Case, drawn: NDArray) -> None:
    """Raise CheckFailed unless all starts are about equally frequent, whatever the starts of other rows are."""
    number = len(case["tokens"]) - int(case["n"]) + 1
    counts = np.bincount(drawn, minlength=number)
    off = [start for start in range(number) if surprising(counts[start], len(drawn), 1 / number)]
    if off:
        yours = f"start {off[-1]} is drawn {counts[off[-1]]} times"
        expected = f"about {DRAWS} times, like every start from 0 to {number - 1}"
        raise CheckFailed(_words(case), yours, expected, _start_hint(drawn, counts, int(case["n"])))
    neighbours, halves = drawn.reshape(-1, 2), drawn.reshape(2, -1).T  # no row is in two pairs: they are independent
    for pairs in (neighbours, halves):
        changes = (pairs[:, 1] - pairs[:, 0]) % number
        for change, count in enumerate(np.bincount(changes, minlength=number)):
            if surprising(count, len(changes), 1 / number):
                yours = f"in {count} of {len(changes)} pairs of rows, the second starts {change} tokens after the first"
                raise CheckFailed(_words(case), yours, f"about {len(changes) // number} pairs", DEPENDENT)


def _start_hint(drawn: NDArray, counts: NDArray, n: int) -> str:
    if (drawn % n == 0).all():
        return BLOCKS
    if counts[0] == 0:
        return FIRST
    if counts[-1] == 0:
        return LAST
    return CLAMPED if counts[-1] > 2 * counts[:-1].max() else UNEVEN
