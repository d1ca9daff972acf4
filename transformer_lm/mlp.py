"""The feed-forward network of a block, under the name of the file that a well-known homework keeps it in."""

from transformer_lm.modeling_lm import MLP

__all__ = ["MLP"]
