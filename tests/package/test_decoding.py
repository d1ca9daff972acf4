"""Decoding: beam search against an enumeration of all translations, and properties of all three ways to decode.

Sizes: (b, m) = (3, 5); 9 tokens in the source, 7 in the target. The fake model has 5 tokens, so that there are
few enough translations to try them all.
"""

import itertools
import math
import random
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from transformer_lm.modeling_encoder_decoder import EncoderDecoderConfig, TransformerEncoderDecoder
from transformer_lm.modeling_recurrent import RecurrentConfig, RecurrentEncoderDecoder
from transformer_lm.shapes import ShapeError
from transformer_lm.texts.word_tokenizers import END, PAD, START
from transformer_lm.training.pretrained import load_trained
from transformer_lm.translation.decoding import beam_search, greedy_decode, sample_decode, translated

V, SOURCE_V, TARGET_V, MAX_LEN = 5, 9, 7, 6
ALPHAS = (0.0, 0.7, 1.0, 2.0)
SEEDS = {"transformer": 15, "gru": 2, "lstm": 2, "gru without attention": 6}  # translations of several lengths
each_model = pytest.mark.parametrize("kind", SEEDS)
each_alpha = pytest.mark.parametrize("alpha", ALPHAS)
DECODERS = {
    "greedy": greedy_decode,
    "sample": lambda model, source, **options: sample_decode(model, source, seed=3, **options),
    "beam": lambda model, source, **options: beam_search(model, source, beams=3, **options)[0],
}
each_decoder = pytest.mark.parametrize("name", DECODERS)


class StandIn(nn.Module):
    """A fake model: a function gives the scores after a sequence, from its source and the sequence.

    It counts how often it is called, and how many sequences it has read.
    """

    def __init__(self, scores: Callable[[tuple[int, ...], tuple[int, ...]], list[float]]) -> None:
        super().__init__()
        self.scores, self.calls, self.rows = scores, 0, 0

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        self.calls, self.rows = self.calls + 1, self.rows + len(target)
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        return torch.tensor(
            [[self.scores(tuple(read), tuple(row[:n])) for n in range(1, len(row) + 1)] for read, row in pairs],
            dtype=torch.float64,
        )


def any_scores(source: tuple[int, ...], row: tuple[int, ...]) -> list[float]:
    """Return random scores, the same for the same source and tokens so far."""
    drawn = random.Random(f"{source} {row}")
    return [drawn.gauss(0, 1.5) for _ in range(V)]


def likely(**probabilities: dict[int, float]) -> StandIn:
    """Return a fake model, from the probability of each token after those so far: `_14` is 1, 4."""

    def scores(_: tuple[int, ...], row: tuple[int, ...]) -> list[float]:
        shares = probabilities.get("_" + "".join(map(str, row)), {END: 1.0})
        return [math.log(shares.get(token, 1e-9)) for token in range(V)]

    return StandIn(scores)


def log_probabilities(scores: list[float]) -> list[float]:
    total = math.log(sum(map(math.exp, scores)))
    return [score - total for score in scores]


def everything(source, max_len, start=START, end=END, pad=PAD, row=(), total=0.0):
    """Yield all translations of a source, (tokens, sum of log-probabilities): finished ones, and those cut off."""
    if len(row) == max_len or (row and row[-1] == end):
        yield row, total
        return
    for token, score in enumerate(log_probabilities(any_scores(source, (start, *row)))):
        if token != pad:  # it is not a word
            yield from everything(source, max_len, start, end, pad, (*row, token), total + score)


def best_of_lists(source, beams, max_len, alpha):
    """Return the result of a beam search that keeps lists: tokens and score."""
    kept = [((), 0.0)]

    def score(found: tuple[tuple[int, ...], float]) -> float:
        return found[1] / len(found[0]) ** alpha

    for _ in range(max_len):
        longer = []
        for row, total in kept:
            if row and row[-1] == END:
                longer.append((row, total))
                continue
            steps = log_probabilities(any_scores(source, (START, *row)))
            longer += [((*row, token), total + step) for token, step in enumerate(steps) if token != PAD]
        kept = sorted(longer, key=score, reverse=True)[:beams]
    return kept[0][0], score(kept[0])


