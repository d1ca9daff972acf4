"""Scores of heads and of the two baselines that know nothing, against loops over every query and key.

Sizes: 2 layers, 3 heads, batches of 2 and 4 texts, 11 positions.
"""

import math
import random

import pytest
import torch
from torch import Tensor

from transformer_lm.heads.character_classes import CLASSES, Alphabet
from transformer_lm.heads.patterns import PATTERNS
from transformer_lm.heads.planted import planted_model, planted_text, planted_tokenizer
from transformer_lm.heads.recording import record_attention
from transformer_lm.heads.scores import HeadSums, Measured, by_distance, measure_heads, rollout
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.shapes import ShapeError
from transformer_lm.texts.tokenizers import CharTokenizer

L, B, H, N = 2, 6, 3, 11
TOKENIZER = CharTokenizer("eE tTa,\n")
ALPHABET = Alphabet.of(TOKENIZER)
V = TOKENIZER.vocab_size


def causal_weights(*shape: int, seed: int = 0) -> Tensor:
    scores = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scores.masked_fill(torch.ones(shape[-2:]).triu(1).bool(), -math.inf).softmax(dim=-1)


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return torch.randint(V, (B, N), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def recording() -> dict[str, Tensor]:
    return {f"blocks.{layer}.attention.weights": causal_weights(B, H, N, N, seed=layer) for layer in range(L)}


@pytest.fixture(scope="module")
def measured(recording, tokens) -> Measured:
    return summed(recording, tokens, B)


def summed(recording: dict[str, Tensor], tokens: Tensor, b: int) -> Measured:
    """Return the measurements if the texts come in batches of b."""
    sums = HeadSums(ALPHABET, PATTERNS)
    for start in range(0, len(tokens), b):
        part = slice(start, start + b)
        sums.add({name: weights[part] for name, weights in recording.items()}, tokens[part])
    return sums.measured()


def mean_over_queries(weights: Tensor, mask: Tensor) -> float:
    """Return the mean weight on the keys of a mask over the queries that have one, query by query."""
    found = [
        sum(weights[b, i, j].item() for j in range(N) if mask[b, i, j])
        for b in range(B)
        for i in range(N)
        if mask[b, i].any()
    ]
    return sum(found) / len(found)


@pytest.mark.parametrize("name", PATTERNS)
def test_score_chance_and_null_are_means_over_the_queries_that_have_a_key(name, measured, recording, tokens):
    mask, found = PATTERNS[name](tokens, ALPHABET), measured.patterns[name]
    uniform = torch.stack([torch.tensor([1 / (i + 1) if j <= i else 0 for j in range(N)]) for i in range(N)])
    assert found.chance == pytest.approx(mean_over_queries(uniform.expand(B, N, N), mask))
    assert found.queries == mask.any(dim=-1).sum()
    for layer, weights in enumerate(recording.values()):
        for head in range(H):
            one = weights[:, head]
            assert found.score[layer, head].item() == pytest.approx(mean_over_queries(one, mask))
            assert found.null[layer, head].item() == pytest.approx(mean_over_queries(blind(one), mask))


def blind(weights: Tensor) -> Tensor:
    """Return for (b, i, j) the weights of a head that gives to each distance its mean, rows made to sum to 1."""
    profile = [torch.stack([weights[:, i, i - k] for i in range(k, N)]).mean() for k in range(N)]
    table = torch.tensor([[profile[i - j] if j <= i else 0 for j in range(N)] for i in range(N)])
    return (table / table.sum(dim=1, keepdim=True)).expand(B, N, N)


@pytest.mark.parametrize("b", [1, 2, 4])
def test_it_does_not_matter_how_texts_are_batched(b, measured, recording, tokens):
    other = summed(recording, tokens, b)
    for name in ("profile", "mean_map", "pairs", "expected", "counts", "entropy", "distance", "largest"):
        torch.testing.assert_close(getattr(other, name), getattr(measured, name), equal_nan=True)
    for name, found in measured.patterns.items():
        torch.testing.assert_close(other.patterns[name].score, found.score)
        torch.testing.assert_close(other.patterns[name].null, found.null)
        assert other.patterns[name].chance == pytest.approx(found.chance)


def test_memory_does_not_grow_with_the_number_of_texts(recording, tokens):
    sums = HeadSums(ALPHABET, PATTERNS)
    sizes = []
    for _ in range(3):
        sums.add(recording, tokens)
        sizes.append({name: tensor.numel() for name, tensor in sums._sums.items()})
    assert sizes[0] == sizes[2]


def test_aggregates_by_distance_and_position_are_plain_means(measured, recording):
    for layer, weights in enumerate(recording.values()):
        torch.testing.assert_close(measured.mean_map[layer], weights.mean(dim=0))
        for distance in (0, 1, 4, N - 1):
            expected = torch.stack([weights[:, :, i, i - distance] for i in range(distance, N)]).mean(dim=(0, 1))
            torch.testing.assert_close(measured.profile[layer, :, distance], expected)


def test_aggregates_by_pair_are_what_queries_give_to_all_keys_with_a_token(measured, recording, tokens):
    for layer, weights in enumerate(recording.values()):
        for query, key in ((0, 3), (5, 5), (2, 7)):
            given = [
                weights[b, :, i][:, tokens[b] == key].sum(dim=1)
                for b in range(B)
                for i in range(N)
                if tokens[b, i] == query
            ]
            torch.testing.assert_close(measured.pairs[layer, :, query, key], torch.stack(given).mean(dim=0))
    torch.testing.assert_close(measured.pairs.sum(dim=-1), torch.ones(L, H, V, dtype=torch.float64))


def test_a_uniform_head_has_a_lift_of_one_and_all_the_entropy(tokens):
    uniform = torch.ones(N, N).tril().double()
    uniform = (uniform / uniform.sum(dim=1, keepdim=True)).expand(B, 1, N, N)
    measured = summed({"layer": uniform}, tokens, B)
    possible = measured.expected > 0
    torch.testing.assert_close(measured.lift()[0, 0][possible], torch.ones(int(possible.sum()), dtype=torch.float64))
    assert measured.entropy.item() == pytest.approx(1)
    assert measured.distance.item() == pytest.approx((N - 1) / 4)
    assert measured.largest.item() == pytest.approx(sum(1 / (i + 1) for i in range(N)) / N)
    for found in measured.patterns.values():
        assert found.score.item() == pytest.approx(found.chance)
    assert measured.names() == [[None]]


def reads_the_place_before(b: int) -> Tensor:
    """Return the weights of a head that attends to the previous position, (b, 1, i, j)."""
    weights = torch.zeros(N, N).double()
    weights[0, 0] = 1
    weights[1:, :-1] = torch.eye(N - 1)
    return weights.expand(b, 1, N, N)


def test_a_head_that_reads_one_place_has_no_entropy(tokens):
    measured = summed({"layer": reads_the_place_before(B)}, tokens, B)
    assert measured.entropy.item() == 0
    assert measured.distance.item() == pytest.approx((N - 1) / N)
    assert measured.largest.item() == 1
    assert measured.patterns["previous"].score.item() == 1
    assert measured.names() == [["previous"]]


def test_classes_get_the_sums_of_their_tokens(measured, recording, tokens):
    mass, classes = measured.class_mass(), ALPHABET.classes[tokens]  # (b, n)
    for layer, weights in enumerate(recording.values()):
        for query in range(len(CLASSES)):
            rows = [weights[b, :, i] for b in range(B) for i in range(N) if classes[b, i] == query]
            keys = [classes[b] for b in range(B) for i in range(N) if classes[b, i] == query]
            for key in range(len(CLASSES)):
                given = [row[:, where == key].sum(dim=1) for row, where in zip(rows, keys, strict=True)]
                expected = torch.stack(given).mean(dim=0) if given else torch.full((H,), math.nan).double()
                torch.testing.assert_close(mass[layer, :, query, key], expected, equal_nan=True)
    received = torch.stack([weights.sum(dim=2) for weights in recording.values()])  # (l, b, h, j)
    for number in range(len(CLASSES)):
        expected = (received * (classes == number)[None, :, None]).sum(dim=(1, 3)) / (B * N)
        torch.testing.assert_close(measured.key_mass()[..., number], expected)


def test_a_pattern_that_no_query_has_is_nan_and_gives_no_name():
    tokens = torch.tensor([TOKENIZER.encode("eeeeeeeeeee")])
    measured = summed({"layer": causal_weights(1, H, N, N)}, tokens, 1)
    found = measured.patterns["newline"]
    assert found.queries == 0
    assert math.isnan(found.chance)
    assert found.score.isnan().all()
    assert all(name != "newline" for name in measured.names()[0])


def test_a_head_that_reads_the_place_before_is_not_taken_for_one_that_reads_words():
    """In words of two letters the previous character is the start of the word: position explains all of it."""
    tokens = torch.tensor([TOKENIZER.encode("aa ee tt aa")])
    measured = summed({"layer": reads_the_place_before(1)}, tokens, 1)
    found = measured.patterns["word_start"]
    assert found.score.item() == 1
    assert found.null.item() > 0.9  # all but the first row, which can only attend to itself
    assert found.chance < 0.25
    assert measured.names() == [["previous"]]


def test_offsets_are_found_by_their_number(tokens):
    places = torch.arange(N)
    third = (places[:, None] - places == 3).double()
    third[:3, 0] = 1
    measured = summed({"layer": third.expand(B, 1, N, N)}, tokens, B)
    assert measured.names() == [["offset 3"]]
    found = measured.offset_scores()["offset 3"]
    assert found.chance == pytest.approx(sum(1 / (i + 1) for i in range(3, N)) / (N - 3))
    assert found.queries == B * (N - 3)


def test_by_distance_gives_back_a_head_that_reads_by_distance():
    profile = torch.tensor([[0.5, 0.25, 0.125], [0.1, 0.1, 0.8]])
    weights = by_distance(profile)
    torch.testing.assert_close(weights[0, 1], torch.tensor([0.25, 0.5, 0.0]) / 0.75)
    torch.testing.assert_close(weights[1, 2], torch.tensor([0.8, 0.1, 0.1]))
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3))


