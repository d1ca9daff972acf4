"""Checks to run while you work: one line when your answer is right, four lines when it is not.

Each takes what your cell defines: `checks.self_attention(SelfAttention)`. They compare with frozen values
and hold no solution.
"""

from transformer_lm.checks.multi_head_attention import multi_head_attention
from transformer_lm.checks.report import CheckFailed
from transformer_lm.checks.self_attention import (
    attention_scores,
    kqv,
    kqv_parameters,
    self_attention,
    self_attention_layers,
)

__all__ = [
    "CheckFailed",
    "attention_scores",
    "kqv",
    "kqv_parameters",
    "multi_head_attention",
    "self_attention",
    "self_attention_layers",
]
