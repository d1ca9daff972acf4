"""Attention as PyTorch modules: simple, single-head, multi-head, causal and cross-attention.

Axes: b batch, h heads, n positions, i of the query, j of the key, dh width of one head; hidden = h * dh. In
cross-attention, n are the positions of the queries' sequence, and m those of the memory, the sequence attended to.

The softmax is in `attention_weights` of attention.py; unless the weights are requested, torch's fused kernel
`scaled_dot_product_attention` usually computes the same without ever storing them.

Every `forward` takes `visible`, (b, n), False where a key is padding: no query attends to a padded position. The
outputs at the padded positions themselves have no meaning, so leave them out when you pool or compute a loss.
Self-attention also takes (b, n, n), True where a query may attend to a key, to give each query a separate mask.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_lm.answers import hidden_while_open, sealed_while_open
from transformer_lm.attention import (
    attention_scores,
    attention_weights,
    boolean_mask,
    check_mask,
    create_causal_mask,
)
from transformer_lm.shapes import ShapeError, describe, match_axes


@hidden_while_open("attention-scores", "simple-attention")
class SimpleSelfAttention(nn.Module):
    """Self-attention without parameters: each position is its own query, key and value, unscaled."""

    def forward(
        self, x: Tensor, return_attention: bool = False, visible: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return for each position an average of all positions, weighted by their similarity to it.

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


@hidden_while_open("self-attention")
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
        """Return the attention output for each position.

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


