"""Pictures of attention weights: exactly the numbers given, masked where masked, labelled on the right axes."""

import base64
import re
import warnings
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from transformer_lm.attention import attention_weights, create_causal_mask
from transformer_lm.plots.heatmaps import plot_heads, plot_layers, plot_weights
from transformer_lm.plots.pictures import show


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def drawn(ax) -> np.ma.MaskedArray:
    (image,) = ax.get_images()
    return image.get_array()


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def recorded(layers: int, b: int, h: int, i: int, j: int) -> dict[str, torch.Tensor]:
    """Weights that are all different, by the names of their layers."""
    weights = torch.randn(layers, b, h, i, j, dtype=torch.float64).softmax(dim=-1)
    return {f"blocks.{layer}.attention.weights": weights[layer] for layer in range(layers)}


def causal(recording: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same without weight on the future."""
    past = {name: weights.tril() for name, weights in recording.items()}
    return {name: weights / weights.sum(dim=-1, keepdim=True) for name, weights in past.items()}


def assert_drawn_without_a_warning(figure) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a glyph that the font does not have, say
        figure.canvas.draw()


def test_the_picture_holds_the_weights_exactly():
    weights = torch.randn(3, 5, dtype=torch.float64).softmax(dim=-1)
    ax = plot_weights(weights, list("abc"), list("vwxyz"))
    np.testing.assert_array_equal(drawn(ax), weights.numpy())
    assert [label.get_text() for label in ax.get_yticklabels()] == list("abc")
    assert [label.get_text() for label in ax.get_xticklabels()] == list("vwxyz")
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("query: reads", "key: is read")


def test_the_first_query_is_on_top_and_its_key_on_the_left():
    ax = plot_weights(torch.eye(4), list("abcd"))
    bottom, top = ax.get_ylim()
    left, right = ax.get_xlim()
    assert bottom > top
    assert left < right


def test_every_picture_has_one_scale_from_0_to_1():
    (image,) = plot_weights(torch.full((2, 2), 0.5), list("ab")).get_images()
    assert image.get_clim() == (0, 1)


def test_what_is_not_visible_is_masked_and_not_drawn_as_0():
    visible = create_causal_mask(4)
    weights = attention_weights(torch.zeros(1, 4, 4, dtype=torch.float64), visible)[0]
    ax = plot_weights(weights, list("abcd"), visible=visible[0])
    assert np.ma.getmaskarray(drawn(ax)).tolist() == (~visible[0]).tolist()
    np.testing.assert_allclose(drawn(ax).filled(0).sum(axis=1), 1, rtol=1e-15)
    assert ax.patch.get_hatch()
    assert len(ax.texts) == visible.sum()  # no number is shown where nothing can be attended to


def test_numbers_can_be_read_on_dark_and_on_bright():
    ax = plot_weights(torch.tensor([[0.9, 0.1], [0.0, 1.0]]), list("ab"))
    assert {text.get_text(): to_hex(text.get_color()) for text in ax.texts} == {
        "0.90": "#000000", "0.10": "#ffffff", "0.00": "#ffffff", "1.00": "#000000",
    }  # fmt: skip


def test_white_space_is_drawn_as_a_glyph():
    ax = plot_weights(torch.eye(5), ["key 1", " ", "\n", "\t", " the"])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["key 1", "␣", "↵", "⇥", "␣the"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(2, 3) / 3, "a row for each of 2 queries and a column for each of 2 keys, got (2, 3)"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.6]]), "sum to 1 in each row"),
        (torch.tensor([[1.5, -0.5], [0.5, 0.5]]), "at least 0"),
    ],
)
def test_what_are_no_weights_is_refused(weights, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plot_weights(weights, list("ab"))


def test_a_mask_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"axis i must have one size, got 4 in weights .* and 5 in visible"):
        plot_weights(torch.eye(4), list("abcd"), visible=create_causal_mask(5)[0])


def test_weight_on_what_is_hidden_is_refused_and_not_hatched_over():
    leaking = torch.full((2, 2), 0.5)
    message = "weights must be 0 where visible is False, got up to 0.5."
    with pytest.raises(ValueError, match=re.escape(message)):
        plot_weights(leaking, list("ab"), visible=create_causal_mask(2)[0])


def test_a_dollar_sign_is_a_character():
    ax = plot_weights(torch.eye(2), [r"$\frac$", "$"])
    ax.figure.canvas.draw()
    assert ax.get_xticklabels()[0].get_text() == r"$\frac$"


def test_coarse_numbers_are_drawn_too():
    weights = torch.randn(3, 40).softmax(dim=-1).bfloat16()
    assert drawn(plot_weights(weights, list("abc"), ["k"] * 40)).shape == (3, 40)


def test_one_character_stands_upright_and_a_word_slanted():
    characters, words = plot_weights(torch.eye(3), list("abc")), plot_weights(torch.eye(3), ["a", "b", "cat"])
    assert {label.get_rotation() for label in characters.get_xticklabels()} == {0}
    assert {label.get_rotation() for label in words.get_xticklabels()} == {45}


def test_the_labels_of_64_characters_can_be_read_and_do_not_touch():
    text = ("To be,\tWomen:\n" * 5)[:64]
    ax = plot_weights(torch.eye(64), text)
    assert max(ax.figure.get_size_inches()) <= 12
    assert_drawn_without_a_warning(ax.figure)
    for axis in (ax.xaxis, ax.yaxis):
        assert labels(axis) == list(text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥"))
        assert min(label.get_fontsize() for label in axis.get_ticklabels()) >= 7
    places = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(places))


def test_hebrew_is_labelled_character_by_character_from_the_first_to_the_last():
    text = "שלום, עולם\n"
    ax = plot_weights(torch.eye(11), text)
    assert_drawn_without_a_warning(ax.figure)
    assert labels(ax.xaxis) == labels(ax.yaxis) == [*"שלום,", "␣", *"עולם", "↵"]
    assert list(ax.get_xticks()) == list(ax.get_yticks()) == list(range(11))


def test_of_too_many_positions_every_16th_is_numbered():
    ax = plot_weights(torch.eye(150), "x" * 150)
    assert labels(ax.xaxis) == labels(ax.yaxis) == [str(position) for position in range(0, 150, 16)]
    assert drawn(ax).shape == (150, 150)


def test_heads_too_small_for_their_labels_are_numbered_in_a_figure_without_empty_space():
    figure = plot_heads(torch.eye(64).expand(3, 64, 64), "x" * 64)
    assert labels(figure.axes[0].xaxis) == ["0", "16", "32", "48"]
    width, height = figure.get_size_inches()
    assert width <= 14
    assert height < width / 2


def test_drawing_leaves_the_weights_as_they_are():
    recording = causal(recorded(1, 2, 3, 4, 4))
    (weights,) = recording.values()
    before = weights.clone()
    visible = create_causal_mask(4)[0]
    plot_weights(weights[0, 0], list("abcd"), visible=visible)
    plot_heads(weights[1], list("abcd"), visible=visible)
    plot_layers(recording, list("abcd"), visible=visible)
    assert torch.equal(weights, before)
    assert torch.equal(visible, create_causal_mask(4)[0])


def test_every_head_is_drawn_exactly_in_its_own_place():
    weights = torch.randn(2, 3, 5, dtype=torch.float64).softmax(dim=-1)
    figure = plot_heads(weights, list("abc"), list("vwxyz"))
    first, second, bar = figure.axes
    for ax, head in zip((first, second), weights, strict=True):
        np.testing.assert_array_equal(drawn(ax), head.numpy())
        assert [label.get_text() for label in ax.get_xticklabels()] == list("vwxyz")
        assert ax.get_images()[0].get_clim() == (0, 1)
    assert [first.get_title(), second.get_title(), bar.get_ylabel()] == ["head 0", "head 1", "weight"]
    assert [first.get_ylabel(), second.get_ylabel()] == ["query: reads", ""]


def test_in_every_head_the_same_is_masked():
    visible = create_causal_mask(4)
    weights = attention_weights(torch.randn(3, 4, 4), visible)
    figure = plot_heads(weights, list("abcd"), visible=visible[0], names=["one", "two", "three"])
    assert [ax.get_title() for ax in figure.axes[:3]] == ["one", "two", "three"]
    for ax in figure.axes[:3]:
        assert np.ma.getmaskarray(drawn(ax)).tolist() == (~visible[0]).tolist()


def test_heads_can_be_drawn_in_a_row_of_a_larger_figure():
    figure, grid = plt.subplots(2, 3, layout="constrained")
    assert plot_heads(torch.eye(2).expand(3, 2, 2), list("ab"), axes=grid[1]) is figure
    assert [len(ax.get_images()) for ax in grid.flat] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        (torch.eye(2), {}, "weights must have the axes h i j and at least one head, got (2, 2)"),
        (torch.ones(0, 2, 2), {}, "at least one head, got (0, 2, 2)"),
        (torch.eye(2).expand(3, 2, 2), {"names": list("ab")}, "names must be one for each of 3 heads, got 2"),
        (torch.eye(2).expand(3, 2, 2), {"axes": [None] * 4}, "axes must be one for each of 3 heads, got 4"),
        (torch.stack([torch.eye(2), torch.ones(2, 2)]), {}, "sum to 1 in each row"),
    ],
)
def test_what_are_no_heads_is_refused_before_anything_is_drawn(weights, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plot_heads(weights, list("ab"), **options)
    assert not plt.get_fignums()


def panels(figure) -> list:
    """All heads of a figure, layer after layer, without its colour bar."""
    return figure.axes[:-1]


def test_every_layer_has_its_row_of_panels_and_every_head_its_column():
    recording = recorded(2, 3, 4, 5, 6)
    figure = plot_layers(recording, list("abcde"), list("uvwxyz"), row=2)
    expected = [weights[2, head] for weights in recording.values() for head in range(4)]
    for ax, weights in zip(panels(figure), expected, strict=True):
        np.testing.assert_array_equal(drawn(ax), weights.numpy())
    grid = [(ax.get_subplotspec().rowspan.start, ax.get_subplotspec().colspan.start) for ax in panels(figure)]
    assert grid == [(layer, head) for layer in range(2) for head in range(4)]


def test_columns_are_headed_by_heads_and_rows_by_layers():
    figure = plot_layers(recorded(2, 1, 3, 5, 4), list("abcde"), list("wxyz"))
    assert [ax.get_title() for ax in panels(figure)] == ["head 0", "head 1", "head 2", "", "", ""]
    assert [ax.get_ylabel() for ax in panels(figure)] == ["layer 0", "", "", "layer 1", "", ""]
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key: is read", "query: reads")


def test_queries_are_labelled_on_the_left_and_keys_below():
    figure = plot_layers(recorded(2, 1, 3, 5, 4), list("ab de"), list("wx\nz"))
    queries, keys = ["a", "b", "␣", "d", "e"], ["w", "x", "↵", "z"]
    assert [labels(ax.yaxis) for ax in panels(figure)] == [queries, [], [], queries, [], []]
    assert [labels(ax.xaxis) for ax in panels(figure)] == [[], [], [], keys, keys, keys]
    for ax in panels(figure):  # the first query is at the top, the first key on the left
        assert (ax.get_ylim(), ax.get_xlim()) == ((4.5, -0.5), (-0.5, 3.5))
    assert_drawn_without_a_warning(figure)


def test_of_more_than_16_positions_the_first_and_the_last_are_numbered():
    first, second = panels(plot_layers(recorded(1, 1, 2, 3, 17), list("abc"), "k" * 17))
    assert (labels(first.xaxis), labels(second.xaxis)) == (["0", "16"], ["0", "16"])
    assert (list(first.get_xticks()), list(first.get_yticks())) == ([0, 16], [0, 2])
    assert (labels(first.yaxis), labels(second.yaxis)) == (["0", "2"], [])
    (single,) = panels(plot_layers(recorded(1, 1, 1, 1, 20), ["q"], "k" * 20))
    assert labels(single.yaxis) == ["0"]


def test_layers_are_named_after_their_place_in_the_model():
    weights = torch.eye(2).expand(1, 1, 2, 2)
    names = ["blocks.3.attention.weights", "encoder.blocks.0.attention.weights"]
    figure = plot_layers(dict.fromkeys(names, weights), list("ab"))
    assert [ax.get_ylabel() for ax in panels(figure)] == ["layer 3", "encoder.blocks.0.attention.weights"]


def test_in_every_panel_the_future_is_masked_and_the_rest_sums_to_1():
    visible = create_causal_mask(5)[0]
    figure = plot_layers(causal(recorded(2, 2, 3, 5, 5)), list("abcde"), visible=visible, row=1)
    for ax in panels(figure):
        assert np.ma.getmaskarray(drawn(ax)).tolist() == (~visible).tolist()
        np.testing.assert_allclose(drawn(ax).filled(0).sum(axis=1), 1, rtol=1e-15)
        assert ax.patch.get_hatch()
        assert not ax.texts  # too small for numbers


def test_all_panels_have_one_scale_from_0_to_1():
    flat = torch.full((1, 2, 5, 5), 0.2)
    figure = plot_layers({"flat": flat, "sharp": torch.eye(5).expand(1, 2, 5, 5)}, list("abcde"))
    images = [image for ax in panels(figure) for image in ax.get_images()]
    assert {(image.get_clim(), image.get_cmap().name) for image in images} == {((0, 1), "cividis")}
    assert len(images) == 4
    assert figure.axes[-1].get_ylabel() == "weight"


def test_8_layers_of_8_heads_are_not_wider_than_14_inches():
    figure = plot_layers(recorded(8, 1, 8, 20, 20), "x" * 20)
    width, height = figure.get_size_inches()
    assert width <= 14
    assert height <= 14
    assert len(panels(figure)) == 64


@pytest.mark.parametrize(
    ("recording", "options", "message"),
    [
        ({}, {}, "recording must hold the weights of at least one layer, got none"),
        ({"one": torch.eye(2)}, {}, "one must have the 4 axes (b, h, i, j), got 2"),
        ({"one": torch.eye(2).expand(1, 3, 2, 2), "two": torch.eye(2).expand(1, 4, 2, 2)}, {}, "axis h must have one"),
        ({"one": torch.eye(2).expand(3, 1, 2, 2)}, {"row": 3}, "row must be from 0 to 2, one of the texts, got 3"),
        ({"one": torch.eye(2).expand(3, 1, 2, 2)}, {"row": -1}, "row must be from 0 to 2, one of the texts, got -1"),
        ({"one": torch.eye(3).expand(1, 1, 3, 3)}, {}, "a row for each of 2 queries"),
        ({"one": torch.ones(1, 1, 2, 2)}, {}, "sum to 1 in each row"),
        ({"one": torch.full((1, 1, 2, 2), 0.5)}, {"visible": torch.eye(2).bool()}, "must be 0 where visible is False"),
    ],
)
def test_what_is_no_recording_is_refused_before_anything_is_drawn(recording, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plot_layers(recording, list("ab"), **options)
    assert not plt.get_fignums()


def test_a_figure_is_shown_with_its_text_and_closed(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("transformer_lm.plots.pictures.display", lambda data, raw: shown.append(data))
    figure = plt.figure()
    show(figure, alt='Two "words" & more')
    (data,) = shown
    assert 'alt="Two &quot;words&quot; &amp; more"' in data["text/html"]
    assert data["text/plain"] == 'Figure: Two "words" & more'
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert not plt.fignum_exists(figure.number)
