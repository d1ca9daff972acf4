"""Results as tables and pictures: exactly the numbers given, with their spread, and readable by everyone."""

import html.parser

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from transformer_lm.plots.results import plot_curves, plot_results
from transformer_lm.training.classifiers import History
from transformer_lm.training.result_tables import ResultsTable

TO = "\N{EN DASH}"


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture
def table() -> ResultsTable:
    """Return three of four cells: one whose seeds agree, two whose seeds differ."""
    made = ResultsTable("XOR")
    made.add("baseline", "mean", [0.5, 0.75, 0.61])
    made.add("baseline", "select", [0.5, 0.5, 0.5])
    made.add("full + positions", "mean", [1, 1, 0.9])
    return made


class Page(html.parser.HTMLParser):
    """The texts of a table's cells, and every tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        assert not attrs
        self.tags.add(tag)
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_data(self, data):
        self.cells[-1] += data


def contrast(one: str, other: tuple[float, ...]) -> float:
    """Return how well a colour can be read on another, from 1 to 21, by the formula of WCAG 2."""

    def luminance(colour):
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
        return np.dot([0.2126, 0.7152, 0.0722], linear)

    dark, bright = sorted([luminance(one), luminance(other)])
    return (bright + 0.05) / (dark + 0.05)


# ------------------------------------------------------------------ tables


def test_a_table_prints_aligned_with_mean_and_spread(table):
    assert str(table) == (
        "XOR               mean              select\n"
        f"baseline          0.62 (0.50{TO}0.75)  0.50\n"
        f"full + positions  0.97 (0.90{TO}1.00)"
    )  # fmt: skip


def test_a_notebook_shows_the_same_cells_as_plain_html(table):
    page = Page(table._repr_html_())
    assert page.tags == {"table", "tr", "th", "td"}
    assert page.cells == [
        "XOR", "mean", "select",
        "baseline", f"0.62 (0.50{TO}0.75)", "0.50",
        "full + positions", f"0.97 (0.90{TO}1.00)", "",
    ]  # fmt: skip


def test_names_are_text_and_never_html():
    table = ResultsTable("<script>alert(1)</script>")
    table.add("a & b", "<td>", [0.5])
    assert Page(table._repr_html_()).cells == ["<script>alert(1)</script>", "<td>", "a & b", "0.50"]


def test_a_cell_that_is_added_again_is_replaced(table):
    table.add("baseline", "mean", [0.25])
    assert table.cell("baseline", "mean") == "0.25"
    assert table.rows == ["baseline", "full + positions"]


def test_a_spread_that_cannot_be_seen_is_left_out():
    table = ResultsTable("XOR")
    table.add("full", "max", [0.7511, 0.7512])
    assert table.cell("full", "max") == "0.75"


# ------------------------------------------------------------------ pictures of tables


def test_the_picture_holds_the_means_exactly_and_nothing_in_an_empty_cell(table):
    (image,) = plot_results([table]).axes[0].get_images()
    np.testing.assert_allclose(image.get_array().filled(-1), [[0.62, 0.5], [2.9 / 3, -1]], rtol=1e-15)


def test_all_pictures_have_one_scale_and_words_on_their_axes(table):
    other = ResultsTable("IMDb-synth", rows="layers")
    other.add("one", "max", [0.9])
    *grids, bar = plot_results([table, other], lowest=0.25).axes
    assert [ax.get_images()[0].get_clim() for ax in grids] == [(0.25, 1), (0.25, 1)]
    assert [ax.get_title() for ax in grids] == ["XOR", "IMDb-synth"]
    assert [(ax.get_ylabel(), ax.get_xlabel()) for ax in grids] == [("model", "pool"), ("layers", "pool")]
    assert [label.get_text() for label in grids[0].get_yticklabels()] == table.rows
    assert [label.get_text() for label in grids[0].get_xticklabels()] == table.columns
    assert bar.get_ylabel() == "accuracy"


def test_the_first_row_is_on_top_and_every_cell_has_its_number(table):
    ax = plot_results([table]).axes[0]
    bottom, top = ax.get_ylim()
    assert bottom > top
    numbers = {text.get_position(): text.get_text() for text in ax.texts}
    assert numbers == {(0, 0): f"0.62\n(0.50{TO}0.75)", (1, 0): "0.50", (0, 1): f"0.97\n(0.90{TO}1.00)", (1, 1): ""}


@pytest.mark.parametrize("lowest", [0, 0.5])
def test_every_number_can_be_read_on_its_background(lowest):
    table = ResultsTable("all")
    for percent in range(101):
        table.add("row", str(percent), [percent / 100])
    ax = plot_results([table], lowest=lowest).axes[0]
    (image,) = ax.get_images()
    for text in ax.texts:
        background = image.to_rgba(float(text.get_text()))[:3]
        assert contrast(text.get_color(), background) > 4.5  # what WCAG requires for small print


# ------------------------------------------------------------------ curves


def test_curves_are_the_histories_with_the_kept_epoch_marked():
    history = History([0.7, 0.5, 0.3], [0.5, 0.6, 0.9], [0.8, 0.4, 0.6], [0.5, 0.7, 0.65])
    figure = plot_curves({"baseline": history, "full": History([0.7], [0.5], [0.6], [0.4])})
    for ax, what, kept in zip(figure.axes, ("loss", "accuracy"), (0.4, 0.7), strict=True):
        assert (ax.get_ylabel(), ax.get_xlabel()) == (what, "epochs of training")
        train, validation, best, *others = ax.get_lines()
        assert list(train.get_ydata()) == getattr(history, f"train_{what}")
        assert list(validation.get_ydata()) == getattr(history, f"val_{what}")
        assert list(train.get_xdata()) == list(validation.get_xdata()) == [1, 2, 3]
        assert (train.get_linestyle(), validation.get_linestyle()) == ("--", "-")
        assert best.get_xydata().tolist() == [[2, kept]]
        assert train.get_color() == validation.get_color() == best.get_color() != others[0].get_color()
    (legend,) = figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["baseline", "full", "training", "validation", "weights kept"]


# ------------------------------------------------------------------ refuses bad input with the right words


@pytest.mark.parametrize(
    ("accuracies", "message"),
    [
        ([], "accuracies must hold one number for each seed, got none for full, max"),
        ([0.5, 1.01], r"accuracies must be between 0 and 1, got 1\.01 for full, max"),
        ([-0.1], r"between 0 and 1, got -0\.1"),
        ([float("nan")], "between 0 and 1, got nan"),
    ],
)
def test_what_is_no_accuracy_is_refused(table, accuracies, message):
    with pytest.raises(ValueError, match=message):
        table.add("full", "max", accuracies)
    assert "max" not in str(table)


@pytest.mark.parametrize(
    ("plot", "given", "message"),
    [
        (plot_results, [], "tables must be at least one, each with results, got none"),
        (plot_results, [ResultsTable("empty")], "each with results, got nothing in number 0"),
        (plot_curves, {}, "histories must be at least one, each with results, got none"),
        (plot_curves, {"a": History(*[[0.5]] * 4), "b": History()}, "got nothing in number 1"),
    ],
)
def test_nothing_to_draw_is_refused_before_anything_is_drawn(plot, given, message):
    with pytest.raises(ValueError, match=message):
        plot(given)
    assert not plt.get_fignums()
