"""Batches of sequences of any length: each sequence once, within the budget, with little padding."""

import itertools
import random

import numpy as np
import pytest
import torch

from transformer_lm.texts.batching import batches_by_length, padded_batches, padding_share

PAD = 0
# Lengths like those of film reviews: most are short, a few are very long.
SKEWED = [min(1 + int(random.Random(seed).lognormvariate(3, 1)), 256) for seed in range(2000)]


def sequences_of(lengths: list[int]) -> list[list[int]]:
    """Return sequences that can be told apart by their tokens, none of which is padding."""
    return [[1 + place * 1000 + position for position in range(n)] for place, n in enumerate(lengths)]


def in_batches(lengths: list[int], **options) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return all batches of such sequences; the label of a sequence is its index."""
    return list(padded_batches(sequences_of(lengths), range(len(lengths)), PAD, **options))


# ------------------------------------------------------------------ equals an independent reference


def test_a_batch_is_the_sequences_in_numpy_filled_up_with_padding():
    lengths = [3, 1, 4, 2, 5]
    x = sequences_of(lengths)
    ((tokens, labels),) = in_batches(lengths, batch_tokens=25)
    expected = np.full((5, 5), PAD)
    for row, place in enumerate([1, 3, 0, 2, 4]):  # from short to long
        expected[row, : lengths[place]] = x[place]
    np.testing.assert_array_equal(tokens.numpy(), expected)
    assert labels.tolist() == [1, 3, 0, 2, 4]
    assert tokens.dtype == labels.dtype == torch.long


def test_another_padding_is_filled_in():
    ((tokens, _),) = list(padded_batches([[1], [2, 3]], [0, 1], pad=9, batch_tokens=4))
    assert tokens.tolist() == [[1, 9], [2, 3]]


def test_the_share_of_padding_is_what_stands_in_the_batches():
    lengths = SKEWED[:100]
    batches = in_batches(lengths, batch_tokens=300)
    padding = sum(int((tokens == PAD).sum()) for tokens, _ in batches)
    everything = sum(tokens.numel() for tokens, _ in batches)
    places = [labels.tolist() for _, labels in batches]
    assert padding_share(lengths, places) == pytest.approx(padding / everything, rel=1e-12)
    assert padding > 0


# ------------------------------------------------------------------ keeps a property


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("batch_tokens", [1, 7, 300, 10**6])
def test_every_sequence_comes_exactly_once_and_whole(seed, batch_tokens):
    lengths = SKEWED[:200]
    x = sequences_of(lengths)
    places = []
    for tokens, labels in in_batches(lengths, batch_tokens=batch_tokens, seed=seed):
        for row, place in zip(tokens.tolist(), labels.tolist(), strict=True):
            assert [token for token in row if token != PAD] == x[place]
            places.append(place)
    assert sorted(places) == list(range(200))


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("batch_tokens", [1, 7, 300])
def test_a_batch_keeps_its_budget_unless_it_is_one_long_sequence(seed, batch_tokens):
    for tokens, _ in in_batches(SKEWED[:200], batch_tokens=batch_tokens, seed=seed):
        assert tokens.numel() <= batch_tokens or len(tokens) == 1


def test_a_batch_is_as_large_as_its_budget_allows():
    batches = batches_by_length(SKEWED, 1000)
    for batch, following in itertools.pairwise(batches):
        assert SKEWED[following[0]] * (len(batch) + 1) > 1000


def test_a_batch_is_no_longer_than_its_longest_sequence():
    for tokens, _ in in_batches(SKEWED[:200], batch_tokens=300, seed=0):
        assert (tokens[:, -1] != PAD).any()


def test_one_seed_gives_one_order_and_another_seed_another():
    def orders(seed):
        return [batches_by_length(SKEWED, 1000, seed) for _ in range(2)]

    assert orders(3)[0] == orders(3)[1]
    assert orders(3)[0] != orders(4)[0]


def test_a_seed_mixes_equally_long_sequences_and_the_batches():
    lengths = [2] * 50 + [3] * 50
    first, second = (batches_by_length(lengths, 20, seed) for seed in (0, 1))
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    assert [max(batch) < 50 for batch in first] != sorted((max(batch) < 50 for batch in first), reverse=True)


def test_without_a_seed_batches_go_from_short_to_long():
    places = itertools.chain.from_iterable(batches_by_length(SKEWED, 1000))
    assert [SKEWED[place] for place in places] == sorted(SKEWED)


def test_what_was_random_goes_on_as_before():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    batches_by_length(SKEWED, 1000, seed=0)
    assert random.random() == expected


def test_batches_of_similar_length_hold_far_less_padding_than_as_many_that_are_mixed():
    batches = batches_by_length(SKEWED, 1000, seed=0)
    mixed = [range(first, len(SKEWED), len(batches)) for first in range(len(batches))]
    assert padding_share(SKEWED, batches) < 0.05
    assert padding_share(SKEWED, mixed) > 0.5


def test_long_sequences_are_cut_after_their_first_tokens():
    x = sequences_of([3, 9])
    ((tokens, _),) = list(padded_batches(x, [0, 1], PAD, batch_tokens=8, max_len=4))
    assert tokens.tolist() == [[*x[0], PAD], x[1][:4]]
    assert len(x[1]) == 9


def test_sequences_are_cut_at_256_unless_told_otherwise():
    ((tokens, _),) = in_batches([300], batch_tokens=1000)
    assert tokens.shape == (1, 256)


# ------------------------------------------------------------------ refuses bad input with the right words


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        ([[1], [], [2]], {}, "every sequence must have a token, got none in number 1"),
        ([], {}, "x and y must have the same length, got 0 sequences and 3 labels"),
        ([[1], [2]], {}, "x and y must have the same length, got 2 sequences and 3 labels"),
        ([[1], [2], [3]], {"batch_tokens": 0}, "batch_tokens must be at least 1, got 0"),
        ([[1], [2], [3]], {"max_len": 0}, "max_len must be at least 1, got 0"),
    ],
)
def test_what_makes_no_batch_is_refused(x, options, message):
    with pytest.raises(ValueError, match=message):
        list(padded_batches(x, [0, 1, 0], PAD, **({"batch_tokens": 10} | options)))


def test_no_sequence_at_all_is_refused():
    with pytest.raises(ValueError, match="x must hold at least one sequence, got none"):
        list(padded_batches([], [], PAD, batch_tokens=10))
