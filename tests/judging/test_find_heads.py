"""The detector of heads: what its cases contain, and how it is judged on unseen heads."""

import random
import sys

import numpy as np
import pytest
import torch
from repetition import first_of

from grading.exercises import records
from grading.exercises.topic_05_attention_heatmaps.find_heads import (
    EDGES,
    FIRST,
    HEADS,
    LONGER,
    OTHER,
    _margin,
    _on_edge,
    _tables,
    draw,
)
from grading.judging import head_claims
from grading.judging.head_claims import CLEAR, EXACT, EXCESS, SCORE, Heads, Outcome, decisions
from transformer_lm import checks
from transformer_lm.checks import CheckFailed
from transformer_lm.checks.engine.verdict import Mark
from transformer_lm.heads import planted, scores

RECORD = records()["find-heads"]
PART = RECORD.parts[1]
SIZES = (FIRST, FIRST | LONGER, OTHER, {"b": 2, "h": 5, "n": 30, "p": 3})


class Asked:
    """Replaces an answer process that runs this function."""

    def __init__(self, function):
        self.function, self.calls = function, []

    def ask(self, do, arrays, **request):
        self.calls.append(arrays["weights"].shape)
        given = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        output = self.function(**given)
        after = {f"after/{name}": tensor.numpy() for name, tensor in given.items()}
        return {"error": None}, {"outputs/heads": output.numpy()} | after


def judged(function, seed: int = 1) -> str | Mark:
    return head_claims.unseen(RECORD, PART, Asked(function), random.Random(seed))


def right(weights, patterns, by_place):
    return RECORD.answer(RECORD.model_answer)(weights, patterns, by_place)


# --- the rule -----------------------------------------------------------------------------------


def test_the_rule_is_that_of_the_package():
    assert (SCORE, EXCESS) == (scores.SCORE, scores.EXCESS)


