"""The reference of the beam search: with all beams it finds the best of all sequences, with one it is greedy."""

import itertools
import random

import numpy as np
import pytest

from grading.exercises.topic_06_encoder_decoder.beam_search import best_hypothesis, draw, log_probabilities
from grading.exercises.topic_06_encoder_decoder.greedy_decode import likeliest_tokens
from transformer_lm.checks.topic_06_encoder_decoder.beam_search import SEARCHES

SIZES = {"m": 7, "v": 2}  # with v + 3 = 5 tokens there are few enough sequences to try them all
MAX_LEN = 4


def drawn(sizes, cases=8):
    """Yield the log-probabilities of each source of some cases, with END."""
    for seed in range(cases):
        case = draw(random.Random(seed), sizes)
        for source in case["sources"]:
            yield log_probabilities(case, source), int(case["given"][1])


def every_row(vocabulary, end, max_len):
    """Yield every sequence that has ended, or has max_len tokens and has not ended."""
    others = [token for token in range(vocabulary) if token != end]
    for length in range(max_len):
        for tokens in itertools.product(others, repeat=length):
            yield (*tokens, end)
    yield from itertools.product(others, repeat=max_len)


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_a_beam_of_everything_finds_the_best_of_all_rows(alpha):
    for logs, end in drawn(SIZES):
        vocabulary = len(logs(()))

        def score(tokens, logs=logs):
            summed = sum(logs(tokens[:place])[token] for place, token in enumerate(tokens))
            return summed / len(tokens) ** alpha

        best = max(every_row(vocabulary, end, MAX_LEN), key=score)
        tokens, found = best_hypothesis(logs, end, vocabulary**MAX_LEN, MAX_LEN, alpha)
        assert tokens == best
        assert found == pytest.approx(score(best), abs=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_one_beam_is_the_greedy_search(alpha):
    """On the sources that were drawn for one beam: there, no two tokens are equally likely."""
    for seed in range(20):
        case = draw(random.Random(seed), {"m": 6, "v": 5})
        start, end, max_len = (int(number) for number in case["given"])
        logs = log_probabilities(case, case["sources"][list(SEARCHES).index("one_beam")])

        def scores(read, logs=logs):
            return np.array(logs(tuple(read[1:])))

        tokens, _ = best_hypothesis(logs, end, 1, max_len, alpha)
        assert list(tokens) == likeliest_tokens(scores, start, end, max_len)


def test_more_beams_find_other_translations():
    """Otherwise the two tests above would say little about the numbers of beams between."""
    found = [
        [best_hypothesis(logs, end, beams, 6, 0.7)[0] for beams in (1, 2, 3)] for logs, end in drawn({"m": 6, "v": 5})
    ]
    assert all(any(row[first] != row[second] for row in found) for first, second in ((0, 1), (1, 2)))
