"""Pictures of measurements of heads: exactly the numbers given, in the right cells, on one scale."""

import re
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from torch import nan

from transformer_lm.plots.heads import plot_mass, plot_profile, plot_scores, plot_training


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def assert_drawn_without_a_warning(figure) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.canvas.draw()


def test_every_head_has_a_line_by_distance():
    profile = torch.rand(3, 5, dtype=torch.float64)
    ax = plot_profile(profile)
    for line, head in zip(ax.get_lines(), profile, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), range(5))
        np.testing.assert_array_equal(line.get_ydata(), head.numpy())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["head 0", "head 1", "head 2"]
    assert [line.get_label() for line in ax.get_lines()] == ["head 0", "head 1", "head 2"]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_ylim()) == ("how far back: i - j", "mean weight", (0, 1))
    assert_drawn_without_a_warning(ax.figure)


def test_distances_are_whole_numbers():
    ax = plot_profile(torch.rand(2, 21))
    ax.figure.canvas.draw()
    assert all(tick == int(tick) for tick in ax.get_xticks())


def test_no_two_of_many_heads_look_alike():
    lines = plot_profile(torch.rand(16, 3)).get_lines()
    assert len({(to_hex(line.get_color()), line.get_linestyle()) for line in lines}) == 16


def test_a_profile_is_drawn_where_it_is_asked_for():
    _, (left, right) = plt.subplots(1, 2)
    assert plot_profile(torch.rand(2, 3), ax=right) is right
    assert (len(left.get_lines()), len(right.get_lines())) == (0, 2)


def test_the_mass_of_a_class_is_a_row_and_its_numbers_are_written():
    mass = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.4, 0.0], [0.0, 0.25, 0.75]], dtype=torch.float64)
    ax = plot_mass(mass, ["vowel", "consonant", "space"])
    (image,) = ax.get_images()
    np.testing.assert_array_equal(image.get_array(), mass.numpy())
    assert image.get_clim() == (0, 1)
    assert labels(ax.xaxis) == labels(ax.yaxis) == ["vowel", "consonant", "space"]
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("query: reads", "key: is read")
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written == {(j, i): f"{mass[i, j]:.2f}" for i in range(3) for j in range(3)}
    assert_drawn_without_a_warning(ax.figure)


@pytest.mark.parametrize("nothing", [nan, 0.0])
def test_a_class_without_queries_is_hatched(nothing):
    mass = torch.tensor([[0.5, 0.5], [nothing, nothing]])
    ax = plot_mass(mass, ["vowel", "newline"])
    (image,) = ax.get_images()
    assert np.ma.getmaskarray(image.get_array()).tolist() == [[False, False], [True, True]]
    assert ax.patch.get_hatch()
    assert len(ax.texts) == 2
    np.testing.assert_array_equal(mass, [[0.5, 0.5], [nothing, nothing]])  # as they were


SCORES = {
    "previous": torch.tensor([[0.98, 0.1, 0.2], [0.3, 0.4, 0.05]], dtype=torch.float64),
    "word_start": torch.tensor([[0.45, 0.52, 0.1], [0.07, 0.06, 0.0]], dtype=torch.float64),
}
CHANCE = {"previous": 0.15, "word_start": 0.06}
NULL = {"word_start": torch.tensor([[0.45, 0.18, 0.2], [0.05, 0.01, 0.0]], dtype=torch.float64)}


def test_every_head_is_a_row_of_the_scores_and_every_pattern_a_column():
    figure = plot_scores(SCORES, CHANCE, NULL)
    ax, bar = figure.axes
    (image,) = ax.get_images()
    expected = [[0.98, 0.45], [0.1, 0.52], [0.2, 0.1], [0.3, 0.07], [0.4, 0.06], [0.05, 0.0]]
    np.testing.assert_array_equal(image.get_array(), expected)
    assert image.get_clim() == (0, 1)
    assert labels(ax.yaxis) == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    assert labels(ax.xaxis) == ["previous", "word_start"]
    assert [ax.get_ylabel(), ax.get_xlabel(), bar.get_ylabel()] == ["layer.head", "pattern", "score"]
    assert ax.get_ylim() == (5.5, -0.5)
    assert_drawn_without_a_warning(figure)


