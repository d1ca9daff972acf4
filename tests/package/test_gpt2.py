"""GPT-2's weights in our model: the logits of transformers' own GPT-2. Sizes: (b, h, n, dh) = (2, 3, 5, 4)."""

import pytest
import torch
from torch import Tensor

from transformer_lm.sampling import continuation
from transformer_lm.training.gpt2 import from_gpt2

V, MAX_LEN = 13, 7


@pytest.fixture(scope="module")
def gpt2() -> torch.nn.Module:
    """Return a small GPT-2 in float64, with dropout as always, all of whose weights are random."""
    from transformers import GPT2Config, GPT2LMHeadModel  # seconds, which no other test should wait for

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=V, n_positions=MAX_LEN, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture
def state(gpt2) -> dict[str, Tensor]:
    return dict(gpt2.state_dict())


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (2, 5), generator=torch.Generator().manual_seed(1))


def test_logits_are_those_of_gpt2(gpt2, state, tokens):
    model = from_gpt2(state, num_heads=3)
    with torch.no_grad():
        expected = gpt2(tokens).logits
        assert (model(tokens) - expected).abs().max() < 1e-10
    assert not model.training
    assert (model.config.vocab_size, model.config.max_len, model.config.num_layers) == (V, MAX_LEN, 2)


def test_gradients_are_those_of_gpt2(gpt2, state, tokens):
    model = from_gpt2(state, num_heads=3)
    model(tokens).square().sum().backward()
    gpt2(tokens).logits.square().sum().backward()
    theirs = gpt2.transformer.h[1].attn.c_attn.weight.grad.T.chunk(3)[2]
    torch.testing.assert_close(model.blocks[1].attention.v.weight.grad, theirs, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.embed.tokens.weight.grad, gpt2.transformer.wte.weight.grad, rtol=1e-9, atol=1e-9)


def test_it_writes_what_gpt2_writes(gpt2, state):
    model, prompt = from_gpt2(state, num_heads=3), torch.tensor([[1, 2, 3]])
    theirs = gpt2.generate(prompt, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(continuation(model, prompt, 4, temperature=0), theirs[:, 3:])


def test_a_state_without_the_head_or_with_old_masks_is_the_same(gpt2, state, tokens):
    bare = dict(gpt2.transformer.state_dict())
    old = state | {"transformer.h.0.attn.bias": torch.ones(5, 5), "transformer.h.0.attn.masked_bias": torch.ones(())}
    expected = from_gpt2(state, num_heads=3)(tokens)
    for other in (bare, old):
        assert torch.equal(from_gpt2(other, num_heads=3)(tokens), expected)


def test_weights_are_copies(gpt2, state):
    model = from_gpt2(state, num_heads=3)
    before = gpt2.transformer.wte.weight.detach().clone()
    with torch.no_grad():
        model.embed.tokens.weight += 1
    assert torch.equal(gpt2.transformer.wte.weight, before)


@pytest.mark.parametrize(
    ("missing", "ours"),
    [
        ("ln_f.bias", r"shape \(12,\) as final_norm.bias"),
        ("h.1.attn.c_attn.weight", r"shape \(12, 12\) as blocks.1.attention.k.weight"),
        ("h.0.mlp.c_fc.bias", r"shape \(48,\) as blocks.0.mlp.up.bias"),
    ],
)
def test_what_is_missing_is_named(state, missing, ours):
    del state[f"transformer.{missing}"]
    with pytest.raises(ValueError, match=f"state must fit the model, which has {ours}, got nothing."):
        from_gpt2(state, num_heads=3)


@pytest.mark.parametrize("extra", ["adapter.weight", "h.1.attn.gate.weight", "h.weight", "scale"])
def test_what_is_left_over_is_named(state, extra):
    state[f"transformer.{extra}"] = torch.ones(3)
    words = rf"state must fit the model, which has nothing as {extra}, got shape \(3,\)."
    with pytest.raises(ValueError, match=words):
        from_gpt2(state, num_heads=3)


def test_an_output_with_a_table_of_its_own_is_refused(state):
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    with pytest.raises(ValueError, match=r"one table for tokens and output, got a separate lm_head\.weight"):
        from_gpt2(state, num_heads=3)


def test_what_is_no_gpt2_is_refused():
    with pytest.raises(ValueError, match=r"that of a GPT-2, with wte.weight and wpe.weight, got \['x'\]"):
        from_gpt2({"x": torch.ones(2)}, num_heads=3)


def test_heads_that_do_not_fit_are_refused(state):
    with pytest.raises(ValueError, match="num_heads must divide hidden, got num_heads=5 and hidden=12"):
        from_gpt2(state, num_heads=5)
