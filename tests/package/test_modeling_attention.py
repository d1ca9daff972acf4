"""Tests of `modeling_attention.py`. Unless a test draws its sizes, (b, h, n, d, dh) = (2, 3, 5, 7, 4)."""

import copy
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy_attention import attend, multi_head_attention
from torch import Tensor, nn

from transformer_lm import (
    CausalSelfAttention,
    MultiHeadSelfAttention,
    SelfAttention,
    SimpleSelfAttention,
    best_device,
    modeling_attention,
)
from transformer_lm.attention import create_causal_mask, create_kqv_parameters, multi_head_attention_layer
from transformer_lm.modeling_attention import CrossAttention, MultiHeadCrossAttention
from transformer_lm.shapes import ShapeError

LAYERS = ("q", "k", "v", "mix")
KINDS = ("simple", "one head", "heads", "causal heads", "causal")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_kind_that_learns = pytest.mark.parametrize("kind", KINDS[1:])
each_kind_of_many_heads = pytest.mark.parametrize("kind", KINDS[2:])
each_causal_kind = pytest.mark.parametrize("kind", KINDS[3:])
with_and_without_padding = pytest.mark.parametrize("padded", [False, True])


class Problem(NamedTuple):
    """A module, its inputs, and the gradient of its output."""

    module: nn.Module
    x: Tensor  # (b, n, d)
    visible: Tensor | None  # (b, n)
    upstream: Tensor  # (b, n, width of the output)
    num_heads: int
    causal: bool

    def mask(self):
        """Return (b, i, j), True where query i may attend to key j."""
        b, n, _ = self.x.shape
        if self.visible is not None and self.visible.dim() == 3:
            return self.visible.tril() if self.causal else self.visible
        mask = torch.ones(b, n, n, dtype=torch.bool) if self.visible is None else self.visible[:, None].repeat(1, n, 1)
        return mask.tril() if self.causal else mask

    def parameters(self):
        """Return weight and bias of every layer; one that the module lacks changes nothing."""
        width = self.upstream.shape[-1]
        eye, zero = torch.eye(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
        named = {f"{name}.weight": eye for name in LAYERS} | {f"{name}.bias": zero for name in LAYERS}
        named["q.weight"] = eye * width**0.5  # SimpleSelfAttention does not scale
        return named | dict(self.module.named_parameters())

    def attended(self):
        """Return the output and the weights, after checking that the output is the same without them."""
        output, weights = self.module(self.x, True, self.visible)
        assert_same(self.module(self.x, False, self.visible), output)
        return output, weights

    def solved(self, output, weights):
        """Return by name the output, the weights, the gradients of the input and of each parameter."""
        leaves = {"x": self.x, **dict(self.module.named_parameters())}
        gradients = torch.autograd.grad(output, leaves.values(), self.upstream)
        return {"output": output, "weights": weights, **dict(zip(leaves, gradients, strict=True))}

    def solutions(self):
        """Return the results of the formula and of the fused kernel."""
        output, weights = self.module(self.x, True, self.visible)
        return self.solved(output, weights), self.solved(self.module(self.x, False, self.visible), weights)


def make_problem(kind, b=2, n=5, d=7, h=3, dh=4, padded=False, seed=0, dropout=0.0):
    torch.manual_seed(seed)
    h = 1 if kind in ("simple", "one head") else h
    d = h * dh if kind == "causal" else d
    module = {
        "simple": lambda: SimpleSelfAttention(),
        "one head": lambda: SelfAttention(d, dh),
        "heads": lambda: MultiHeadSelfAttention(d, h * dh, h, dropout=dropout),
        "causal heads": lambda: MultiHeadSelfAttention(d, h * dh, h, causal=True, dropout=dropout),
        "causal": lambda: CausalSelfAttention(d, h, max_len=n + 2, dropout=dropout),
    }[kind]()
    x = torch.randn(b, n, d, dtype=torch.float64, requires_grad=True)
    visible = (torch.rand(b, n) < 0.6).index_fill(1, torch.tensor(0), True) if padded else None
    upstream = torch.randn(b, n, d if kind == "simple" else h * dh, dtype=torch.float64)
    return Problem(module.double().eval(), x, visible, upstream, h, kind in KINDS[3:])


def drawn_sizes(test):
    size = st.integers(1, 4)
    given_sizes = given(b=size, n=size, d=size, h=size, dh=size, padded=st.booleans(), seed=st.integers(0, 999))
    all_different = example(b=2, n=5, d=7, h=3, dh=4, padded=True, seed=0)
    return settings(max_examples=25, deadline=None, derandomize=True)(all_different(given_sizes(test)))


def assert_same(ours, theirs, tolerance=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------ equals an independent reference


@each_kind
@drawn_sizes
def test_module_equals_numpy_with_gradients(kind, **sizes):
    problem = make_problem(kind, **sizes)
    parameters = {name: parameter.detach().numpy() for name, parameter in problem.parameters().items()}
    x, visible, upstream = (tensor.detach().numpy() for tensor in (problem.x, problem.mask(), problem.upstream))
    theirs = multi_head_attention(x, parameters, problem.num_heads, visible, upstream)
    for ours in problem.solutions():
        assert_same(ours, {name: torch.as_tensor(theirs[name]) for name in ours})


@each_kind
@drawn_sizes
def test_module_equals_torch_multihead_attention_with_gradients(kind, **sizes):
    width = sizes["dh"] if kind in KINDS[:2] else sizes["h"] * sizes["dh"]
    problem = make_problem(kind, **sizes | {"d": width})
    x, parameters, n = problem.x, problem.parameters(), problem.x.shape[1]
    same_weights = {
        "in_proj_weight": torch.cat([parameters[f"{name}.weight"] for name in "qkv"]),
        "in_proj_bias": torch.cat([parameters[f"{name}.bias"] for name in "qkv"]),
        "out_proj.weight": parameters["mix.weight"],
        "out_proj.bias": parameters["mix.bias"],
    }
    options = {
        "key_padding_mask": None if problem.visible is None else ~problem.visible,
        "attn_mask": torch.ones(n, n, dtype=torch.bool).triu(1) if problem.causal else None,
        "average_attn_weights": False,
    }
    twin = nn.MultiheadAttention(width, problem.num_heads, batch_first=True, dtype=x.dtype)
    output, weights = torch.func.functional_call(twin, same_weights, (x, x, x), options)
    assert_same(problem.solutions(), (problem.solved(output, weights.flatten(0, 1)),) * 2)


@each_kind
def test_module_with_a_mask_of_its_own_for_each_query_equals_numpy_with_gradients(kind):
    problem = make_problem(kind)
    visible = (torch.rand(2, 5, 5) < 0.4) | torch.eye(5, dtype=torch.bool)
    problem = problem._replace(visible=visible)
    parameters = {name: parameter.detach().numpy() for name, parameter in problem.parameters().items()}
    x, mask, upstream = (tensor.detach().numpy() for tensor in (problem.x, problem.mask(), problem.upstream))
    theirs = multi_head_attention(x, parameters, problem.num_heads, mask, upstream)
    for ours in problem.solutions():
        assert_same(ours, {name: torch.as_tensor(theirs[name]) for name in ours})


@each_kind
def test_a_mask_for_each_query_that_says_the_same_as_padding_gives_the_same(kind):
    problem = make_problem(kind, padded=True)
    for_each = problem._replace(visible=problem.visible[:, None].repeat(1, 5, 1))
    assert_same(for_each.solutions(), problem.solutions())


@each_kind_of_many_heads
def test_module_equals_a_mixed_multi_head_attention_layer(kind):
    problem = make_problem(kind)
    module, x = problem.module, problem.x
    heads = [create_kqv_parameters(x.shape[-1], 4).double() for _ in range(3)]
    for name in ("weight", "bias"):
        thirds = zip(*(head.get_parameter(name).detach().chunk(3) for head in heads), strict=True)
        for layer, third in zip((module.k, module.q, module.v), thirds, strict=True):
            layer.load_state_dict({name: torch.cat(third)}, strict=False)
    by_heads = multi_head_attention_layer(x, heads, create_causal_mask(6) if problem.causal else None)
    assert_same(problem.attended()[0], module.mix(by_heads))


@each_kind
def test_module_on_the_best_device_in_float32_equals_float64_on_the_cpu(kind):
    exact, device = make_problem(kind, padded=True), best_device()
    module = copy.deepcopy(exact.module).to(device, torch.float32)
    x, upstream = (tensor.detach().to(device, torch.float32) for tensor in (exact.x, exact.upstream))
    there = exact._replace(module=module, x=x.requires_grad_(), visible=exact.visible.to(device), upstream=upstream)
    back = tuple({name: tensor.cpu().double() for name, tensor in ours.items()} for ours in there.solutions())
    assert_same(back, exact.solutions(), tolerance=1e-4)


# ------------------------------------------------------------------ keeps a property


@each_kind
@with_and_without_padding
@pytest.mark.parametrize("training", [False, True])
def test_weights_sum_to_1_and_are_exactly_0_where_not_visible(kind, padded, training):
    problem = make_problem(kind, padded=padded, dropout=0.5)
    _, weights = problem.module.train(training)(problem.x, True, problem.visible)
    assert weights.shape == (2 * problem.num_heads, 5, 5)
    assert_same(weights.sum(dim=-1), torch.ones(2 * problem.num_heads, 5, dtype=torch.float64))
    assert torch.equal(weights != 0, problem.mask().repeat_interleave(problem.num_heads, dim=0))


@each_kind_that_learns
@with_and_without_padding
def test_output_without_weights_takes_the_fused_kernel_and_is_the_same(kind, padded, monkeypatch):
    problem = make_problem(kind, padded=padded)
    output, _ = problem.attended()
    monkeypatch.delattr(modeling_attention, "attention_weights")
    assert_same(problem.module(problem.x, visible=problem.visible), output)


@each_kind_of_many_heads
@with_and_without_padding
def test_dropout_drops_whole_weights_and_scales_the_rest_in_training_only(kind, padded):
    problem = make_problem(kind, d=10, h=1, dh=10, padded=padded, dropout=0.75)
    one_hot = torch.eye(5, 10, dtype=torch.float64)
    problem = problem._replace(x=one_hot.expand(2, 5, 10))
    problem.module.v.load_state_dict({"weight": one_hot.repeat(2, 1), "bias": torch.zeros(10)})  # each value twice
    problem.module.mix.load_state_dict({"weight": torch.eye(10), "bias": torch.zeros(10)})
    output, weights = problem.attended()
    assert_same(output, torch.cat([weights, weights], dim=-1))
    problem.module.train()
    fused, (formula, _) = (problem.module(problem.x, path, problem.visible) for path in (False, True))
    for dropped, again in (fused.chunk(2, dim=-1), formula.chunk(2, dim=-1)):
        assert 0 < dropped.count_nonzero() < weights.count_nonzero()
        assert_same(dropped, 4 * weights * (dropped != 0))
        assert_same(again, dropped)


@each_causal_kind
@with_and_without_padding
def test_attention_ignores_the_future(kind, padded):
    problem = make_problem(kind, padded=padded)
    for i in range(4):
        changed = torch.cat([problem.x[:, : i + 1], torch.randn_like(problem.x[:, i + 1 :])], dim=1)
        new, old = problem._replace(x=changed).attended(), problem.attended()
        assert_same([tensor[:, : i + 1] for tensor in new], [tensor[:, : i + 1] for tensor in old])


@each_kind
def test_attention_ignores_padding(kind):
    problem = make_problem(kind)._replace(visible=torch.tensor([[True] * 3 + [False] * 2] * 2))
    changed = torch.cat([problem.x[:, :3], torch.randn_like(problem.x[:, 3:])], dim=1)
    for other in (problem._replace(x=changed), problem._replace(x=problem.x[:, :3], visible=None)):
        assert_same(other.attended()[0][:, :3], problem.attended()[0][:, :3])


@each_kind
@with_and_without_padding
def test_sequences_of_a_batch_are_independent(kind, padded):
    problem = make_problem(kind, padded=padded)
    together = problem.attended()
    for row in range(2):
        alone = problem._replace(x=problem.x[[row]], visible=problem.visible[[row]] if padded else None)
        assert_same(alone.attended(), tuple(tensor.chunk(2)[row] for tensor in together))


@pytest.mark.parametrize("kind", KINDS[:3])
def test_attention_that_is_not_causal_follows_a_permutation_of_its_input(kind):
    problem, order = make_problem(kind, padded=True), torch.tensor([3, 0, 4, 1, 2])
    output, weights = problem.attended()
    moved = problem._replace(x=problem.x[:, order], visible=problem.visible[:, order])
    assert_same(moved.attended(), (output[:, order], weights[:, order][:, :, order]))


@each_kind
def test_every_parameter_gets_a_gradient(kind):
    for solution in make_problem(kind, padded=True).solutions():
        solution.pop("k.bias", None)  # one vector added to all keys changes a query's scores alike: its gradient is 0
        assert all(tensor.abs().max() > 1e-6 for tensor in solution.values())


@each_kind
def test_inputs_may_have_any_strides_and_stay_as_they_were(kind):
    problem = make_problem(kind, padded=True)
    x = problem.x.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    strided = problem._replace(x=x, visible=problem.visible.T.contiguous().T)
    originals = problem._replace(x=problem.x.detach().clone().requires_grad_(), visible=problem.visible.clone())
    assert not x.is_contiguous()
    assert not strided.visible.is_contiguous()
    assert_same(strided.solutions(), originals.solutions())
    assert torch.equal(x, problem.x)
    assert torch.equal(strided.visible, problem.visible)


# ------------------------------------------------------------------ from one sequence to another, of 6 positions


def make_cross(kind, padded, dropout=0.0):
    """Return a module, x (b, n, d), memory (b, m, dm) and which of its positions are visible."""
    torch.manual_seed(0)
    d, dm = (7, 8) if kind == "one head" else (12, 12)
    module = CrossAttention(d, dm, 4) if kind == "one head" else MultiHeadCrossAttention(12, 3, dropout)
    x, memory = (torch.randn(2, *sizes, dtype=torch.float64, requires_grad=True) for sizes in ((5, d), (6, dm)))
    visible = torch.tensor([[True] * 4 + [False] * 2, [True, False] * 3]) if padded else None
    return module.double().eval(), x, memory, visible


each_cross_kind = pytest.mark.parametrize("kind", ["one head", "heads"])


@with_and_without_padding
def test_cross_attention_of_one_head_equals_numpy(padded):
    module, x, memory, visible = make_cross("one head", padded)
    output, weights = module(x, memory, visible, return_attention=True)
    assert_same(module(x, memory, visible), output)
    assert weights.shape == (2, 5, 6)
    for row in range(2):
        made = (module.q(x[row]), module.k(memory[row]), module.v(memory[row]))
        mask = torch.ones(5, 6, dtype=torch.bool) if visible is None else visible[row].expand(5, 6)
        theirs = attend(*(tensor.detach().numpy() for tensor in (*made, mask)))
        assert_same((output[row].detach(), weights[row].detach()), tuple(map(torch.as_tensor, theirs)))


@with_and_without_padding
def test_cross_attention_of_heads_equals_torch_with_gradients(padded):
    module, x, memory, visible = make_cross("heads", padded)
    twin = nn.MultiheadAttention(12, 3, batch_first=True, dtype=x.dtype)
    same_weights = {
        f"in_proj_{name}": torch.cat([getattr(module, q).get_parameter(name) for q in "qkv"])
        for name in ("weight", "bias")
    } | {f"out_proj.{name}": p for name, p in module.mix.named_parameters()}
    options = {"key_padding_mask": None if visible is None else ~visible, "average_attn_weights": False}
    theirs, their_weights = torch.func.functional_call(twin, same_weights, (x, memory, memory), options)
    ours, weights = module(x, memory, visible, return_attention=True)
    assert weights.shape == (2, 3, 5, 6)
    assert_same(weights, their_weights)
    leaves, upstream = (x, memory, *module.parameters()), torch.randn_like(ours)
    expected = (theirs, torch.autograd.grad(theirs, leaves, upstream))
    for output in (ours, module(x, memory, visible)):
        assert_same((output, torch.autograd.grad(output, leaves, upstream)), expected)


@each_cross_kind
def test_cross_attention_ignores_padding_of_the_memory_and_every_other_token_counts(kind):
    module, x, memory, visible = make_cross(kind, padded=True)
    before = module(x, memory, visible)
    for place in range(6):
        changed = memory.detach().clone()
        changed[:, place] += 1
        moved = (module(x, changed, visible) - before).abs().amax(-1) > 1e-9  # (b, n)
        assert torch.equal(moved, visible[:, place, None].expand(2, 5))
    assert_same(module(x[:1], memory[:1, :4]), before[:1])


@each_cross_kind
def test_positions_of_the_reading_sequence_do_not_see_each_other(kind):
    module, x, memory, visible = make_cross(kind, padded=True)
    together = module(x, memory, visible)
    for place in range(5):
        assert_same(module(x[:, [place]], memory, visible), together[:, [place]])


def test_cross_attention_drops_weights_in_training_only():
    module, x, memory, visible = make_cross("heads", padded=True, dropout=0.5)
    expected = make_cross("heads", padded=True)[0](x, memory, visible)
    for options in ({}, {"return_attention": True}):
        outputs = [module.train(training)(x, memory, visible, **options) for training in (False, True)]
        still, dropped = (output[0] if options else output for output in outputs)
        assert_same(still, expected)
        assert (dropped - expected).abs().max() > 1e-3
    _, weights = module.train()(x, memory, visible, return_attention=True)
    assert_same(weights.sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))


@each_cross_kind
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": lambda x: x[..., 1:]}, ShapeError, r"x must end in an axis of input_size=\d+, got x \(b=2, n=5, d="),
        (
            {"memory": lambda x: x[..., 1:]},
            ShapeError,
            r"memory must end in an axis of input_size=\d+, got memory \(b=2",
        ),
        ({"memory": lambda x: x[0]}, ShapeError, r"memory must have the 3 axes \(b, m, d\), got 2"),
        ({"memory": lambda x: x[:1]}, ShapeError, "axis b must have one size, got 2 in x .* and 1 in memory"),
        ({"memory": lambda x: x[:, :5]}, ShapeError, "axis m must have one size, got 5 in memory .* and 6 in visible"),
        ({"visible": lambda x: 2 * x}, ValueError, "visible must hold True or 1 where a key is visible, .*got 2"),
        ({"visible": lambda x: x & torch.eye(2, 1).bool()}, ValueError, "every query must see a key, got 5 .* at b=1"),
        (
            {"visible": lambda x: x[:, None].repeat(1, 5, 1)},
            ShapeError,
            r"visible must have the 2 axes \(b, m\), got 3",
        ),
    ],
)
def test_what_cross_attention_can_not_read_is_refused(kind, change, error, words):
    module, *given = make_cross(kind, padded=True)
    given = dict(zip(("x", "memory", "visible"), given, strict=True))
    given |= {name: changed(given[name]) for name, changed in change.items()}
    for return_attention in (False, True):
        with pytest.raises(error, match=words):
            module(**given, return_attention=return_attention)


