"""Checks of topic 05: what a head does on average, by distance, by class of character, by pattern.

Every function is called twice: on a batch, and on its last sequence and head alone. Axes: b batch, h heads, i position
of the query, j of the key, n both, c classes.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from transformer_lm.checks.exercise import Inputs, PublicExercise, require_own
from transformer_lm.checks.report import CheckFailed, kind
from transformer_lm.shapes import describe

ALONE = "_of_one"  # how the outputs for one head on one sequence end
AXES = {"weights": "b h i j", "pattern": "b i j", "classes": "b n"}
BOTH = "Hand back both: the score of every head, and the chance that it is compared with."
ONE_CHANCE = "Chance is one number, the same for every head: it has no axis, not even one of size 1."


def _given(inputs: Inputs, output: str) -> Inputs:
    """Return what a call gets, without gradients: all, or the last sequence and head, not contiguous in memory."""
    given = {name: inputs[name].detach() for name in AXES if name in inputs}
    if not output.endswith(ALONE):
        return given
    alone = {name: each[-1:] for name, each in given.items()} | {"weights": given["weights"][-1:, -1:]}
    return {name: each.mT.clone(memory_format=torch.contiguous_format).mT for name, each in alone.items()}


def _arguments(inputs: Inputs, output: str) -> list[Tensor | int]:
    given: list[Tensor | int] = list(_given(inputs, output).values())
    return [*given, int(inputs["num_classes"])] if "num_classes" in inputs else given


def _tried(function: str) -> Callable[[Inputs, str], str]:
    def tried(inputs: Inputs, output: str) -> str:
        words = [describe(name, each, AXES[name]) for name, each in _given(inputs, output).items()]
        words += [f"num_classes={int(inputs['num_classes'])}"] if "num_classes" in inputs else []
        return f"{function}({', '.join(words)})"

    return tried


def _call(output: str) -> Callable[[Callable, Inputs], Iterator[Tensor]]:
    def call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
        batch, alone = (_arguments(inputs, name) for name in (output, output + ALONE))  # before a call changes them
        yield answer(*batch)
        yield answer(*alone)

    return call


def _aggregate(exercise: str, output: str, axes: str, *reads: str) -> PublicExercise:
    return PublicExercise(
        id=exercise,
        axes={output: axes, output + ALONE: axes},
        trains=(),
        reads=("weights", *reads),
        build=lambda answer, inputs: answer,
        call=_call(output),
        tried=_tried(exercise.replace("-", "_")),
        batched=False,  # the outputs are means over the batch
    )


OFFSET_PROFILE = _aggregate("offset-profile", "profile", "h n")
CLASS_MASS = _aggregate("class-mass", "mass", "h c c", "classes")
POSITION_NULL = replace(_aggregate("position-null", "null", "h i j"), causal=("null", "null" + ALONE))

# --- pattern-score ------------------------------------------------------------------------------


def _call_score(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the scores, then the chance with an axis of size 1; a chance may be a number of Python's or NumPy's."""
    calls = {name: _arguments(inputs, name) for name in ("score", "score" + ALONE)}  # before a call changes them
    for name, arguments in calls.items():
        returned, tried = answer(*arguments), PATTERN_SCORE.tried(inputs, name)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise CheckFailed(tried, f"what it returns is {kind(returned)}", "a tuple of 2 values", BOTH)
        score, chance = returned
        yield score
        chance = torch.tensor(chance) if isinstance(chance, int | float | np.number) else chance
        if isinstance(chance, Tensor) and chance.dim():
            raise CheckFailed(tried, f"chance of shape {tuple(chance.shape)}", "chance of shape ()", ONE_CHANCE)
        # Without axes, it may be on any device.
        yield chance.to(inputs["weights"].device)[None] if isinstance(chance, Tensor) else chance


PATTERN_SCORE = PublicExercise(
    id="pattern-score",
    axes={"score": "h", "chance": "numbers", f"score{ALONE}": "h", f"chance{ALONE}": "numbers"},
    trains=(),
    reads=("weights", "pattern"),
    build=lambda answer, inputs: answer,
    call=_call_score,
    tried=_tried("pattern_score"),
    batched=False,
    returned_together=(("score", "chance"), (f"score{ALONE}", f"chance{ALONE}")),
)

# --- the checks ---------------------------------------------------------------------------------


def offset_profile(answer: Callable) -> None:
    """Check the student's `offset_profile`: the mean weight of each head at each distance."""
    require_own(answer)
    OFFSET_PROFILE.check(answer)


def class_mass(answer: Callable) -> None:
    """Check the student's `class_mass`: what queries of a class give to keys of a class, also if there are none."""
    require_own(answer)
    CLASS_MASS.check(answer)


def pattern_score(answer: Callable) -> None:
    """Check the student's `pattern_score`: the score of each head, and what chance would give."""
    require_own(answer)
    PATTERN_SCORE.check(answer)


def position_null(answer: Callable) -> None:
    """Check the student's `position_null`: the heads, with nothing left of them but what depends on distance."""
    require_own(answer)
    POSITION_NULL.check(answer)
