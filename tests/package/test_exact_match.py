"""How well a model translates: exact translations, where it attends, and what lesson 06 says about it."""

import json
import statistics

import pytest
import torch
from checkout import ROOT

from transformer_lm.heads.recording import record_attention
from transformer_lm.modeling_encoder_decoder import EncoderDecoderConfig, TransformerEncoderDecoder
from transformer_lm.modeling_recurrent import RecurrentConfig, RecurrentEncoderDecoder
from transformer_lm.texts.pairs import load_toy_pairs, padded_pairs
from transformer_lm.texts.toy_languages import toy_translation
from transformer_lm.texts.word_tokenizers import END, PAD, START
from transformer_lm.training.pretrained import load_trained
from transformer_lm.translation.decoding import translated
from transformer_lm.translation.exact_match import aligned_share, cross_attention_map, exact_translations

RESULTS = json.loads((ROOT / "notebooks" / "translation_results.json").read_text())
LONG = ("17 to 20", "21 or more")
RECURRENT = [name for name in RESULTS["models"] if name != "transformer"]


class Dictionary(torch.nn.Module):
    """A fake model: it gives fixed translations for each source, with fixed attention weights."""

    def __init__(self, pairs, alignments=()) -> None:
        super().__init__()
        self.answers = {tuple(source): [*target, END] for source, target in pairs}
        self.alignments = dict(alignments)

    def forward(self, source, target):
        logits = torch.zeros(*target.shape, 500)
        for row, words in enumerate(source.tolist()):
            answer = self.answers[tuple(word for word in words if word != PAD)]
            for place in range(target.shape[1]):
                logits[row, place, answer[min(place, len(answer) - 1)]] = 1.0
        return logits

    def attention_map(self, source, target):
        weights = torch.zeros(*target.shape, source.shape[1])
        for row, words in enumerate(source.tolist()):
            for place, looked in enumerate(self.alignments[tuple(word for word in words if word != PAD)]):
                weights[row, place, looked] = 1.0
        return weights


@pytest.fixture(scope="module")
def corpus():
    return load_toy_pairs(200)


def test_a_translation_is_exact_if_every_word_and_the_end_are_right(corpus):
    (first, second, third, fourth), wrong = corpus.train[:4], corpus.train[9][1]
    told = [first, (second[0], wrong), (third[0], third[1][:-1]), (fourth[0], [*fourth[1], fourth[1][0]])]
    assert exact_translations(Dictionary(told), [first, second, third, fourth]) == [True, False, False, False]


def test_exactness_comes_back_in_the_order_of_the_pairs(corpus):
    pairs = corpus.train[:60]
    rights = [place % 3 == 0 for place in range(60)]
    told = [(source, target if right else target[::-1]) for (source, target), right in zip(pairs, rights, strict=True)]
    assert exact_translations(Dictionary(told), pairs) == rights


def test_alignment_is_the_share_of_words_that_are_looked_for_at_the_right_place(corpus):
    pairs = corpus.train[:12]
    right = {tuple(s): toy_translation(corpus.source_tokenizer.decode(s)).alignment for s, _ in pairs}
    assert aligned_share(Dictionary(pairs, right), corpus.tokenizer, pairs) == 1.0
    wrong = {source: [(place + 1) % len(source) for place in places] for source, places in right.items()}
    assert aligned_share(Dictionary(pairs, wrong), corpus.tokenizer, pairs) == 0.0
    once = {source: [places[0], *(len(source) - 1 - place for place in places[1:])] for source, places in right.items()}
    assert 0 < aligned_share(Dictionary(pairs, once), corpus.tokenizer, pairs) < 1


