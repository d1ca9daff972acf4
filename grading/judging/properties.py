"""Properties that every right answer has, tested on the answer by changing its inputs."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grading.judging.record import Arrays, dyadic

Ask = Callable[[Arrays], Arrays]  # returns what the answer computes for a case


@dataclass(frozen=True)
class Property:
    """A property that must hold; `holds` gets a way to call the answer, a case, the names of inputs, and randomness.

    To explain one wrong output, only that output is requested; a property of other outputs must then hold.
    """

    hint: str
    holds: Callable[[Ask, Arrays, tuple[str, ...], random.Random], bool]


def _changed(case: Arrays, names: tuple[str, ...], rng: random.Random, where: tuple) -> Arrays:
    """Return the case with other numbers in part of the inputs of each call."""
    changed = {name: np.array(case[name]) for name in names}
    for array in changed.values():
        array[where] = dyadic(rng, *array[where].shape, bound=2)
    return case | changed


def same(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two outputs are the same up to rounding."""
    return first.shape == second.shape and np.allclose(first, second, rtol=1e-4, atol=1e-4, equal_nan=True)


def _of(found: Arrays, outputs: tuple[str, ...]) -> list[str]:
    """Return those of these outputs that were requested."""
    return [name for name in outputs if name in found]


def _sequences_apart(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
    b = len(case[reads[0]])
    before, after = ask(case), ask(_changed(case, reads, rng, (slice(1, None),)))
    return all(same(before[name][: len(before[name]) // b], after[name][: len(before[name]) // b]) for name in before)


SEQUENCES_APART = Property("sequences-mix", _sequences_apart)


def input_matters(*outputs: str) -> Property:
    """Return the property of outputs that change with the input."""

    def holds(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
        before, after = ask(case), ask(_changed(case, reads, rng, (slice(None),)))
        return not any(same(before[name], after[name]) for name in _of(before, outputs))

    return Property("input-has-no-effect", holds)


def rows_sum_to_one(*outputs: str) -> Property:
    """Return the property of weights that each row sums to 1 and no weight is negative."""

    def holds(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
        asked = ask(case)
        weights = [asked[name] for name in _of(asked, outputs)]
        return all(np.allclose(each.sum(-1), 1, atol=1e-4) and each.min() >= 0 for each in weights)

    return Property("rows-do-not-sum-to-one", holds)


def ignores_the_future(*outputs: str) -> Property:
    """Return the property of causal outputs that the last position has no effect on earlier ones."""

    def holds(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
        before, after = ask(case), ask(_changed(case, reads, rng, (slice(None), slice(-1, None))))
        return all(same(before[name][:, :-1], after[name][:, :-1]) for name in _of(before, outputs))

    return Property("future-has-an-effect", holds)
