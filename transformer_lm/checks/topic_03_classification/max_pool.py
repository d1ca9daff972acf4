"""Check of topic 03: the max pool."""

from collections.abc import Callable

from transformer_lm.checks.topic_03_classification.pools import pool_exercise

MAX_POOL = pool_exercise("max")


def max_pool(answer: Callable) -> None:
    """Check the student's `pooled` with "max"."""
    MAX_POOL.check(answer)
