"""Sampling: the choice of the next token against a loop, and properties of a stream of tokens.

Sizes: (b, h, n, dh) = (2, 3, 5, 4), a vocabulary of 11 tokens and a context of 8.
"""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.sampling import continuation, next_probabilities, sampled_text, sampled_tokens
from transformer_lm.shapes import ShapeError
from transformer_lm.texts.tokenizers import ByteTokenizer, CharTokenizer

V, MAX_LEN = 11, 8
OPTIONS = {"positions": "rotary", "smear": True, "dropout": 0.3}


@pytest.fixture
def model() -> TransformerLM:
    """Return a model in training mode, whose predictions differ from position to position."""
    return model_of(V, **OPTIONS)


@pytest.fixture
def prompt() -> Tensor:
    return torch.randint(V, (2, 5), generator=torch.Generator().manual_seed(1))


def model_of(vocab_size: int, **options) -> TransformerLM:
    torch.manual_seed(0)
    model = TransformerLM(LMConfig(vocab_size, MAX_LEN, hidden=12, num_heads=3, num_layers=2, **options))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.8)
    return model


def logits_of(b: int = 3, v: int = 7) -> Tensor:
    return 2 * torch.randn(b, v, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def probabilities_of_a_loop(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray:
    """Return row by row what is kept when the tokens are taken from the most likely down. No two may be equal."""
    rows = []
    for row in logits.tolist():
        weights = [math.exp(score / temperature) for score in row]
        downwards = sorted(range(len(row)), key=lambda token: -row[token])[:top_k]
        total = sum(weights[token] for token in downwards)
        kept, mass = [], 0.0
        for token in downwards:
            if top_p is None or mass / total < top_p:
                kept.append(token)
                mass += weights[token]
        rows.append([weights[token] / mass if token in kept else 0.0 for token in range(len(row))])
    return np.array(rows)


def distribution(model: TransformerLM, context: Tensor) -> Tensor:
    """Return the model's probabilities of the next token, (b, v)."""
    model.eval()
    with torch.no_grad():
        return model(context)[:, -1].softmax(-1)


# ------------------------------------------------------------------ equals an independent reference


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("top_k", [None, 1, 3, 7, 100])
@pytest.mark.parametrize("top_p", [None, 0.01, 0.6, 0.95, 1.0])
def test_probabilities_are_those_of_a_loop_over_the_likeliest_tokens(temperature, top_k, top_p):
    logits = logits_of()
    before = logits.clone()
    ours = next_probabilities(logits, temperature, top_k, top_p)
    np.testing.assert_allclose(ours, probabilities_of_a_loop(logits, temperature, top_k, top_p), rtol=0, atol=1e-12)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("cached", [True, False])
def test_tokens_are_drawn_from_what_the_model_expects_of_the_tokens_it_still_remembers(model, prompt, cached):
    drawn = continuation(model, prompt, 20, temperature=0.7, top_k=4, seed=5, cached=cached)
    generator, context, model = torch.Generator().manual_seed(5), prompt, model.eval()
    for place in range(20):
        with torch.no_grad():
            scores = model(context)[:, -1]
        tokens = torch.multinomial(next_probabilities(scores, 0.7, 4), 1, generator=generator)
        assert torch.equal(drawn[:, place : place + 1], tokens), f"token {place}"
        context = torch.cat((context, tokens), dim=1)
        if context.shape[1] == MAX_LEN + 1:  # it forgets the oldest quarter
            context = context[:, -6:]


def test_each_row_continues_its_own_prompt_as_often_as_the_model_expects(model, prompt):
    draws = 4000
    model = model.eval()
    expected = distribution(model, prompt)  # (2, v)
    tokens = continuation(model, prompt.repeat_interleave(draws, dim=0), 1, seed=0).view(2, draws)
    shares = torch.stack([row.bincount(minlength=V) for row in tokens]) / draws
    assert (expected[0] - expected[1]).abs().max() > 0.1  # so that swapped rows would show
    assert (shares - expected).abs().max() < 4 * 0.5 / math.sqrt(draws)  # four standard deviations


# ------------------------------------------------------------------ keeps a property


def test_temperature_0_leaves_the_likeliest_token_alone_and_the_first_of_several():
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, 5.0]])
    assert next_probabilities(logits, temperature=0).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-46, 1e-320])