def model_of(kind: str) -> nn.Module:
    """Return a model in training mode that never predicts padding, and predicts END about as often as other tokens."""
    torch.manual_seed(SEEDS[kind])
    if kind == "transformer":
        model = TransformerEncoderDecoder(EncoderDecoderConfig(SOURCE_V, TARGET_V, 12, 8, 2, 2, dropout=0.3))
    else:
        cell, attention = kind.split()[0], "without" not in kind
        model = RecurrentEncoderDecoder(RecurrentConfig(SOURCE_V, TARGET_V, 4, cell, attention, dropout=0.3))
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=4.0 if "cross_attention" in name else 0.9)
    liking = torch.zeros(TARGET_V, dtype=torch.float64)
    liking[PAD] = -50.0
    model.unembed.register_forward_hook(lambda _, __, scores: scores + liking)
    return model.double()


@pytest.fixture
def source() -> Tensor:
    """Return sources (b, m) of different lengths, padded."""
    source = torch.randint(4, SOURCE_V, (3, 5), generator=torch.Generator().manual_seed(0))
    source[1, 3:] = PAD
    return source


def short_source(b: int = 3) -> Tensor:
    """Return other sources, for the fake model."""
    return torch.arange(2 * b).view(b, 2) + 4


def own_score(model: nn.Module, source: Tensor, found: Tensor, alpha: float) -> Tensor:
    """Return the scores of tokens (b, n), END among them, from one pass."""
    inputs = torch.cat((torch.full((len(found), 1), START), found[:, :-1]), dim=1)
    chosen = model(source, inputs).log_softmax(-1).gather(2, found[:, :, None])[:, :, 0]  # (b, n)
    real = ((found == END).cumsum(1) - (found == END).long()) == 0  # up to the first END
    return (chosen * real).sum(1) / real.sum(1) ** alpha


def assert_nothing_but_padding_after_the_end(found: Tensor) -> None:
    for row in found.tolist():
        if END in row:
            assert set(row[row.index(END) + 1 :]) <= {PAD}


# ------------------------------------------------------------------ equals an independent reference


@each_alpha
def test_a_beam_search_with_as_many_beams_as_rows_finds_the_best_of_everything(alpha):
    source, max_len = short_source(), 3
    beams = len(list(everything((0, 0), max_len)))
    assert beams == 1 + 3 + 9 + 27  # one of the 5 tokens ends a sequence, and none of them is padding
    found, scores = beam_search(StandIn(any_scores), source, beams=beams, max_len=max_len, alpha=alpha)
    for row, ours, score in zip(source.tolist(), found.tolist(), scores.tolist(), strict=True):
        rows = everything(tuple(row), max_len)
        best, total = max(rows, key=lambda found: found[1] / len(found[0]) ** alpha)
        assert ours == [*best, *[PAD] * (len(ours) - len(best))]
        assert score == pytest.approx(total / len(best) ** alpha, rel=1e-5)


def test_these_sources_tell_one_alpha_from_another():
    found = [beam_search(StandIn(any_scores), short_source(), beams=40, max_len=3, alpha=alpha)[0] for alpha in ALPHAS]
    assert len({str(tokens.tolist()) for tokens in found}) > 1


@each_alpha
@pytest.mark.parametrize("beams", [1, 2, 3, 7])
def test_a_beam_search_equals_one_that_keeps_lists(alpha, beams):
    source = short_source(4)
    found, scores = beam_search(StandIn(any_scores), source, beams=beams, max_len=5, alpha=alpha)
    for row, ours, score in zip(source.tolist(), found.tolist(), scores.tolist(), strict=True):
        best, expected = best_of_lists(tuple(row), beams, 5, alpha)
        assert ours == [*best, *[PAD] * (len(ours) - len(best))]
        assert score == pytest.approx(expected, rel=1e-5)


@each_model
def test_greedy_takes_the_likeliest_token_of_one_pass_over_all_so_far(kind, source):
    model = model_of(kind)
    found = greedy_decode(model, source, max_len=MAX_LEN)
    assert_nothing_but_padding_after_the_end(found)
    assert len({(row == PAD).sum().item() for row in found}) > 1
    inputs = torch.cat((torch.full((3, 1), START), found[:, :-1]), dim=1)
    expected = model.eval()(source, inputs).argmax(-1)
    assert torch.equal(torch.where(found == PAD, PAD, expected), found)


@each_model
@each_alpha
def test_one_beam_is_greedy(kind, alpha, source):
    model = model_of(kind)
    found, _ = beam_search(model, source, beams=1, max_len=MAX_LEN, alpha=alpha)
    assert torch.equal(found, greedy_decode(model, source, max_len=MAX_LEN))