@hidden_while_open("multi-head-attention", "full-attention")
class MultiHeadSelfAttention(nn.Module):
    """Several attention heads side by side, followed by the output projection `mix`."""

    def __init__(self, input_size: int, hidden: int, num_heads: int, causal: bool = False, dropout: float = 0) -> None:
        if num_heads < 1 or hidden % num_heads:
            raise ValueError(f"num_heads must divide hidden, got num_heads={num_heads} and hidden={hidden}.")
        super().__init__()
        self.k = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)  # of attention weights: at times a query misses a key
        self.num_heads = num_heads
        self.causal = causal
        # Not a buffer, because it must be neither stored in checkpoints nor sent between processes.
        self._longest_mask: Tensor | None = None

    def forward(
        self, x: Tensor, return_attention: bool = False, visible: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return for each position the outputs of all heads, combined by the output projection.

        Without weights it uses torch's fused kernel, with weights the formula; the results agree up to rounding. The
        weights are those before dropout, so that their rows sum to 1 in training too.

        Shapes:
            x        (b, n, input_size)
            visible  (b, n)         False at padding; or (b, i, j), True where query i may attend to key j
            returns  (b, n, hidden), and (b * h, i, j) the weights if return_attention: head by head
                     of the first sequence, then of the next

        Raises ShapeError for another input size, ValueError if a query may not attend to any key.
        """
        _check_input(x, self.k.in_features)
        queries, keys, values = (self._split(layer(x)) for layer in (self.q, self.k, self.v))  # (b, h, n, dh)
        if not return_attention:
            # The kernel has a causal option, which is faster than an explicit mask.
            known = visible is None
            mask = None if known else self._mask(x, visible)
            mask = None if mask is None else mask[:, None]  # (b, 1, i, j)
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
        return split_heads(x, self.num_heads)

    def _merge(self, heads: Tensor) -> Tensor:
        return merge_heads(heads)

    def _mask(self, x: Tensor, visible: Tensor | None) -> Tensor | None:
        """Return which query may attend to which key, (1 or b, i, j), or None if all may attend to all."""
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
        """Return the mask (1, n, n), cut from one that is rebuilt only for a longer sequence or another device."""
        if self._longest_mask is None or self._longest_mask.shape[1] < n or self._longest_mask.device != device:
            with torch.inference_mode(False):  # a tensor made in inference mode cannot be saved for a backward pass
                self._longest_mask = create_causal_mask(n, device)
        return self._longest_mask[:, :n, :n]


@hidden_while_open("multi-head-attention", "full-attention")
class CausalSelfAttention(MultiHeadSelfAttention):
    """The attention of a language model: as wide as its input, with a causal mask, for up to max_len positions."""

    def __init__(self, input_size: int, num_heads: int, max_len: int, dropout: float = 0) -> None:
        super().__init__(input_size, input_size, num_heads, causal=True, dropout=dropout)
        self.max_len = max_len

    def forward(
        self, x: Tensor, return_attention: bool = False, visible: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the same as MultiHeadSelfAttention; refuse a sequence longer than max_len."""
        if x.dim() == 3 and x.shape[1] > self.max_len:
            raise ShapeError(f"x must have at most max_len={self.max_len} positions, got n={x.shape[1]}.")
        return super().forward(x, return_attention, visible)

    def _causal_mask(self, n: int, device: torch.device) -> Tensor:
        return super()._causal_mask(self.max_len, device)[:, :n, :n]


@sealed_while_open("cross-attention")
class CrossAttention(nn.Module):
    """One head of cross-attention: queries from one sequence, keys and values from another, the memory."""

    def __init__(self, input_size: int, memory_size: int, hidden: int) -> None:
        super().__init__()
        self.k = nn.Linear(memory_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(memory_size, hidden)

    def forward(
        self, x: Tensor, memory: Tensor, visible: Tensor | None = None, return_attention: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return for each position of x the attention output over the memory.

        Shapes:
            x        (b, n, input_size)
            memory   (b, m, memory_size)
            visible  (b, m)  False at padding of the memory
            returns  (b, n, hidden), and (b, n, m) the weights if return_attention
        """
        _check_input(x, self.q.in_features)
        _check_input(memory, self.k.in_features, "memory")
        mask = _mask_of_memory(x, memory, visible)
        queries, keys, values = self.q(x), self.k(memory), self.v(memory)
        weights = attention_weights(attention_scores(queries, keys), mask)
        attended = weights @ values
        return (attended, weights) if return_attention else attended


@sealed_while_open("cross-attention")
class MultiHeadCrossAttention(nn.Module):
    """Several heads of cross-attention side by side, followed by the output projection `mix`."""

    def __init__(self, hidden: int, num_heads: int, dropout: float = 0) -> None:
        if num_heads < 1 or hidden % num_heads:
            raise ValueError(f"num_heads must divide hidden, got num_heads={num_heads} and hidden={hidden}.")
        super().__init__()
        self.k = nn.Linear(hidden, hidden)
        self.q = nn.Linear(hidden, hidden)
        self.v = nn.Linear(hidden, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.num_heads = num_heads

    def forward(
        self, x: Tensor, memory: Tensor, visible: Tensor | None = None, return_attention: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return for each position of x the outputs of all heads over the memory, combined by the output projection.

        Shapes:
            x        (b, n, hidden)
            memory   (b, m, hidden)
            visible  (b, m)  False at padding of the memory
            returns  (b, n, hidden), and (b, h, n, m) the weights, before dropout, if return_attention

        Raises ShapeError for another width, ValueError if a memory is all padding.
        """
        _check_input(x, self.q.in_features)
        _check_input(memory, self.k.in_features, "memory")
        mask = _mask_of_memory(x, memory, visible)
        keys, values = self.keys_and_values(memory)
        if not return_attention:
            return self.read(x, keys, values, None if mask is None else mask[:, None])
        b, h, _, _ = keys.shape
        queries = split_heads(self.q(x), h)  # (b, h, n, dh)
        if mask is not None:
            mask = mask.repeat_interleave(h, dim=0)  # (b * h, n, m): the heads of a sequence share its mask
        weights = attention_weights(attention_scores(queries.flatten(0, 1), keys.flatten(0, 1)), mask)
        heads = self.dropout(weights) @ values.flatten(0, 1)  # (b * h, n, dh)
        return self.mix(merge_heads(heads.unflatten(0, (b, h)))), weights.unflatten(0, (b, h))

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a memory, (b, h, m, dh) each, which are the same for every query."""
        return split_heads(self.k(memory), self.num_heads), split_heads(self.v(memory), self.num_heads)

    def read(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention output of x over these keys and values; the mask has the axes (b, 1, 1 or n, m)."""
        queries = split_heads(self.q(x), self.num_heads)
        dropout = self.dropout.p if self.training else 0.0
        return self.mix(merge_heads(F.scaled_dot_product_attention(queries, keys, values, mask, dropout)))


@hidden_while_open("full-attention")
def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return (b, n, h * dh) as (b, h, n, dh)."""
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


@hidden_while_open("full-attention")
def merge_heads(heads: Tensor) -> Tensor:
    """Return (b, h, n, dh) as (b, n, h * dh): the heads of a position side by side."""
    return heads.transpose(1, 2).flatten(2)


def _check_input(x: Tensor, input_size: int, name: str = "x") -> None:
    axes = "b m d" if name == "memory" else "b n d"
    match_axes(**{name: (x, axes)})
    if x.shape[-1] != input_size:
        raise ShapeError(f"{name} must end in an axis of input_size={input_size}, got {describe(name, x, axes)}.")


@hidden_while_open("self-attention", "simple-attention")
def _mask_of_padding(x: Tensor, visible: Tensor | None) -> Tensor | None:
    """Return (b, n), False at padding, as a mask (b, i, j), the same for every query i; or such a mask itself."""
    if visible is None or visible.dim() != 3:
        return _mask_of_memory(x, x, visible)
    b, n, _ = match_axes(x=(x, "b n d")).values()
    if visible.shape != (b, n, n):
        raise ShapeError(f"visible must have the axes ({b}, {n}) or ({b}, {n}, {n}), got {tuple(visible.shape)}.")
    visible = boolean_mask(visible)
    check_mask(visible)
    return visible


@hidden_while_open("simple-attention")
def _mask_of_memory(x: Tensor, memory: Tensor, visible: Tensor | None) -> Tensor | None:
    """Return (b, m), False at padding, as a mask (b, n, m) that is the same for every query."""
    names = {"x": (x, "b n d")} | ({} if memory is x else {"memory": (memory, "b m dm")})
    if visible is None:
        match_axes(**names)
        return None
    match_axes(**names, visible=(visible, "b n" if memory is x else "b m"))
    mask = boolean_mask(visible)[:, None, :].expand(len(x), x.shape[1], memory.shape[1])
    check_mask(mask)
    return mask
