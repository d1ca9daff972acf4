"""Tests of `modeling_recurrent.py`.

Sizes: (b, m, n, d, hidden) = (3, 7, 6, 5, 4); 11 tokens in the source, 13 in the target.
"""

import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transformer_lm.modeling_recurrent import (
    CELLS,
    AdditiveAttention,
    GRUCell,
    LSTMCell,
    RecurrentConfig,
    RecurrentEncoderDecoder,
    make_cell,
    read_sequence,
)
from transformer_lm.shapes import ShapeError
from transformer_lm.texts.word_tokenizers import PAD, START

B, M, N, D, HIDDEN, SOURCE_V, TARGET_V = 3, 7, 6, 5, 4, 11, 13
LENGTHS = torch.tensor([5, M, 2])
VISIBLE = torch.arange(M) < LENGTHS[:, None]  # (b, m)
each_cell = pytest.mark.parametrize("cell", CELLS)
with_and_without_attention = pytest.mark.parametrize("attention", [True, False])


@pytest.fixture(autouse=True)
def _in_float64():
    """Make all tensors float64: then a difference is a mistake, not rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def model_of(cell: str = "gru", attention: bool = True, **options) -> RecurrentEncoderDecoder:
    torch.manual_seed(0)
    config = RecurrentConfig(SOURCE_V, TARGET_V, HIDDEN, cell, attention, **options)
    model = RecurrentEncoderDecoder(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model


@pytest.fixture
def source() -> Tensor:
    """Return sources (b, m) of different lengths, padded."""
    tokens = torch.randint(4, SOURCE_V, (B, M), generator=torch.Generator().manual_seed(1))
    return tokens.masked_fill(~VISIBLE, PAD)


@pytest.fixture
def target() -> Tensor:
    """Return targets (b, n) that begin with START."""
    target = torch.randint(4, TARGET_V, (B, N), generator=torch.Generator().manual_seed(2))
    target[:, 0] = START
    return target


def torch_weights(cells: dict[str, GRUCell]) -> dict[str, Tensor]:
    """Return the weights of cells by torch's names for them, each with a different suffix."""
    weights = {}
    for ending, cell in cells.items():
        for kind in ("weight", "bias"):
            weights[f"{kind}_ih{ending}"] = cell.given.get_parameter(kind)
            weights[f"{kind}_hh{ending}"] = cell.kept.get_parameter(kind)
    return weights


