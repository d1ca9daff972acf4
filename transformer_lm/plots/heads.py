"""Figures of measured heads: by distance, by class of characters, by pattern, and during training.

Axes: l layers, h heads, n distances, c classes of characters, s steps of training.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from transformer_lm.heads.scores import EXCESS, SCORE, Measured, is_about_place
from transformer_lm.plots.colours import COLOURS, LINE_COLOURS
from transformer_lm.plots.heatmaps import (
    checked_shares,
    draw_cells,
    draw_labelled,
    hatch_all,
    plot_layers,
    write_numbers,
)
from transformer_lm.shapes import match_axes


def plot_profile(profile: Tensor, ax: Axes | None = None) -> Axes:
    """Draw the mean weight that each head of a layer gives to each distance, a line for each head.

    Shapes:
        profile  (h, n)  mean weight by the distance i - j

    Raises ValueError if the profile has other axes or a value outside [0, 1].
    """
    match_axes(profile=(profile, "h n"))
    shares = _between_0_and_1("profile", profile)
    if shares.mask.any():
        raise ValueError("profile must hold numbers, got nan.")
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
    ax.set_prop_cycle(cycler(linestyle=["-", "--", ":"]) * cycler(color=LINE_COLOURS))
    for head, by_distance in enumerate(shares):
        ax.plot(by_distance, label=f"head {head}", marker=".", markersize=4, clip_on=False)
    ax.set(xlabel="how far back: i - j", ylabel="mean weight", ylim=(0, 1))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))  # positions are whole numbers
    ax.legend()
    return ax


def plot_mass(mass: Tensor, classes: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw the mean weight from queries of each class to keys of each class; a class without queries is hatched.

    Shapes:
        mass     (c, c)  of one head; rows are queries and sum to 1; nan or 0 for a class without queries
        classes  c names

    Raises ValueError if the mass does not fit the classes, or a row neither sums to 1 nor is nan or 0.
    """
    given = match_axes(mass=(mass, "queries keys"))
    if given != {"queries": len(classes), "keys": len(classes)}:
        raise ValueError(
            f"mass must have a row and a column for each of {len(classes)} classes, got {tuple(mass.shape)}."
        )
    asked = ~(mass.isnan() | (mass == 0)).all(dim=1)  # (c): classes that have queries
    checked_shares(mass[asked], [name for name, has in zip(classes, asked, strict=True) if has], classes, visible=None)
    shares = np.ma.masked_array(mass.detach().cpu().double().numpy())
    shares[~asked.cpu().numpy()] = np.ma.masked
    if ax is None:
        _, ax = plt.subplots(figsize=(1.8 + 0.6 * len(classes), 1.4 + 0.6 * len(classes)))
    image = draw_labelled(shares, classes, classes, ax)
    write_numbers(shares, ax, size=10)
    ax.figure.colorbar(image, ax=ax, label="weight", fraction=0.046)
    return ax


def plot_scores(
    scores: Mapping[str, Tensor],
    chance: Mapping[str, float],
    null: Mapping[str, Tensor],
    heads: Sequence[str] | None = None,
) -> Figure:
    """Draw how much each head follows each pattern: a row for each head, a column for each pattern.

    A cell holds the score and, below it, its two baselines: chance, the score of a uniform head, and the null
    (position-only baseline), the score that position alone explains. A frame marks a score that is large enough, and
    far enough above both, to count: see `Measured.names`. A pattern of position may be left out of `null`. A cell is
    hatched if no query has such a key.

    Shapes:
        scores  name of a pattern to (l, h), from 0 to 1, nan if no query has such a key
        chance  name of a pattern to a number
        null    name of a pattern to (l, h)
        heads   l * h labels from top to bottom; default: "0.1" for head 1 of layer 0 and so on

    Raises ValueError if scores are outside [0, 1], or anything else does not fit them.
    """
    shares = _score_table(scores, chance, null)  # (l, h, patterns)
    layers_and_heads = list(np.ndindex(shares.shape[:2]))
    heads = [f"{layer}.{head}" for layer, head in layers_and_heads] if heads is None else heads
    if len(heads) != len(layers_and_heads):
        raise ValueError(f"heads must be {len(layers_and_heads)} labels, one for each head, got {len(heads)}.")
    shares = shares.reshape(len(heads), len(scores))

    figure, ax = plt.subplots(figsize=(1.8 + 0.9 * len(scores), 1.6 + 0.55 * len(heads)), layout="constrained")
    image = draw_cells(shares, ax)
    ax.set_aspect("auto")
    for column, name in enumerate(scores):
        nulls = null[name].flatten().tolist() if name in null else [None] * len(heads)
        for row in np.flatnonzero(~np.ma.getmaskarray(shares)[:, column]).tolist():
            _write_score(ax, (column, row), shares[row, column], chance[name], nulls[row])
    ax.set_xticks(range(len(scores)), scores, rotation=30, ha="right", parse_math=False)
    ax.set_yticks(range(len(heads)), heads, parse_math=False)
    ax.set(xlabel="pattern", ylabel="layer.head")
    figure.colorbar(image, ax=ax, label="score", fraction=0.3 / figure.get_figwidth(), aspect=30)
    return figure