def test_the_map_is_the_mean_of_the_heads_of_the_last_layer(corpus):
    torch.manual_seed(0)
    sizes = corpus.source_tokenizer.vocab_size, corpus.target_tokenizer.vocab_size
    source, target = padded_pairs(corpus.train[:3])
    model = TransformerEncoderDecoder(EncoderDecoderConfig(*sizes, hidden=8, num_layers=2, num_heads=2))
    maps = record_attention(model, source, target)
    expected = maps["decoder_blocks.1.cross_attention.weights"].mean(dim=1)
    assert torch.equal(cross_attention_map(model, source, target), expected)
    recurrent = RecurrentEncoderDecoder(RecurrentConfig(*sizes, hidden=4))
    looked = cross_attention_map(recurrent, source, target)
    assert looked.shape == expected.shape
    assert recurrent.training
    torch.testing.assert_close(looked.sum(dim=-1), torch.ones(looked.shape[:2]))


# The model that comes with the course, and what lesson 06 says about all of them.


@pytest.fixture(scope="module")
def trained():
    return load_trained("lorin")


def test_the_trained_model_translates_sentences_that_it_has_not_seen(trained):
    model, tokenizer = trained
    test = load_toy_pairs(4000).test
    exact = exact_translations(model, test)
    assert sum(exact) / len(exact) >= 0.98
    assert aligned_share(model, tokenizer, test) >= 0.95


def test_the_output_of_the_trained_model_follows_the_source(trained):
    """A model that ignores its source may have the right shapes, and even good sentences."""
    model, tokenizer = trained
    sentences = [f"the {noun} banel sees two owls and banel sings ." for noun in ("goat", "king", "dog", "mouse")]
    found = translated(model, tokenizer, sentences)
    assert found == [toy_translation(sentence).target for sentence in sentences]
    assert len(set(found)) == 4


def test_the_trained_model_reads_a_source_that_is_padded_more(trained):
    model, tokenizer = trained
    source = torch.tensor([tokenizer.source.encode("the goat banel sees two owls .")])
    target = torch.tensor([[START, *tokenizer.target.encode("banel ruve huvanos")]])
    longer = torch.nn.functional.pad(source, (0, 5), value=PAD)
    torch.testing.assert_close(model(source, target), model(longer, target), rtol=1e-4, atol=1e-4)


def mean_share(runs, length=None):
    """Return the fraction of exact translations over the seeds, of all sentences or of those of a length."""
    return statistics.mean(run["by_length"][length] if length else run["exact"] for run in runs)


def test_the_transformer_gets_99_of_100_sentences_right_within_three_minutes():
    for run in RESULTS["models"]["transformer"]:
        assert run["exact"] >= 0.99
        assert run["aligned"] >= 0.95
        assert run["seconds"] < 180
        assert run["threads"] <= 2


@pytest.mark.parametrize("name", RESULTS["models"])
def test_every_model_has_three_seeds_at_the_rate_that_was_best_on_the_validation_part(name):
    tried = [run for run in RESULTS["tried"][name] if run["seed"] == 0]
    assert sorted(run["rate"] for run in tried) == RESULTS["rates"][name]
    best = max(tried, key=lambda run: run["validation"])
    assert best["rate"] in RESULTS["rates"][name][1:-1]
    runs = RESULTS["models"][name]
    assert [(run["seed"], run["rate"]) for run in runs] == [(seed, best["rate"]) for seed in range(3)]
    assert best in runs


@pytest.mark.parametrize("name", RECURRENT)
def test_the_transformer_is_above_the_recurrent_nets_with_as_many_parameters(name):
    """On all sentences, and on those that are longer than most in training; the networks have a few more parameters."""
    runs, transformer = RESULTS["models"][name], RESULTS["models"]["transformer"]
    for ours, theirs in zip(transformer, runs, strict=True):
        assert 1 <= theirs["parameters"] / ours["parameters"] < 1.02
        assert ours["exact"] > theirs["exact"]
    assert sum(RESULTS["train_lengths"][length] for length in LONG) < 0.12
    for length in LONG:
        assert mean_share(transformer, length) > mean_share(runs, length)


@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_attention_repairs_long_sentences(cell):
    without, with_attention = (RESULTS["models"][name] for name in (cell, f"{cell} with attention"))
    for length in ("13 to 16", "17 to 20"):
        assert min(run["by_length"][length] for run in with_attention) > 0.5
        assert max(run["by_length"][length] for run in without) < 0.25
