"""Check of topic 01: a score for each query and key."""

from collections.abc import Callable, Iterator

from torch import Tensor

from transformer_lm.checks.engine.contract import Inputs, PublicExercise
from transformer_lm.shapes import describe


def _tried_scores(inputs: Inputs, output: str) -> str:
    queries, keys = inputs["queries"], inputs["keys"]
    return f"attention_scores({describe('queries', queries, 'b i dh')}, {describe('keys', keys, 'b j dh')})"


def _call_scores(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    yield answer(inputs["queries"], inputs["keys"])


ATTENTION_SCORES = PublicExercise(
    id="attention-scores",
    axes={"scores": "b i j"},
    trains=("scores",),
    reads=("queries", "keys"),
    build=lambda answer, inputs: answer,
    call=_call_scores,
    tried=_tried_scores,
    forbids_attention=True,
)


def attention_scores(answer: Callable) -> None:
    """Check the student's `attention_scores`."""
    ATTENTION_SCORES.check(answer)