def plot_training(
    steps: Sequence[int],
    scores: Tensor,
    losses: Mapping[str, Sequence[float]],
    heads: Sequence[str] | None = None,
) -> Figure:
    """Draw the losses during training and, below them, a strip for each head that shows when its score rises.

    A cell of a strip is centred on its step, and meets its neighbours halfway.

    Shapes:
        steps   s numbers, each larger than the one before
        scores  (s, h)  from 0 to 1, nan (hatched) where there is none
        losses  name of a line to s numbers
        heads   h labels from top to bottom; default: "head 0" and so on

    Raises ValueError for fewer than two steps, steps out of order, scores outside [0, 1], or anything that does not fit
    them.
    """
    sizes = match_axes(scores=(scores, "s h"))
    if not losses:
        raise ValueError("losses must hold at least one line, got none.")
    heads = [f"head {head}" for head in range(sizes["h"])] if heads is None else heads
    expected = {"steps": (steps, sizes["s"]), "heads": (heads, sizes["h"])}
    expected |= {f"losses[{name!r}]": (line, sizes["s"]) for name, line in losses.items()}
    for what, (given, count) in expected.items():
        if len(given) != count:
            raise ValueError(f"{what} must fit scores of {sizes['s']} steps and {sizes['h']} heads, got {len(given)}.")
    if len(steps) < 2 or (np.diff(steps) <= 0).any():
        raise ValueError(f"steps must be at least two, each larger than the one before, got {list(steps)}.")
    shares = _between_0_and_1("scores", scores)

    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(9, 3.2 + 0.3 * len(heads)), height_ratios=(2.2, 0.4 + 0.3 * len(heads)),
        sharex=True, layout="constrained",
    )  # fmt: skip
    upper.set_prop_cycle(color=LINE_COLOURS)
    for name, line in losses.items():
        upper.plot(steps, line, label=name, marker=".")
    upper.set_ylabel("loss")
    upper.legend()
    hatch_all(lower)
    # As in a heatmap, the first head is at the top.
    lower.set(ylim=(len(heads) - 0.5, -0.5), xlabel="steps of training", ylabel="head")
    lower.set_yticks(range(len(heads)), heads, parse_math=False)
    rows = np.arange(len(heads) + 1) - 0.5
    mesh = lower.pcolormesh(_edges(steps), rows, shares.T, cmap=COLOURS, vmin=0, vmax=1)
    figure.colorbar(mesh, ax=lower, label="score", fraction=0.03)
    return figure


def _between_0_and_1(name: str, values: Tensor) -> np.ma.MaskedArray:
    """Return values ready to draw, with nan masked; refuse a value outside [0, 1]."""
    numbers = values.detach().cpu().double().numpy()
    shares = np.ma.masked_where(np.isnan(numbers), numbers)
    outside = shares[(shares < -1e-6) | (shares > 1 + 1e-6)].compressed()  # rounding errors are allowed
    if outside.size:
        raise ValueError(f"{name} must be between 0 and 1, got {outside[0]:.3g}.")
    return shares


def _score_table(
    scores: Mapping[str, Tensor], chance: Mapping[str, float], null: Mapping[str, Tensor]
) -> np.ma.MaskedArray:
    """Return all scores ready to draw, (l, h, patterns); refuse scores or baselines that do not fit."""
    if not scores:
        raise ValueError("scores must hold at least one pattern, got none.")
    for what, odd in (("chance", chance.keys() ^ scores.keys()), ("null", null.keys() - scores.keys())):
        if odd:
            raise ValueError(f"{what} must have the patterns of scores, got a difference in {', '.join(sorted(odd))}.")
    tables = {f"scores[{name!r}]": table for name, table in scores.items()}
    nulls = {f"null[{name!r}]": table for name, table in null.items()}
    match_axes(**{what: (table, "l h") for what, table in (tables | nulls).items()})
    chances = {f"chance[{name!r}]": torch.tensor([value]) for name, value in chance.items()}
    for what, baseline in (nulls | chances).items():
        _between_0_and_1(what, baseline)
    return np.ma.stack([_between_0_and_1(what, table) for what, table in tables.items()], axis=2)


def _write_score(ax: Axes, place: tuple[int, int], score: float, chance: float, null: float | None) -> None:
    """Write a score with its baselines into a cell, and draw a frame around a score that counts."""
    column, row = place
    baselines = {"chance": chance} | ({} if null is None else {"null": null})
    colour = "black" if score > 0.5 else "white"
    if score >= SCORE and score - max(baselines.values()) >= EXCESS:
        ax.add_patch(Rectangle((column - 0.46, row - 0.44), 0.92, 0.88, fill=False, edgecolor="white", linewidth=3))
    text = "\n".join(f"{name} {value:.2f}" for name, value in baselines.items())
    ax.text(column, row - 0.2, f"{score:.2f}", ha="center", va="center", color=colour, fontsize=10)
    ax.text(column, row + 0.2, text, ha="center", va="center", color=colour, fontsize=7)


def _edges(steps: Sequence[int]) -> np.ndarray:
    """Return the borders of cells around steps: halfway between neighbours, and symmetric at both ends."""
    middles = (np.array(steps[1:]) + np.array(steps[:-1])) / 2
    return np.array([2 * steps[0] - middles[0], *middles, 2 * steps[-1] - middles[-1]])


def save_pictures(
    folder: Path, measured: Measured, recording: Mapping[str, Tensor], characters: list[str]
) -> list[Path]:
    """Write pictures of one text and of all scores into a folder; return their paths.

    `recording` holds the attention on the text with the given characters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places = torch.arange(len(characters))
    visible = places[:, None] >= places
    patterns = measured.patterns
    figures = {
        "heads": plot_layers(recording, characters, visible=visible),
        "scores": plot_scores(
            {name: found.score for name, found in patterns.items()},
            {name: found.chance for name, found in patterns.items()},
            {name: found.null for name, found in patterns.items() if not is_about_place(name)},
        ),
    }
    for layer, profile in enumerate(measured.profile):
        figure = plot_profile(profile).figure
        assert isinstance(figure, Figure)
        figures[f"distances_layer_{layer}"] = figure
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=100, bbox_inches="tight")
        plt.close(figure)
    return paths