def test_rollout_multiplies_layers_last_to_first():
    first, second = causal_weights(B, H, N, N, seed=4), causal_weights(B, H, N, N, seed=5)
    eye = torch.eye(N).double()
    flow = rollout({"blocks.0": first, "blocks.1": second})
    expected = (0.5 * second.mean(1) + 0.5 * eye) @ (0.5 * first.mean(1) + 0.5 * eye)
    torch.testing.assert_close(flow, expected)
    torch.testing.assert_close(flow.sum(dim=-1), torch.ones(B, N).double())
    assert (flow.triu(1) == 0).all()


def test_a_model_is_measured_in_batches_and_on_repeated_text():
    tokenizer = planted_tokenizer()
    model = planted_model([["previous", "first"], ["uniform", "induction"]], tokenizer, max_len=24)
    batches = [torch.tensor([tokenizer.encode(planted_text(random.Random(seed), 24))]) for seed in range(5)]
    measured = measure_heads(model, iter(batches), tokenizer, progress=False)
    sums = HeadSums(Alphabet.of(tokenizer), {"first": PATTERNS["first"]})
    for batch in batches:
        sums.add(record_attention(model, batch), batch)
    torch.testing.assert_close(measured.patterns["first"].score, sums.measured().patterns["first"].score)
    assert measured.patterns["induction"].score[1, 1] > 0.95
    assert measured.patterns["induction"].null[1, 1] < 0.5  # the strings have several lengths
    assert measured.names() == [["previous", "first"], [None, "induction"]]


def test_nothing_to_read_and_other_lengths_are_refused(recording, tokens):
    model = TransformerLM(LMConfig(V, max_len=N, hidden=8, num_layers=1, num_heads=2))
    with pytest.raises(ValueError, match="batches must hold a text, got none"):
        measure_heads(model, [], TOKENIZER, progress=False)
    with pytest.raises(ShapeError, match="batches must all have one length, got n=11 and n=9"):
        measure_heads(model, [tokens, tokens[:, :9]], TOKENIZER, progress=False)


def test_recordings_and_tokens_stay_as_they_are(recording, tokens):
    before = {name: weights.clone() for name, weights in recording.items()}
    summed(recording, tokens, 3).names()
    assert all(torch.equal(before[name], weights) for name, weights in recording.items())
