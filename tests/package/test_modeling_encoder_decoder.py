"""Tests of `modeling_encoder_decoder.py`.

Sizes: (layers, b, h, m, n, dh) = (2, 3, 5, 7, 6, 4), so hidden is 20; 11 tokens in the source, 13 in the target.
"""

import copy
import math
import re
from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import Tensor, nn

from transformer_lm.modeling_encoder_decoder import (
    CrossDecoderBlock,
    EncoderDecoderConfig,
    TransformerEncoderDecoder,
)
from transformer_lm.shapes import ShapeError
from transformer_lm.texts.word_tokenizers import PAD, START

LAYERS, B, H, M, N, DH, SOURCE_V, TARGET_V, MAX_LEN = 2, 3, 5, 7, 6, 4, 11, 13, 9
HIDDEN = H * DH
SOURCE_LENGTHS, TARGET_LENGTHS = (M, 4, 5), (3, N, 5)
SHARED = {"source_vocab_size": TARGET_V, "shared": True}
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch's own transformer says so
separate_and_shared = pytest.mark.parametrize("options", [{}, SHARED], ids=["separate", "shared"])


@pytest.fixture(autouse=True)
def _in_float64():
    """Make all tensors float64: then a difference is a mistake, not rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def model_of(**options) -> TransformerEncoderDecoder:
    """Return a model with random parameters only: a 0 or 1, as in a new model, could be left out unnoticed."""
    torch.manual_seed(0)
    settings = {"source_vocab_size": SOURCE_V, "target_vocab_size": TARGET_V, "max_len": MAX_LEN, "hidden": HIDDEN}
    model = TransformerEncoderDecoder(
        EncoderDecoderConfig(**settings | {"num_layers": LAYERS, "num_heads": H} | options)
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def padded_to(tokens: Tensor, lengths: tuple[int, ...]) -> Tensor:
    return tokens.masked_fill(torch.arange(tokens.shape[1]) >= torch.tensor(lengths)[:, None], PAD)


@pytest.fixture
def source() -> Tensor:
    """Return sources (b, m) of different lengths, padded."""
    generator = torch.Generator().manual_seed(1)
    return padded_to(torch.randint(4, SOURCE_V, (B, M), generator=generator), SOURCE_LENGTHS)


@pytest.fixture
def target() -> Tensor:
    """Return targets (b, n) that begin with START and have no padding."""
    target = torch.randint(4, TARGET_V, (B, N), generator=torch.Generator().manual_seed(2))
    target[:, 0] = START
    return target


def torch_logits(model: TransformerEncoderDecoder, source: Tensor, target: Tensor) -> Tensor:
    """Return the scores of torch's own transformer with the model's weights, (b, n, v)."""
    ours, weights = dict(model.named_parameters(remove_duplicate=False)), {}

    def give(theirs: str, mine: str) -> None:
        for kind in ("weight", "bias"):
            weights[f"{theirs}.{kind}"] = ours[f"{mine}.{kind}"]

    def give_attention(theirs: str, mine: str) -> None:
        for kind in ("weight", "bias"):
            weights[f"{theirs}.in_proj_{kind}"] = torch.cat([ours[f"{mine}.{letter}.{kind}"] for letter in "qkv"])
        give(f"{theirs}.out_proj", f"{mine}.mix")

    parts = {
        "encoder": ({"self_attn": "attention"}, ("attention_norm", "mlp_norm"), ("up", "down")),
        "decoder": (
            {"self_attn": "attention", "multihead_attn": "cross_attention"},
            ("attention_norm", "cross_norm", "mlp_norm"),
            ("mlp.0", "mlp.2"),
        ),
    }
    for side, (attentions, norms, linears) in parts.items():
        give(f"{side}.norm", f"{side}_norm")
        for layer in range(LAYERS):
            theirs, mine = f"{side}.layers.{layer}", f"{side}_blocks.{layer}"
            for their_name, name in attentions.items():
                give_attention(f"{theirs}.{their_name}", f"{mine}.{name}")
            for number, name in enumerate(norms, start=1):
                give(f"{theirs}.norm{number}", f"{mine}.{name}")
            for number, name in enumerate(linears, start=1):
                give(f"{theirs}.linear{number}", f"{mine}.{name}")

    def embedded(tokens: Tensor, table: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])[:, None]
        angles = places / 10_000 ** (torch.arange(0, HIDDEN, 2) / HIDDEN)  # (n, hidden / 2)
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        return table[tokens] * math.sqrt(HIDDEN) + waves

    twin = nn.Transformer(HIDDEN, H, LAYERS, LAYERS, 4 * HIDDEN, dropout=0.0, batch_first=True, norm_first=True)
    source_table, target_table = ours["source_embed.weight"], ours["target_embed.weight"]
    n, blind = target.shape[1], source == PAD
    options = {
        "tgt_mask": torch.ones(n, n, dtype=torch.bool).triu(1),
        "src_key_padding_mask": blind,
        "memory_key_padding_mask": blind,
        "tgt_key_padding_mask": target == PAD,
    }
    inputs = (embedded(source, source_table), embedded(target, target_table))
    return torch.func.functional_call(twin, weights, inputs, options) @ ours["unembed.weight"].T


def one_by_one(model: TransformerEncoderDecoder, target: Tensor, state) -> Tensor:
    return torch.stack([model.next_scores(tokens, state) for tokens in target.unbind(dim=1)], dim=1)


def assert_same(ours, theirs) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


# ------------------------------------------------------------------ equals an independent reference


@separate_and_shared
def test_logits_equal_torch_transformer_with_padding_and_gradients(options, source, target):
    model = model_of(**options)
    target = padded_to(target, TARGET_LENGTHS)
    ours, theirs = model(source, target), torch_logits(model, source, target)
    assert ours.shape == (B, N, TARGET_V)
    real = target != PAD
    assert_same(ours[real], theirs[real])
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(logits[real].square().sum(), parameters) for logits in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 5), (5, 1), (9, 2), (3, 9)])
def test_source_and_target_may_have_any_two_lengths(m, n):
    model = model_of()
    source, target = torch.randint(4, SOURCE_V, (B, m)), torch.randint(4, TARGET_V, (B, n))
    assert_same(model(source, target), torch_logits(model, source, target))


def test_one_pass_equals_passes_over_growing_prefixes(source, target):
    model = model_of()
    logits = model(source, target)
    for n in range(1, N + 1):
        assert_same(model(source, target[:, :n])[:, -1], logits[:, n - 1])


@separate_and_shared
def test_one_pass_equals_one_token_at_a_time(options, source, target):
    model = model_of(**options)
    state = model.begin(source)
    assert_same(one_by_one(model, target, state), model(source, target))
    assert state.length == N


def test_rows_that_are_selected_go_on_each_with_its_own_past_and_source(source, target):
    model, rows = model_of(), torch.tensor([2, 0, 0, 1])
    state = model.begin(source)
    one_by_one(model, target[:, :3], state)
    selected = state.selected(rows)
    other = target[rows].clone()
    other[:, 3:] = torch.randint(4, TARGET_V, (4, N - 3))  # one row twice, with two continuations
    assert_same(one_by_one(model, other[:, 3:], selected), model(source[rows], other)[:, 3:])
    assert_same(one_by_one(model, target[:, 3:], state), model(source, target)[:, 3:])  # the first state is unchanged


def test_decode_of_what_encode_returns_is_the_whole_pass(source, target):
    model = model_of()
    memory = model.encode(source)
    assert memory.shape == (B, M, HIDDEN)
    assert torch.equal(model.decode(target, memory, source != PAD), model(source, target))


# ------------------------------------------------------------------ keeps a property


def test_a_token_of_the_target_changes_what_comes_after_it_in_its_row_and_nothing_else(source, target):
    model = model_of()
    logits = model(source, target)
    for row, place in ((0, 0), (1, 3), (2, N - 1)):
        changed = target.clone()
        changed[row, place] = 4 + (changed[row, place] - 3) % (TARGET_V - 4)
        moved = (model(source, changed) - logits).abs().amax(-1) > 1e-8  # (b, n)
        assert moved.nonzero().tolist() == [[row, late] for late in range(place, N)]


def test_every_token_of_a_source_changes_all_of_its_own_target(source, target):
    model = model_of()
    logits = model(source, target)
    for row, length in enumerate(SOURCE_LENGTHS):
        for place in range(length):
            changed = source.clone()
            changed[row, place] = 4 + (changed[row, place] - 3) % (SOURCE_V - 4)
            moved = (model(changed, target) - logits).abs().amax(-1) > 1e-8  # (b, n)
            assert moved.nonzero().tolist() == [[row, late] for late in range(N)]


def test_padding_has_no_effect_whatever_its_vector_is_and_however_much_there_is(source, target):
    model = model_of()
    target = padded_to(target, TARGET_LENGTHS)
    real, logits = target != PAD, model(source, target)
    longer = [torch.nn.functional.pad(tokens, (0, 2), value=PAD) for tokens in (source, target)]
    assert_same(model(longer[0], target)[real], logits[real])
    assert_same(model(source, longer[1])[:, :N][real], logits[real])
    assert_same(one_by_one(model, target, model.begin(longer[0]))[real], logits[real])
    with torch.no_grad():
        model.source_embed.weight[PAD] += 1
        model.target_embed.weight[PAD] += 1
    assert_same(model(source, target)[real], logits[real])


def test_pairs_of_a_batch_are_independent(source, target):
    model = model_of()
    together = model(source, padded_to(target, TARGET_LENGTHS))
    for row, (m, n) in enumerate(zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True)):
        assert_same(model(source[[row], :m], target[[row], :n]), together[[row], :n])


def test_the_order_of_the_source_counts(source, target):
    model = model_of()
    turned = torch.cat((source[:1].flip(1), source[1:]))  # the first has no padding
    assert (model(turned, target)[0] - model(source, target)[0]).abs().max() > 1e-3


@separate_and_shared
def test_every_parameter_gets_a_gradient(options, source, target):
    model = model_of(**options)
    model(source, target).square().sum().backward()
    still = {name for name, weights in model.named_parameters() if weights.grad.abs().max() < 1e-9}
    blocks = [f"{side}_blocks.{layer}" for side in ("encoder", "decoder") for layer in range(LAYERS)]
    kinds = {"encoder": ("attention",), "decoder": ("attention", "cross_attention")}
    # One vector added to all keys changes all scores of a query alike: a softmax cancels it.
    assert still == {f"{block}.{kind}.k.bias" for block in blocks for kind in kinds[block[:7]]}


def test_dropout_drops_in_training_only(source, target):
    model, twin = model_of(dropout=0.4), model_of()
    assert_same(model.eval()(source, target), twin(source, target))
    assert_same(one_by_one(model, target, model.begin(source)), twin(source, target))
    model.train()
    assert (model(source, target) - model(source, target)).abs().max() > 1e-3


def test_positions_are_shifted_in_training_only(source, target):
    model, twin = model_of(shift=3), model_of()
    assert_same(model.eval()(source, target), twin(source, target))
    assert_same(one_by_one(model, target, model.begin(source)), twin(source, target))


def test_in_training_both_sentences_of_a_pair_are_counted_from_one_number_up_to_the_shift(source, target):
    """Each number occurs, independently for each pair, and no other."""
    model, visible = model_of(shift=2).train(), source != PAD
    expected = torch.stack([model.decode(target, model.encode(source, start), visible, start) for start in range(3)])
    seen = set()
    for _ in range(40):
        differences = (model(source, target) - expected).abs().amax(dim=(2, 3))  # (start, b)
        assert (differences.min(dim=0).values < 1e-9).all()
        seen.add(tuple(differences.argmin(dim=0).tolist()))
    assert {start for starts in seen for start in starts} == {0, 1, 2}
    assert any(len(set(starts)) > 1 for starts in seen)


def test_the_longest_sentence_can_be_shifted():
    model, longest = model_of(shift=3).train(), torch.full((4, MAX_LEN), 5)
    for _ in range(20):
        assert model(longest, longest).isfinite().all()


def test_what_reads_a_source_begins_by_looking_for_equal_words():
    """Keys are equal to queries, and large enough to tell words apart; the target's own attention begins otherwise."""
    torch.manual_seed(0)
    sizes = {"source_vocab_size": TARGET_V, "target_vocab_size": TARGET_V, "hidden": 64, "num_layers": LAYERS}
    model = TransformerEncoderDecoder(EncoderDecoderConfig(**sizes))
    for block in model.decoder_blocks:
        assert not torch.equal(block.attention.k.weight, block.attention.q.weight)
    readers = [block.attention for block in model.encoder_blocks]
    for attention in (*readers, *(block.cross_attention for block in model.decoder_blocks)):
        assert torch.equal(attention.k.weight, attention.q.weight)
        x = nn.functional.layer_norm(torch.randn(1, 9, 64), (64,))
        queries, keys = ((layer(x) - layer.bias).unflatten(2, (4, 16)) for layer in (attention.q, attention.k))
        scores = torch.einsum("bihd,bjhd->hij", queries, keys) / 4
        assert scores.softmax(dim=-1).diagonal(dim1=1, dim2=2).mean() > 0.7


