"""The feed-forward network of a block, under the file name of a well-known homework."""

from transformer_lm.modeling_lm import MLP

__all__ = ["MLP"]
