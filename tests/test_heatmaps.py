"""Pictures of attention weights: exactly the numbers given, masked where masked, labelled on the right axes."""

import base64
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from transformer_lm.attention import attention_weights, create_causal_mask
from transformer_lm.figures import show
from transformer_lm.heatmaps import plot_heads, plot_weights


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def drawn(ax) -> np.ma.MaskedArray:
    (image,) = ax.get_images()
    return image.get_array()


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
    assert len(ax.texts) == visible.sum()  # no number stands where nothing can be read


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


def test_a_figure_is_shown_with_its_text_and_closed(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("transformer_lm.figures.display", lambda data, raw: shown.append(data))
    figure = plt.figure()
    show(figure, alt='Two "words" & more')
    (data,) = shown
    assert 'alt="Two &quot;words&quot; &amp; more"' in data["text/html"]
    assert data["text/plain"] == 'Figure: Two "words" & more'
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert not plt.fignum_exists(figure.number)
