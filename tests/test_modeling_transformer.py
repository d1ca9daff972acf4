"""Tests of `modeling_transformer.py`. Sizes: (b, h, n, dh) = (2, 3, 5, 4), so hidden is 12; the MLP is 7 wide."""

import copy

import pytest
import torch
from torch import Tensor, nn

from transformer_lm.modeling_attention import MultiHeadSelfAttention
from transformer_lm.modeling_transformer import TransformerDecoderBlock
from transformer_lm.shapes import ShapeError

B, H, N, HIDDEN, WIDTH = 2, 3, 5, 12, 7


@pytest.fixture
def block() -> TransformerDecoderBlock:
    """Return a block with causal attention in float64, whose two norms have weights of their own."""
    torch.manual_seed(0)
    attention = MultiHeadSelfAttention(HIDDEN, HIDDEN, H, causal=True)
    mlp = nn.Sequential(nn.Linear(HIDDEN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, HIDDEN))
    made = TransformerDecoderBlock(HIDDEN, attention, mlp).double()
    for norm in (made.attention_norm, made.mlp_norm):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -1, 1)
    return made


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, N, HIDDEN, dtype=torch.float64, requires_grad=True)


def twin_of(block: TransformerDecoderBlock) -> nn.TransformerEncoderLayer:
    """Return torch's layer with the same weights; a decoder without an encoder is an encoder with a causal mask."""
    twin = nn.TransformerEncoderLayer(
        HIDDEN, H, WIDTH, dropout=0, norm_first=True, batch_first=True, dtype=torch.float64
    )
    attention = block.attention
    same_weights = {
        "self_attn.in_proj_weight": torch.cat([attention.q.weight, attention.k.weight, attention.v.weight]),
        "self_attn.in_proj_bias": torch.cat([attention.q.bias, attention.k.bias, attention.v.bias]),
    }
    for theirs, ours in (
        ("self_attn.out_proj", attention.mix),
        ("norm1", block.attention_norm),
        ("norm2", block.mlp_norm),
        ("linear1", block.mlp[0]),
        ("linear2", block.mlp[2]),
    ):
        same_weights |= {f"{theirs}.weight": ours.weight, f"{theirs}.bias": ours.bias}
    twin.load_state_dict(same_weights)
    return twin


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------ equals an independent reference


def test_block_equals_torch_encoder_layer_with_gradients(block, x):
    twin, same_x = twin_of(block), x.detach().clone().requires_grad_()
    future = torch.ones(N, N, dtype=torch.bool).triu(diagonal=1)
    ours, theirs = block(x), twin(same_x, src_mask=future)
    assert_same(ours, theirs)
    upstream = torch.randn_like(ours)
    ours.backward(upstream)
    theirs.backward(upstream)
    assert_same(x.grad, same_x.grad)
    assert_same(block.attention_norm.weight.grad, twin.norm1.weight.grad)
    assert_same(block.mlp_norm.bias.grad, twin.norm2.bias.grad)
    assert_same(block.attention.mix.weight.grad, twin.self_attn.out_proj.weight.grad)
    assert_same(block.mlp[0].weight.grad, twin.linear1.weight.grad)


# ------------------------------------------------------------------ keeps a property


def test_block_whose_parts_add_nothing_returns_its_input(block, x):
    for last in (block.attention.mix, block.mlp[2]):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    assert torch.equal(block(x), x)


def test_the_future_has_no_effect(block, x):
    changed = x.detach().clone()
    changed[:, -1] += 1
    assert_same(block(changed)[:, :-1], block(x)[:, :-1])
    assert not torch.allclose(block(changed)[:, -1], block(x)[:, -1])


def test_sequences_of_a_batch_are_independent(block, x):
    assert_same(torch.cat([block(sequence) for sequence in x.split(1)]), block(x))


def test_blocks_can_be_stacked_and_every_parameter_gets_a_gradient(block, x):
    stack = nn.Sequential(block, copy.deepcopy(block))
    stack(x).square().sum().backward()
    grows = {name for name, parameter in stack.named_parameters() if parameter.grad.abs().max() > 1e-9}
    # The bias of the keys adds the same to all scores of a query; the softmax forgets it.
    assert grows == {name for name, _ in stack.named_parameters() if not name.endswith("attention.k.bias")}


def test_input_is_not_modified(block, x):
    before = x.detach().clone()
    block(x)
    assert torch.equal(x, before)


# ------------------------------------------------------------------ refuses bad input with the right words


def test_input_of_another_width_is_refused(block, x):
    with pytest.raises(ShapeError, match=r"x must end in an axis of hidden=12, got x \(b=2, n=5, hidden=11\)"):
        block(x[..., 1:])


def test_input_without_a_batch_is_refused(block, x):
    with pytest.raises(ShapeError, match=r"x must have the 3 axes \(b, n, hidden\), got 2 of sizes \(5, 12\)"):
        block(x[0])
