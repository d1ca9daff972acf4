"""Tests of `modeling_transformer.py`. Sizes: (b, h, n, dh) = (2, 3, 5, 4), so hidden is 12; the MLP is 7 wide."""

import copy

import pytest
import torch
from torch import Tensor, nn

from transformer_lm.modeling_attention import MultiHeadSelfAttention
from transformer_lm.modeling_transformer import PositionEmbedding, TransformerDecoderBlock, TransformerEncoderBlock
from transformer_lm.shapes import ShapeError

B, H, N, HIDDEN, WIDTH = 2, 3, 5, 12, 7


@pytest.fixture
def block() -> TransformerDecoderBlock:
    """Return a block with causal attention in float64, whose two norms have different weights."""
    torch.manual_seed(0)
    attention = MultiHeadSelfAttention(HIDDEN, HIDDEN, H, causal=True)
    mlp = nn.Sequential(nn.Linear(HIDDEN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, HIDDEN))
    return with_norms_of_their_own(TransformerDecoderBlock(HIDDEN, attention, mlp).double())


@pytest.fixture
def encoder() -> TransformerEncoderBlock:
    """Return a block with bidirectional attention, in float64 and in training mode, without dropout in any part."""
    torch.manual_seed(2)
    attention = MultiHeadSelfAttention(HIDDEN, HIDDEN, H)
    return with_norms_of_their_own(TransformerEncoderBlock(HIDDEN, attention).double())


@pytest.fixture
def visible() -> Tensor:
    """Return where the two sequences of x are not padding: one is shorter than the other."""
    return torch.tensor([[True] * N, [True, True, True, False, False]])


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, N, HIDDEN, dtype=torch.float64, requires_grad=True)


def with_norms_of_their_own(block: nn.Module) -> nn.Module:
    """Return a block whose two norms differ from each other and from those of a new block."""
    for norm in (block.attention_norm, block.mlp_norm):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -1, 1)
    return block


def twin_of(block: nn.Module, up: nn.Linear, down: nn.Linear) -> nn.TransformerEncoderLayer:
    """Return torch's layer with the same weights; a decoder without an encoder is an encoder with a causal mask."""
    twin = nn.TransformerEncoderLayer(
        HIDDEN, H, up.out_features, dropout=0, norm_first=True, batch_first=True, dtype=torch.float64
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
        ("linear1", up),
        ("linear2", down),
    ):
        same_weights |= {f"{theirs}.weight": ours.weight, f"{theirs}.bias": ours.bias}
    twin.load_state_dict(same_weights)
    return twin


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------ equals an independent reference


def test_block_equals_torch_encoder_layer_with_gradients(block, x):
    twin, same_x = twin_of(block, block.mlp[0], block.mlp[2]), x.detach().clone().requires_grad_()
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


def test_encoder_block_equals_torch_encoder_layer_without_padding(encoder, x):
    assert encoder.up.out_features == 4 * HIDDEN
    assert_same(encoder(x), twin_of(encoder, encoder.up, encoder.down)(x))


def test_encoder_block_equals_torch_encoder_layer_with_padding_and_gradients(encoder, x, visible):
    twin, same_x = twin_of(encoder, encoder.up, encoder.down), x.detach().clone().requires_grad_()
    ours, theirs = encoder(x, visible=visible)[visible], twin(same_x, src_key_padding_mask=~visible)[visible]
    assert_same(ours, theirs)
    upstream = torch.randn_like(ours)
    ours.backward(upstream)
    theirs.backward(upstream)
    assert_same(x.grad, same_x.grad)
    assert_same(encoder.attention_norm.bias.grad, twin.norm1.bias.grad)
    assert_same(encoder.down.weight.grad, twin.linear2.weight.grad)


def test_position_embedding_adds_the_vector_of_each_position(x):
    positions = PositionEmbedding(N + 2, HIDDEN).double()
    table = positions.positions.weight.detach().numpy()
    expected = x.detach().numpy().copy()
    for sequence in range(B):
        for place in range(N):
            expected[sequence, place] += table[place]
    assert_same(positions(x), torch.from_numpy(expected))


# ------------------------------------------------------------------ keeps a property


def test_block_whose_parts_add_nothing_returns_its_input(block, x):
    for last in (block.attention.mix, block.mlp[2]):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    assert torch.equal(block(x), x)


def test_the_future_has_no_effect(block, x):
    changed = x.detach().clone()
    changed[:, -1, 0] += 1  # not the whole vector, because a norm removes what is added to all of it
    assert_same(block(changed)[:, :-1], block(x)[:, :-1])
    assert not torch.allclose(block(changed)[:, -1], block(x)[:, -1])


def test_sequences_of_a_batch_are_independent(block, x):
    assert_same(torch.cat([block(sequence) for sequence in x.split(1)]), block(x))