# ------------------------------------------------------------------ keeps its causal mask


@each_causal_kind
def test_causal_mask_is_built_once_and_sliced_for_shorter_sequences(kind, monkeypatch):
    problem, masks = make_problem(kind), []
    shorter = problem._replace(x=problem.x[:, :3])
    expected = shorter.attended()
    assert problem.module._longest_mask.shape[1] == (7 if kind == "causal" else 3)  # max_len, or the longest seen
    problem.attended()
    real = modeling_attention.attention_weights
    monkeypatch.delattr(modeling_attention, "create_causal_mask")
    monkeypatch.setattr(modeling_attention, "attention_weights", lambda s, mask: masks.append(mask) or real(s, mask))
    assert_same(shorter.attended(), expected)
    assert masks[0].data_ptr() == problem.module._longest_mask.data_ptr()


def test_causal_mask_grows_with_the_longest_sequence_even_in_inference_mode():
    problem = make_problem("causal heads", padded=True)
    grown = problem._replace(module=copy.deepcopy(problem.module))
    with torch.inference_mode():
        for n in (2, 4, 3):
            grown._replace(x=problem.x[:, :n], visible=None).attended()
    assert grown.module._longest_mask.shape == (1, 4, 4)
    assert not grown.module._longest_mask.is_inference()
    assert_same(grown.solutions(), problem.solutions())