@each_model
@each_alpha
def test_the_score_of_a_beam_is_that_of_its_own_tokens_in_one_pass(kind, alpha, source):
    model = model_of(kind)
    found, scores = beam_search(model, source, beams=3, max_len=MAX_LEN, alpha=alpha)
    assert_nothing_but_padding_after_the_end(found)
    torch.testing.assert_close(scores, own_score(model.eval(), source, found, alpha), rtol=1e-5, atol=1e-5)


@each_decoder
@each_model
def test_what_is_remembered_changes_nothing(name, kind, source):
    model = model_of(kind)
    cached, anew = (DECODERS[name](model, source, max_len=MAX_LEN, cached=cached) for cached in (True, False))
    assert torch.equal(cached, anew)


def test_a_model_that_remembers_does_not_read_anything_again(source):
    model, lengths = model_of("transformer"), []
    model.target_embed.register_forward_hook(lambda _, given, __: lengths.append(given[0].shape[1]))
    for decode in DECODERS.values():
        decode(model, source, max_len=MAX_LEN)
    assert set(lengths) == {1}
    greedy_decode(model, source, max_len=MAX_LEN, cached=False)
    assert max(lengths) > 1


def test_first_tokens_are_drawn_as_often_as_the_model_expects(source):
    draws, model = 4000, model_of("transformer").eval()
    expected = model(source[:2], torch.full((2, 1), START))[:, 0].softmax(-1)
    drawn = sample_decode(model, source[:2].repeat_interleave(draws, dim=0), seed=0, max_len=1).view(2, draws)
    shares = torch.stack([row.bincount(minlength=TARGET_V) for row in drawn]) / draws
    assert (expected[0] - expected[1]).abs().max() > 0.1  # so that swapped rows would show
    assert (shares - expected).abs().max() < 4 * 0.5 / math.sqrt(draws)  # four standard deviations


# ------------------------------------------------------------------ keeps a property


@each_model
@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_sentences_of_a_batch_are_decoded_as_each_alone(name, kind, source):
    model = model_of(kind)
    together = DECODERS[name](model, source, max_len=MAX_LEN)
    for row in range(3):
        alone = DECODERS[name](model, source[row : row + 1, : (source[row] != PAD).sum()], max_len=MAX_LEN)
        n = alone.shape[1]
        assert torch.equal(together[row, :n], alone[0])
        assert (together[row, n:] == PAD).all()


def test_each_beam_belongs_to_its_own_source():
    source = short_source(4)
    together, scores = beam_search(StandIn(any_scores), source, beams=3, max_len=5)
    for row in range(4):
        alone, score = beam_search(StandIn(any_scores), source[row : row + 1], beams=3, max_len=5)
        assert torch.equal(together[row, : alone.shape[1]], alone[0])
        assert scores[row] == score[0]


def ends_after(source: tuple[int, ...], row: tuple[int, ...]) -> list[float]:
    """Return scores with which a sentence has as many tokens as the first number of its source says, END among them."""
    scores = [0.0, 0.0, 0.0, 1.0, 2.0]
    return (
        [*scores[:END], 90.0, *scores[END + 1 :]]
        if len(row) >= source[0]
        else [*scores[:END], -90.0, *scores[END + 1 :]]
    )


@each_decoder
def test_nothing_but_padding_comes_after_the_end_and_no_call_after_the_last_end(name):
    source, model = torch.tensor([[2], [4], [1]]), StandIn(ends_after)
    found = DECODERS[name](model, source, max_len=9)
    assert found.shape == (3, 4)
    assert [row.index(END) + 1 for row in found.tolist()] == [2, 4, 1]
    assert_nothing_but_padding_after_the_end(found)
    assert found[2].tolist() == [END, PAD, PAD, PAD]
    if name != "beam":  # where other beams may be longer
        assert model.calls == 4


def test_one_beam_makes_no_call_after_the_last_end():
    model = StandIn(ends_after)
    assert beam_search(model, torch.tensor([[2], [4], [1]]), beams=1, max_len=9)[0].shape == (3, 4)
    assert model.calls == 4


def test_a_beam_search_stops_once_all_beams_have_ended():
    """Every likely translation is over after two tokens."""
    model = likely(_1={3: 0.5, 4: 0.5}, _13={END: 1.0}, _14={END: 1.0})
    beam_search(model, short_source(1), beams=2, max_len=50)
    assert model.calls == 2
    assert model.rows == 2 * 2


