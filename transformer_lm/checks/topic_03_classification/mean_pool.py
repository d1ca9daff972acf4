"""Check of topic 03: the mean pool."""

from collections.abc import Callable

from transformer_lm.checks.topic_03_classification.pools import pool_exercise

MEAN_POOL = pool_exercise("mean")


def mean_pool(answer: Callable) -> None:
    """Check the student's `pooled` with "mean"."""
    MEAN_POOL.check(answer)