@each_causal_kind
def test_causal_mask_is_built_anew_on_another_device(kind):
    problem = make_problem(kind)
    problem.attended()
    assert problem.module._causal_mask(5, torch.device("meta")).is_meta
    assert problem.module.to("meta")(problem.x.detach().to("meta")).shape == (2, 5, 12)


@each_causal_kind
def test_causal_mask_is_in_no_checkpoint_and_not_sent_between_processes(kind):
    """Training in several processes overwrites each one's buffers by the first one's, whatever their lengths."""
    problem = make_problem(kind)
    problem.attended()
    assert set(problem.module.state_dict()) == set(dict(problem.module.named_parameters()))
    assert list(problem.module.buffers()) == []


@each_causal_kind
def test_checkpoint_and_copy_work_whatever_length_a_module_has_seen(kind, tmp_path):
    problem, other = make_problem(kind, padded=True), make_problem(kind, n=4, seed=1)
    expected, _ = problem.solutions(), other.solutions()
    torch.save(problem.module.state_dict(), tmp_path / "checkpoint.pt")
    if kind == "causal":
        other = other._replace(module=CausalSelfAttention(12, 3, max_len=9).double())
    other.module.load_state_dict(torch.load(tmp_path / "checkpoint.pt"), strict=True)
    for module in (other.module, copy.deepcopy(problem.module)):
        assert_same(problem._replace(module=module).solutions(), expected)


