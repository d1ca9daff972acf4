"""Classifiers of sequences: what each pool and each model computes; padding changes nothing in any of them.

Sizes: (b, n) = (3, 5), a vocabulary of 11, hidden is 8, 2 heads, 4 classes.
"""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_lm.modeling_classifier import KINDS, POOLS, FlattenPool, SequenceClassifier, make_classifier, pooled
from transformer_lm.shapes import ShapeError

B, N, VOCAB, HIDDEN, CLASSES, PAD, CLS = 3, 5, 11, 8, 4, 2, 1  # padding is not 0, so that no zero is taken for it
TOKENS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 3, PAD, PAD], [10, PAD, PAD, PAD, PAD]])
LENGTHS = [5, 3, 1]
MODELS = list(itertools.product(KINDS, [*POOLS, "cls"], [False, True]))


def model_of(kind: str, pool: str, positions: bool, **options) -> SequenceClassifier:
    """Return a model in float64 with random weights, ready for use."""
    torch.manual_seed(7)
    options = {"max_len": 20, "num_heads": 2, "num_layers": 2, "cls": CLS if pool == "cls" else None} | options
    options |= {"pad": PAD, "hidden": HIDDEN, "pool": pool, "positions": positions}
    return make_classifier(kind, VOCAB, CLASSES, **options).double().eval()


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(B, N, HIDDEN, dtype=torch.float64)


def with_padding(tokens: Tensor, columns: int) -> Tensor:
    return F.pad(tokens, (0, columns), value=PAD)


def assert_same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------ equals an independent reference


@pytest.mark.parametrize(
    ("how", "reference"),
    [
        ("mean", lambda real: real.mean(axis=0)),
        ("max", lambda real: real.max(axis=0)),
        ("select", lambda real: real[0]),
    ],
)
def test_a_pool_is_that_of_numpy_over_the_real_tokens_alone(x, how, reference):
    expected = [reference(sequence[:length]) for sequence, length in zip(x.numpy(), LENGTHS, strict=True)]
    np.testing.assert_allclose(pooled(x, TOKENS != PAD, how).numpy(), expected, rtol=1e-12)


def test_the_largest_of_negative_numbers_is_not_the_zero_of_padding(x):
    assert (pooled(-x.abs() - 1, TOKENS != PAD, "max") < 0).all()


@pytest.mark.parametrize("how", ["mean", "max"])
def test_the_baseline_equals_torch_embedding_bag(how):
    model = model_of("baseline", how, positions=False)
    bag = nn.EmbeddingBag(VOCAB, HIDDEN, mode=how, padding_idx=PAD, dtype=torch.float64)
    bag.weight.data.copy_(model.embed.weight)
    assert_same(model(TOKENS), model.classify(bag(TOKENS)))


def test_simple_attention_equals_numpy_one_sequence_at_a_time():
    model = model_of("simple", "mean", positions=True)
    embeddings, positions = (part.weight.detach().numpy() for part in (model.embed, model.layers[0].positions))
    pooled_by_hand = []
    for tokens, length in zip(TOKENS, LENGTHS, strict=True):
        read = embeddings[tokens[:length]] + positions[:length]
        weights = np.exp(read @ read.T)
        pooled_by_hand.append((weights / weights.sum(axis=1, keepdims=True) @ read).mean(axis=0))
    assert_same(model(TOKENS), model.classify(torch.from_numpy(np.array(pooled_by_hand))))