def one_head(score: float, n: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a head that gives this weight to one key, at a different position in each text, and that key's pattern."""
    keys = np.arange(n // 2)
    weights, pattern = np.zeros((len(keys), 1, n, n)), np.zeros((1, len(keys), n, n), dtype=bool)
    weights[:, :, range(n), range(n)] = 1
    weights[keys, 0, -1, keys], weights[keys, 0, -1, -1] = score, 1 - score
    pattern[0, keys, -1, keys] = True
    return weights, pattern, np.array([False])


@pytest.mark.parametrize(
    ("score", "found", "clear"), [(0.29, -1, True), (0.32, -1, False), (0.38, 0, False), (0.41, 0, True)]
)
def test_a_head_is_clear_unless_it_is_near_a_threshold(score, found, clear):
    (head,), (clearness,) = decisions(*one_head(score))
    assert (head, clearness >= CLEAR) == (found, clear)


def test_a_head_is_not_clear_if_a_second_pattern_is_as_good():
    weights, pattern, _ = one_head(0.9)
    twice = np.concatenate([pattern, pattern])
    (head,), (clearness,) = decisions(weights, twice, np.array([False, False]))
    assert (head, clearness) == (0, 0)


def test_a_second_pattern_that_does_not_count_leaves_a_head_clear():
    weights, pattern, _ = one_head(0.9)
    nowhere = np.zeros_like(pattern)
    (head,), (clearness,) = decisions(weights, np.concatenate([nowhere, pattern]), np.array([False, False]))
    assert head == 1
    assert clearness >= CLEAR


def test_position_explains_a_head_unless_that_is_the_point():
    n, b = 30, 4
    weights, pattern = np.zeros((b, 1, n, n)), np.zeros((1, b, n, n), dtype=bool)
    weights[:, :, range(1, n), range(n - 1)] = weights[:, :, 0, 0] = 1
    pattern[:, :, range(20, n, 2), range(19, n - 1, 2)] = True  # the key before, of some queries
    assert decisions(weights, pattern, np.array([False]))[0] == [-1]
    assert decisions(weights, pattern, np.array([True]))[0] == [0]


def test_decisions_are_those_of_the_package():
    rng = random.Random(3)
    tokenizer = planted.planted_tokenizer()
    plan = [["previous", "uniform", "any_space"], ["word_start", "first", "random"]]
    model = planted.planted_model(plan, tokenizer, head_claims.N, seed=4)
    tokens = torch.tensor([tokenizer.encode(planted.planted_text(rng, head_claims.N)) for _ in range(5)])
    found = head_claims._heads(rng, model, tokenizer, tokens, tuple(head_claims.IN_SENTENCES))
    numbers, clearness = decisions(found.weights.astype(np.float64), found.patterns, found.by_place)
    names = [None if number < 0 else found.names[number] for number in numbers]
    measured = scores.measure_heads(model, [tokens], tokenizer, progress=False)
    assert names == [name for layer in measured.names() for name in layer]
    assert names == ["previous", None, "any_space", "word_start", "first", None]
    assert (clearness >= CLEAR).all()


# --- the cases ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_cases_are_clear_and_their_weights_are_exact_and_sum_to_one(sizes):
    case = draw(random.Random(5), sizes)
    weights = case["weights"]
    assert weights.shape == (sizes["b"], sizes["h"], sizes["n"], sizes["n"])
    assert case["patterns"].shape == (sizes["p"], sizes["b"], sizes["n"], sizes["n"])
    assert (weights.sum(axis=-1) == 1).all()
    assert (weights >= 0).all()
    assert (weights == np.tril(weights)).all()
    assert (weights * 1024 % 1 == 0).all()
    assert not np.triu(case["patterns"], 1).any()
    assert (decisions(**case)[1] >= EXACT).all()


@pytest.mark.parametrize("kind", EDGES)
def test_heads_on_an_edge_are_as_near_as_they_should_be(kind):
    for seed in range(10):
        rng = random.Random(seed)
        tables = _tables(rng, 3, 22)
        parts = _on_edge(rng, tables, EDGES[kind])
        for _, pattern, (low, high) in EDGES[kind]:
            assert low - 0.002 < _margin(parts, tables, pattern) < high + 0.002


def test_a_case_has_heads_of_every_kind_that_do_something_and_that_do_not():
    assert len(HEADS) + len(EDGES) == FIRST["h"]
    numbers, _ = decisions(**draw(random.Random(6), FIRST))
    assert (numbers == -1).sum() >= 8
    assert len(set(numbers.tolist()) - {-1}) >= 8


def test_cases_hold_a_pattern_that_has_no_query():
    assert not draw(random.Random(7), FIRST)["patterns"].any(axis=(1, 2, 3)).all()


# --- the check on planted heads -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["model-answer", *RECORD.right])
def test_right_answers_find_all_planted_heads(name, capsys):
    checks.planted_heads(RECORD.answer(RECORD.right.get(name, RECORD.model_answer)))
    assert capsys.readouterr().out == "✓ find-heads: all planted heads are found, and no other.\n"


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("largest-score-always", "head-invented"),
        ("null-for-places-too", "head-overlooked"),
        ("counted-from-one", "patterns-mixed-up"),
    ],
)
def test_the_check_on_planted_heads_tells_how_a_detector_is_wrong(name, mistake, monkeypatch):
    """Tested alone: the check of values, which comes first, knows these mistakes by their names."""
    monkeypatch.setattr(
        sys.modules["transformer_lm.checks.topic_05_attention_heatmaps.find_heads"], "find_heads", lambda answer: None
    )
    (wrong,) = (wrong for wrong in RECORD.wrong if wrong.name == name)
    with pytest.raises(CheckFailed) as caught:
        checks.planted_heads(RECORD.answer(wrong.source))
    assert caught.value.mistake == mistake


# --- unseen heads -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", first_of(range(20), 5))
def test_the_model_answer_is_right_about_all_unseen_heads(seed):
    assert judged(right, seed).startswith("Right for ")