# ------------------------------------------------------------------ refuses bad input with the right words


@pytest.mark.parametrize("num_heads", [5, 0, -3, 13])
def test_heads_that_do_not_divide_are_refused(num_heads):
    for build in (
        lambda: MultiHeadSelfAttention(7, 12, num_heads),
        lambda: CausalSelfAttention(12, num_heads, 5),
        lambda: MultiHeadCrossAttention(12, num_heads),
    ):
        with pytest.raises(ValueError, match=f"num_heads must divide hidden, got num_heads={num_heads} and hidden=12"):
            build()


def assert_refused(problem, error, words):
    for return_attention in (False, True):
        with pytest.raises(error, match=words):
            problem.module(problem.x, return_attention, problem.visible)


@each_kind
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[0], r"x must have the 3 axes \(b, n, d\), got 2 of sizes \(5, "),
        (lambda x: x[None], r"x must have the 3 axes \(b, n, d\), got 4 of sizes \(1, 2, 5, "),
        (lambda x: x[:, :0], "axis n must not be empty, got size 0 in x"),
        (lambda x: x[:0], "axis b must not be empty, got size 0 in x"),
    ],
)
def test_input_of_the_wrong_shape_is_refused(kind, change, words):
    problem = make_problem(kind)
    assert_refused(problem._replace(x=change(problem.x)), ShapeError, words)


