"""Answers that are random: chance never costs a right one its points, and no mistake hides behind chance."""

import math
import random
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from grading.exercises.topic_04_language_model.next_probabilities import NEXT_PROBABILITIES_RECORD
from grading.exercises.topic_04_language_model.sampling import SAMPLING_RECORD, chances, choice, draw_choices, examine
from grading.exercises.topic_04_language_model.slices import SLICES_RECORD
from grading.judging.judge import values
from grading.judging.sampled import drawn
from transformer_lm import checks
from transformer_lm.checks import CheckFailed
from transformer_lm.checks.engine import sampled
from transformer_lm.checks.engine.sampled import SURPRISE, asked_here, surprise, surprising
from transformer_lm.checks.topic_04_language_model.sampling import EXAMPLES, LONG, ROWS, STEPS, VOCABULARY, ReaderOfAll
from transformer_lm.checks.topic_04_language_model.slices import examine_slices

RECORDS = {"slices": SLICES_RECORD, "sampling": SAMPLING_RECORD}
CHECKS = {"slices": checks.slices, "sampling": checks.sampling}
EXAMINE = {"slices": examine_slices, "sampling": examine}
WRONG = [(record, wrong) for record in RECORDS.values() for wrong in record.misbehaving]
RIGHT = [
    (record, name, source)
    for record in RECORDS.values()
    for name, source in {"model-answer": record.model_answer, **record.right}.items()
]


# --- luck ---------------------------------------------------------------------------------------


def probability(counts, draws: int, chance: Fraction) -> Fraction:
    return sum(math.comb(draws, count) * chance**count * (1 - chance) ** (draws - count) for count in counts)


@pytest.mark.parametrize(("draws", "chance"), [(5, "1/2"), (40, "1/13"), (60, "5/7"), (100, "1/60"), (150, "2/5")])
def test_surprise_bounds_the_exact_probability_on_both_sides(draws, chance):
    chance = Fraction(chance)
    for count in range(draws + 1):
        further = range(count, draws + 1) if count >= draws * chance else range(count + 1)
        assert probability(further, draws, chance) <= math.exp(-surprise(count, draws, float(chance))) * (1 + 1e-9)


@pytest.mark.parametrize(("draws", "chance"), [(300, "1/13"), (200, "2/5"), (250, "9/19")])
def test_a_right_answer_surprises_less_than_3_times_in_10_to_the_11(draws, chance):
    chance = Fraction(chance)
    refused = [count for count in range(draws + 1) if surprising(count, draws, float(chance))]
    assert refused
    assert float(probability(refused, draws, chance)) < 3e-11


def test_what_cannot_happen_surprises_once_it_does():
    assert surprise(1, 1000, 0.0) == math.inf
    assert surprise(0, 1000, 0.0) == 0
    assert surprise(999, 1000, 1.0) == math.inf


@pytest.mark.parametrize("exercise", RECORDS)
def test_all_counts_of_a_grading_together_refuse_a_right_answer_less_than_once_in_a_million(exercise, monkeypatch):
    compared = []
    divergence = sampled._divergence
    monkeypatch.setattr(sampled, "_divergence", lambda *pair: compared.append(pair) or divergence(*pair))
    record = RECORDS[exercise]
    most = 0
    for seed in range(10):
        EXAMINE[exercise](asked_here(record.public, record.answer(record.model_answer)), random.Random(seed))
        most, compared[:] = max(most, len(compared) // 2), []
    assert most > 10
    by_counts = most * 2 * math.exp(-SURPRISE)
    all_steps_equal = 65 * 55.0**-7  # of the slices' first call, with 55 starts or more
    all_starts_differ = math.factorial(30) / 30**30  # of their third, with 30 or more
    two_rows_agree = 2 * math.comb(20, 2) * 0.4**LONG  # for both choices; two tokens are the same less often than that
    assert by_counts + all_steps_equal + all_starts_differ + two_rows_agree < 1e-6 / 10


@pytest.mark.parametrize("exercise", RECORDS)
def test_a_right_answer_is_never_refused(exercise):
    record = RECORDS[exercise]
    answer, refused = record.answer(record.model_answer), {}
    for seed in range(30):
        try:
            EXAMINE[exercise](asked_here(record.public, answer), random.Random(seed))
        except CheckFailed as failed:
            refused[seed] = str(failed)
    assert refused == {}


# --- chances ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("temperature", "top_k"), [(2.0, 3), (0.5, 5), (1.0, 1)])
def test_chances_are_those_of_torch(temperature, top_k):
    logits = (2.5, 1.75, 0.5, -0.25, -3.0)
    largest = torch.tensor(logits, dtype=torch.float64).topk(top_k).values
    expected = (largest / temperature).softmax(dim=0)
    np.testing.assert_allclose(chances(logits, temperature, top_k)[:top_k], expected, rtol=1e-12)
    assert not any(chances(logits, temperature, top_k)[top_k:])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"temperature-{example.temperature}")