def test_the_transformer_equals_torch_transformer_encoder():
    model = model_of("transformer", "max", positions=False)
    layer = nn.TransformerEncoderLayer(HIDDEN, 2, 4 * HIDDEN, 0, norm_first=True, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for twin, block in zip(encoder.layers, model.layers, strict=True):
        attention = block.attention
        for kind in ("weight", "bias"):
            thirds = torch.cat([getattr(part, kind) for part in (attention.q, attention.k, attention.v)])
            getattr(twin.self_attn, f"in_proj_{kind}").data.copy_(thirds)
        twin.self_attn.out_proj.load_state_dict(attention.mix.state_dict())
        twin.norm1.load_state_dict(block.attention_norm.state_dict())
        twin.norm2.load_state_dict(block.mlp_norm.state_dict())
        twin.linear1.load_state_dict(block.up.state_dict())
        twin.linear2.load_state_dict(block.down.state_dict())
    read = encoder(model.embed(TOKENS), src_key_padding_mask=TOKENS == PAD)
    largest = torch.stack([sequence[:length].amax(dim=0) for sequence, length in zip(read, LENGTHS, strict=True)])
    assert_same(model(TOKENS), model.classify(largest))


def test_a_cls_token_is_a_first_token_that_is_selected():
    by_hand = torch.cat([torch.full((B, 1), CLS), TOKENS], dim=1)
    for kind, positions in itertools.product(KINDS, [False, True]):
        selecting = model_of(kind, "select", positions, max_len=21)  # one more, for the token in front
        assert torch.equal(model_of(kind, "cls", positions)(TOKENS), selecting(by_hand))


def test_the_flattened_positions_stand_side_by_side_with_0_for_padding(x):
    visible = TOKENS != PAD
    expected = np.concatenate([(x * visible[:, :, None]).numpy()[:, position] for position in range(N)], axis=1)
    np.testing.assert_array_equal(FlattenPool(N)(x, visible).numpy(), expected)


# ------------------------------------------------------------------ keeps a property: padding changes nothing


@pytest.mark.parametrize(("kind", "pool", "positions"), MODELS)
def test_padding_at_the_end_changes_nothing(kind, pool, positions):
    model = model_of(kind, pool, positions)
    for tokens, (dtype, tolerance) in itertools.product(
        (TOKENS, TOKENS[:1]), ((torch.float64, 1e-13), (torch.float32, 1e-5))
    ):
        logits = model.to(dtype)(tokens)
        for columns in (1, 2, 15):
            assert_same(model(with_padding(tokens, columns)), logits, tolerance)


@pytest.mark.parametrize(("kind", "pool", "positions"), MODELS)
def test_a_sequence_among_longer_ones_is_what_it_is_alone(kind, pool, positions):
    model = model_of(kind, pool, positions)
    alone = [model(sequence[None, :length])[0] for sequence, length in zip(TOKENS, LENGTHS, strict=True)]
    assert_same(model(TOKENS), torch.stack(alone), 1e-13)


@pytest.mark.parametrize(("kind", "pool", "positions"), MODELS)
def test_the_vector_of_padding_is_never_read_and_never_learns(kind, pool, positions):
    model = model_of(kind, pool, positions)
    logits = model(TOKENS)
    logits.square().sum().backward()
    assert (model.embed.weight.grad[PAD] == 0).all()
    model.embed.weight.data[PAD] += torch.arange(HIDDEN) * 10
    assert_same(model(TOKENS), logits, 1e-13)


@pytest.mark.parametrize(("kind", "positions"), list(itertools.product(KINDS, [False, True])))
def test_a_flattened_model_ignores_padding_within_its_length_and_refuses_another(kind, positions):
    model = model_of(kind, "flatten", positions, max_len=N)
    logits = model(TOKENS)
    model.embed.weight.data[PAD] += torch.arange(HIDDEN) * 10
    assert_same(model(TOKENS), logits, 1e-13)
    for other in (TOKENS[:, :4], with_padding(TOKENS, 1)):
        with pytest.raises(ShapeError, match=rf"positions, got n={other.shape[1]}"):
            model(other)


# ------------------------------------------------------------------ keeps other properties


@pytest.mark.parametrize(("kind", "pool"), list(itertools.product(KINDS, ["mean", "max"])))
def test_only_positions_tell_one_order_of_words_from_another(kind, pool):
    turned = TOKENS[:1].flip(1)
    blind, seeing = (model_of(kind, pool, positions) for positions in (False, True))
    assert_same(blind(turned), blind(TOKENS[:1]))
    # Adding positions and then averaging is still a bag of words, with a bag of positions beside it.
    assert torch.allclose(seeing(turned), seeing(TOKENS[:1])) == ((kind, pool) == ("baseline", "mean"))


def test_without_a_layer_the_first_token_decides_alone_and_with_attention_it_reads_the_others():
    changed = TOKENS.clone()
    changed[0, -1] = 8
    for kind in KINDS:
        model = model_of(kind, "select", positions=False)
        assert torch.allclose(model(changed)[0], model(TOKENS)[0]) == (kind == "baseline")


@pytest.mark.parametrize(("kind", "pool"), list(itertools.product(KINDS, [*POOLS, "cls", "flatten"])))
def test_every_parameter_gets_a_gradient(kind, pool):
    model = model_of(kind, pool, positions=True, max_len=N)
    model(TOKENS).square().sum().backward()
    still = {name for name, parameter in model.named_parameters() if parameter.grad.abs().max() <= 1e-9}
    # The bias of the keys adds the same number to all scores of a query, and the softmax cancels it.
    assert still == {name for name, _ in model.named_parameters() if name.endswith(".k.bias")}


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_no_probabilities(kind):
    model = model_of(kind, "mean", positions=False)
    before = model(TOKENS)
    model.classify.bias.data += 3  # a softmax would cancel it
    assert_same(model(TOKENS), before + 3)


def test_dropout_works_in_training_only_and_in_every_block():
    model = model_of("transformer", "mean", positions=False, dropout=0.5)
    assert torch.equal(model(TOKENS), model(TOKENS))
    assert not torch.equal(model.train()(TOKENS), model(TOKENS))
    assert {part.p for part in model.modules() if isinstance(part, nn.Dropout)} == {0.5}


def test_a_transformer_has_three_blocks_unless_told_otherwise():
    assert len(make_classifier("transformer", VOCAB, CLASSES, pad=PAD, hidden=HIDDEN).layers) == 3


def test_tokens_are_not_modified():
    before = TOKENS.clone()
    for pool in ("mean", "cls"):
        model_of("full", pool, positions=True)(TOKENS)
    assert torch.equal(TOKENS, before)


# ------------------------------------------------------------------ refuses bad input with the right words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "half"}, "kind must be one of baseline, simple, full, transformer, got 'half'"),
        ({"pool": "sum"}, "pool must be one of mean, max, select, cls, flatten, got 'sum'"),
        ({"pool": "cls"}, 'cls must be given with pool="cls" and with no other, got cls=None'),
        ({"pool": "mean", "cls": CLS}, "with no other, got cls=1 and pool='mean'"),
        ({"pool": "cls", "cls": PAD}, f"cls must be another token than pad, got {PAD} for both"),
        ({"num_heads": 3}, "num_heads must divide hidden, got num_heads=3 and hidden=8"),
    ],
)
def test_a_model_that_does_not_exist_is_refused(options, message):
    options = {"kind": "full", "vocab_size": VOCAB, "num_classes": CLASSES, "pad": PAD, "hidden": HIDDEN} | options
    with pytest.raises(ValueError, match=message):
        make_classifier(**options)


