"""Recorded attention: every layer and head under its name, with the weights that the model really uses.

Sizes: (b, n) = (3, 7), a vocabulary of 11, hidden 12, heads 2 or 3.
"""

import pytest
import torch
from torch import Tensor, nn

from transformer_lm.heads.recording import attention_layers, record_attention
from transformer_lm.modeling_attention import CausalSelfAttention, MultiHeadSelfAttention, SelfAttention
from transformer_lm.modeling_classifier import make_classifier
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.modeling_transformer import TransformerDecoderBlock

B, N, V, HIDDEN, HEADS = 3, 7, 11, 12, 3


def language_model(**options) -> TransformerLM:
    torch.manual_seed(2)
    return TransformerLM(LMConfig(V, max_len=9, hidden=HIDDEN, num_layers=2, num_heads=HEADS, **options))


def classifier(kind: str, **options) -> nn.Module:
    torch.manual_seed(3)
    return make_classifier(kind, V, 4, pad=0, hidden=HIDDEN, num_heads=HEADS, num_layers=2, **options)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(1, V, (B, N), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("options", [{}, {"positions": "rotary", "query_key_norm": True}, {"positions": "relative"}])
def test_a_language_model_is_recorded_as_it_computes(tokens, options):
    model = language_model(**options).eval()
    recording = record_attention(model, tokens)
    assert list(recording) == ["blocks.0.attention.weights", "blocks.1.attention.weights"]
    with torch.no_grad():
        for weights, expected in zip(recording.values(), model.attention_maps(tokens), strict=True):
            assert weights.shape == (B, HEADS, N, N)
            torch.testing.assert_close(weights, expected)
            assert (weights.triu(1) == 0).all()


def test_the_weights_explain_what_the_attention_returns(tokens):
    model = language_model().eval()
    given, returned = [], []
    attention = model.blocks[1].attention

    def watch(module: nn.Module, arguments: tuple, output: Tensor) -> None:
        given.append(arguments[0])
        returned.append(output)

    with attention.register_forward_hook(watch):
        weights = record_attention(model, tokens)["blocks.1.attention.weights"]
    values = attention.v(given[0]).view(B, N, HEADS, -1).transpose(1, 2)  # (b, h, n, dh)
    expected = attention.mix((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(returned[0], expected)


@pytest.mark.parametrize(
    ("kind", "pool", "names", "heads"),
    [
        ("simple", "mean", ["layers.0.weights"], 1),
        ("full", "max", ["layers.0.weights"], HEADS),
        ("transformer", "mean", ["layers.0.attention.weights", "layers.1.attention.weights"], HEADS),
        ("transformer", "cls", ["layers.0.attention.weights", "layers.1.attention.weights"], HEADS),
    ],
)
def test_a_classifier_is_recorded_without_its_padding(tokens, kind, pool, names, heads):
    tokens[1, 4:] = 0  # padding
    model = classifier(kind, pool=pool, cls=10 if pool == "cls" else None)
    recording = record_attention(model, tokens)
    n = N + (pool == "cls")
    assert list(recording) == names
    for weights in recording.values():
        assert weights.shape == (B, heads, n, n)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(B, heads, n))
        assert (weights[1, :, :, n - 3 :] == 0).all()
        assert (weights[0] > 0).all()


def test_heads_are_not_mixed_up_with_sequences(tokens):
    model = classifier("full", pool="mean")
    together = record_attention(model, tokens)["layers.0.weights"]
    for row in range(B):
        alone = record_attention(model, tokens[row : row + 1])["layers.0.weights"]
        torch.testing.assert_close(together[row], alone[0])


def test_attention_of_ones_own_is_recorded(tokens):
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.read = nn.Embedding(V, HIDDEN), SelfAttention(HIDDEN, 5)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.read(self.embed(tokens))

    weights = record_attention(Mine(), tokens)["read.weights"]
    assert weights.shape == (B, 1, N, N)


def test_attention_inside_other_modules_has_its_whole_path_as_a_name():
    block = TransformerDecoderBlock(HIDDEN, CausalSelfAttention(HIDDEN, HEADS, 9), nn.Identity())
    model = nn.Sequential(nn.Embedding(V, HIDDEN), nn.ModuleDict({"deep": block})["deep"])
    assert [name for name, _ in attention_layers(model)] == ["1.attention"]
    assert [name for name, _ in attention_layers(language_model())] == ["blocks.0.attention", "blocks.1.attention"]


def test_the_model_and_what_it_computes_stay_the_same(tokens):
    model = language_model(dropout=0.4).train()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    torch.manual_seed(5)
    expected = model(tokens)
    state = torch.get_rng_state()
    first = record_attention(model, tokens)
    assert torch.equal(torch.get_rng_state(), state)  # no dropout was drawn
    assert model.training
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    assert not any(module._forward_hooks for module in model.modules())
    torch.manual_seed(5)
    assert torch.equal(model(tokens), expected)
    again = record_attention(model, tokens)
    assert all(torch.equal(first[name], again[name]) for name in first)
    for weights in first.values():
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(B, HEADS, N))
        assert not weights.requires_grad


def test_hooks_go_even_if_the_model_fails():
    model = language_model()
    with pytest.raises(ValueError, match="max_len=9"):
        record_attention(model, torch.ones(1, 10, dtype=torch.long))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_without_attention_is_refused(tokens):
    with pytest.raises(ValueError, match=r"model must have attention with return_attention, got none in Sequential\."):
        record_attention(nn.Sequential(nn.Embedding(V, 2)), tokens)


def test_both_ways_to_ask_are_understood():
    attention = MultiHeadSelfAttention(HIDDEN, HIDDEN, HEADS)

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.read = nn.Embedding(V, HIDDEN), attention

        def forward(self, tokens: Tensor) -> Tensor:
            return self.read(self.embed(tokens), True)[0]  # as positional arguments, where recording asks by name

    assert record_attention(Asks(), torch.ones(2, 4, dtype=torch.long))["read.weights"].shape == (2, HEADS, 4, 4)