def test_the_chances_that_a_check_holds_are_right(example):
    computed = choice(example.logits, example.temperature, example.top_k)
    np.testing.assert_allclose(example.chances, computed.chances, rtol=1e-12)
    for (hint, theirs), (expected_hint, expected) in zip(example.mistakes, computed.mistakes, strict=False):
        assert hint == expected_hint
        np.testing.assert_allclose(theirs, expected, atol=6e-4)


def test_a_mistake_changes_the_chances_by_far_more_than_luck_does():
    """A count must differ by 7 standard deviations to surprise; here it differs by 11 or more, on average."""
    for seed in range(200):
        for drawn_choice in (*draw_choices(random.Random(seed)), EXAMPLES[0]):
            for hint, mistaken in drawn_choice.mistakes:
                if drawn_choice.top_k == VOCABULARY and np.allclose(mistaken, drawn_choice.chances):
                    continue  # all tokens are among the top_k, before and after sampling
                counts = [ROWS * STEPS * chance for chance in mistaken]
                found = [surprise(*pair) for pair in zip(counts, [ROWS * STEPS] * 7, drawn_choice.chances, strict=True)]
                assert max(found) > 11**2 / 2, (seed, hint)


# --- checks -------------------------------------------------------------------------------------


def failure(check, answer) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        check(answer)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["tried", "yours", "expected", "hint"]
    return caught.value


@pytest.mark.parametrize(("record", "wrong"), WRONG, ids=[f"{record.id}-{wrong.name}" for record, wrong in WRONG])
def test_a_check_names_the_mistake(record, wrong):
    failed = failure(CHECKS[record.id], record.answer(wrong.source))
    if wrong.hint == "raises":
        assert failed.yours.startswith(("raises NameError", "raises RuntimeError: multinomial only supports floating"))
    else:
        assert failed.mistake == wrong.hint


@pytest.mark.parametrize(("record", "name", "source"), RIGHT, ids=[f"{record.id}-{name}" for record, name, _ in RIGHT])
def test_a_right_answer_passes_in_one_line(record, name, source, capsys):
    CHECKS[record.id](record.answer(source))
    assert re.fullmatch(rf"✓ {record.id}: .+\.\n", capsys.readouterr().out)


def test_an_error_at_temperature_0_is_explained_by_it_only_if_numbers_are_not_finite():
    (whole,) = (each for each in SAMPLING_RECORD.misbehaving if each.name == "whole-numbers-for-probabilities")
    assert failure(checks.sampling, SAMPLING_RECORD.answer(whole.source)).mistake != "temperature-of-zero"
    divided = SAMPLING_RECORD.right["categorical"].replace("(temperature or 1)", "temperature")
    failed = failure(checks.sampling, SAMPLING_RECORD.answer(divided))
    assert failed.yours.startswith("raises ")  # ValueError, or RuntimeError if distributions do not validate
    assert failed.mistake == "temperature-of-zero"


def test_there_are_many_answers_of_each_kind():
    for record in RECORDS.values():
        names = [wrong.name for wrong in record.misbehaving]
        assert len(names) == len(set(names)) >= 40
        assert len(record.right) >= 8