def test_a_pool_that_does_not_exist_is_refused(x):
    with pytest.raises(ValueError, match="how must be one of mean, max, select, got 'cls'"):
        pooled(x, TOKENS != PAD, "cls")


@pytest.mark.parametrize(("kind", "pool"), list(itertools.product(KINDS, POOLS)))
def test_a_sequence_of_padding_alone_is_refused(kind, pool):
    with pytest.raises(ValueError, match=r"every sequence must have a real token|every query must see a key"):
        model_of(kind, pool, positions=False)(torch.tensor([[3, 4], [PAD, PAD]]))


def test_a_mask_of_another_size_is_refused(x):
    for pool in (FlattenPool(N), lambda x, visible: pooled(x, visible, "mean")):
        with pytest.raises(ShapeError, match=r"axis n must have one size, got 5 in x .* and 4 in visible"):
            pool(x, (TOKENS != PAD)[:, 1:])


def test_one_sequence_without_a_batch_is_refused():
    with pytest.raises(ShapeError, match=r"tokens must have the 2 axes \(b, n\), got 1 of sizes \(5,\)"):
        model_of("full", "mean", positions=True)(TOKENS[0])


def test_a_sequence_beyond_the_last_position_is_refused():
    model = model_of("full", "cls", positions=True, max_len=N)
    assert model(TOKENS).shape == (B, CLASSES)  # the token in front has a separate position
    with pytest.raises(ShapeError, match="x must have at most max_len=6 positions, got n=7"):
        model(with_padding(TOKENS, 1))