def test_the_smallest_temperatures_come_near_0_and_are_never_nan(temperature):
    logits = torch.tensor([[1.0, 3.0, 2.0], [-1e4, 1e4, 0.0]])
    assert next_probabilities(logits, temperature).tolist() == [[0, 1, 0], [0, 1, 0]]


def test_equals_of_the_last_of_top_k_stay():
    logits = torch.tensor([[0.0, 2.0, 0.0, -1.0]])
    assert (next_probabilities(logits, top_k=2) > 0).tolist() == [[True, True, True, False]]


def test_top_p_of_1_leaves_even_the_least_likely_token():
    probabilities = next_probabilities(torch.tensor([[20.0, 0.0, -20.0]]), top_p=1.0)
    assert (probabilities > 0).all()
    assert torch.equal(probabilities, next_probabilities(torch.tensor([[20.0, 0.0, -20.0]])))


def test_greedy_sampling_takes_the_likeliest_token_each_time(model, prompt):
    tokens = continuation(model, prompt, 3, temperature=0)
    for place in range(3):
        context = torch.cat((prompt, tokens[:, :place]), dim=1)
        assert torch.equal(tokens[:, place], distribution(model, context).argmax(-1))


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "relative", "none"])
@pytest.mark.parametrize("length", [1, MAX_LEN, MAX_LEN + 3])
def test_the_same_seed_gives_the_same_tokens_with_the_cache_and_without(positions, length):
    model = model_of(V, positions=positions, smear=True).double()
    prompt = torch.randint(V, (2, length), generator=torch.Generator().manual_seed(2))
    with_cache, without, other = (
        continuation(model, prompt, 3 * MAX_LEN, seed=seed, cached=cached)
        for seed, cached in ((7, True), (7, False), (8, True))
    )
    assert torch.equal(with_cache, without)
    assert not torch.equal(with_cache, other)


def test_without_a_seed_two_samples_differ(model, prompt):
    assert not torch.equal(continuation(model, prompt, 30), continuation(model, prompt, 30))


def test_of_a_long_prompt_only_what_fits_makes_a_difference(model, prompt):
    long = torch.cat((torch.zeros_like(prompt), prompt, prompt), dim=1)
    assert torch.equal(continuation(model, long, 5, seed=0), continuation(model, long[:, -MAX_LEN:], 5, seed=0))


def test_a_context_of_one_token_is_enough():
    model = TransformerLM(LMConfig(V, max_len=1, hidden=4, num_heads=2, num_layers=1))
    assert continuation(model, torch.tensor([[3]]), 5, seed=0).shape == (1, 5)