def test_blocks_can_be_stacked_and_every_parameter_gets_a_gradient(block, x):
    stack = nn.Sequential(block, copy.deepcopy(block))
    stack(x).square().sum().backward()
    grows = {name for name, parameter in stack.named_parameters() if parameter.grad.abs().max() > 1e-9}
    # The bias of the keys adds the same number to all scores of a query, and the softmax cancels it.
    assert grows == {name for name, _ in stack.named_parameters() if not name.endswith("attention.k.bias")}


def test_input_is_not_modified(block, encoder, x):
    before = x.detach().clone()
    for layer in (block, encoder, PositionEmbedding(N, HIDDEN)):
        layer(x)
    assert torch.equal(x, before)


def test_encoder_block_whose_parts_add_nothing_returns_its_input(encoder, x):
    for last in (encoder.attention.mix, encoder.down):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    assert torch.equal(encoder(x), x)


def test_encoder_block_reads_both_ways_and_no_padding(encoder, x, visible):
    before = encoder(x, visible=visible)
    later, padding = x.detach().clone(), x.detach().clone()
    later[0, -1, 0] += 1
    padding[1, 3:, 0] += 1
    assert not torch.isclose(encoder(later, visible=visible)[0], before[0]).any()
    assert_same(encoder(padding, visible=visible)[visible], before[visible])


def test_encoder_blocks_can_be_stacked_and_every_parameter_gets_a_gradient(encoder, x, visible):
    blocks = [encoder, copy.deepcopy(encoder)]
    read = x
    for layer in blocks:
        read = layer(read, visible=visible)
    read[visible].square().sum().backward()
    named = [(name, parameter) for layer in blocks for name, parameter in layer.named_parameters()]
    still = {name for name, parameter in named if parameter.grad.abs().max() <= 1e-9}
    assert still == {"attention.k.bias"}  # as above


def test_encoder_block_drops_in_training_only(x, visible):
    torch.manual_seed(0)
    block = TransformerEncoderBlock(HIDDEN, MultiHeadSelfAttention(HIDDEN, HIDDEN, H), dropout=0.5).double()
    assert not torch.equal(block(x, visible=visible), block(x, visible=visible))
    block.eval()
    assert torch.equal(block(x, visible=visible), block(x, visible=visible))


def test_encoder_block_drops_what_parts_find_and_never_what_they_are_added_to(x):
    block = TransformerEncoderBlock(HIDDEN, MultiHeadSelfAttention(HIDDEN, HIDDEN, H), dropout=1.0).double()
    assert torch.equal(block(x), x)


def test_every_position_has_a_vector_that_learns_up_to_the_longest_in_use(x):
    positions = PositionEmbedding(N + 2, HIDDEN).double()
    positions(x).sum().backward()
    # Once for each sequence of the batch; the last two positions were not used.
    assert positions.positions.weight.grad[:, 0].tolist() == [B] * N + [0, 0]


def test_a_position_is_the_same_in_a_longer_sequence_and_whatever_is_visible(x, visible):
    positions = PositionEmbedding(N, HIDDEN).double()
    assert torch.equal(positions(x[:, :3]), positions(x)[:, :3])
    assert torch.equal(positions(x, visible=visible), positions(x))


# ------------------------------------------------------------------ refuses bad input with the right words


def test_input_of_another_width_is_refused(block, x):
    with pytest.raises(ShapeError, match=r"x must end in an axis of hidden=12, got x \(b=2, n=5, hidden=11\)"):
        block(x[..., 1:])


def test_input_without_a_batch_is_refused(block, x):
    with pytest.raises(ShapeError, match=r"x must have the 3 axes \(b, n, hidden\), got 2 of sizes \(5, 12\)"):
        block(x[0])


def test_input_of_another_width_is_refused_by_an_encoder_block(encoder, x):
    with pytest.raises(ShapeError, match=r"x must end in an axis of hidden=12, got x \(b=2, n=5, hidden=11\)"):
        encoder(x[..., 1:])


def test_a_mask_of_another_length_is_refused(encoder, x, visible):
    with pytest.raises(ShapeError, match=r"axis n must have one size, got 5 in x .* and 4 in visible"):
        encoder(x, visible=visible[:, 1:])


def test_a_sequence_of_padding_alone_is_refused(encoder, x):
    with pytest.raises(ValueError, match="every query must see a key"):
        encoder(x, visible=torch.tensor([[True] * N, [False] * N]))


def test_a_sequence_that_fits_exactly_has_positions_and_a_longer_one_is_refused(x):
    positions = PositionEmbedding(N, HIDDEN)
    assert positions(x).shape == (B, N, HIDDEN)
    with pytest.raises(ShapeError, match="x must have at most max_len=5 positions, got n=6"):
        positions(torch.zeros(B, N + 1, HIDDEN))
    with pytest.raises(ShapeError, match=r"axis hidden must have one size, got 1 in x"):
        positions(torch.zeros(B, N, 1))
