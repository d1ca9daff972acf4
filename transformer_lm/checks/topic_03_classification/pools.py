"""Shared code of the exercises about the three pools, which ignore padding."""

from collections.abc import Callable, Iterator

from torch import Tensor

from transformer_lm.checks.engine.contract import Inputs, PublicExercise
from transformer_lm.shapes import describe


def _tried_pool(inputs: Inputs, how: str) -> str:
    x, visible = describe("x", inputs["x"], "b n hidden"), describe("visible", inputs["visible"], "b n")
    return f'pooled({x}, {visible}, "{how}")'


def pool_exercise(how: str) -> PublicExercise:
    """Return the exercise about one of the pools, which does not depend on the others."""

    def call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
        yield answer(inputs["x"], inputs["visible"], how)

    return PublicExercise(
        id=f"{how}-pool",
        axes={how: "b hidden"},
        trains=(how,),
        reads=("x", "visible"),
        build=lambda answer, inputs: answer,
        call=call,
        tried=_tried_pool,
    )
