"""Translations that come out exactly right, by the length of the source: a figure and a table."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from transformer_lm.training.result_tables import ResultsTable

# Each can be told from the others with any eyes, and from the grey bars.
COLOURS = ("#006ba4", "#ff800e", "#5f9ed1", "#c85200", "black")


def plot_by_length(results: dict, models: Sequence[str]) -> Figure:
    """Draw the share of exact translations by the length of the source, for some of the models in the results.

    `results` is what bench/translation.py writes. A line is the mean over the seeds, a band goes from the worst to the
    best; grey bars say which share of the training sentences has that length.

    Raises ValueError for a model that is not in the results.
    """
    measured = [name for name, runs in results["models"].items() if runs]
    if unknown := [name for name in models if name not in measured]:
        raise ValueError(f"models must be among {', '.join(measured)}, got {unknown[0]!r}.")
    lengths, places = list(results["train_lengths"]), range(len(results["train_lengths"]))
    figure, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
    ax.bar(places, results["train_lengths"].values(), color="#dddddd", label="share of training")
    for name in models:
        colour = COLOURS[list(results["models"]).index(name) % len(COLOURS)]
        shares = [[run["by_length"][length] for run in results["models"][name]] for length in lengths]
        ax.plot(places, [sum(seeds) / len(seeds) for seeds in shares], "o-", color=colour, label=name)
        ax.fill_between(places, list(map(min, shares)), list(map(max, shares)), color=colour, alpha=0.2, linewidth=0)
    ax.set_xticks(places, lengths)
    ax.set_xlabel("words in the source")
    ax.set_ylabel("exact translations")
    ax.set_ylim(0, 1.03)
    figure.legend(loc="outside right upper")
    return figure


def table_by_length(results: dict) -> ResultsTable:
    """Return a table of the share of exact translations, a row for each model, over all lengths and by length."""
    table = ResultsTable("exact", "model", "words in the source")
    for name, runs in results["models"].items():
        table.add(name, "all", [run["exact"] for run in runs])
        for length in results["train_lengths"]:
            table.add(name, length, [run["by_length"][length] for run in runs])
    return table