def torch_read(cells: tuple[GRUCell, GRUCell], x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states of torch's network in both directions, (b, m, 2 * hidden), and its last ones, (2, b, ...)."""
    twin = {GRUCell: nn.GRU, LSTMCell: nn.LSTM}[type(cells[0])](
        x.shape[2], HIDDEN, batch_first=True, bidirectional=True
    )
    weights = torch_weights({"_l0": cells[0], "_l0_reverse": cells[1]})
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    states, last = torch.func.functional_call(twin, weights, (packed,))
    states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
    return states, torch.stack(last if isinstance(last, tuple) else (last,))  # (states, directions, b, hidden)


def reference_logits(model: RecurrentEncoderDecoder, source: Tensor, target: Tensor) -> Tensor:
    """Return the scores by torch's own networks and cells, each sequence alone, without its padding."""
    rows = []
    for sentence, words in zip(source, target, strict=True):
        sentence = sentence[sentence != PAD]
        x = model.source_embed.weight[sentence][None]
        memory, ends = torch_read((model.forwards, model.backwards), x, torch.tensor([len(sentence)]))
        memory = memory[0]  # (m, 2 * hidden)
        bridged = [
            torch.tanh(bridge.weight @ torch.cat((both[0, 0], both[1, 0])) + bridge.bias)
            for bridge, both in zip(model.bridge, ends, strict=True)
        ]
        state = [part[None] for part in bridged]
        width = model.decoder.given.in_features
        twin = {GRUCell: nn.GRUCell, LSTMCell: nn.LSTMCell}[type(model.decoder)](width, HIDDEN)
        weights, scores = torch_weights({"": model.decoder}), []
        for word in words:
            x = model.target_embed.weight[word]
            if model.attention is not None:
                attention = model.attention
                query = attention.q.weight @ state[0][0] + attention.q.bias
                energies = torch.stack(
                    [attention.score.weight[0] @ torch.tanh(query + attention.k.weight @ key) for key in memory]
                )
                read = energies.softmax(0) @ memory
                x = torch.cat((x, read))
            after = torch.func.functional_call(twin, weights, (x[None], state[0] if len(state) == 1 else tuple(state)))
            state = list(after) if isinstance(after, tuple) else [after]
            output = state[0][0]
            if model.attention is not None:
                output = torch.tanh(model.join.weight @ torch.cat((output, read)) + model.join.bias)
            scores.append(model.unembed.weight @ output)
        rows.append(torch.stack(scores))
    return torch.stack(rows)


def one_by_one(model: RecurrentEncoderDecoder, target: Tensor, state) -> Tensor:
    return torch.stack([model.next_scores(tokens, state) for tokens in target.unbind(dim=1)], dim=1)


def assert_same(ours, theirs) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


# ------------------------------------------------------------------ equals an independent reference


@each_cell
@pytest.mark.parametrize("padded", [False, True])
def test_a_cell_that_reads_equals_torch_in_both_directions_with_gradients(cell, padded):
    torch.manual_seed(0)
    cells = make_cell(cell, D, HIDDEN), make_cell(cell, D, HIDDEN)
    x = torch.randn(B, M, D, requires_grad=True)
    visible, lengths = (VISIBLE, LENGTHS) if padded else (torch.ones(B, M) > 0, torch.full((B,), M))
    onward, last = read_sequence(cells[0], x, visible)
    back, first = read_sequence(cells[1], x, visible, backwards=True)
    states, ends = torch_read(cells, x, lengths)
    ours = torch.cat((onward, back), dim=-1) * visible[:, :, None]
    assert_same(ours, states)
    assert_same(torch.stack([torch.stack(both) for both in zip(last, first, strict=True)]), ends)
    leaves, upstream = (x, *cells[0].parameters(), *cells[1].parameters()), torch.randn_like(states)
    assert_same(*(torch.autograd.grad(read, leaves, upstream) for read in (ours, states)))


def test_additive_attention_equals_numpy():
    torch.manual_seed(0)
    attention = AdditiveAttention(D, 8, HIDDEN)
    query, memory = torch.randn(B, D), torch.randn(B, M, 8)
    read, weights = attention(query, memory, attention.k(memory), VISIBLE)
    w = {name: parameter.detach().numpy() for name, parameter in attention.named_parameters()}
    assert set(w) == {"q.weight", "q.bias", "k.weight", "score.weight"}
    for row in range(B):
        q, keys, length = query[row].numpy(), memory[row].numpy(), int(LENGTHS[row])
        scores = [
            w["score.weight"][0] @ np.tanh(w["q.weight"] @ q + w["q.bias"] + w["k.weight"] @ keys[j])
            for j in range(length)
        ]
        shares = np.exp(scores) / np.exp(scores).sum()
        expected = np.concatenate((shares, np.zeros(M - length)))
        np.testing.assert_allclose(weights[row].detach(), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(read[row].detach(), shares @ keys[:length], rtol=0, atol=1e-12)


@each_cell
@with_and_without_attention
def test_logits_equal_torch_nets_and_cells_with_gradients(cell, attention, source, target):
    model = model_of(cell, attention)
    ours, theirs = model(source, target), reference_logits(model, source, target)
    assert ours.shape == (B, N, TARGET_V)
    assert_same(ours, theirs)
    parameters, upstream = list(model.parameters()), torch.randn_like(ours)
    assert_same(*(torch.autograd.grad(logits, parameters, upstream) for logits in (ours, theirs)))


@each_cell
@with_and_without_attention
def test_one_pass_equals_one_token_at_a_time(cell, attention, source, target):
    model = model_of(cell, attention)
    assert_same(one_by_one(model, target, model.begin(source)), model(source, target))


@each_cell
@with_and_without_attention
def test_rows_that_are_selected_go_on_each_with_its_own_past_and_source(cell, attention, source, target):
    model, rows = model_of(cell, attention), torch.tensor([2, 0, 0, 1])
    state = model.begin(source)
    one_by_one(model, target[:, :3], state)
    selected = state.selected(rows)
    other = target[rows].clone()
    other[:, 3:] = torch.randint(4, TARGET_V, (4, N - 3))  # one row twice, with two continuations
    assert_same(one_by_one(model, other[:, 3:], selected), model(source[rows], other)[:, 3:])
    assert_same(one_by_one(model, target[:, 3:], state), model(source, target)[:, 3:])  # the first state is unchanged


# ------------------------------------------------------------------ keeps a property


@each_cell
def test_padding_leaves_the_state_as_it_is(cell):
    torch.manual_seed(0)
    reader, x = make_cell(cell, D, HIDDEN), torch.randn(B, M, D)
    states, last = read_sequence(reader, x, VISIBLE)
    for row, length in enumerate(LENGTHS):
        assert_same(states[row, length:], states[row, length - 1].expand(M - length, HIDDEN))
    _, first = read_sequence(reader, x, VISIBLE, backwards=True)
    for ends, backwards in ((last, False), (first, True)):
        changed = torch.where(VISIBLE[:, :, None], x, torch.randn_like(x))
        assert_same(read_sequence(reader, changed, VISIBLE, backwards)[1], ends)


@each_cell
@with_and_without_attention
def test_padding_has_no_effect_whatever_its_vector_is_and_however_much_there_is(cell, attention, source, target):
    model = model_of(cell, attention)
    logits = model(source, target)
    assert_same(model(nn.functional.pad(source, (0, 2), value=PAD), target), logits)
    for row, length in enumerate(LENGTHS):
        assert_same(model(source[[row], :length], target[[row]]), logits[[row]])  # also: rows are independent
    with torch.no_grad():
        model.source_embed.weight[PAD] += 1
    assert_same(model(source, target), logits)


@each_cell
@with_and_without_attention
def test_a_token_of_the_target_changes_what_comes_after_it_in_its_row_and_nothing_else(cell, attention, source, target):
    model = model_of(cell, attention)
    logits = model(source, target)
    for row, place in ((0, 0), (1, 3), (2, N - 1)):
        changed = target.clone()
        changed[row, place] = 4 + (changed[row, place] - 3) % (TARGET_V - 4)
        moved = (model(source, changed) - logits).abs().amax(-1) > 1e-9  # (b, n)
        assert moved.nonzero().tolist() == [[row, late] for late in range(place, N)]


@each_cell
@with_and_without_attention
def test_every_token_of_a_source_changes_all_of_its_own_target(cell, attention, source, target):
    model = model_of(cell, attention)
    logits = model(source, target)
    for row, length in enumerate(LENGTHS):
        for place in range(length):
            changed = source.clone()
            changed[row, place] = 4 + (changed[row, place] - 3) % (SOURCE_V - 4)
            moved = (model(changed, target) - logits).abs().amax(-1) > 1e-9  # (b, n)
            assert moved.nonzero().tolist() == [[row, late] for late in range(N)]


@each_cell
@with_and_without_attention
def test_only_with_attention_the_decoder_sees_more_than_the_last_states(cell, attention, source, target):
    model = model_of(cell, attention)
    state, changed = model.begin(source), model.begin(source)
    changed.memory = torch.randn_like(changed.memory)
    if attention:
        changed.keys = model.attention.k(changed.memory)
    else:
        assert changed.keys is None
    moved = (one_by_one(model, target, state) - one_by_one(model, target, changed)).abs().amax(-1) > 1e-6  # (b, n)
    assert moved.tolist() == [[attention] * N] * B


@each_cell
def test_an_attention_map_is_what_the_decoder_looked_at_and_never_padding(cell, source, target):
    model = model_of(cell)
    looked = model.attention_map(source, target)
    assert looked.shape == (B, N, M)
    assert_same(looked.sum(-1), torch.ones(B, N))
    assert torch.equal(looked != 0, VISIBLE[:, None].expand(B, N, M))
    state = model.begin(source)
    for place in range(N):
        query = state.cell[0]  # what the decoder knows before it gets the token
        _, weights = model.attention(query, state.memory, state.keys, VISIBLE)
        assert_same(looked[:, place], weights)
        model.next_scores(target[:, place], state)


@each_cell
@with_and_without_attention
def test_every_parameter_gets_a_gradient(cell, attention, source, target):
    model = model_of(cell, attention)
    model(source, target).square().sum().backward()
    still = {name for name, weights in model.named_parameters() if weights.grad.abs().max() < 1e-9}
    assert still == set()
    assert model.num_parameters == sum(parameter.numel() for parameter in model.parameters())


@each_cell
@with_and_without_attention
def test_dropout_drops_in_training_only(cell, attention, source, target):
    model, twin = model_of(cell, attention, dropout=0.4), model_of(cell, attention)
    assert_same(model.eval()(source, target), twin(source, target))
    assert_same(one_by_one(model, target, model.begin(source)), twin(source, target))
    model.train()
    assert (model(source, target) - model(source, target)).abs().max() > 1e-3


@with_and_without_attention
def test_what_is_read_on_both_sides_and_what_is_scored_is_dropped(attention, source, target):
    model, share = model_of(attention=attention, dropout=0.5), {}
    for name in ("forwards.given", "backwards.given", "decoder.given", "unembed"):
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: share.setdefault(name, []).append((given[0][..., :HIDDEN] == 0).double().mean())
        )
    model(source, target)
    assert len(share) == 4
    for name, shares in share.items():
        assert 0.2 < torch.stack(shares).mean() < 0.8, name


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 5), (6, 1)])
def test_source_and_target_may_have_any_two_lengths(m, n):
    assert model_of()(torch.full((B, m), 5), torch.full((B, n), 5)).shape == (B, n, TARGET_V)