@pytest.mark.parametrize(
    "name",
    [
        "dropout",
        "encoder_blocks.0.dropout",
        "encoder_blocks.1.attention",
        "decoder_blocks.0.dropout",
        "decoder_blocks.0.attention",
        "decoder_blocks.1.cross_attention",
    ],
)
def test_each_part_drops_for_itself(name, source, target):
    model = model_of(dropout=0.4).eval()
    before = model(source, target)
    model.get_submodule(name).train()
    assert (model(source, target) - before).abs().max() > 1e-3


def test_a_block_calls_its_parts_with_what_each_needs_and_adds_what_they_return():
    calls = {}

    class Part(nn.Module):
        def __init__(self, name: str, factor: float) -> None:
            super().__init__()
            self.name, self.factor = name, factor

        def forward(self, x: Tensor, *given: Tensor, **named: Tensor) -> Tensor:
            calls[self.name] = (x, *given, named)
            return torch.full_like(x, self.factor)

    parts = Part("self", 1.0), Part("cross", 10.0), Part("mlp", 100.0)
    block = CrossDecoderBlock(HIDDEN, *parts, dropout=0.5).eval()
    x, memory = torch.randn(B, N, HIDDEN), torch.randn(B, M, HIDDEN)
    target_visible, source_visible = torch.ones(B, N, N) > 0, torch.ones(B, M) > 0
    assert_same(block(x, memory, target_visible, source_visible), x + 111)
    assert calls["self"][1]["visible"] is target_visible
    assert calls["cross"][1] is memory
    assert calls["cross"][2] is source_visible
    for place, name in enumerate(("self", "cross", "mlp")):  # norms come first
        assert_same(calls[name][0], nn.functional.layer_norm(x + (0, 1, 11)[place], (HIDDEN,)))
    added = block.train()(x, memory, target_visible, source_visible) - x
    assert set(added.round().unique().tolist()) == {0, 2, 20, 22, 200, 202, 220, 222}  # dropped, or twice as much