def test_a_score_stands_above_its_baselines():
    ax = plot_scores(SCORES, CHANCE, NULL).axes[0]
    in_cell = {}
    for text in sorted(ax.texts, key=lambda text: text.get_position()[1]):
        column, row = (round(place) for place in text.get_position())
        in_cell.setdefault((row, column), []).append(text.get_text())
    assert in_cell[0, 0] == ["0.98", "chance 0.15"]
    assert in_cell[1, 1] == ["0.52", "chance 0.06\nnull 0.18"]
    assert in_cell[5, 1] == ["0.00", "chance 0.06\nnull 0.00"]
    assert len(in_cell) == 12


def test_a_score_that_counts_has_a_frame():
    ax = plot_scores(SCORES, CHANCE, NULL).axes[0]
    assert all(isinstance(patch, Rectangle) and not patch.get_fill() for patch in ax.patches)
    framed = {(round(patch.get_y() + 0.5), round(patch.get_x() + 0.5)) for patch in ax.patches}
    # 0.30 is too small, and 0.45 is what position explains.
    assert framed == {(0, 0), (4, 0), (1, 1)}


def test_a_pattern_without_a_query_is_hatched_and_holds_no_number():
    scores = SCORES | {"newline": torch.full((2, 3), nan)}
    null = NULL | {"newline": torch.full((2, 3), nan)}
    ax = plot_scores(scores, CHANCE | {"newline": nan}, null).axes[0]
    (image,) = ax.get_images()
    assert np.ma.getmaskarray(image.get_array()).tolist() == [[False, False, True]] * 6
    assert ax.patch.get_hatch()
    assert max(text.get_position()[0] for text in ax.texts) == 1
    assert max(patch.get_x() for patch in ax.patches) < 1


def test_heads_can_have_other_labels():
    ax = plot_scores({"first": torch.rand(1, 2)}, {"first": 0.1}, {}, heads=["one", "$two"]).axes[0]
    assert labels(ax.yaxis) == ["one", "$two"]
    assert_drawn_without_a_warning(ax.figure)


STEPS = [0, 10, 40, 100]
STRIP = torch.tensor([[0.0, 0.1, 0.2], [0.1, 0.2, 0.3], [0.5, nan, 0.4], [1.0, 0.3, 0.6]], dtype=torch.float64)
LOSSES = {"training": [4.0, 3.0, 2.0, 1.0], "validation": [4.1, 3.2, 2.3, 1.4]}


def test_losses_are_drawn_by_step_above_the_strip():
    upper, lower, bar = plot_training(STEPS, STRIP, LOSSES).axes
    assert {line.get_label(): list(line.get_ydata()) for line in upper.get_lines()} == LOSSES
    assert [list(line.get_xdata()) for line in upper.get_lines()] == [STEPS, STEPS]
    assert [text.get_text() for text in upper.get_legend().get_texts()] == list(LOSSES)
    assert [upper.get_ylabel(), lower.get_ylabel(), bar.get_ylabel()] == ["loss", "head", "score"]
    assert lower.get_xlabel() == "steps of training"


def test_every_head_has_a_strip_with_its_scores():
    _, lower, _ = plot_training(STEPS, STRIP, LOSSES).axes
    (mesh,) = lower.collections
    drawn = mesh.get_array()
    np.testing.assert_array_equal(drawn.filled(nan), STRIP.T.numpy())
    assert np.argwhere(np.ma.getmaskarray(drawn)).tolist() == [[1, 2]]
    assert lower.patch.get_hatch()
    assert mesh.get_clim() == (0, 1)
    assert labels(lower.yaxis) == ["head 0", "head 1", "head 2"]
    bottom, top = lower.get_ylim()
    assert bottom > top