# ------------------------------------------------------------------ refuses bad input with the right words


def test_an_attention_map_of_a_model_without_attention_is_refused(source, target):
    with pytest.raises(ValueError, match=r"model must have attention, got attention=False\."):
        model_of(attention=False).attention_map(source, target)


def test_shapes_that_disagree_are_refused(source, target):
    model = model_of()
    with pytest.raises(ShapeError, match=r"axis b must have one size, got 3 in source \(b=3, m=7\) and 2 in target"):
        model(source, target[:2])
    with pytest.raises(ShapeError, match=r"source must have the 2 axes \(b, m\), got 1"):
        model(source[0], target)
    with pytest.raises(ShapeError, match=r"target must have the 2 axes \(b, n\), got 1"):
        model(source, target[0])


def test_a_source_of_padding_alone_is_refused_where_it_would_be_looked_at(source, target):
    with pytest.raises(ValueError, match="every query must see a key"):
        model_of()(source * 0, target)


@pytest.mark.parametrize("visible", [VISIBLE[:, 1:], VISIBLE[:1], torch.ones(B, M + 1) > 0])
def test_a_sequence_and_its_padding_must_have_the_same_sizes(visible):
    x = torch.randn(B, M, D)
    with pytest.raises(
        ShapeError, match=r"axis [bm] must have one size, got .* in x \(b=3, m=7, d=5\) and .* in visible"
    ):
        read_sequence(GRUCell(D, HIDDEN), x, visible)
    attention = AdditiveAttention(HIDDEN, D, 2)
    with pytest.raises(ShapeError, match=r"axis [bm] must have one size, got .* and .* in visible"):
        attention(torch.randn(B, HIDDEN), x, attention.k(x), visible)


def test_keys_of_another_memory_are_refused():
    attention, memory = AdditiveAttention(HIDDEN, D, 2), torch.randn(B, M, D)
    with pytest.raises(ShapeError, match=r"axis m must have one size, got 7 in memory .* and 6 in keys"):
        attention(torch.randn(B, HIDDEN), memory, attention.k(memory[:, 1:]), VISIBLE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"source_vocab_size": 0}, "source_vocab_size must be a whole number from 1 on, got 0."),
        ({"target_vocab_size": True}, "target_vocab_size must be a whole number from 1 on, got True."),
        ({"hidden": 2.5}, "hidden must be a whole number from 1 on, got 2.5."),
        ({"cell": "rnn"}, "cell must be one of gru, lstm, got 'rnn'."),
        ({"dropout": 1}, "dropout must be at least 0 and below 1, got 1."),
        ({"dropout": math.nan}, "dropout must be at least 0 and below 1, got nan."),
    ],
)
def test_impossible_configs_are_refused(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        RecurrentConfig(**{"source_vocab_size": SOURCE_V, "target_vocab_size": TARGET_V} | options)