@each_kind_that_learns
def test_input_of_another_width_is_refused(kind):
    problem = make_problem(kind)
    d = problem.x.shape[-1]
    words = rf"x must end in an axis of input_size={d}, got x \(b=2, n=5, d={d - 1}\)"
    assert_refused(problem._replace(x=problem.x[..., 1:]), ShapeError, words)


@each_kind
@pytest.mark.parametrize(
    ("visible", "error", "words"),
    [
        (torch.ones(2, 4) > 0, ShapeError, "axis n must have one size, got 5 in x .* and 4 in visible"),
        (torch.ones(1, 5) > 0, ShapeError, "axis b must have one size, got 2 in x .* and 1 in visible"),
        (torch.ones(5) > 0, ShapeError, r"visible must have the 2 axes \(b, n\), got 1"),
        (torch.ones(2, 5, 4) > 0, ShapeError, r"visible must have the axes \(2, 5\) or \(2, 5, 5\), got \(2, 5, 4\)"),
        (torch.ones(1, 5, 5) > 0, ShapeError, r"visible must have the axes \(2, 5\) or \(2, 5, 5\), got \(1, 5, 5\)"),
        (torch.full((2, 5, 5), 2.0), ValueError, "visible must hold True or 1 where a key is visible, .*got 2"),
        (torch.ones(2, 5, 5).triu(1) > 0, ValueError, "every query must see a key, got 2 .* at b=0, i=4"),
        (torch.full((2, 5), 2.0), ValueError, "visible must hold True or 1 where a key is visible, .*got 2"),
        (torch.full((2, 5), 2), ValueError, "visible must hold True or 1 where a key is visible, .*got 2"),
        (torch.tensor([[1] * 5, [0] * 5]) > 0, ValueError, "every query must see a key, got 5 .* at b=1, i=0"),
    ],
)
def test_padding_that_does_not_fit_is_refused(kind, visible, error, words):
    assert_refused(make_problem(kind)._replace(visible=visible), error, words)


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_padding_may_be_given_as_zeros_and_ones(kind, dtype):
    visible = torch.ones(2, 5, dtype=torch.bool)
    visible[1, 3:] = False
    given, ours = (make_problem(kind)._replace(visible=mask) for mask in (visible.to(dtype), visible))
    for one, other in zip(given.attended(), ours.attended(), strict=True):
        assert torch.equal(one, other)


@each_causal_kind
def test_padding_on_the_left_is_refused_when_causal(kind):
    visible = torch.tensor([[True] * 5, [False, False, True, True, True]])
    words = "every query must see a key, got 2 .* at b=1, i=0.*Pad on the right"
    assert_refused(make_problem(kind)._replace(visible=visible), ValueError, words)


def test_sequence_longer_than_max_len_is_refused():
    problem = make_problem("causal")._replace(module=CausalSelfAttention(12, 3, max_len=4).double())
    problem._replace(x=problem.x[:, :4]).attended()
    assert_refused(problem, ShapeError, "x must have at most max_len=4 positions, got n=5")
