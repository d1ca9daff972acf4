"""Heatmaps of attention weights: a row for each query, a column for each key, dark for 0, bright for 1."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from transformer_lm.plots.colours import COLOURS
from transformer_lm.shapes import match_axes
from transformer_lm.texts.tokenizers import GLYPHS

SMALLEST_TEXT, LARGEST_TEXT = 4.5, 10  # points


def plot_weights(
    weights: Tensor,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    visible: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw attention weights on one scale from 0 to 1; invisible keys are hatched, not drawn as 0.

    Shapes:
        weights  (i, j)  rows sum to 1
        visible  (i, j)  True where query i may attend to key j
        queries  i labels, from top to bottom
        keys     j labels, from left to right; default: the queries' labels

    Raises ValueError if the weights are invalid, labels or `visible` do not fit them, or a hidden key has weight.
    """
    keys = queries if keys is None else keys
    shares = checked_shares(weights, queries, keys, visible)
    if ax is None:
        cell = 0.6 if _has_room_for_numbers(shares) or not _are_characters(keys) else 0.25  # inches
        _, ax = plt.subplots(figsize=(min(1.6 + cell * len(keys), 12), min(1.2 + cell * len(queries), 12)))
    image = draw_labelled(shares, queries, keys, ax)
    write_numbers(shares, ax, size=10)
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
        visible  (i, j)     True where query i may attend to key j, in every head
        queries  i labels, from top to bottom
        keys     j labels, from left to right; default: the queries' labels
        names    h titles; default: "head 0" and so on
        axes     h axes to draw in; default: a new figure

    Raises ValueError if the weights are invalid, anything else does not fit them, or a hidden key has weight.
    """
    keys = queries if keys is None else keys
    if weights.dim() != 3 or not len(weights):
        raise ValueError(f"weights must have the axes h i j and at least one head, got {tuple(weights.shape)}.")
    names = [f"head {head}" for head in range(len(weights))] if names is None else names
    for what, given in (("names", names), ("axes", axes)):
        if given is not None and len(given) != len(weights):
            raise ValueError(f"{what} must be one for each of {len(weights)} heads, got {len(given)}.")
    heads = [checked_shares(head, queries, keys, visible) for head in weights]  # refused before anything is drawn

    if axes is None:
        cell = min(0.45, 12 / (len(heads) * len(keys)))  # inches
        size = (min(1.2 + len(heads) * (0.6 + cell * len(keys)), 14), min(1.2 + cell * len(queries), 12))
        _, grid = plt.subplots(1, len(heads), figsize=size, squeeze=False, layout="constrained")
        axes = list(grid[0])
    for shares, name, ax in zip(heads, names, axes, strict=True):
        image = draw_labelled(shares, queries, keys, ax)
        write_numbers(shares, ax, size=8)
        ax.set_title(name)
        if ax is not axes[0]:  # the same queries as on the left
            ax.set_ylabel("")
            ax.tick_params(labelleft=False)
    figure = axes[0].figure
    assert isinstance(figure, Figure)
    figure.colorbar(image, ax=list(axes), label="weight", fraction=0.046)
    return figure


def plot_layers(
    recording: Mapping[str, Tensor],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    visible: Tensor | None = None,
    row: int = 0,
) -> Figure:
    """Draw all heads of all layers small, a row for each layer, all on one scale from 0 to 1, and return their figure.

    Up to 16 positions are labelled; if there are more, only the first and the last are numbered. Where a panel has more
    positions than pixels, neighbours blend, and a line looks paler than in `plot_weights`.

    Shapes:
        recording  name of a layer to (b, h, i, j), rows sum to 1, as `record_attention` returns it
        visible    (i, j)  True where query i may attend to key j, in every head
        queries    i labels, from top to bottom
        keys       j labels, from left to right; default: the queries' labels
        row        which of the b texts is drawn

    Raises ValueError if the weights are invalid, anything else does not fit them, or a hidden key has weight.
    """
    keys = queries if keys is None else keys
    if not recording:
        raise ValueError("recording must hold the weights of at least one layer, got none.")
    sizes = match_axes(**{name: (weights, "b h i j") for name, weights in recording.items()})
    if not 0 <= row < sizes["b"]:
        raise ValueError(f"row must be from 0 to {sizes['b'] - 1}, one of the texts, got {row}.")
    layers = {  # refused before anything is drawn
        name: [checked_shares(head, queries, keys, visible) for head in weights[row]]
        for name, weights in recording.items()
    }

    def name_positions(axis: XAxis | YAxis, labels: Sequence[str]) -> None:
        if longest > 16:
            _mark_ends(axis, len(labels))
        else:
            _write_labels(axis, labels, points=72 * cell)

    longest = max(len(queries), len(keys))
    cell = min(2.4, 12 / sizes["h"]) / longest  # inches
    width = 1.6 + sizes["h"] * (0.05 + max(cell * len(keys), 0.4))
    height = 0.9 + len(layers) * (0.05 + max(cell * len(queries), 0.4))
    figure, grid = plt.subplots(len(layers), sizes["h"], figsize=(width, height), squeeze=False, layout="constrained")
    for axes, heads in zip(grid, layers.values(), strict=True):
        for ax, shares in zip(axes, heads, strict=True):
            image = draw_cells(shares, ax)
            ax.set(xticks=[], yticks=[])
    for ax, name in zip(grid[:, 0], layers, strict=True):
        ax.set_ylabel(layer_name(name))
        name_positions(ax.yaxis, queries)
    for head, ax in enumerate(grid[0]):
        ax.set_title(f"head {head}")
    for ax in grid[-1]:
        name_positions(ax.xaxis, keys)
    figure.supxlabel("key: is read", fontsize="medium")
    figure.supylabel("query: reads", fontsize="medium")
    figure.colorbar(image, ax=grid, label="weight", fraction=0.2 / width, aspect=height / 0.2)
    return figure


def checked_shares(
    weights: Tensor, queries: Sequence[str], keys: Sequence[str], visible: Tensor | None
) -> np.ma.MaskedArray:
    """Return the weights of one head ready to draw; refuse anything that is not attention weights."""
    shares = np.ma.masked_array(weights.detach().cpu().double().numpy())
    if shares.shape != (len(queries), len(keys)):
        raise ValueError(
            f"weights must have a row for each of {len(queries)} queries and a column for each of {len(keys)} keys, "
            f"got {shares.shape}."
        )
    sums = shares.sum(axis=1)
    if (shares < 0).any() or not np.allclose(sums, 1, atol=0.02):  # bfloat16 is that coarse
        raise ValueError(f"weights must be at least 0 and sum to 1 in each row, got sums {sums.round(3)}.")
    if visible is not None:
        match_axes(weights=(weights, "i j"), visible=(visible, "i j"))
        hidden = ~visible.cpu().numpy()
        if shares[hidden].any():  # hatching would hide a leak
            raise ValueError(f"weights must be 0 where visible is False, got up to {shares[hidden].max():.3g}.")
        shares.mask = hidden
    return shares


def draw_labelled(shares: np.ma.MaskedArray, queries: Sequence[str], keys: Sequence[str], ax: Axes) -> AxesImage:
    """Draw one head with its labels in `ax` and return the image, which a colour bar needs."""
    image = draw_cells(shares, ax)
    assert isinstance(ax.figure, Figure)
    width, height = 72 * ax.figure.get_size_inches() * ax.get_position().size
    points = min(width / len(keys), height / len(queries))  # of a cell, which is square
    _write_labels(ax.xaxis, keys, points)
    _write_labels(ax.yaxis, queries, points)
    ax.set_xlabel("key: is read")
    ax.set_ylabel("query: reads")
    return image


def draw_cells(shares: np.ma.MaskedArray, ax: Axes) -> AxesImage:
    """Draw one head without labels, hatched where it is masked."""
    hatch_all(ax)
    return ax.imshow(shares, cmap=COLOURS, vmin=0, vmax=1)


def hatch_all(ax: Axes) -> None:
    """Hatch the background, which shows wherever no cell is drawn."""
    ax.set_facecolor("white")
    ax.patch.set(hatch="////", edgecolor="lightgrey")


def _write_labels(axis: XAxis | YAxis, labels: Sequence[str], points: float) -> None:
    """Write a label at each position, or the number of every 16th position if labels would be too small."""
    size = min(0.8 * points, LARGEST_TEXT)
    if size < SMALLEST_TEXT:
        axis.set_ticks(range(0, len(labels), 16))
        return
    upright = axis.axis_name == "y" or _are_characters(labels)  # words would run into each other
    # A dollar sign among the labels is a character, not the start of a formula.
    look: dict[str, Any] = {"fontsize": size, "parse_math": False} | (
        {} if upright else {"rotation": 45, "ha": "right"}
    )
    axis.set_ticks(range(len(labels)), [with_glyphs(label) for label in labels], **look)


def _mark_ends(axis: XAxis | YAxis, count: int) -> None:
    """Write the numbers of the first and the last of `count` positions, within the ends of the axis."""
    ends = sorted({0, count - 1})
    axis.set_ticks(ends, list(map(str, ends)), fontsize=8)
    sides = {"ha": ("left", "right")} if axis.axis_name == "x" else {"va": ("top", "bottom")}
    for name, values in sides.items():
        for label, value in zip(axis.get_ticklabels(), values, strict=False):  # a single end if there is one position
            label.set(**{name: value})


def _has_room_for_numbers(shares: np.ndarray) -> bool:
    return shares.size <= 100


def write_numbers(shares: np.ma.MaskedArray, ax: Axes, size: float) -> None:
    """Write each weight into its cell if the cells are few enough for readable numbers."""
    if not _has_room_for_numbers(shares):
        return
    for i, j in np.argwhere(~np.ma.getmaskarray(shares)):
        colour = "black" if shares[i, j] > 0.5 else "white"
        ax.text(j, i, f"{shares[i, j]:.2f}", ha="center", va="center", color=colour, fontsize=size)


def _are_characters(labels: Sequence[str]) -> bool:
    return all(len(label) == 1 for label in labels)


def layer_name(name: str) -> str:
    """Return the label of a layer: `layer 0` for `blocks.0.attention.weights`, else the name itself."""
    block = re.fullmatch(r"blocks\.(\d+)\.attention\.weights", name)
    return f"layer {block[1]}" if block else name


def with_glyphs(label: str) -> str:
    """Return a label with its outer white space made visible: ` the` becomes `␣the`."""
    return label.translate(GLYPHS) if label != label.strip() else label
