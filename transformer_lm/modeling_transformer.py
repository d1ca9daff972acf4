"""Transformer blocks as PyTorch modules, built from given parts.

Axes: b batch, n positions. A block keeps the width of its input, so that blocks can be stacked.
"""

import torch
from torch import Tensor, nn

from transformer_lm.answers import hidden_while_open
from transformer_lm.shapes import ShapeError, describe, match_axes


@hidden_while_open("decoder-block")
class TransformerDecoderBlock(nn.Module):
    """A decoder block: self-attention, then a feed-forward network (MLP), each with a residual connection.

    `attention` and `mlp` are modules that take (b, n, hidden) and return (b, n, hidden). The norms come before them
    (pre-norm; Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, arXiv:2002.04745).
    """

    def __init__(self, hidden: int, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm: nn.LayerNorm | nn.RMSNorm = nn.LayerNorm(hidden)
        self.attention = attention
        self.mlp_norm: nn.LayerNorm | nn.RMSNorm = nn.LayerNorm(hidden)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        """Return the new vector of every position.

        Shapes:
            x        (b, n, hidden)
            returns  (b, n, hidden)

        Raises ShapeError for another width.
        """
        _check_width(x, self.attention_norm)
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


@hidden_while_open("encoder-block")
class TransformerEncoderBlock(nn.Module):
    """An encoder block: self-attention that ignores padding, then a feed-forward network (MLP).

    `attention` is called as `attention(x, visible=visible)` and returns (b, n, hidden). In training, dropout is applied
    to the output of each sublayer before it is added.
    """

    def __init__(self, hidden: int, attention: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return the new vector of every position.

        Shapes:
            x        (b, n, hidden)
            visible  (b, n)  False at padding
            returns  (b, n, hidden)

        Raises ShapeError for another width.
        """
        _check_width(x, self.attention_norm)
        x = x + self.dropout(self.attention(self.attention_norm(x), visible=visible))
        thought = self.down(self.up(self.mlp_norm(x)).relu())
        return x + self.dropout(thought)


@hidden_while_open("position-embedding")
class PositionEmbedding(nn.Module):
    """A learned position embedding: a vector for each position up to max_len, added to its input."""

    def __init__(self, max_len: int, hidden: int) -> None:
        super().__init__()
        self.positions = nn.Embedding(max_len, hidden)

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return x plus the vectors of its positions; `visible` has no effect.

        Shapes:
            x        (b, n, hidden)
            returns  (b, n, hidden)

        Raises ShapeError for another width, or if a sequence is longer than max_len.
        """
        n = match_axes(x=(x, "b n hidden"), positions=(self.positions.weight, "max_len hidden"))["n"]
        if n > self.positions.num_embeddings:
            raise ShapeError(f"x must have at most max_len={self.positions.num_embeddings} positions, got n={n}.")
        return x + self.positions(torch.arange(n, device=x.device))  # (n, hidden), the same for every sequence


def _check_width(x: Tensor, norm: nn.LayerNorm | nn.RMSNorm) -> None:
    """Raise ShapeError unless x is (b, n, hidden), as wide as the norm."""
    (hidden,) = norm.normalized_shape
    match_axes(x=(x, "b n hidden"))
    if x.shape[-1] != hidden:
        raise ShapeError(f"x must end in an axis of hidden={hidden}, got {describe('x', x, 'b n hidden')}.")
