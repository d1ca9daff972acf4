"""Attention as PyTorch modules: simple, single-head, multi-head, causal.

Axes: b batch, h heads, n positions, i of the query, j of the key, dh width of one head; hidden = h * dh.

The softmax is in `attention_weights` of attention.py; where nobody asks for weights, torch's fused kernel
`scaled_dot_product_attention` computes the same without ever storing them.

Every `forward` takes `visible`, (b, n), False at padding: no query reads a padded position. What comes
out at the padded positions themselves means nothing: leave it out when you pool or compute a loss.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_lm.attention import attention_scores, attention_weights, check_mask, create_causal_mask
from transformer_lm.shapes import ShapeError, describe, match_axes


class SimpleSelfAttention(nn.Module):
    """Self-attention with nothing to learn: each position is its own query, key and value, unscaled."""

    def forward(
        self, x: Tensor, return_attention: bool = False, visible: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return each position's average over the positions that resemble it.

        Shapes:
            x        (b, n, d)
            visible  (b, n)     False at padding
            returns  (b, n, d), and (b, i, j) the weights if return_attention
        """
        match_axes(x=(x, "b n d"))
        scores = x @ x.transpose(1, 2)  # (b, i, j)
        weights = attention_weights(scores, _mask_of_padding(x, visible))
        attended = weights @ x
        return (attended, weights) if return_attention else attended


class SelfAttention(nn.Module):
    """One attention head with learned queries, keys and values."""

    def __init__(self, input_size: int, hidden: int) -> None:
        super().__init__()
        self.k = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)

    def forward(
        self, x: Tensor, return_attention: bool = False, visible: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return for each position what it reads from the sequence.

        Shapes:
            x        (b, n, input_size)
            visible  (b, n)         False at padding
            returns  (b, n, hidden), and (b, i, j) the weights if return_attention
        """
        _check_input(x, self.k.in_features)
        queries, keys, values = self.q(x), self.k(x), self.v(x)
        mask = None if visible is None else _mask_of_padding(x, visible)
        if return_attention:
            weights = attention_weights(attention_scores(queries, keys), mask)
            return weights @ values, weights
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


class MultiHeadSelfAttention(nn.Module):
    """Several attention heads side by side, then a linear layer that mixes what they found."""

    def __init__(self, input_size: int, hidden: int, num_heads: int, causal: bool = False, dropout: float = 0) -> None:
        if num_heads < 1 or hidden % num_heads:
            raise ValueError(f"num_heads must divide hidden, got num_heads={num_heads} and hidden={hidden}.")
        super().__init__()
        self.k = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)  # of whole attention weights: now and then a query misses a key
        self.num_heads = num_heads
        self.causal = causal
        # Not a buffer: it must be neither stored in a checkpoint nor sent from one process to another.
        self._longest_mask: Tensor | None = None

    def forward(
        self, x: Tensor, return_attention: bool = False, visible: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return for each position what its heads read from the sequence, mixed.

        Without weights it takes torch's fused kernel, with weights the formula; the numbers are the same up to
        rounding. The weights are those before dropout, so that their rows sum to 1 in training too.

        Shapes:
            x        (b, n, input_size)
            visible  (b, n)         False at padding
            returns  (b, n, hidden), and (b * h, i, j) the weights if return_attention: head by head
                     of the first sequence, then of the next

        Raises ShapeError for another input size, ValueError if a query may read no key.
        """
        _check_input(x, self.k.in_features)
        queries, keys, values = (self._split(layer(x)) for layer in (self.q, self.k, self.v))  # (b, h, n, dh)
        if not return_attention:
            # The kernel knows the causal mask by itself, and is faster if it is given no other.
            known = visible is None
            mask = None if known else self._mask(x, visible)[:, None]  # (b, 1, i, j)
            dropout = self.dropout.p if self.training else 0.0
            heads = F.scaled_dot_product_attention(
                queries, keys, values, mask, dropout, is_causal=self.causal and known
            )
            return self.mix(self._merge(heads))

        b, h, n, dh = queries.shape
        mask = self._mask(x, visible)
        if mask is not None and len(mask) == b:
            mask = mask.repeat_interleave(h, dim=0)  # (b * h, i, j): the heads of a sequence share its mask
        weights = attention_weights(attention_scores(queries.flatten(0, 1), keys.flatten(0, 1)), mask)
        heads = self.dropout(weights) @ values.flatten(0, 1)  # (b * h, n, dh)
        return self.mix(self._merge(heads.view(b, h, n, dh))), weights

    def _split(self, x: Tensor) -> Tensor:
        """Return (b, n, h * dh) as (b, h, n, dh)."""
        b, n, hidden = x.shape
        return x.view(b, n, self.num_heads, hidden // self.num_heads).transpose(1, 2)

    def _merge(self, heads: Tensor) -> Tensor:
        """Return (b, h, n, dh) as (b, n, h * dh): the heads of a position side by side."""
        return heads.transpose(1, 2).flatten(2)

    def _mask(self, x: Tensor, visible: Tensor | None) -> Tensor | None:
        """Return which query may read which key, (1 or b, i, j), or None if all may read all."""
        mask = _mask_of_padding(x, visible)
        if not self.causal:
            return mask
        causal_mask = self._causal_mask(x.shape[1], x.device)
        if mask is None:
            return causal_mask
        both = causal_mask & mask
        check_mask(both)
        return both

    def _causal_mask(self, n: int, device: torch.device) -> Tensor:
        """Return the mask (1, n, n), cut from one that is built anew only for a longer sequence or another device."""
        if self._longest_mask is None or self._longest_mask.shape[1] < n or self._longest_mask.device != device:
            with torch.inference_mode(False):  # a tensor made in inference mode cannot be saved for a backward pass
                self._longest_mask = create_causal_mask(n, device)
        return self._longest_mask[:, :n, :n]


class CausalSelfAttention(MultiHeadSelfAttention):
    """The attention of a language model: as wide as its input, blind to the future, up to max_len long."""

    def __init__(self, input_size: int, num_heads: int, max_len: int, dropout: float = 0) -> None:
        super().__init__(input_size, input_size, num_heads, causal=True, dropout=dropout)
        self.max_len = max_len

    def forward(
        self, x: Tensor, return_attention: bool = False, visible: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """As in MultiHeadSelfAttention; refuses a sequence longer than max_len."""
        if x.dim() == 3 and x.shape[1] > self.max_len:
            raise ShapeError(f"x must have at most max_len={self.max_len} positions, got n={x.shape[1]}.")
        return super().forward(x, return_attention, visible)

    def _causal_mask(self, n: int, device: torch.device) -> Tensor:
        return super()._causal_mask(self.max_len, device)[:, :n, :n]


def _check_input(x: Tensor, input_size: int) -> None:
    match_axes(x=(x, "b n d"))
    if x.shape[-1] != input_size:
        raise ShapeError(f"x must end in an axis of input_size={input_size}, got {describe('x', x, 'b n d')}.")


def _mask_of_padding(x: Tensor, visible: Tensor | None) -> Tensor | None:
    """Return (b, n), False at padding, as a mask (b, i, j) that is the same for every query i."""
    if visible is None:
        return None
    b, n, _ = match_axes(x=(x, "b n d"), visible=(visible, "b n")).values()
    mask = visible[:, None, :].expand(b, n, n)
    check_mask(mask)
    return mask