def test_a_shared_table_is_one_and_stays_one_in_a_copy(source, target):
    shared, separate = model_of(**SHARED), model_of(source_vocab_size=TARGET_V)
    assert separate.num_parameters - shared.num_parameters == 2 * TARGET_V * HIDDEN
    twin = copy.deepcopy(shared)
    for model in (shared, twin):
        assert model.source_embed.weight is model.target_embed.weight is model.unembed.weight
    with torch.no_grad():
        twin.unembed.weight += 1
    assert not torch.equal(twin(source, target), shared(source, target))


def test_the_number_of_parameters_is_that_of_a_count_by_hand():
    norm, attention, mlp = 2 * HIDDEN, 4 * (HIDDEN + 1) * HIDDEN, (8 * HIDDEN + 5) * HIDDEN
    blocks = LAYERS * (3 * attention + 2 * mlp + 5 * norm)
    assert model_of().num_parameters == (SOURCE_V + 2 * TARGET_V) * HIDDEN + blocks + 2 * norm


# ------------------------------------------------------------------ refuses bad input with the right words


def test_sentences_longer_than_max_len_are_refused_and_those_that_fit_are_not():
    model = model_of()
    fits, longer = torch.full((1, MAX_LEN), 5), torch.full((1, MAX_LEN + 1), 5)
    model(fits, fits)
    for name, pair in (("source", (longer, fits)), ("target", (fits, longer))):
        with pytest.raises(ShapeError, match=f"{name} must have at most max_len=9 tokens, got 10"):
            model(*pair)
    with pytest.raises(ShapeError, match="source must have at most max_len=9 tokens, got 10"):
        model.begin(longer)
    state = model.begin(fits)
    one_by_one(model, fits, state)
    with pytest.raises(ShapeError, match="target must have at most max_len=9 tokens, got 10"):
        model.next_scores(fits[:, 0], state)


