"""Random text that repeats itself."""

import pytest
import torch

from transformer_lm.heads.repeats import repeated_tokens, with_repeats
from transformer_lm.texts.corpora import Corpus
from transformer_lm.texts.tokenizers import CharTokenizer


def period(row: list[int]) -> int:
    """Return after how many tokens a sequence first repeats itself."""
    return next(k for k in range(1, len(row)) if all(row[i] == row[i - k] for i in range(k, len(row))))


def test_each_sequence_repeats_distinct_tokens_at_its_own_distance():
    rows = repeated_tokens(13, 200, 20, torch.Generator().manual_seed(0)).tolist()
    periods = [period(row) for row in rows]
    assert set(periods) == set(range(5, 11))
    for row, length in zip(rows, periods, strict=True):
        assert len(set(row[:length])) == length
        assert 0 <= min(row) <= max(row) < 13
    assert len({tuple(row) for row in rows}) == 200


def test_a_small_vocabulary_limits_the_distance():
    rows = repeated_tokens(4, 50, 20, torch.Generator().manual_seed(0)).tolist()
    assert {period(row) for row in rows} == {3, 4}


def test_the_same_generator_gives_the_same_text():
    one, two = (repeated_tokens(9, 3, 12, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize(("v", "n"), [(2, 20), (9, 5)])
def test_too_little_to_repeat_is_refused(v, n):
    with pytest.raises(ValueError, match="vocab_size and n // 2 must be 3 or more, got"):
        repeated_tokens(v, 1, n)


def corpus() -> Corpus:
    text = "abcdefghij" * 30
    tokenizer = CharTokenizer.of(text)
    tokens = torch.tensor(tokenizer.encode(text), dtype=torch.int16)
    return Corpus("rounds", tokens[:240], tokens[240:270], tokens[270:], tokenizer)


def test_a_share_of_the_training_text_becomes_repeats_and_the_rest_stays_whole():
    before = corpus()
    mixed = with_repeats(before, share=0.25, n=12, seed=3)
    passages = mixed.train.view(-1, 12)
    originals = {tuple(row) for row in before.train.view(-1, 12).tolist()}
    kept = [tuple(row) in originals for row in passages.tolist()]
    assert len(passages) == 27  # 20 passages of text are three quarters of it
    assert sum(kept) == 20
    assert kept != sorted(kept)  # shuffled
    assert all(period(row) <= 6 for row, text in zip(passages.tolist(), kept, strict=True) if not text)
    assert mixed.train.dtype == before.train.dtype
    assert mixed.validation is before.validation
    assert torch.equal(with_repeats(before, share=0.25, n=12, seed=3).train, mixed.train)


def test_without_a_share_only_the_order_changes():
    assert sorted(with_repeats(corpus(), share=0, n=10).train.tolist()) == sorted(corpus().train.tolist())


@pytest.mark.parametrize("share", [-0.1, 1])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(ValueError, match="share must be at least 0 and below 1"):
        with_repeats(corpus(), share, n=12)
