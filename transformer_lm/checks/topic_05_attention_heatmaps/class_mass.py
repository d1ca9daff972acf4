"""Check of topic 05: the attention from one class of character to another."""

from collections.abc import Callable

from transformer_lm.checks.engine.contract import require_own
from transformer_lm.checks.topic_05_attention_heatmaps.aggregates import aggregate

CLASS_MASS = aggregate("class-mass", "mass", "h c c", "classes")


def class_mass(answer: Callable) -> None:
    """Check the student's `class_mass`: the attention of one class's queries to another's keys."""
    require_own(answer)
    CLASS_MASS.check(answer)