def test_models_of_every_origin_are_tried():
    asked = Asked(right)
    head_claims.unseen(RECORD, PART, asked, random.Random(2))
    made_up, others = asked.calls[: head_claims.TIMES], asked.calls[head_claims.TIMES :]
    planted_ones, trained = others[: head_claims.PLANTED], others[head_claims.PLANTED :]
    assert made_up == [(3, 41, 17, 17)] * head_claims.TIMES
    assert planted_ones == [(head_claims.B, 12, head_claims.N, head_claims.N)] * head_claims.PLANTED
    assert trained == [(head_claims.B, 8, head_claims.N, head_claims.N)] * 2 * len(
        list(head_claims.TRAINED.glob("*.safetensors"))
    )
    assert len(trained) >= 4


def test_trained_heads_are_really_found():
    found = set()
    for each in head_claims._trained(random.Random(3)):
        numbers, clearness = decisions(each.weights.astype(np.float64), each.patterns, each.by_place)
        found |= {each.names[number] for number in numbers[clearness >= CLEAR] if number >= 0}
    assert {"induction", "any_space"} <= found


def test_texts_and_orders_differ_from_submission_to_submission():
    first, second = (next(head_claims._trained(random.Random(seed))) for seed in (1, 2))
    assert first.names != second.names
    assert not np.array_equal(first.weights, second.weights)


def test_a_detector_that_names_a_uniform_head_gets_nothing():
    def names_all(weights, patterns, by_place):
        return right(weights, patterns, by_place).clamp(min=0)

    mark = judged(names_all)
    assert mark.points == 0
    assert "that do nothing get a name" in mark.message
    assert mark.failure.mistake == "heads-invented"


def test_a_detector_that_misses_some_heads_gets_half_and_hears_which():
    def no_places(weights, patterns, by_place):
        found = right(weights, patterns, by_place)
        return torch.where(by_place[found.clamp(min=0)] & (found >= 0), -1, found)

    mark = judged(no_places)
    assert mark.points == PART.points / 2
    assert "not found: a drawn mask, " in mark.message
    assert "previous" in mark.message
    assert mark.failure.mistake == "heads-overlooked"


def test_a_detector_that_finds_nothing_gets_nothing():
    mark = judged(lambda weights, patterns, by_place: torch.full(weights.shape[1:2], -1))
    assert mark.points == 0


def test_a_detector_that_mixes_patterns_up_is_told_so():
    def next_one(weights, patterns, by_place):
        found = right(weights, patterns, by_place)
        return torch.where(found >= 0, (found + 1) % len(patterns), found)

    mark = judged(next_one)
    assert mark.points == 0
    assert "another name for: " in mark.message
    assert mark.failure.mistake == "patterns-mixed-up"


@pytest.mark.parametrize(
    ("found", "trusted"),
    [
        ([2, -1, -1, -1], True),
        ([-1, -1, -1, -1], False),
        ([2, 3, 4, -1], False),
        ([2, 3, -1, 4], True),  # it is almost what the last one does
        ([2, 3, -1, -1], True),
    ],
)
def test_half_of_the_heads_that_do_something_must_be_named_and_none_that_clearly_does_nothing(found, trusted):
    outcome = Outcome()
    outcome.add(np.array(found), np.array([2, 3, -1, -1]), np.array([1, 1, 1, 0], bool), ["a", "b", "c", "d", "e"])
    assert outcome.can_be_trusted is trusted


@pytest.mark.parametrize("output", [torch.tensor(1), torch.zeros(2, 3), torch.zeros(0)])
def test_an_output_of_another_shape_is_told_so(output):
    with pytest.raises(CheckFailed) as caught:
        judged(lambda weights, patterns, by_place: output)
    assert caught.value.mistake == "not-a-number-each"


def test_a_detector_that_changes_its_input_is_told_so():
    def in_place(weights, patterns, by_place):
        found = right(weights, patterns, by_place)
        weights.zero_()
        return found

    with pytest.raises(CheckFailed, match="weights is changed by the call"):
        judged(in_place)


def test_what_the_answer_gets_are_arrays_and_no_names():
    each = next(head_claims._planted(random.Random(1)))
    assert isinstance(each, Heads)
    assert {name: array.dtype for name, array in each.arrays.items()} == {
        "weights": np.float32,
        "patterns": np.bool_,
        "by_place": np.bool_,
    }
    assert CLEAR > EXACT > 1e-3  # far more than float32's rounding
