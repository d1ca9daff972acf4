"""Attention weights as a picture: a row for each query, a column for each key, dark for 0, bright for 1."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from transformer_lm.shapes import match_axes

COLOURS = "cividis"  # reads the same with and without colour blindness, and in print
GLYPHS = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})


def plot_weights(
    weights: Tensor,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    visible: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw attention weights on one scale from 0 to 1; what is not visible is hatched, not drawn as 0.

    Shapes:
        weights  (i, j)  rows sum to 1
        visible  (i, j)  True where query i may read key j
        queries  i labels, from top to bottom
        keys     j labels, from left to right; the queries' labels without

    Raises ValueError if the weights are no weights, labels or `visible` do not fit them, or what is hidden has weight.
    """
    keys = queries if keys is None else keys
    shares = _shares(weights, queries, keys, visible)
    if ax is None:
        _, ax = plt.subplots(figsize=(min(1.6 + 0.6 * len(keys), 12), min(1.2 + 0.6 * len(queries), 12)))
    image = _draw(shares, queries, keys, ax)
    ax.figure.colorbar(image, ax=ax, label="weight", fraction=0.046)
    return ax


def plot_heads(
    weights: Tensor,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    visible: Tensor | None = None,
    names: Sequence[str] | None = None,
    axes: Sequence[Axes] | None = None,
) -> Figure:
    """Draw the weights of several heads side by side, all on one scale from 0 to 1, and return their figure.

    Shapes:
        weights  (h, i, j)  rows sum to 1
        visible  (i, j)     True where query i may read key j, in every head
        queries  i labels, from top to bottom
        keys     j labels, from left to right; the queries' labels without
        names    h titles; "head 0" and so on without
        axes     h places to draw in; a figure of its own without

    Raises ValueError if the weights are no weights, anything else does not fit them, or what is hidden has weight.
    """
    keys = queries if keys is None else keys
    if weights.dim() != 3 or not len(weights):
        raise ValueError(f"weights must have the axes h i j and at least one head, got {tuple(weights.shape)}.")
    names = [f"head {head}" for head in range(len(weights))] if names is None else names
    for what, given in (("names", names), ("axes", axes)):
        if given is not None and len(given) != len(weights):
            raise ValueError(f"{what} must be one for each of {len(weights)} heads, got {len(given)}.")
    heads = [_shares(head, queries, keys, visible) for head in weights]  # refused before anything is drawn

    if axes is None:
        size = (min(1.2 + len(heads) * (0.6 + 0.45 * len(keys)), 14), min(1.2 + 0.45 * len(queries), 12))
        _, grid = plt.subplots(1, len(heads), figsize=size, squeeze=False, layout="constrained")
        axes = list(grid[0])
    for shares, name, ax in zip(heads, names, axes, strict=True):
        image = _draw(shares, queries, keys, ax, size_of_numbers=8)
        ax.set_title(name)
        if ax is not axes[0]:  # the same queries as on the left
            ax.set_ylabel("")
            ax.tick_params(labelleft=False)
    axes[0].figure.colorbar(image, ax=list(axes), label="weight", fraction=0.046)
    return axes[0].figure


def _shares(weights: Tensor, queries: Sequence[str], keys: Sequence[str], visible: Tensor | None) -> np.ma.MaskedArray:
    """Return the weights of one head as they will be drawn, refused if they are none."""
    shares = np.ma.masked_array(weights.detach().cpu().double().numpy())
    if shares.shape != (len(queries), len(keys)):
        raise ValueError(
            f"weights must have a row for each of {len(queries)} queries and a column for each of {len(keys)} keys, "
            f"got {shares.shape}."
        )
    sums = shares.sum(axis=1)
    if (shares < 0).any() or not np.allclose(sums, 1, atol=0.02):  # bfloat16 is as coarse as that
        raise ValueError(f"weights must be at least 0 and sum to 1 in each row, got sums {sums.round(3)}.")
    if visible is not None:
        match_axes(weights=(weights, "i j"), visible=(visible, "i j"))
        hidden = ~visible.cpu().numpy()
        if shares[hidden].any():  # hatching would cover up that something leaks
            raise ValueError(f"weights must be 0 where visible is False, got up to {shares[hidden].max():.3g}.")
        shares.mask = hidden
    return shares


def _draw(
    shares: np.ma.MaskedArray, queries: Sequence[str], keys: Sequence[str], ax: Axes, size_of_numbers: float = 10
) -> AxesImage:
    """Draw one head in `ax` and return the image, from which a colour bar can be made."""
    ax.set_facecolor("white")
    ax.patch.set(hatch="////", edgecolor="lightgrey")
    image = ax.imshow(shares, cmap=COLOURS, vmin=0, vmax=1)
    # A dollar sign among the labels is a character, not the start of a formula.
    ax.set_xticks(range(len(keys)), [_with_glyphs(key) for key in keys], rotation=45, ha="right", parse_math=False)
    ax.set_yticks(range(len(queries)), [_with_glyphs(query) for query in queries], parse_math=False)
    ax.set_xlabel("key: is read")
    ax.set_ylabel("query: reads")
    if shares.size <= 100:  # few enough to read as numbers too
        for i, j in np.argwhere(~np.ma.getmaskarray(shares)):
            colour = "black" if shares[i, j] > 0.5 else "white"
            ax.text(j, i, f"{shares[i, j]:.2f}", ha="center", va="center", color=colour, fontsize=size_of_numbers)
    return image


def _with_glyphs(label: str) -> str:
    """Return a label with its outer white space made visible: ` the` becomes `␣the`."""
    return label.translate(GLYPHS) if label != label.strip() else label
