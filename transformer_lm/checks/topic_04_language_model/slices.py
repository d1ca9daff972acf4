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

TOO_FAR = "A start is too close to the end of the text: from there on, fewer than n tokens are left."
WRAPS = "A slice runs over the end and goes on at the beginning of the text: such a start must not be drawn."
FIRST = "The text's first tokens never begin a slice: positions count from 0."
LAST = "The end of the text never comes: how many starts are there? Mind that randint leaves out its upper bound."
CLAMPED = "The last start comes too often: starts that are too far are moved back, and should not be drawn at all."
BLOCKS = "The text is cut into blocks, and only these are drawn: a slice may start at every token that leaves n."
UNEVEN = "Some starts are drawn more often than others: each should have the same chance."
ONE_START = "All rows are the same slice: draw a start for each of them."
IN_ORDER = "The rows follow each other in the text: draw a start for each of them."
DEPENDENT = "A row's start tells that of another: draw each start by itself."
WITHOUT_REPLACEMENT = "No start comes twice in a batch: rows are drawn independently, so some are the same by chance."
POSITIONS = "These are positions in the text: take the tokens that stand there."
NOT_FROM_THE_TEXT = "There are numbers that are no token of the text: take the tokens themselves, as they are."
REVERSED = "The slices run backwards."
REPEATED = "A row is one token again and again: a slice holds those that follow it in the text."
SHUFFLED = "The tokens of a slice come in another order: keep that of the text."
NOT_CONSECUTIVE = "The tokens of a row do not follow each other in the text: draw one start for a row, not each token."
SWAPPED = "Positions come before slices: the batch is the first axis, as everywhere."
ONE_TOKEN = "A row has one number where it should have n tokens: a start is where a slice begins."
ONE_SLICE = "There is one slice: draw b of them."
FLAT = "All slices stand in one row, one after the other: each should be a row of its own."
ONE_MORE = "The slices are one token too long."
ONE_LESS = "The slices are one token too short."
OTHER_SHAPE = "The result has a row for each of the b slices, and each has n tokens."
SHORT = "Right for longer slices, wrong for slices of one token: they are rows of n = 1 tokens."
WHOLE = "A text of n tokens has one slice, all of it: its start, 0, must be among those that you draw."


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
    """Check the student's `random_slices`: what it cuts from a text, and how often each slice comes."""
    require_own(answer)
    with torch.random.fork_rng():
        examine_slices(asked_here(SLICES, answer), random.Random(4))
    passed(SLICES.id, "every slice comes, all equally often, and torch.manual_seed repeats them.")


def examine_slices(ask: Ask, rng: random.Random) -> None:
    """Raise CheckFailed unless the answer draws slices, with the right probabilities and independently."""
    number = rng.randint(55, 65)
    few = _case(rng, b=8, starts=number)
    rows = _asked(ask, few)
    steps = np.diff(_starts(few, rows)) % number  # the last start is followed by the first
    step = steps[0]
    if (steps == step).all():  # by chance, once in 10**10 times
        yours, hint = f"each row starts {step} tokens after the one before it", IN_ORDER if step else ONE_START
        raise CheckFailed(_words(few), yours, "starts that are drawn", hint)

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
    for hint, case in {
        ONE_SEQUENCE: few | {"b": np.array(1)},
        SHORT: few | {"n": np.array(1)},
        WHOLE: few | {"tokens": few["tokens"][:n]},
    }.items():
        try:
            _starts(case, ask(case))
        except CheckFailed as failed:
            raise CheckFailed(failed.tried, failed.yours, failed.expected, hint) from failed


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
        hint = POSITIONS if rows.min() >= 0 and rows.max() < len(tokens) else NOT_FROM_THE_TEXT
        raise CheckFailed(tried, "numbers that are not in the text", "tokens of the text", hint)
    steps = np.diff(places, axis=1)  # (b, n - 1)
    off = (steps != 1).any(axis=1)
    if off.any():
        yours = f"{off.sum()} of {len(rows)} rows are not to be found in the text"
        raise CheckFailed(tried, yours, "n tokens that follow each other", _order_hint(places, steps, len(tokens)))
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
        yours = f"start {off[-1]} comes {counts[off[-1]]} times"
        expected = f"about {DRAWS} times, as each of the starts from 0 to {number - 1}"
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
