"""Attention weights as a picture: a row for each query, a column for each key, dark for 0, bright for 1."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
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

    Raises ValueError if the weights are no weights, or labels or `visible` do not fit them.
    """
    keys = queries if keys is None else keys
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
        shares.mask = ~visible.cpu().numpy()

    if ax is None:
        _, ax = plt.subplots(figsize=(min(1.6 + 0.6 * len(keys), 12), min(1.2 + 0.6 * len(queries), 12)))
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
            ax.text(
                j, i, f"{shares[i, j]:.2f}", ha="center", va="center", color="black" if shares[i, j] > 0.5 else "white"
            )
    ax.figure.colorbar(image, ax=ax, label="weight", fraction=0.046)
    return ax


def _with_glyphs(label: str) -> str:
    """Return a label with its outer white space made visible: ` the` becomes `␣the`."""
    return label.translate(GLYPHS) if label != label.strip() else label
