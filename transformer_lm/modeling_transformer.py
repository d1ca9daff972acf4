"""Transformers as PyTorch modules, of parts that are made elsewhere.

Axes: b batch, n positions. A block keeps the width of what it reads, so that blocks can be stacked.
"""

from torch import Tensor, nn

from transformer_lm.shapes import ShapeError, describe, match_axes


class TransformerDecoderBlock(nn.Module):
    """A block of the decoder: positions read each other, then each thinks for itself.

    `attention` and `mlp` are modules that take (b, n, hidden) and return (b, n, hidden). The norms come before them
    (Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, arXiv:2002.04745).
    """

    def __init__(self, hidden: int, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        """Return every position with what it has read and thought.

        Shapes:
            x        (b, n, hidden)
            returns  (b, n, hidden)

        Raises ShapeError for another width.
        """
        (hidden,) = self.attention_norm.normalized_shape
        match_axes(x=(x, "b n hidden"))
        if x.shape[-1] != hidden:
            raise ShapeError(f"x must end in an axis of hidden={hidden}, got {describe('x', x, 'b n hidden')}.")
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))
