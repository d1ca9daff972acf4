"""Tests of `attention.py`. Unless a test draws its sizes, (b, h, n, d, dh) = (2, 3, 5, 7, 4)."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy_attention import attend, multi_head_attention
from torch import nn
from torch.nn import functional as F

from transformer_lm.attention import (
    attention_scores,
    attention_weights,
    create_causal_mask,
    create_kqv_parameters,
    kqv,
    multi_head_attention_layer,
    self_attention,
    self_attention_layer,
)
from transformer_lm.shapes import ShapeError

drawn = settings(max_examples=25, deadline=None, derandomize=True)
size, yes_or_no, seed = st.integers(1, 5), st.booleans(), st.integers(0, 999)
X, SCORES = torch.ones(2, 5, 7), torch.ones(2, 3, 5)


@pytest.fixture(autouse=True)
def same_numbers_in_every_run():
    torch.manual_seed(0)


def random(*sizes):
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


def random_mask(b, i, j):
    """Return a mask (b, i, j) that hides about half the keys and never the first."""
    return (torch.rand(b, i, j) < 0.5).index_fill(2, torch.tensor(0), True)


def random_heads(h, d, dh):
    return [create_kqv_parameters(d, dh).double() for _ in range(h)]


def assert_same(ours, theirs):
    theirs = torch.as_tensor(theirs) if isinstance(theirs, np.ndarray) else theirs
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def numpy_parameters(head):
    """Return the parameters of one head as the NumPy reference names them, with the identity as output projection."""
    kinds = {kind: np.split(parameter.detach().numpy(), 3) for kind, parameter in head.named_parameters()}
    named = {f"{name}.{kind}": third for kind in kinds for name, third in zip("kqv", kinds[kind], strict=True)}
    return named | {"mix.weight": np.eye(len(named["k.bias"])), "mix.bias": np.zeros(len(named["k.bias"]))}


# ------------------------------------------------------------------ equals an independent reference


@drawn
@example(b=2, i=3, j=5, dh=4, extra=6, masked=True, shared=False, number=0)
@given(b=size, i=size, j=size, dh=size, extra=size, masked=yes_or_no, shared=yes_or_no, number=seed)
def test_attention_equals_torch_and_numpy_with_gradients(b, i, j, dh, extra, masked, shared, number):
    torch.manual_seed(number)
    leaves, upstream = (random(b, i, dh), random(b, j, dh), random(b, j, dh)), random(b, i, dh)
    queries, keys, values = leaves
    visible = random_mask(1 if shared else b, i + extra, j + extra) if masked else None
    corner = visible[:, :i, :j].expand(b, i, j) if masked else torch.ones(b, i, j, dtype=torch.bool)

    scores = attention_scores(queries, keys)
    ours, weights = self_attention(values, scores, visible), attention_weights(scores, visible)
    theirs = F.scaled_dot_product_attention(queries, keys, values, attn_mask=corner)
    assert_same(ours, theirs)
    assert_same(*(torch.autograd.grad(output, leaves, upstream) for output in (ours, theirs)))
    for row in range(b):
        averages, by_hand = attend(*(tensor[row].detach().numpy() for tensor in (*leaves, corner)))
        assert_same(ours[row], averages)
        assert_same(weights[row], by_hand)


@drawn
@example(b=2, h=3, n=5, d=7, dh=4, causal=True, number=0)
@given(b=size, h=size, n=size, d=size, dh=size, causal=yes_or_no, number=seed)
def test_multi_head_attention_layer_equals_torch_and_numpy_with_gradients(b, h, n, d, dh, causal, number):
    torch.manual_seed(number)
    x, upstream, heads = random(b, n, d), random(b, n, h * dh), random_heads(h, d, dh)
    mask = create_causal_mask(n + 2) if causal else None
    ours = multi_head_attention_layer(x, heads, mask)
    assert_same(self_attention_layer(x, heads[0], mask), ours[..., :dh])
    assert_same(torch.cat(kqv(x, heads[0]), dim=-1), heads[0](x))
    keys, queries, values = torch.stack([head(x) for head in heads], dim=1).split(dh, dim=-1)  # (b, h, n, dh)
    theirs = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal).transpose(1, 2).flatten(2)
    assert_same(ours, theirs)
    leaves = [x, *(head.get_parameter(kind) for kind in ("weight", "bias") for head in heads)]
    of_ours, of_theirs = (torch.autograd.grad(output, leaves, upstream) for output in (ours, theirs))
    assert_same(of_ours, of_theirs)

    visible = np.broadcast_to(np.tri(n) if causal else np.ones((n, n)), (b, n, n))
    by_hand = [
        multi_head_attention(x.detach().numpy(), numpy_parameters(head), 1, visible, of_head.detach().numpy())
        for head, of_head in zip(heads, upstream.split(dh, dim=-1), strict=True)
    ]
    assert_same(ours, np.concatenate([head["output"] for head in by_hand], axis=-1))
    assert_same(of_ours[0], sum(head["x"] for head in by_hand))
    expected = [np.concatenate([head[f"{k}.{kind}"] for k in "kqv"]) for kind in ("weight", "bias") for head in by_hand]
    for mine, other in zip(of_ours[1:], expected, strict=True):
        assert_same(mine, other)


# ------------------------------------------------------------------ keeps a property


def test_parameters_and_causal_mask_have_the_sizes_and_the_device_asked_for():
    assert create_causal_mask(3).tolist() == [[[True, False, False], [True, True, False], [True, True, True]]]
    made = create_causal_mask(3, torch.device("meta")), create_kqv_parameters(7, 4, torch.device("meta")).weight
    assert [(tensor.is_meta, tensor.shape) for tensor in made] == [(True, (1, 3, 3)), (True, (12, 7))]


def test_attention_scores_put_query_i_on_row_i():
    queries = torch.zeros(2, 3, 4)
    queries[1, 2] = 1
    scores = attention_scores(queries, torch.ones(2, 5, 4))
    assert scores[1, 2].tolist() == [2.0] * 5  # 4 / sqrt(4)
    assert scores.count_nonzero() == 5


def test_attention_weights_sum_to_1_and_are_exactly_0_where_not_visible():
    visible = random_mask(2, 3, 5)
    for scores in (random(2, 3, 5), random(2, 3, 5) * 1e4, random(2, 3, 5) - 1e6):
        weights = attention_weights(scores, visible)
        assert_same(weights.sum(dim=-1), torch.ones(2, 3, dtype=torch.float64))
        assert not weights[~visible].any()


def test_inputs_may_have_any_strides_and_stay_as_they_were():
    originals = [tensor.detach() for tensor in (random(2, 5, 4), random(2, 5, 5), random_mask(2, 5, 5))]
    strided = [tensor.transpose(0, 2).contiguous().transpose(0, 2) for tensor in originals]
    (head,) = random_heads(1, 4, 6)

    def results(x, scores, visible):
        by_scores = attention_weights(scores, visible), self_attention(x, scores, visible)
        return *by_scores, *kqv(x, head), attention_scores(x, x), multi_head_attention_layer(x, [head], visible)

    assert not any(tensor.is_contiguous() for tensor in strided)
    assert_same(results(*strided), results(*[tensor.clone() for tensor in originals]))
    assert all(map(torch.equal, strided, originals))


# ------------------------------------------------------------------ refuses bad input with the right words


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: kqv(X[0], nn.Linear(7, 12)), "x must have the 3 axes (b, n, d), got 2 of sizes (5, 7)."),
        (lambda: kqv(X, nn.Linear(6, 12)), "axis d must have one size, got 7 in x (b=2, n=5, d=7) and 6 in kqv_param"),
        (lambda: kqv(X, nn.Linear(7, 13)), "kqv_parameters must have 3 * dh outputs, got 13, which 3 does not divide."),
        (lambda: kqv(X[:, :0], nn.Linear(7, 12)), "axis n must not be empty, got size 0 in x"),
        (lambda: kqv(X[:0], nn.Linear(7, 12)), "axis b must not be empty, got size 0 in x"),
        (lambda: attention_scores(X, X[:1]), "axis b must have one size, got 2 in queries"),
        (lambda: attention_scores(X, X[..., 1:]), "axis dh must have one size, got 7 in queries"),
        (lambda: attention_scores(X, X[:, :0]), "axis j must not be empty, got size 0 in keys"),
        (lambda: attention_weights(SCORES[0]), "scores must have the 3 axes (b, i, j), got 2 of sizes (3, 5)."),
        (lambda: attention_weights(SCORES[..., :0]), "axis j must not be empty, got size 0 in scores"),
        (lambda: self_attention(X[:, :4], SCORES), "axis j must have one size, got 5 in scores"),
        (lambda: self_attention(X[:1], SCORES), "axis b must have one size, got 2 in scores"),
        (lambda: self_attention(X[0], SCORES), "values must have the 3 axes (b, j, dh), got 2"),
    ],
)
def test_shapes_that_disagree_are_refused(call, words):
    with pytest.raises(ShapeError, match=re.escape(words)):
        call()


@pytest.mark.parametrize("sizes", [(3, 5), (3, 3, 5), (1, 2, 5), (1, 3, 4), (2, 5, 3), (1, 2, 3, 5)])
def test_mask_that_does_not_cover_the_scores_is_refused(sizes):
    words = f"visible must have the axes (1 or 2, at least 3, at least 5) for scores (b=2, i=3, j=5), got {sizes}."
    with pytest.raises(ShapeError, match=re.escape(words)):
        self_attention(X, SCORES, torch.ones(sizes, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_a_mask_of_zeros_and_ones_is_a_mask(dtype):
    visible = torch.ones(1, 3, 5, dtype=torch.bool).tril()
    assert torch.equal(self_attention(X, SCORES, visible.to(dtype)), self_attention(X, SCORES, visible))
    with pytest.raises(ValueError, match=r"every query must see a key, got 3 all-False row\(s\) in visible"):
        self_attention(X, SCORES, torch.zeros(1, 3, 5, dtype=dtype))


@pytest.mark.parametrize("hidden", [-math.inf, 0.5, -1.0, math.nan])
def test_a_mask_of_other_numbers_is_refused(hidden):
    visible = torch.ones(1, 3, 5)
    visible[0, 0, 1] = hidden
    words = f"visible must hold True or 1 where a key is visible, and False or 0 elsewhere, got {hidden:g}."
    with pytest.raises(ValueError, match=re.escape(words)):
        self_attention(X, SCORES, visible)


def test_query_that_sees_nothing_is_refused():
    visible = torch.ones(2, 4, 6, dtype=torch.bool)
    visible[0, 3] = False  # beyond the scores
    self_attention(X, SCORES, visible)
    visible[1, 1:, :5] = False  # may attend only to a key beyond the scores
    with pytest.raises(ValueError, match=r"see a key, got 2 all-False row\(s\) in visible, the first at b=1, i=1\."):
        self_attention(X, SCORES, visible)


def test_empty_list_of_heads_is_refused():
    with pytest.raises(ValueError, match="kqv_parameters must hold one linear layer for each head, got none"):
        multi_head_attention_layer(X, [])