def test_places_that_nothing_can_fill_do_not_keep_a_search_going():
    """There is one translation, and room for three."""
    model = StandIn(lambda _, row: [0.0 if token == (4 if len(row) == 1 else END) else -math.inf for token in range(V)])
    found, scores = beam_search(model, short_source(2), beams=3, max_len=50)
    assert found.tolist() == [[4, END]] * 2
    assert scores.tolist() == [0.0] * 2
    assert model.calls == 2


@each_decoder
@pytest.mark.parametrize("max_len", [1, 3])
def test_no_translation_is_longer_than_max_len(name, max_len):
    source, model = torch.tensor([[9], [2]]), StandIn(ends_after)
    found = DECODERS[name](model, source, max_len=max_len)
    assert found.shape == (2, max_len)
    assert END not in found[0]
    assert model.calls == max_len


@each_alpha
def test_a_score_of_what_is_cut_off_has_no_end_in_it(alpha):
    found, scores = beam_search(StandIn(ends_after), torch.tensor([[9]]), beams=2, max_len=3, alpha=alpha)
    assert END not in found
    torch.testing.assert_close(scores, own_score(StandIn(ends_after), torch.tensor([[9]]), found, alpha))


def test_a_translation_that_is_finished_is_kept_while_others_go_on():
    """The empty translation has probability one half; every other is less likely, however it goes on."""
    model = likely(_1={END: 0.5, 3: 0.3, 4: 0.2}, _13={3: 0.5, 4: 0.5}, _14={3: 0.5, 4: 0.5})
    found, scores = beam_search(model, short_source(1), beams=2, max_len=4, alpha=0.0)
    assert found.tolist() == [[END]]
    assert scores.item() == pytest.approx(math.log(0.5), rel=1e-6)


def test_the_first_translation_that_is_finished_need_not_be_the_best():
    model = likely(_1={END: 0.6, 3: 0.4}, _13={END: 0.99, 4: 0.01})
    for alpha, expected in ((0.0, [END]), (2.0, [3, END])):
        found, _ = beam_search(model, short_source(1), beams=2, max_len=4, alpha=alpha)
        assert found.tolist() == [expected]


def test_a_beam_finds_what_greedy_misses():
    model = likely(_1={3: 0.6, 4: 0.4}, _13={3: 0.35, 4: 0.35, END: 0.3}, _14={END: 1.0})
    assert greedy_decode(model, short_source(1)).tolist()[0][0] == 3
    found, scores = beam_search(model, short_source(1), beams=2, alpha=0.0, max_len=4)
    assert found.tolist() == [[4, END]]
    assert scores.item() == pytest.approx(math.log(0.4), rel=1e-6)


def test_more_beams_than_there_are_rows_change_nothing():
    source = short_source()
    few, many = (beam_search(StandIn(any_scores), source, beams=beams, max_len=2) for beams in (21, 200))
    assert torch.equal(few[0], many[0])
    assert torch.equal(few[1], many[1])


def test_control_tokens_may_be_others():
    start, end, pad = 3, 4, 1
    source, model = short_source(), StandIn(any_scores)
    found, _ = beam_search(model, source, start, end, beams=40, max_len=3, alpha=0.0, pad=pad)
    for row, ours in zip(source.tolist(), found.tolist(), strict=True):
        best, _ = max(everything(tuple(row), 3, start, end, pad), key=lambda found: found[1])
        assert ours == [*best, *[pad] * (len(ours) - len(best))]
    greedy = greedy_decode(model, source, start, end, pad, max_len=4)
    assert torch.equal(greedy, beam_search(model, source, start, end, beams=1, max_len=4, pad=pad)[0])
    for row in greedy.tolist():
        assert end not in row or set(row[row.index(end) + 1 :]) <= {pad}


@each_model
def test_temperature_0_and_the_single_likeliest_token_are_greedy(kind, source):
    model = model_of(kind)
    greedy = greedy_decode(model, source, max_len=MAX_LEN)
    for options in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}):
        assert torch.equal(sample_decode(model, source, max_len=MAX_LEN, **options), greedy)


