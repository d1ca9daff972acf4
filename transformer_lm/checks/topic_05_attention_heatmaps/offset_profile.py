"""Check of topic 05: a head's average weight at each distance."""

from collections.abc import Callable

from transformer_lm.checks.engine.contract import require_own
from transformer_lm.checks.topic_05_attention_heatmaps.aggregates import aggregate

OFFSET_PROFILE = aggregate("offset-profile", "profile", "h n")


def offset_profile(answer: Callable) -> None:
    """Check the student's `offset_profile`: the mean weight of each head at each distance."""
    require_own(answer)
    OFFSET_PROFILE.check(answer)
