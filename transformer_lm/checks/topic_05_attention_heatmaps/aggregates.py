"""Shared code of the exercises about a head's average: by distance, by class of character, by pattern.

Every function is called twice: on a batch, and on its last sequence and head alone. Axes: b batch, h heads, i position
of the query, j of the key, n both, c classes.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.contract import Inputs, PublicExercise
from transformer_lm.shapes import describe

ALONE = "_of_one"  # the suffix of the outputs for one head on one sequence
AXES = {"weights": "b h i j", "pattern": "b i j", "classes": "b n"}


def _given(inputs: Inputs, output: str) -> Inputs:
    """Return the inputs of a call, without gradients: all, or the last sequence and head, non-contiguous."""
    given = {name: inputs[name].detach() for name in AXES if name in inputs}
    if not output.endswith(ALONE):
        return given
    alone = {name: each[-1:] for name, each in given.items()} | {"weights": given["weights"][-1:, -1:]}
    return {name: each.mT.clone(memory_format=torch.contiguous_format).mT for name, each in alone.items()}


def arguments_of(inputs: Inputs, output: str) -> list[Tensor | int]:
    """Return the arguments of the call that makes an output."""
    given: list[Tensor | int] = list(_given(inputs, output).values())
    return [*given, int(inputs["num_classes"])] if "num_classes" in inputs else given


def tried_with(function: str) -> Callable[[Inputs, str], str]:
    """Return a function that describes in words how an output was made."""

    def tried(inputs: Inputs, output: str) -> str:
        words = [describe(name, each, AXES[name]) for name, each in _given(inputs, output).items()]
        words += [f"num_classes={int(inputs['num_classes'])}"] if "num_classes" in inputs else []
        return f"{function}({', '.join(words)})"

    return tried


def _call(output: str) -> Callable[[Callable, Inputs], Iterator[Tensor]]:
    def call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
        batch, alone = (arguments_of(inputs, name) for name in (output, output + ALONE))  # copied before the calls
        yield answer(*batch)
        yield answer(*alone)

    return call


def aggregate(exercise: str, output: str, axes: str, *reads: str) -> PublicExercise:
    """Return the exercise about a function with one output, called on a batch and on one head alone."""
    return PublicExercise(
        id=exercise,
        axes={output: axes, output + ALONE: axes},
        trains=(),
        reads=("weights", *reads),
        build=lambda answer, inputs: answer,
        call=_call(output),
        tried=tried_with(exercise.replace("-", "_")),
        batched=False,  # the outputs are means over the batch
    )
