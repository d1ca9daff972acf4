"""Exact translations by the length of the source, as a figure and a table."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from transformer_lm.training.result_tables import ResultsTable

# Each can be distinguished from the others and the grey bars with any colour vision.
COLOURS = ("#006ba4", "#ff800e", "#5f9ed1", "#c85200", "black")


def plot_by_length(results: dict, models: Sequence[str]) -> Figure:
    """Draw the fraction of exact translations by the length of the source, for some models in the results.

    `results` is the output of bench/translation.py. A line is the mean over the seeds, and a band ranges from the worst
    to the best; grey bars show the fraction of the training sentences with that length.

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
    """Return a table of the fraction of exact translations, a row for each model, over all lengths and by length."""
    table = ResultsTable("exact", "model", "words in the source")
    for name, runs in results["models"].items():
        table.add(name, "all", [run["exact"] for run in runs])
        for length in results["train_lengths"]:
            table.add(name, length, [run["by_length"][length] for run in runs])
    return table
