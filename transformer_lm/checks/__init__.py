"""Checks to run while you work: one line when your answer is right, four lines when it is not.

Each takes what your cell defines, as in `checks.self_attention(SelfAttention)`. The checks compare with frozen values
and contain no solution.

The checks of an exercise are found by path, in `topic_NN_name/exercise_id.py`: the functions that its `__all__` lists,
or else all public functions defined there. `EXERCISES` maps the id of each exercise to its public contract.
"""

from collections.abc import Callable
from inspect import isfunction
from types import ModuleType
from typing import TYPE_CHECKING

from transformer_lm.checks.engine.contract import Contract, PublicExercise
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.engine.places import modules_by_topic
from transformer_lm.checks.engine.ready_made import READY_MADE
from transformer_lm.checks.engine.shape_comments import check_shape_comments
from transformer_lm.checks.engine.style import length_of_forward, style


def _contracts_in(module: ModuleType) -> list[Contract]:
    return [value for value in vars(module).values() if isinstance(value, Contract)]


def _checks_in(module: ModuleType) -> dict[str, Callable[..., None]]:
    own = {
        name: value for name, value in vars(module).items() if isfunction(value) and value.__module__ == module.__name__
    }
    named = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    return {name: own[name] for name in named}


_CONTRACTS = {module: _contracts_in(module) for modules in modules_by_topic(__name__).values() for module in modules}
_CHECKS = {name: check for module, found in _CONTRACTS.items() if found for name, check in _checks_in(module).items()}

EXERCISES = {contract.id: contract for found in _CONTRACTS.values() for contract in found}


def shape_comments(exercise: str, answer: Callable) -> None:
    """Check the shape comments in the student's cell, for the exercise with that id."""
    contract = EXERCISES[exercise]
    assert isinstance(contract, PublicExercise)
    check_shape_comments(contract, answer)


def short_forward(exercise: str, answer: Callable) -> None:
    """Report whether the student's `forward` is short enough for an extra point, for the exercise with that id."""
    contract = EXERCISES[exercise]
    assert isinstance(contract, PublicExercise)
    if contract.calls_ready_made(answer):
        print(f"No extra point: {READY_MADE}")
    else:
        length_of_forward(answer)


globals().update(_CHECKS)

__all__ = ["EXERCISES", "CheckFailed", "shape_comments", "short_forward", "style"]
__all__ += sorted(_CHECKS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., None]: ...
