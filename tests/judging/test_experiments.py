"""Reports of experiments: what a check says about them, and how settings that work earn points."""

import math
import random
from pathlib import Path

import pytest

from grading.exercises import records
from grading.exercises.topic_03_classification.full_experiment import FULL
from grading.exercises.topic_03_classification.simple_experiment import SIMPLE
from grading.judging import experiments
from grading.judging.experiments import LEARNED, TRIES, accuracy
from transformer_lm import checks
from transformer_lm.checks import CheckFailed
from transformer_lm.checks.engine.experiments import ENOUGH, MOST_STEPS, MOST_TOKENS, SEEDS
from transformer_lm.checks.topic_03_classification.full_experiment import FULL_EXPERIMENT
from transformer_lm.checks.topic_03_classification.simple_experiment import SIMPLE_EXPERIMENT
from transformer_lm.datasets import load_imdb_synth, load_xor

RECORDS = [records()[exercise] for exercise in ("simple-experiment", "full-experiment")]
WRONG = [(record, wrong) for record in RECORDS for wrong in record.misbehaving]
LOADERS = {"synth": load_imdb_synth, "xor": load_xor}


def report(record, source):
    return record.answer(source)


@pytest.mark.parametrize(("record", "wrong"), WRONG, ids=[f"{record.id}-{wrong.name}" for record, wrong in WRONG])
def test_a_check_names_what_is_wrong_with_a_report_unless_only_training_can_tell(record, wrong):
    check = getattr(checks, record.defines)
    if wrong.hint == "not-reproduced":
        check(report(record, wrong.source))  # the numbers are possible; grading finds out
    else:
        with pytest.raises(CheckFailed) as failed:
            check(report(record, wrong.source))
        assert failed.value.mistake == wrong.hint
        assert wrong.says in str(failed.value)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.id)
def test_a_right_report_passes_in_one_line(record, capsys):
    for source in (record.model_answer, *record.right.values()):
        getattr(checks, record.defines)(report(record, source))
        printed = capsys.readouterr().out
        assert printed.startswith(f"✓ {record.id}: complete")
        assert printed.count("\n") == 1


@pytest.mark.parametrize("answer", [SIMPLE, FULL], ids=["simple", "full"])
def test_the_goals_hold_over_seeds(answer):
    """The bands: with the model answer's settings, enough seeds reach them and none goes beyond what is possible."""
    record = RECORDS[0] if answer is SIMPLE else RECORDS[1]
    for data, run in record.public.read(report(record, answer)).items():
        found = [accuracy(record.id, data, tuple(run.settings.items()), seed) for seed in range(SEEDS)]
        goal = record.public.goals[data]
        assert sum(each >= goal.reached for each in found) >= ENOUGH, (data, found)
        assert max(found) <= goal.possible, (data, found)


@pytest.mark.parametrize("data", LOADERS)
def test_the_number_of_tokens_is_that_of_the_data_set(data):
    (x_train, _), _, _, _ = LOADERS[data]()
    for exercise in (SIMPLE_EXPERIMENT, FULL_EXPERIMENT):
        assert exercise.goals[data].tokens == sum(map(len, x_train))


def test_settings_that_learn_nothing_rarely_count():
    idle = (("hidden", 4), ("learning_rate", 1e-6), ("batch_tokens", 800), ("epochs", 1))
    lucky = [seed for seed in range(60) if accuracy("simple-experiment", "xor", idle, seed) >= 0.74]
    assert len(lucky) <= 6  # two of eight tries must be: that happens to one in twelve or fewer
    assert math.log(2) > LEARNED  # the loss of a model that predicts 50 % everywhere


def test_settings_that_learn_slowly_count():
    """Honest, if not good: accuracy 0.75 with a loss only a little below that of predicting 50 %."""
    slow = (("hidden", 2), ("learning_rate", 0.003), ("batch_tokens", 32), ("epochs", 15))
    found = [accuracy("simple-experiment", "xor", slow, seed) for seed in range(TRIES)]
    assert sum(each >= 0.74 for each in found) >= 4, found


