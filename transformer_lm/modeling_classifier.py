"""Classifiers of sequences: embed each token, apply attention, pool the positions into one vector, classify it.

Axes: b batch, n positions, hidden width of a position. Padding is recognised by its token, and has no effect on any
output.

`make_classifier` builds the classifiers that the course compares; `SequenceClassifier` takes any layers and any pool.
"""

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from transformer_lm.answers import hidden_while_open
from transformer_lm.modeling_attention import MultiHeadSelfAttention, SimpleSelfAttention
from transformer_lm.modeling_transformer import PositionEmbedding, TransformerEncoderBlock
from transformer_lm.shapes import ShapeError, match_axes

POOLS = ("mean", "max", "select")
HEADS = (*POOLS, "cls", "flatten")
KINDS = ("baseline", "simple", "full", "transformer")


@hidden_while_open("mean-pool", "max-pool", "select-pool")
def pooled(x: Tensor, visible: Tensor, how: str) -> Tensor:
    """Return one vector for each sequence: the mean of its real tokens, their largest numbers, or its first token.

    Shapes:
        x        (b, n, hidden)
        visible  (b, n)       False at padding
        returns  (b, hidden)

    Raises ValueError if `how` is none of "mean", "max" and "select", or if a sequence is all padding.
    """
    match_axes(x=(x, "b n hidden"), visible=(visible, "b n"))
    if how not in POOLS:
        raise ValueError(f"how must be one of {', '.join(POOLS)}, got {how!r}.")
    if not visible.any(dim=1).all():
        raise ValueError("every sequence must have a real token, got one that is padding alone.")
    if how == "select":
        return x[:, 0]
    hidden_from_pool = ~visible[:, :, None]
    if how == "max":
        return x.masked_fill(hidden_from_pool, -math.inf).amax(dim=1)
    return x.masked_fill(hidden_from_pool, 0).sum(dim=1) / visible.sum(dim=1, keepdim=True)


@hidden_while_open("mean-pool", "max-pool", "select-pool")
class FlattenPool(nn.Module):
    """The naive pool: all positions concatenated, which works for one length only."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Return the positions of each sequence as one long vector, with 0 for padding.

        Shapes:
            x        (b, length, hidden)
            visible  (b, length)  False at padding
            returns  (b, length * hidden)

        Raises ShapeError for another length.
        """
        sizes = match_axes(x=(x, "b n hidden"), visible=(visible, "b n"))
        if sizes["n"] != self.length:
            raise ShapeError(
                f"x must have length={self.length} positions, got n={sizes['n']}: a flattened layer has weights for "
                "each position. Pad to that length, or take another pool."
            )
        return x.masked_fill(~visible[:, :, None], 0).flatten(1)


@hidden_while_open("sequence-classifier")
class SequenceClassifier(nn.Module):
    """A classifier with any layers and any pool; without layers it is the baseline, a bag of words.

    `layers` are called as `layer(x, visible=visible)` and keep the shape of x; `pool(x, visible)` computes one vector
    for each sequence. With `cls`, that token is put in front of every sequence, as a position where layers can collect
    information.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden: int,
        num_classes: int,
        pad: int,
        pool: Callable[[Tensor, Tensor], Tensor],
        layers: Sequence[nn.Module] = (),
        cls: int | None = None,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden)
        self.layers = nn.ModuleList(layers)
        self.pool = pool
        self.classify = nn.Linear(hidden * getattr(pool, "length", 1), num_classes)
        self.pad = pad
        self.cls = cls

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the classes.

        Shapes:
            tokens   (b, n)
            returns  (b, num_classes)
        """
        match_axes(tokens=(tokens, "b n"))
        if self.cls is not None:
            tokens = torch.cat([torch.full_like(tokens[:, :1], self.cls), tokens], dim=1)
        visible = tokens != self.pad
        x = self.embed(tokens)  # (b, n, hidden)
        for layer in self.layers:
            x = layer(x, visible=visible)
        return self.classify(self.pool(x, visible))


def make_classifier(
    kind: str,
    vocab_size: int,
    num_classes: int,
    *,
    pad: int,
    hidden: int,
    pool: str = "mean",
    positions: bool = False,
    max_len: int = 256,
    num_heads: int = 1,
    num_layers: int = 3,
    dropout: float = 0.0,
    cls: int | None = None,
) -> SequenceClassifier:
    """Return one of the classifiers that the course compares.

    `kind` is "baseline" (no layer), "simple" or "full" (one layer of attention), or "transformer" (`num_layers` blocks
    with `dropout`). `positions` adds learned position embeddings, for up to `max_len` positions. `pool` is "mean",
    "max", "select", "cls" (then `cls` is the token to put in front) or "flatten" (then every batch must be `max_len`
    long).

    Raises ValueError for any other kind or pool, or for "cls" without its token.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    if pool not in HEADS:
        raise ValueError(f"pool must be one of {', '.join(HEADS)}, got {pool!r}.")
    if (pool == "cls") != (cls is not None):
        raise ValueError(f'cls must be given with pool="cls" and with no other, got cls={cls} and pool={pool!r}.')
    if cls == pad:
        raise ValueError(f"cls must be another token than pad, got {cls} for both.")
    longest = max_len + (pool == "cls")
    layers: list[nn.Module] = [PositionEmbedding(longest, hidden)] if positions else []
    if kind == "simple":
        layers.append(SimpleSelfAttention())
    elif kind == "full":
        layers.append(MultiHeadSelfAttention(hidden, hidden, num_heads))
    elif kind == "transformer":
        layers += [
            TransformerEncoderBlock(hidden, MultiHeadSelfAttention(hidden, hidden, num_heads, dropout=dropout), dropout)
            for _ in range(num_layers)
        ]
    how = "select" if pool == "cls" else pool
    head = FlattenPool(max_len) if pool == "flatten" else functools.partial(pooled, how=how)
    return SequenceClassifier(vocab_size, hidden, num_classes, pad, head, layers, cls)
