"""Checks of random answers: how to call an answer, and which counts cannot be due to chance.

A check counts what an answer draws. Every count differs a little from what is expected; an answer is refused only for
differences that a right one practically never shows.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise
from transformer_lm.checks.engine.diagnosis import require_unchanged
from transformer_lm.checks.engine.failure import CheckFailed, described_errors, kind
from transformer_lm.device import best_device

Case = dict[str, NDArray]
Ask = Callable[[Case], NDArray]  # passes a case to an answer and returns what it draws, or raises CheckFailed

SURPRISE = 25.0  # a right answer gives such a surprising count less than 3 times in 10**11

NOT_LONG = hint("tokens-not-long")
FIXED_SEED = hint("seed-fixed")
NOT_TORCH = hint("not-torchs-generator")


def surprising(count: int, draws: int, chance: float) -> bool:
    """Return whether a count is so far from draws * chance that luck does not explain it."""
    return surprise(count, draws, chance) > SURPRISE


def surprise(count: int, draws: int, chance: float) -> float:
    """Return how little luck explains a count: one as far out has a probability of exp(-surprise) or less.

    This is the bound of Chernoff (1952). It holds on either side of draws * chance, for every number of draws; with
    q = count / draws it is draws * (q ln(q / chance) + (1 - q) ln((1 - q) / (1 - chance))).
    """
    share = count / draws
    return draws * (_divergence(share, chance) + _divergence(1 - share, 1 - chance))


def _divergence(share: float, chance: float) -> float:
    if share == 0:
        return 0.0
    return share * math.log(share / chance) if chance > 0 else math.inf


def start_over(inputs: Inputs) -> None:
    """Seed torch's generator if the inputs hold a seed; without one it continues from its current state."""
    if "seed" in inputs:
        torch.manual_seed(int(inputs["seed"]))


def without_seed(case: Case) -> Case:
    """Return the case without its seed, for a call that continues drawing."""
    return {key: array for key, array in case.items() if key != "seed"}


def asked_here(exercise: PublicExercise, answer: object) -> Ask:
    """Return a function that calls an answer in this process, as a notebook does."""
    (name,) = exercise.axes

    def ask(case: Case) -> NDArray:
        given = {key: torch.from_numpy(np.array(array)).to(best_device()) for key, array in case.items()}
        tried = exercise.tried(given, name)
        with described_errors(tried, f"{name}, a tensor"):
            output = next(exercise.call(answer, given))
            if not isinstance(output, Tensor):
                raise not_a_tensor(tried, name, kind(output))
        require_unchanged(tried, case, {key: tensor.cpu().numpy() for key, tensor in given.items()})
        plain = output.detach().cpu()
        return (plain.double() if plain.is_floating_point() else plain).numpy()

    return ask


def not_a_tensor(tried: str, name: str, what: str) -> CheckFailed:
    """Return the failure of an output that is not a tensor."""
    return CheckFailed(tried, f"{name} is {what}", f"{name}, a tensor", hint("not-a-tensor", name=name))


def require_long(tried: str, name: str, output: NDArray) -> None:
    """Raise CheckFailed unless an output holds tokens."""
    if output.dtype != np.int64:
        raise CheckFailed(tried, f"{name} of dtype {output.dtype}", f"{name} of dtype int64", NOT_LONG)


def require_fresh(tried: str, first: NDArray, second: NDArray, repeated: NDArray) -> None:
    """Raise CheckFailed unless a second call draws again, and a call with the seed of the first repeats it."""
    if np.array_equal(first, second):
        raise CheckFailed(f"{tried}, twice", "the same both times", "another draw with each call", FIXED_SEED)
    if not np.array_equal(first, repeated):
        tried = f"{tried}, twice, after the same torch.manual_seed"
        raise CheckFailed(tried, "something else the second time", "the same both times", NOT_TORCH)