@pytest.mark.parametrize("exercise", RECORDS)
def test_a_check_leaves_the_generator_as_it_was(exercise):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    CHECKS[exercise](RECORDS[exercise].answer(RECORDS[exercise].model_answer))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("exercise", RECORDS)
def test_a_check_says_the_same_every_time(exercise):
    record = RECORDS[exercise]
    answer = record.answer(
        next(wrong.source for wrong in record.misbehaving if wrong.name in ("rounded", "equal-chances"))
    )
    assert str(failure(CHECKS[exercise], answer)) == str(failure(CHECKS[exercise], answer))


# --- the model ----------------------------------------------------------------------------------


def reader() -> ReaderOfAll:
    return ReaderOfAll(torch.arange(49.0).view(7, 7), torch.tensor([3, 1, 5, 2]))


def test_the_model_reads_every_token_and_place_and_nothing_that_comes_later():
    tokens = torch.tensor([[4, 0, 6, 2]])
    logits = reader().eval()(tokens)
    assert logits.shape == (1, 4, 7)
    for place in range(4):
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % 7
        same = (reader().eval()(other) == logits).all(dim=-1)[0].tolist()
        assert same == [each < place for each in range(4)]
    turned = reader().eval()(tokens[:, [1, 0, 2, 3]])
    assert not torch.equal(turned[:, -1], logits[:, -1])


def test_the_model_tells_train_from_eval_mode_and_whether_gradients_are_wanted():
    tokens = torch.tensor([[1, 2, 3], [5, 6, 0]])
    model = reader()
    with torch.no_grad():
        assert not (model.train()(tokens) == model.eval()(tokens)).all(dim=-1).any()
    assert not model.made_graphs
    model(tokens)
    assert model.made_graphs


@pytest.mark.parametrize("n", [0, 5])
def test_the_model_refuses_what_it_cannot_read(n):
    with pytest.raises(ValueError, match=f"this model reads 1 to 4 tokens, got {n}"):
        reader()(torch.zeros(2, n, dtype=torch.long))


# --- the judge ----------------------------------------------------------------------------------


class Replying:
    """Replaces an answer process that sends this, whatever it is asked."""

    def __init__(self, reply, **arrays):
        self.reply, self.arrays, self.kept = reply, arrays, {}

    def ask(self, do, arrays, **request):
        return self.reply, {f"after/{name}": array for name, array in arrays.items()} | self.arrays


@pytest.mark.parametrize("exercise", RECORDS)
@pytest.mark.parametrize(
    ("reply", "output"),
    [
        ({}, None),
        ({"kinds": 3}, None),
        ({"error": {"tried": "x"}}, None),
        ({}, np.zeros(0)),
        ({}, np.array(3)),
        ({}, np.zeros((8, 4))),
        ({}, np.zeros((8, 4), dtype=np.int64)),
        ({}, np.full((8, 11), -(2**62))),
        ({}, np.ones((2, 3, 4, 5), dtype=bool)),
    ],
)
def test_whatever_an_answer_process_sends_the_judge_has_words_for_it(exercise, reply, output):
    record = RECORDS[exercise]
    (name,) = record.public.axes
    found = {} if output is None else {f"outputs/{name}": output}
    with pytest.raises(CheckFailed):
        drawn(EXAMINE[exercise])(record, record.parts[0], Replying(reply, **found), random.Random(1))


def test_an_answer_that_never_tells_the_inputs_back_gets_nothing():
    (name,) = SLICES_RECORD.public.axes
    silent = Replying({}, **{"after/tokens": np.zeros(3), f"outputs/{name}": np.zeros((8, 4), dtype=np.int64)})
    with pytest.raises(CheckFailed, match="tokens is changed by the call"):
        drawn(examine_slices)(SLICES_RECORD, SLICES_RECORD.parts[0], silent, random.Random(1))


@pytest.mark.parametrize("dtype", [np.complex64, np.str_])
def test_numbers_of_a_kind_that_nobody_sends_are_missing_to_the_judge(dtype):
    record = NEXT_PROBABILITIES_RECORD
    found = {f"outputs/{name}": np.ones((3, 11)).astype(dtype) for name in record.public.axes}
    with pytest.raises(CheckFailed, match="outputs are missing"):
        values(record, record.parts[0], Replying({}, **found), random.Random(1))
