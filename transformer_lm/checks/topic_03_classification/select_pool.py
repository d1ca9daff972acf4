"""Check of topic 03: the select pool."""

from collections.abc import Callable

from transformer_lm.checks.topic_03_classification.pools import pool_exercise

SELECT_POOL = pool_exercise("select")


def select_pool(answer: Callable) -> None:
    """Check the student's `pooled` with "select"."""
    SELECT_POOL.check(answer)