def test_settings_that_explode_count_for_nothing(monkeypatch):
    def explode(*arguments, **options):
        raise FloatingPointError("the loss must be a finite number")

    monkeypatch.setattr(experiments, "train_classifier", explode)
    assert accuracy("simple-experiment", "xor", (("hidden", 3), ("epochs", 1)), 0) == 0.0


class Reporter:
    """Replaces an answer process that reports this."""

    def __init__(self, value):
        self.value = value

    def ask(self, do, **request):
        assert do == "report"
        return {"error": None, "report": self.value}, {}


def test_the_judge_trains_until_the_goal_is_reached_and_no_longer(monkeypatch):
    record, tried = RECORDS[0], []

    def scripted(exercise, data, settings, seed):
        tried.append((data, seed))
        return 0.75 if len([each for each in tried if each[0] == data]) in (3, 5) else 0.5

    monkeypatch.setattr(experiments, "accuracy", scripted)
    value = report(record, SIMPLE)
    experiments.reproduced(record, record.parts[0], Reporter(value), random.Random(1))
    assert [data for data, _ in tried] == ["synth"] * 5 + ["xor"] * 5
    assert len({seed for _, seed in tried}) == 5

    monkeypatch.setattr(experiments, "accuracy", lambda *arguments: tried.append(arguments) or 0.5)
    tried.clear()
    with pytest.raises(CheckFailed, match=r"0\.74 or more is reached 0 times"):
        experiments.reproduced(record, record.parts[0], Reporter(value), random.Random(1))
    assert len(tried) == TRIES - 1  # then two can no longer be reached


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"synth": None, "xor": None},
        {"synth": {"accuracies": {}}, "xor": 3},
        {"synth": "a dict of 3 values", "xor": True},
    ],
)
def test_whatever_an_answer_process_reports_the_judge_has_words_for_it(value):
    with pytest.raises(CheckFailed):
        experiments.reproduced(RECORDS[0], RECORDS[0].parts[0], Reporter(value), random.Random(1))


@pytest.mark.parametrize("number", [10**400, -(10**400), 1e999, float("nan"), True, "8"])
def test_no_number_is_too_strange_for_a_setting(number):
    value = report(RECORDS[0], SIMPLE)
    value["synth"]["hidden"] = number
    with pytest.raises(CheckFailed, match="hidden must be a whole number from 1 to 64"):
        SIMPLE_EXPERIMENT.check(value)


@pytest.mark.parametrize(
    ("data", "settings", "said"),
    [
        ("synth", {"epochs": 16, "batch_tokens": 4096}, "training on 307200 tokens"),
        ("synth", {"epochs": 15, "batch_tokens": 96}, "3000 steps of training"),
        ("xor", {"epochs": 100, "batch_tokens": 32}, "2500 steps of training"),
    ],
)
def test_training_that_would_keep_grading_waiting_is_refused_before_it_starts(data, settings, said):
    """Grading trains up to fifteen times with such settings."""
    value = report(RECORDS[1], FULL)
    value[data] |= settings
    with pytest.raises(CheckFailed, match=said):
        checks.full_experiment(value)
    with pytest.raises(CheckFailed, match=said):
        experiments.reproduced(RECORDS[1], RECORDS[1].parts[0], Reporter(value), random.Random(1))


def test_the_limits_are_those_that_the_assignment_names():
    text = Path("source/03_classification/03_classification.ipynb").read_text(encoding="utf-8")
    assert f"At most {MOST_STEPS:,} steps" in text
    assert f"at most {MOST_TOKENS:,} tokens" in text
    assert f"({MOST_TOKENS // SIMPLE_EXPERIMENT.goals['synth'].tokens} epochs of the first puzzle)" in text
