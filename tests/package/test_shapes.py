import pytest
import torch

from transformer_lm.shapes import ShapeError, describe, match_axes

queries, keys = torch.ones(2, 5, 4), torch.ones(2, 6, 4)


def test_match_axes_gives_the_size_of_each_axis_in_the_order_of_their_names():
    sizes = match_axes(queries=(queries, "b i dh"), keys=(keys, "b j dh"))
    assert list(sizes.items()) == [("b", 2), ("i", 5), ("dh", 4), ("j", 6)]


def test_an_axis_may_stand_twice_in_one_tensor():
    assert match_axes(mask=(torch.ones(3, 3), "n n")) == {"n": 3}
    with pytest.raises(ShapeError, match=r"axis n must have one size, got 3 in mask .* and 4 in mask"):
        match_axes(mask=(torch.ones(3, 4), "n n"))


def test_describe_gives_a_shape_in_words():
    assert describe("keys", keys, "b j dh") == "keys (b=2, j=6, dh=4)"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"queries": (queries, "b n dh"), "keys": (keys, "b n dh")},
            "axis n must have one size, got 5 in queries (b=2, n=5, dh=4) and 6 in keys (b=2, n=6, dh=4).",
        ),
        ({"keys": (keys[0], "b j dh")}, "keys must have the 3 axes (b, j, dh), got 2 of sizes (6, 4)."),
        ({"keys": (keys, "j dh")}, "keys must have the 2 axes (j, dh), got 3 of sizes (2, 6, 4)."),
        (
            {"queries": (queries, "b i dh"), "keys": (keys[:, :0], "b j dh")},
            "axis j must not be empty, got size 0 in keys (b=2, j=0, dh=4).",
        ),
    ],
)
def test_shapes_that_disagree_are_refused_by_name(tensors, message):
    with pytest.raises(ShapeError) as refusal:
        match_axes(**tensors)
    assert str(refusal.value) == message
    assert isinstance(refusal.value, ValueError)
