"""Check of topic 05: the position-only baseline (null model) of a head."""

from collections.abc import Callable
from dataclasses import replace

from transformer_lm.checks.engine.contract import require_own
from transformer_lm.checks.topic_05_attention_heatmaps.aggregates import ALONE, aggregate

POSITION_NULL = replace(aggregate("position-null", "null", "h i j"), causal=("null", "null" + ALONE))


def position_null(answer: Callable) -> None:
    """Check the student's `position_null`: the heads, reduced to the part that depends only on distance."""
    require_own(answer)
    POSITION_NULL.check(answer)