def test_padding_alone_is_refused(source, target):
    model = model_of()
    for pair in ((source * 0, target), (source, target * 0)):
        with pytest.raises(
            ValueError, match=r"every query must see a key, got .* leave out sequences that are padding"
        ):
            model(*pair)
    with pytest.raises(ValueError, match="every query must see a key"):
        model.begin(source * 0)


def test_a_target_that_is_padded_on_the_left_is_refused(source, target):
    target[1, 0] = PAD
    with pytest.raises(ValueError, match=r"every query must see a key, got 1 .* at b=1, i=0. Pad on the right"):
        model_of()(source, target)


def test_shapes_that_disagree_are_refused(source, target):
    model = model_of()
    with pytest.raises(ShapeError, match=r"axis b must have one size, got 3 in source \(b=3, m=7\) and 2 in target"):
        model(source, target[:2])
    with pytest.raises(ShapeError, match=r"source must have the 2 axes \(b, m\), got 1"):
        model(source[0], target)
    with pytest.raises(ShapeError, match=r"target must have the 2 axes \(b, n\), got 1"):
        model(source, target[0])
    with pytest.raises(ShapeError, match="axis n must not be empty, got size 0 in target"):
        model(source, target[:, :0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"source_vocab_size": 0}, "source_vocab_size must be a whole number from 1 on, got 0."),
        ({"target_vocab_size": 2.5}, "target_vocab_size must be a whole number from 1 on, got 2.5."),
        ({"max_len": True}, "max_len must be a whole number from 1 on, got True."),
        ({"hidden": -4}, "hidden must be a whole number from 1 on, got -4."),
        ({"num_layers": 0}, "num_layers must be a whole number from 1 on, got 0."),
        ({"num_heads": "5"}, "num_heads must be a whole number from 1 on, got '5'."),
        ({"num_heads": 3}, "hidden must be even and num_heads divide it, got num_heads=3 and hidden=20."),
        ({"hidden": 15}, "hidden must be even and num_heads divide it, got num_heads=5 and hidden=15."),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0."),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1."),
        ({"dropout": math.nan}, "dropout must be at least 0 and below 1, got nan."),
        ({"shift": -1}, "shift must be a whole number from 0 on, got -1."),
        ({"shift": 2.0}, "shift must be a whole number from 0 on, got 2.0."),
        ({"shared": True}, "shared embeddings must have one vocabulary for both languages, got sizes 11 and 13."),
    ],
)
def test_impossible_configs_are_refused(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        model_of(**options)


def test_a_config_can_not_be_changed():
    with pytest.raises(FrozenInstanceError):
        model_of().config.hidden = 8
