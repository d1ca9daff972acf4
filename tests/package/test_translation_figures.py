"""The curves and the table of exact translations by length."""

import matplotlib.pyplot as plt
import pytest

from transformer_lm.plots.translation import plot_by_length, table_by_length

RESULTS = {
    "train_lengths": {"short": 0.7, "long": 0.3},
    "models": {
        "net": [
            {"exact": 0.5, "by_length": {"short": 0.6, "long": 0.2}},
            {"exact": 0.7, "by_length": {"short": 0.8, "long": 0.3}},
        ],
        "other": [{"exact": 1.0, "by_length": {"short": 1.0, "long": 0.9}}],
    },
}


def test_a_line_is_the_mean_over_seeds_and_a_band_goes_from_the_worst_to_the_best():
    figure = plot_by_length(RESULTS, ["net"])
    (ax,) = figure.axes
    (line,) = ax.lines
    assert line.get_ydata() == pytest.approx([0.7, 0.25])
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert {round(float(height), 6) for height in heights} == {0.2, 0.3, 0.6, 0.8}
    assert [bar.get_height() for bar in ax.patches] == [0.7, 0.3]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["short", "long"]
    plt.close(figure)


def test_a_model_keeps_its_colour_whatever_is_drawn_beside_it():
    colours = []
    for models in (["other"], ["net", "other"]):
        figure = plot_by_length(RESULTS, models)
        colours.append(figure.axes[0].lines[-1].get_color())
        plt.close(figure)
    assert colours[0] == colours[1]


def test_a_model_that_was_not_measured_is_refused():
    with pytest.raises(ValueError, match="models must be among net, other, got 'third'"):
        plot_by_length(RESULTS, ["net", "third"])


def test_the_table_has_all_lengths_and_each_of_them():
    table = table_by_length(RESULTS)
    assert (table.rows, table.columns) == (["net", "other"], ["all", "short", "long"])
    assert table.mean("net", "all") == pytest.approx(0.6)
    assert table.mean("net", "long") == pytest.approx(0.25)
    assert table.cell("other", "short") == "1.00"
