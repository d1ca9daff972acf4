"""What lesson 02 really draws: its cells are run here, and the arrays behind its pictures are looked at."""

import contextlib
import io
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

LESSON = Path(__file__).parents[1] / "notebooks" / "02_multi_head_attention.ipynb"


@pytest.fixture(scope="module")
def pictures() -> dict[str, list[Axes]]:
    """What each code cell shows, by the id of the cell: its axes from left to right, row after row."""
    pictures: dict[str, list[Axes]] = {}

    def record(figure, alt):
        pictures[running] += [ax for ax in figure.axes if ax.get_images()]

    namespace = {}
    with (
        pytest.MonkeyPatch.context() as patch,
        torch.random.fork_rng(devices=[]),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        patch.setattr("transformer_lm.figures.show", record)  # before the lesson imports it by name
        for cell in nbformat.read(LESSON, as_version=4).cells:
            if cell.cell_type == "code":
                running = cell.id
                pictures[running] = []
                exec(compile(cell.source, f"{LESSON.name}, cell {running}", "exec"), namespace)
    torch.set_printoptions(profile="default")
    yield pictures
    plt.close("all")


@pytest.fixture(scope="module")
def heatmaps(pictures) -> dict[str, list[np.ma.MaskedArray]]:
    """All heatmaps of weights, those under a mask apart from those without."""
    axes = [ax for shown in pictures.values() for ax in shown if ax.get_xlabel() == "key: is read"]
    masked = [ax for ax in axes if "masked" in ax.get_title()]
    return {"masked": arrays(masked), "open": arrays([ax for ax in axes if ax not in masked])}


def arrays(axes: list[Axes]) -> list[np.ma.MaskedArray]:
    return [ax.get_images()[0].get_array() for ax in axes]


def future(weights: np.ndarray) -> np.ndarray:
    return np.triu(np.ones(weights.shape, dtype=bool), k=1)


def test_every_heatmap_is_among_those_that_are_looked_at(heatmaps):
    assert {kind: len(found) for kind, found in heatmaps.items()} == {"masked": 2 + 9, "open": 2 + 3 + 9 + 2}


def test_under_a_mask_exactly_the_future_is_drawn_as_masked(heatmaps):
    for weights in heatmaps["masked"]:
        np.testing.assert_array_equal(np.ma.getmaskarray(weights), future(weights))


def test_under_a_mask_the_future_has_no_weight_at_all(heatmaps):
    for weights in heatmaps["masked"]:
        assert (weights.data[future(weights)] == 0).all()
        assert (weights.data[0] == [1] + [0] * (len(weights) - 1)).all()


def test_without_a_mask_nothing_is_drawn_as_masked(heatmaps):
    for weights in heatmaps["open"]:
        assert not np.ma.getmaskarray(weights).any()


@pytest.mark.parametrize("kind", ["masked", "open"])
def test_the_rows_of_every_heatmap_sum_to_1(heatmaps, kind):
    for weights in heatmaps[kind]:
        assert (weights.data >= 0).all()
        np.testing.assert_allclose(weights.data.sum(axis=1), 1, atol=1e-6)


def test_three_sentences_are_read_by_three_heads_without_and_with_a_mask(pictures):
    drawn = arrays(pictures["three-look"])
    assert [weights.shape for weights in drawn] == [(n, n) for n in (3, 4, 7) for _ in range(2 * 3)]
    for figure in range(3):
        for head in range(3):
            full, masked = drawn[6 * figure + head], drawn[6 * figure + 3 + head]
            assert (full[future(full)] > 0).all()
            kept = np.where(future(full), 0, full)  # a mask gives what is kept the same proportions
            np.testing.assert_allclose(masked.data, kept / kept.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_a_second_softmax_shows_weight_on_the_future_that_is_not_there(pictures):
    once, twice = arrays(pictures["three-twice"])
    assert (once[future(once)] == 0).all()
    np.testing.assert_allclose(twice, np.exp(once) / np.exp(once).sum(axis=1, keepdims=True), rtol=1e-5)
    assert (twice[future(twice)] > 0.05).all()


def test_of_the_masks_compared_only_the_right_one_hides_the_future(pictures):
    right, zeros, by_value = arrays(pictures["wrong-look"])
    assert (right[future(right)] == 0).all()
    for leaking in (zeros, by_value):
        assert (leaking[future(leaking)] > 0.1).any()


def test_a_changed_word_moves_no_earlier_output(pictures):
    full, masked = arrays(pictures["proof-look"])
    assert not np.ma.getmaskarray(full).any()
    np.testing.assert_array_equal(np.ma.getmaskarray(masked), future(masked))
    assert (masked.data[future(masked)] == 0).all()
    assert (masked.compressed() > 0.005).all()  # or it would be printed as 0.00
