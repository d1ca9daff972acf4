"""Checks to run while you work: one line when your answer is right, four lines when it is not.

Each takes what your cell defines: `checks.self_attention(SelfAttention)`. They compare with frozen values
and hold no solution.
"""

from transformer_lm.checks.multi_head_attention import MULTI_HEAD_ATTENTION, multi_head_attention
from transformer_lm.checks.report import CheckFailed
from transformer_lm.checks.self_attention import (
    ATTENTION_SCORES,
    KQV,
    SELF_ATTENTION,
    attention_scores,
    kqv,
    kqv_parameters,
    self_attention,
    self_attention_layers,
)

EXERCISES = {exercise.id: exercise for exercise in (KQV, ATTENTION_SCORES, SELF_ATTENTION, MULTI_HEAD_ATTENTION)}

__all__ = [
    "EXERCISES",
    "CheckFailed",
    "attention_scores",
    "kqv",
    "kqv_parameters",
    "multi_head_attention",
    "self_attention",
    "self_attention_layers",
]
