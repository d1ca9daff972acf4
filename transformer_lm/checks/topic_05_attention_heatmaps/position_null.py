"""Check of topic 05: what is left of a head that looks at nothing but distance."""

from collections.abc import Callable
from dataclasses import replace

from transformer_lm.checks.engine.contract import require_own
from transformer_lm.checks.topic_05_attention_heatmaps.aggregates import ALONE, aggregate

POSITION_NULL = replace(aggregate("position-null", "null", "h i j"), causal=("null", "null" + ALONE))


def position_null(answer: Callable) -> None:
    """Check the student's `position_null`: the heads, with nothing left of them but what depends on distance."""
    require_own(answer)
    POSITION_NULL.check(answer)
