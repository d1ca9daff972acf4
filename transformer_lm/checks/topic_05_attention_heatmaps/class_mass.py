"""Check of topic 05: what a head gives from one class of character to another."""

from collections.abc import Callable

from transformer_lm.checks.engine.contract import require_own
from transformer_lm.checks.topic_05_attention_heatmaps.aggregates import aggregate

CLASS_MASS = aggregate("class-mass", "mass", "h c c", "classes")


def class_mass(answer: Callable) -> None:
    """Check the student's `class_mass`: what queries of a class give to keys of a class, also if there are none."""
    require_own(answer)
    CLASS_MASS.check(answer)