def test_the_same_seed_gives_the_same_tokens_and_others_give_others(source):
    model = model_of("gru")
    drawn = [
        sample_decode(model, source, seed=seed, max_len=MAX_LEN, temperature=2.0) for seed in (5, 5, 6, None, None)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert len({str(tokens.tolist()) for tokens in drawn}) == 4


@each_decoder
def test_the_random_numbers_of_others_are_left_alone(name, source):
    model = model_of("gru")
    state = torch.get_rng_state()
    DECODERS[name](model, source, max_len=3)
    sample_decode(model, source, max_len=3)
    assert torch.equal(torch.get_rng_state(), state)


@each_decoder
@each_model
@pytest.mark.parametrize("training", [True, False])
def test_a_model_drops_nothing_and_is_in_its_own_mode_again(name, kind, training, source):
    model, modes = model_of(kind).train(training), set()
    model.unembed.register_forward_hook(lambda module, *_: modes.add(module.training))
    DECODERS[name](model, source, max_len=2)
    assert modes == {False}
    assert all(module.training == training for module in model.modules())


@each_decoder
def test_a_model_that_fails_is_in_its_own_mode_again(name, source):
    model = model_of("transformer")
    with pytest.raises(ShapeError, match="target must have at most max_len=12 tokens, got 13"):
        DECODERS[name](StubbornModel(model), source, max_len=20)
    assert model.training


class StubbornModel(nn.Module):
    """A model that never predicts END."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.begin = model, model.begin

    def next_scores(self, tokens: Tensor, state: object) -> Tensor:
        return self.model.next_scores(tokens, state).index_fill(1, torch.tensor([END]), -math.inf)


@each_decoder
@each_model
def test_tokens_can_be_trained_on_and_the_source_stays_as_it_was(name, kind, source):
    model, before = model_of(kind), source.clone()
    found = DECODERS[name](model, source, max_len=4)
    assert found.dtype == torch.long
    assert torch.equal(source, before)
    found = found.masked_fill(found == PAD, END)
    model(source, found).sum().backward()
    assert model.target_embed.weight.grad.abs().sum() > 0


def test_no_gradient_is_recorded(source):
    _, scores = beam_search(model_of("gru"), source, beams=2, max_len=3)
    assert not scores.requires_grad


# ------------------------------------------------------------------ refuses bad input with the right words


@each_decoder
@pytest.mark.parametrize("max_len", [0, -1])
def test_translations_of_no_tokens_are_refused(name, max_len, source):
    with pytest.raises(ValueError, match=f"max_len must be 1 or more, got {max_len}"):
        DECODERS[name](model_of("gru"), source, max_len=max_len)


@pytest.mark.parametrize("beams", [0, -2])
def test_less_than_one_beam_is_refused(beams, source):
    with pytest.raises(ValueError, match=f"beams must be 1 or more, got {beams}"):
        beam_search(model_of("gru"), source, beams=beams)


@each_decoder
def test_a_source_without_a_batch_is_refused(name, source):
    with pytest.raises(ShapeError, match=r"source must have the 2 axes \(b, m\), got 1"):
        DECODERS[name](model_of("gru"), source[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -0.5}, "temperature must be 0 (greedy) or more, and finite, got -0.5."),
        ({"top_k": 0}, "top_k must be a whole number from 1 on, or None for all tokens, got 0."),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, or None for all tokens, got 1.5."),
    ],
)
def test_impossible_options_are_refused(options, words, source):
    with pytest.raises(ValueError, match=re.escape(words)):
        sample_decode(model_of("gru"), source, **options)


def test_what_stands_for_a_model_gives_the_same_scores_whatever_is_read_with_them():
    rows = list(itertools.product(range(V), repeat=2))
    together = StandIn(any_scores)(torch.zeros(len(rows), 1, dtype=torch.long), torch.tensor(rows))
    for row, scores in zip(rows, together, strict=True):
        assert scores[1].tolist() == any_scores((0,), row)


@pytest.mark.parametrize(("sentences", "words"), [([], "got []"), ("the cat sings .", "got 'the cat sings .'")])
def test_something_else_than_a_list_of_sentences_is_refused(sentences, words):
    model, tokenizer = load_trained("lorin")
    with pytest.raises(ValueError, match=re.escape(f"sentences must be a list of at least one, {words}.")):
        translated(model, tokenizer, sentences)
    with pytest.raises(ValueError, match="every sentence must have a word, got none in number 1"):
        translated(model, tokenizer, ["the cat sings .", " "])


def test_a_model_that_can_read_no_more_ends_its_sentences_there():
    torch.manual_seed(0)
    model = TransformerEncoderDecoder(EncoderDecoderConfig(9, 5, max_len=6, hidden=4, num_layers=1, num_heads=2))
    with torch.no_grad():
        model.unembed.weight[END] = 0
    source = torch.tensor([[4, 5, 6]])
    assert greedy_decode(model, source).shape[1] <= 6
    assert beam_search(model, source, beams=2)[0].shape[1] <= 6
