"""Self-attention as functions: every position attends to the others and keeps a weighted average of their values.

Axes: b batch, n positions, i position of the query (it attends), j position of the key (it is attended to), d width of
the input, dh width of one head. Scaled dot-product attention was introduced by Vaswani et al., Attention Is All You
Need, 2017, arXiv:1706.03762.

A mask is always called `visible`: True where query i may attend to key j. A mask of the numbers 1 and 0 works as well.

`CausalSelfAttention`, the module built from these functions, can be imported from here too.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transformer_lm.answers import hidden_while_open
from transformer_lm.shapes import ShapeError, describe, match_axes


@hidden_while_open("kqv")
def create_kqv_parameters(input_size: int, hidden: int, device: torch.device | None = None) -> nn.Linear:
    """Return one linear layer that computes the key, query and value of a position, each of width `hidden`.

    Its 3 * hidden outputs are, in this order: the key, the query, the value.
    """
    return nn.Linear(input_size, 3 * hidden, device=device)


@hidden_while_open("kqv")
def kqv(x: Tensor, kqv_parameters: nn.Linear) -> tuple[Tensor, Tensor, Tensor]:
    """Return the keys, queries and values of every position, from one matrix product.

    Shapes:
        x        (b, n, d)
        returns  (b, n, dh) three times

    Raises ShapeError if `kqv_parameters` takes another d, or if its number of outputs is not divisible by 3.
    """
    sizes = match_axes(x=(x, "b n d"), kqv_parameters=(kqv_parameters.weight, "3dh d"))
    if sizes["3dh"] % 3:
        raise ShapeError(f"kqv_parameters must have 3 * dh outputs, got {sizes['3dh']}, which 3 does not divide.")
    keys, queries, values = kqv_parameters(x).chunk(3, dim=-1)
    return keys, queries, values


@hidden_while_open("attention-scores")
def attention_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Return how well each query matches each key: their dot product divided by the square root of their width.

    Shapes:
        queries  (b, i, dh)
        keys     (b, j, dh)
        returns  (b, i, j)  row i belongs to query i, column j to key j

    Raises ShapeError if an axis has two sizes or is empty.
    """
    sizes = match_axes(queries=(queries, "b i dh"), keys=(keys, "b j dh"))
    return queries @ keys.transpose(1, 2) / math.sqrt(sizes["dh"])


@hidden_while_open("causal-mask")
def create_causal_mask(max_len: int, device: torch.device | None = None) -> Tensor:
    """Return the mask that lets each position attend to itself and to the positions before it.

    Build it once for the longest sequence: shorter ones use its top left corner.

    Shapes:
        returns  (1, max_len, max_len)  True on and below the diagonal
    """
    return torch.ones(1, max_len, max_len, dtype=torch.bool, device=device).tril()


@hidden_while_open("masked-self-attention")
def attention_weights(scores: Tensor, visible: Tensor | None = None) -> Tensor:
    """Return the attention weights: the softmax of the scores over the keys of each query.

    Shapes:
        scores   (b, i, j)
        visible  (1 or b, at least i, at least j)  True where query i may attend to key j
        returns  (b, i, j)  rows sum to 1, exactly 0 where not visible

    Raises ShapeError if `visible` is too small, ValueError if a query may not attend to any key.
    """
    match_axes(scores=(scores, "b i j"))
    if visible is not None:
        visible = boolean_mask(_corner(visible, scores))
        check_mask(visible)
        scores = scores.masked_fill(~visible, -math.inf)  # the softmax turns -inf into weight 0
    return scores.softmax(dim=-1)


@hidden_while_open("masked-self-attention")
def _corner(visible: Tensor, scores: Tensor) -> Tensor:
    """Return the part of a mask that covers these scores, as a view without a copy."""
    b, i, j = scores.shape
    if visible.dim() != 3 or visible.shape[0] not in (1, b) or visible.shape[1] < i or visible.shape[2] < j:
        rule = f"have the axes (1 or {b}, at least {i}, at least {j}) for {describe('scores', scores, 'b i j')}"
        raise ShapeError(f"visible must {rule}, got {tuple(visible.shape)}.")
    return visible[:, :i, :j]


def boolean_mask(visible: Tensor) -> Tensor:
    """Return a mask of True and False, or of the numbers 1 and 0, as booleans.

    Raises ValueError for other numbers, such as those of an additive mask.
    """
    if visible.dtype == torch.bool:
        return visible
    others = visible[(visible != 0) & (visible != 1)]
    if len(others):
        raise ValueError(
            f"visible must hold True or 1 where a key is visible, and False or 0 elsewhere, got {others[0].item():g}. "
            "If your mask is added to the scores, pass mask == 0."
        )
    return visible == 1


def check_mask(visible: Tensor) -> None:
    """Raise ValueError unless a boolean mask (..., i, j) lets every query attend to at least one key.

    A row that is all False would give a softmax over -inf alone, which is NaN.
    """
    sees = visible.any(dim=-1)
    if not sees.all():
        blind = (~sees).nonzero().tolist()
        raise ValueError(
            f"every query must see a key, got {len(blind)} all-False row(s) in visible, the first at b={blind[0][0]}, "
            f"i={blind[0][-1]}. Pad on the right, and leave out sequences that are padding alone."
        )


@hidden_while_open("masked-self-attention")
def self_attention(values: Tensor, scores: Tensor, visible: Tensor | None = None) -> Tensor:
    """Return for each query the average of the visible values, weighted by the softmax of its scores.

    Shapes:
        values   (b, j, dh)
        scores   (b, i, j)
        visible  (1 or b, at least i, at least j)  True where query i may attend to key j
        returns  (b, i, dh)

    Raises ShapeError if an axis has two sizes, ValueError if a query may not attend to any key.
    """
    match_axes(scores=(scores, "b i j"), values=(values, "b j dh"))
    return attention_weights(scores, visible) @ values


@hidden_while_open("multi-head-attention-layer")
def self_attention_layer(x: Tensor, kqv_parameters: nn.Linear, visible: Tensor | None = None) -> Tensor:
    """Return one attention head applied to x.

    Shapes:
        x        (b, n, d)
        visible  (1 or b, at least n, at least n)
        returns  (b, n, dh)
    """
    keys, queries, values = kqv(x, kqv_parameters)
    return self_attention(values, attention_scores(queries, keys), visible)


@hidden_while_open("multi-head-attention-layer")
def multi_head_attention_layer(x: Tensor, kqv_parameters: Sequence[nn.Linear], visible: Tensor | None = None) -> Tensor:
    """Return several attention heads applied to x, side by side: head 0 fills the first features.

    It makes one call per head, which is easy to follow; `MultiHeadSelfAttention` computes all heads in one product.

    Shapes:
        x        (b, n, d)
        visible  (1 or b, at least n, at least n)
        returns  (b, n, h * dh)
    """
    if not kqv_parameters:
        raise ValueError("kqv_parameters must hold one linear layer for each head, got none.")
    heads = [self_attention_layer(x, parameters, visible) for parameters in kqv_parameters]
    return torch.cat(heads, dim=-1)


def __getattr__(name: str) -> type[nn.Module]:
    """Import `CausalSelfAttention` on first use, because modeling_attention.py itself imports this file."""
    if name != "CausalSelfAttention":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformer_lm.modeling_attention import CausalSelfAttention

    return CausalSelfAttention