def test_sampling_leaves_the_random_numbers_of_training_as_they_are(model, prompt):
    state = torch.get_rng_state()
    continuation(model, prompt, 5, seed=0)
    continuation(model, prompt, 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_prompt_may_be_of_bytes_and_stays_as_it_is(prompt):
    model = model_of(256)  # one more than the largest byte
    as_bytes = prompt.to(torch.uint8)
    tokens = continuation(model, as_bytes, 12, seed=0)
    assert tokens.dtype == torch.long
    assert torch.equal(tokens, continuation(model, prompt, 12, seed=0))
    assert torch.equal(as_bytes, prompt)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_in_its_own_mode_between_tokens_and_when_the_stream_is_left_alone(model, prompt, training):
    model.train(training)
    modes = []
    model.embed.register_forward_hook(lambda module, *_: modes.append((module.training, torch.is_grad_enabled())))
    stream = sampled_tokens(model, prompt, seed=0)
    assert model.training == training
    for _ in range(3):
        next(stream)
        assert all(module.training == training for module in model.modules())
    del stream
    assert model.training == training
    assert modes == [(False, False)] * 3  # and no graph grows with the text


def test_the_mode_comes_back_after_an_error(model, prompt):
    stream = sampled_tokens(model, prompt)
    model.final_norm = None
    with pytest.raises(TypeError):
        next(stream)
    assert model.training


def test_no_token_carries_a_graph(model, prompt):
    token = next(sampled_tokens(model, prompt))
    assert not token.requires_grad
    assert not token.is_inference()  # a model may learn from it


def test_memory_is_taken_once_and_anew_only_when_the_context_is_full(model, prompt, monkeypatch):
    taken, lengths = [], []
    new_cache = model.new_cache

    def places(cache):
        return [memory.data_ptr() for layer in cache.layers for memory in layer]

    def noted_cache(b):
        cache = new_cache(b)
        taken.append(places(cache))
        return cache

    def noted(read):
        def reads(tokens, cache):
            logits = read(tokens, cache)
            lengths.append(cache.length)
            assert places(cache) == taken[-1]
            return logits

        return reads

    monkeypatch.setattr(model, "new_cache", noted_cache)
    for way in ("forward", "read_one"):
        monkeypatch.setattr(model, way, noted(getattr(model, way)))
    continuation(model, prompt, 4 + 3 + 3)
    assert lengths == [5, 6, 7, 8, 6, 7, 8, 6, 7, 8]
    assert len(taken) == 3


def test_each_new_token_is_read_once(model, prompt):
    read = []
    model.embed.register_forward_hook(lambda _, inputs, output: read.append(output.shape[1]))
    continuation(model, prompt, 10)
    assert read == [5, 1, 1, 1, 6, 1, 1, 6, 1, 1]


def test_pieces_of_text_joined_are_the_text_of_all_tokens():
    tokenizer = CharTokenizer.of("to be or not\n")
    model = model_of(tokenizer.vocab_size)
    pieces = list(sampled_text(model, tokenizer, "to be", 40, seed=3, top_k=5))
    tokens = continuation(model, torch.tensor([tokenizer.encode("to be")]), 40, seed=3, top_k=5)
    assert len(pieces) == 40
    assert "".join(pieces) == tokenizer.decode(tokens[0])


def test_characters_of_several_bytes_come_whole():
    text = "שלום 🙂, é"
    tokenizer = ByteTokenizer()
    written = iter(text.encode())

    class Parrot(nn.Module):
        """Predicts the bytes of the text one by one, whatever its input is."""

        config = LMConfig(256, 4)

        def forward(self, tokens, cache):
            scores = torch.zeros(*tokens.shape, 256)
            scores[..., next(written)] = 100
            return scores

    pieces = list(sampled_text(Parrot(), tokenizer, "é", len(text.encode()), cached=False))
    assert [piece for piece in pieces if piece] == list(text)
    assert len(pieces) == len(text.encode())


def test_random_bytes_give_the_same_text_piece_by_piece_and_at_once():
    model, tokenizer = model_of(256), ByteTokenizer()
    pieces = sampled_text(model, tokenizer, "é\n", 100, seed=1)
    tokens = continuation(model, torch.tensor([tokenizer.encode("é\n")]), 100, seed=1)[0].tolist()
    joined = "".join(pieces)
    assert bytes(tokens).decode(errors="replace").startswith(joined)
    assert len(bytes(tokens).decode(errors="replace")) - len(joined) <= 1  # what is incomplete at the end


def test_pieces_come_one_by_one(model):
    tokenizer = CharTokenizer("abcdefghijk")
    calls = []
    model.embed.register_forward_hook(lambda *_: calls.append(1))
    pieces = sampled_text(model, tokenizer, "abc", 10**9)
    for count in range(1, 4):
        next(pieces)
        assert len(calls) == count


def test_the_methods_of_the_model_sample_lists_of_tokens(model):
    torch.manual_seed(0)
    assert all(0 <= token < V for token in model.sample_continuation([1, 2, 3], 20))
    assert len(model.sample_continuation([1, 2, 3], 20)) == 20
    greedy = model.better_sample_continuation([1, 2, 3], 6, temperature=0.0)
    assert greedy == model.better_sample_continuation([1, 2, 3], 6, 1.0, 1)
    assert greedy == continuation(model, torch.tensor([[1, 2, 3]]), 6, temperature=0)[0].tolist()


def test_no_tokens_are_a_continuation_too(model, prompt):
    assert continuation(model, prompt, 0).shape == (2, 0)
    assert list(sampled_text(model, CharTokenizer("abcdefghijk"), "a", 0)) == []


# ------------------------------------------------------------------ refuses bad input with the right words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -0.5}, "temperature must be 0 (greedy) or more, and finite, got -0.5."),
        ({"temperature": math.nan}, "temperature must be 0 (greedy) or more, and finite, got nan."),
        ({"temperature": math.inf}, "temperature must be 0 (greedy) or more, and finite, got inf."),
        ({"top_k": 0}, "top_k must be a whole number from 1 on, or None for all tokens, got 0."),
        ({"top_k": True}, "top_k must be a whole number from 1 on, or None for all tokens, got True."),
        ({"top_k": 2.5}, "top_k must be a whole number from 1 on, or None for all tokens, got 2.5."),
        ({"top_k": math.inf}, "top_k must be a whole number from 1 on, or None for all tokens, got inf."),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, or None for all tokens, got 0."),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, or None for all tokens, got 1.5."),
        ({"top_p": math.nan}, "top_p must be above 0 and at most 1, or None for all tokens, got nan."),
    ],
)
def test_impossible_options_are_refused_before_the_first_token(model, prompt, options, words):
    for call in (
        lambda: next_probabilities(logits_of(), **options),
        lambda: sampled_tokens(model, prompt, **options),
        lambda: sampled_text(model, CharTokenizer("abcdefghijk"), "a", 5, **options),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            call()


def test_an_empty_prompt_is_refused(model):
    words = "prompt must have at least one token, got none: a line break is a good start."
    for call in (
        lambda: sampled_tokens(model, torch.zeros(2, 0, dtype=torch.long)),
        lambda: model.sample_continuation([], 5),
        lambda: sampled_text(model, CharTokenizer("abcdefghijk"), "", 5),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("outside", [-1, V])
def test_a_token_outside_the_vocabulary_is_refused(model, outside):
    with pytest.raises(ValueError, match=f"prompt must have tokens from 0 to 10, got {outside}."):
        sampled_tokens(model, torch.tensor([[3, outside, 4]]))


def test_a_prompt_without_a_batch_is_refused(model):
    with pytest.raises(ShapeError, match=r"prompt must have the 2 axes \(b, n\), got 1"):
        sampled_tokens(model, torch.tensor([3, 4]))


def test_less_than_no_tokens_are_refused(model, prompt):
    for call in (
        lambda: continuation(model, prompt, -1),
        lambda: sampled_text(model, CharTokenizer("abcdefghijk"), "a", -1),
    ):
        with pytest.raises(ValueError, match="num_tokens must be 0 or more, got -1"):
            call()


def test_a_character_that_the_model_does_not_know_is_refused_before_the_first_token(model):
    with pytest.raises(ValueError, match=r"got 1 others: 'z' \(U\+007A\)"):
        sampled_text(model, CharTokenizer("abcdefghijk"), "az", 5)


def test_scores_without_a_batch_are_refused():
    with pytest.raises(ShapeError, match=r"logits must have the 2 axes \(b, v\), got 1"):
        next_probabilities(torch.zeros(5))


def test_a_stream_has_no_end(model, prompt):
    assert len(list(itertools.islice(sampled_tokens(model, prompt), 30))) == 30