def test_every_cell_of_a_strip_lies_around_its_step_and_its_head():
    figure = plot_training(STEPS, STRIP, LOSSES, heads=["0.0", "0.1", "1.0"])
    upper, lower, _ = figure.axes
    (mesh,) = lower.collections
    corners = mesh.get_coordinates()  # (h + 1, s + 1, 2)
    assert corners[0, :, 0].tolist() == [-5, 5, 25, 70, 130]
    assert corners[:, 0, 1].tolist() == [-0.5, 0.5, 1.5, 2.5]
    assert labels(lower.yaxis) == ["0.0", "0.1", "1.0"]
    assert_drawn_without_a_warning(figure)
    assert upper.get_xlim() == lower.get_xlim()
    assert upper.get_position().x0 == pytest.approx(lower.get_position().x0)
    assert upper.get_position().x1 == pytest.approx(lower.get_position().x1)  # the same step below the same step


def test_drawing_leaves_what_was_measured_as_it_is():
    profile, strip = torch.rand(2, 3, dtype=torch.float64), STRIP.clone()
    before = profile.clone()
    plot_profile(profile)
    plot_training(STEPS, strip, LOSSES)
    assert torch.equal(profile, before)
    assert torch.equal(strip.nan_to_num(-1), STRIP.nan_to_num(-1))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plot_profile(torch.rand(3)), "profile must have the 2 axes (h, n), got 1"),
        (lambda: plot_profile(torch.tensor([[0.5, 1.5]])), "profile must be between 0 and 1, got 1.5"),
        (lambda: plot_profile(torch.tensor([[0.5, nan]])), "profile must hold numbers, got nan"),
        (lambda: plot_mass(torch.eye(3), ["a", "b"]), "a row and a column for each of 2 classes, got (3, 3)"),
        (lambda: plot_mass(torch.ones(2, 2), ["a", "b"]), "sum to 1 in each row"),
        (lambda: plot_mass(torch.tensor([[nan, 1.0], [0.5, 0.5]]), ["a", "b"]), "sum to 1 in each row"),
        (lambda: plot_scores({}, {}, {}), "scores must hold at least one pattern, got none"),
        (lambda: plot_scores({"first": torch.rand(2)}, {"first": 0.1}, {}), "scores['first'] must have the 2 axes"),
        (lambda: plot_scores(SCORES, {"previous": 0.1}, NULL), "chance must have the patterns of scores, got a differ"),
        (lambda: plot_scores(SCORES, CHANCE, {"last": torch.rand(2, 3)}), "got a difference in last"),
        (lambda: plot_scores(SCORES, CHANCE, {"previous": torch.rand(2, 4)}), "axis h must have one size, got 3 in"),
        (lambda: plot_scores(SCORES, CHANCE, NULL, heads=list("abc")), "heads must be 6 labels, one for each head"),
        (lambda: plot_scores(SCORES, CHANCE | {"previous": 15}, NULL), "chance['previous'] must be between 0 and 1"),
        (lambda: plot_scores({"first": torch.tensor([[torch.inf]])}, {"first": 0.1}, {}), "between 0 and 1, got inf"),
        (lambda: plot_training(STEPS, STRIP[:3], LOSSES), "steps must fit scores of 3 steps and 3 heads, got 4"),
        (lambda: plot_training(STEPS, STRIP, {"training": [1.0]}), "losses['training'] must fit scores of 4 steps"),
        (lambda: plot_training(STEPS, STRIP, {}), "losses must hold at least one line, got none"),
        (lambda: plot_training(STEPS, STRIP, LOSSES, heads=["0.0"]), "heads must fit scores of 4 steps and 3 heads"),
        (lambda: plot_training([0, 10, 10, 20], STRIP, LOSSES), "each larger than the one before, got [0, 10, 10, 20]"),
        (lambda: plot_training([0], STRIP[:1], {"training": [1.0]}), "steps must be at least two"),
        (lambda: plot_training(STEPS, STRIP - 1, LOSSES), "scores must be between 0 and 1, got -1"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_drawn(draw, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        draw()
    assert not plt.get_fignums()
