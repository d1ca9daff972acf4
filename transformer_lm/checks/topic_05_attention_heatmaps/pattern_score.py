"""Check of topic 05: how well a head fits a pattern."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.checks.topic_05_attention_heatmaps.aggregates import ALONE, arguments_of, tried_with

BOTH = hint("not-two-values", "pattern-score")
ONE_CHANCE = hint("chance-for-each-head", "pattern-score")


def _call_score(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the scores, then the chance with an axis of size 1; the chance may be a Python or NumPy number."""
    calls = {name: arguments_of(inputs, name) for name in ("score", "score" + ALONE)}  # before a call can change them
    for name, arguments in calls.items():
        returned, tried = answer(*arguments), PATTERN_SCORE.tried(inputs, name)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise CheckFailed(tried, f"the return value is {kind(returned)}", "a tuple of 2 values", BOTH)
        score, chance = returned
        yield score
        chance = torch.tensor(chance) if isinstance(chance, int | float | np.number) else chance
        if isinstance(chance, Tensor) and chance.dim():
            raise CheckFailed(tried, f"chance of shape {tuple(chance.shape)}", "chance of shape ()", ONE_CHANCE)
        # A tensor without axes may be on any device.
        yield chance.to(inputs["weights"].device)[None] if isinstance(chance, Tensor) else chance


PATTERN_SCORE = PublicExercise(
    id="pattern-score",
    axes={"score": "h", "chance": "numbers", f"score{ALONE}": "h", f"chance{ALONE}": "numbers"},
    trains=(),
    reads=("weights", "pattern"),
    build=lambda answer, inputs: answer,
    call=_call_score,
    tried=tried_with("pattern_score"),
    batched=False,
    returned_together=(("score", "chance"), (f"score{ALONE}", f"chance{ALONE}")),
)


def pattern_score(answer: Callable) -> None:
    """Check the student's `pattern_score`: the score of each head, and the score by chance."""
    require_own(answer)
    PATTERN_SCORE.check(answer)
