"""Results of experiments: figures of result tables, and training curves."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from transformer_lm.plots.colours import COLOURS, LINE_COLOURS
from transformer_lm.training.classifiers import History
from transformer_lm.training.result_tables import ResultsTable


def plot_results(tables: Sequence[ResultsTable], lowest: float = 0.5) -> Figure:
    """Draw tables side by side, dark for accuracies of `lowest` or less, bright for 1, and return their figure.

    Raises ValueError if `tables` is empty, or a table has no results.
    """
    _check_filled("tables", [table.rows for table in tables])
    size = (1.5 + sum(1 + 1.1 * len(table.columns) for table in tables), 1.3 + 0.6 * max(len(t.rows) for t in tables))
    figure, grid = plt.subplots(1, len(tables), figsize=size, squeeze=False, layout="constrained")
    for table, ax in zip(tables, grid[0], strict=True):
        means = np.array([[table.mean(row, column) for column in table.columns] for row in table.rows])
        image = ax.imshow(np.ma.masked_invalid(means), cmap=COLOURS, vmin=lowest, vmax=1, aspect="auto")
        ax.set_title(table.title, parse_math=False)
        ax.set_xticks(range(len(table.columns)), table.columns, parse_math=False)
        ax.set_yticks(range(len(table.rows)), table.rows, parse_math=False)
        ax.set_ylabel(table.axes[0])
        ax.set_xlabel(table.axes[1])
        for (i, j), mean in np.ndenumerate(means):
            # On this colour map, black is easier to read than white from a little below the middle.
            colour = "black" if mean > lowest + 0.47 * (1 - lowest) else "white"
            text = table.cell(table.rows[i], table.columns[j]).replace(" ", "\n")
            ax.text(j, i, text, ha="center", va="center", color=colour, fontsize=9)
    pointed = "min" if lowest > 0 else "neither"  # lower values have the colour of the lowest
    figure.colorbar(image, ax=list(grid[0]), label="accuracy", extend=pointed, fraction=0.046)
    return figure


def plot_curves(histories: Mapping[str, History]) -> Figure:
    """Draw loss and accuracy after each epoch, a colour for each history, and return their figure.

    Training is dashed, validation solid; a dot marks the epoch whose weights were kept.

    Raises ValueError if `histories` is empty, or a history has no epoch.
    """
    _check_filled("histories", [history.val_loss for history in histories.values()])
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for what, ax in zip(("loss", "accuracy"), axes, strict=True):
        for place, (name, history) in enumerate(histories.items()):
            colour, epochs = LINE_COLOURS[place % len(LINE_COLOURS)], range(1, len(history.val_loss) + 1)
            validation = getattr(history, f"val_{what}")
            ax.plot(epochs, getattr(history, f"train_{what}"), color=colour, linestyle="--", linewidth=1)
            ax.plot(epochs, validation, color=colour, label=name)
            ax.plot(history.best + 1, validation[history.best], "o", color=colour)
        ax.set_xlabel("epochs of training")
        ax.set_ylabel(what)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    for label, style in (("training", "k--"), ("validation", "k-"), ("weights kept", "ko")):
        axes[1].plot([], [], style, label=label)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside right upper")
    return figure


def _check_filled(what: str, results: Sequence[Sequence]) -> None:
    """Raise ValueError, before anything is drawn, if any result is missing."""
    if not results or not all(results):
        empty = f"nothing in number {[bool(inside) for inside in results].index(False)}" if results else "none"
        raise ValueError(f"{what} must be at least one, each with results, got {empty}.")
