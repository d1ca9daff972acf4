"""The proof: every recorded wrong answer is refused for its own reason, every right one gets full points."""

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from checkout import ROOT

from grading.authoring import prove
from grading.authoring.prove import SEEDS, TURNS, Trial, fault, sampled, trials
from grading.exercises import records, value_records
from grading.isolation.sandbox import missing_walls

REDUCED = bool(missing_walls())
OPTIONS = ["--reduced-isolation"] if REDUCED else []


def grading(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "grading", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("exercise", records())
def test_every_right_answer_and_today_s_wrong_ones_are_graded_right(exercise, turn):
    # In this process, not in separate workers, so that the exercises of a topic share an answer process.
    assert {trial: text for trial in sampled(exercise, REDUCED, turn) if (text := fault(trial))} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("exercise", records())
def test_every_grade_is_right(exercise, turn):
    assert {trial: text for trial in trials([exercise], REDUCED, turn=turn) if (text := fault(trial))} == {}


@pytest.mark.parametrize("exercise", records())
def test_each_turn_tries_all_right_answers_and_all_turns_all_wrong_ones(exercise):
    record = records()[exercise]
    right = {("right", name) for name in ("model answer", *record.right)}
    wrong = {("wrong", wrong.name) for wrong in record.wrong + record.misbehaving}
    every_turn = [[(trial.kind, trial.name) for trial in sampled(exercise, REDUCED, turn)] for turn in range(TURNS)]
    for tried in every_turn:
        assert len(tried) == len(set(tried))
        assert {each for each in tried if each[0] != "wrong"} == right | {("blank", "blank")}
        assert {each for each in tried if each[0] == "wrong"}
    assert {each for tried in every_turn for each in tried if each[0] == "wrong"} == wrong
    seeds = {(trial.name, trial.seed) for turn in range(len(SEEDS)) for trial in sampled(exercise, REDUCED, turn)}
    assert {("model answer", seed) for seed in SEEDS} <= seeds


@pytest.mark.parametrize("exercise", records())
def test_right_answers_are_tried_with_every_seed_and_others_with_seeds_in_turn(exercise):
    record = records()[exercise]
    right = {("right", name) for name in ("model answer", *record.right)}
    others = {("wrong", wrong.name) for wrong in record.wrong + record.misbehaving} | {("blank", "blank")}
    tried = [(trial.kind, trial.name, trial.seed) for trial in trials([exercise], REDUCED)]
    assert {each for each in tried if each[0] == "right"} == {(*each, seed) for each in right for seed in SEEDS}
    assert len(tried) == len(set(tried)) == len(SEEDS) * len(right) + len(others)
    assert {each[:2] for each in tried} == right | others
    turns = Counter(seed for kind, _, seed in tried if kind != "right")
    assert max(turns[seed] for seed in SEEDS) - min(turns[seed] for seed in SEEDS) <= 1
    assert len(SEEDS) >= 3


@pytest.mark.parametrize("exercise", records())
def test_every_answer_can_be_tried_with_every_seed(exercise):
    record = records()[exercise]
    tried = list(trials([exercise], REDUCED, every_seed=True))
    in_turn = {trial for turn in range(len(SEEDS)) for trial in trials([exercise], REDUCED, turn=turn)}
    assert set(tried) == in_turn
    wrong, right = len(record.wrong + record.misbehaving), 1 + len(record.right)
    assert len(tried) == len(set(tried)) == len(SEEDS) * (wrong + right + 1)


def test_the_proof_notices_wrong_grades(monkeypatch):
    record = records()["attention-scores"]
    wrong = record.wrong[0]
    monkeypatch.setitem(record.right, "really-wrong", wrong.source)
    assert "gets 0 points" in fault(Trial(record.id, "right", "really-wrong", 1, REDUCED))
    monkeypatch.setattr(prove, "BLANK", record.model_answer)
    assert fault(Trial(record.id, "blank", "blank", 1, REDUCED)) == "a blank answer gets 2 points"
    monkeypatch.setattr(prove, "_wrong", lambda record: (replace(wrong, source=record.model_answer),))
    assert "loses 0 points instead of 2" in fault(Trial(record.id, "wrong", wrong.name, 1, REDUCED))
    monkeypatch.setattr(prove, "_wrong", lambda record: (replace(wrong, hint="not-halved"),))
    assert "must get 'not-halved'" in fault(Trial(record.id, "wrong", wrong.name, 1, REDUCED))


@pytest.mark.parametrize("exercise", value_records())
def test_what_is_computed_once_is_as_if_it_were_computed_again(exercise):
    record, once = records()[exercise], prove.computing_once(exercise)
    for _ in range(2):
        rng, again = random.Random(4), random.Random(4)
        for sizes in (record.other_sizes, record.first_sizes | record.other_length, record.other_sizes):
            case, same = record.draw(rng, sizes), once.draw(again, sizes)
            for source in (record.model_answer, record.wrong[-1].source):
                assert_equal(once.outputs(source, case), record.outputs(source, case))
            assert_equal(once.reference(case), record.reference(case))
            assert_equal(once.gradients(record.model_answer, case), record.gradients(record.model_answer, case))
            assert_equal(same, case)
        assert rng.getstate() == again.getstate()


def assert_equal(kept: dict, computed: dict) -> None:
    """Compare arrays by name, then change those that were kept: one judge's changes must not reach another."""
    assert kept.keys() == computed.keys()
    for name, array in kept.items():
        if isinstance(array, dict):
            assert_equal(array, computed[name])
        else:
            np.testing.assert_array_equal(array, computed[name], strict=True)
    for array in kept.values():  # not in the loop above: two names may share an array
        if isinstance(array, np.ndarray):
            array.fill(0)


def test_the_command_ends_with_the_counts():
    run = grading("prove", "attention-scores", *OPTIONS)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "attention-scores: 24 wrong, 9 right, 1 blank answers",
        "All 52 grades are right, over 3 seeds.",
    ]


def test_try_tells_what_an_answer_would_get_and_why(tmp_path):
    answer = tmp_path / "answer.py"
    answer.write_text("import torch\nfrom torch import nn\n\n" + records()["kqv"].wrong[0].source)
    run = grading("try", "kqv", str(answer), "--json", *OPTIONS)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert (result["exercise"], result["points"], result["max_points"]) == ("kqv", 1, 2)
    assert [(part["name"], part["points"], part["max_points"]) for part in result["parts"]] == [
        ("kqv-check-parameters", 1, 1),
        ("kqv-check", 0, 1),
    ]
    assert records()["kqv"].wrong[0].hint == result["parts"][1]["failure"]["mistake"]


def test_try_refuses_what_it_cannot_judge(tmp_path):
    assert "must be one of kqv, attention-scores" in grading("try", "unknown", "answer.py").stderr
    missing = grading("try", "kqv", str(tmp_path / "missing.py"))
    assert "FILE.py must be a text file" in missing.stderr
    assert missing.returncode != 0
