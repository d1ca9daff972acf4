"""The proof: every recorded wrong answer is refused for its own reason, every right one gets full points."""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from grading import prove
from grading.exercises import records, value_records
from grading.prove import SEEDS, Trial, fault, trials
from grading.sandbox import missing_walls

ROOT = Path(__file__).parents[1]
REDUCED = bool(missing_walls())
OPTIONS = ["--reduced-isolation"] if REDUCED else []


def grading(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "grading", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("exercise", records())
def test_every_grade_is_right(exercise):
    # In this process, and not in workers of its own: so the exercises of a topic share an answer process.
    found = {trial: text for trial in trials([exercise], REDUCED) if (text := fault(trial))}
    assert found == {}


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
    wrong, right = len(record.wrong + record.misbehaving), 1 + len(record.right)
    assert len(tried) == len(set(tried)) == len(SEEDS) * (wrong + right + 1)


def test_the_proof_notices_wrong_grades(monkeypatch):
    record = records()["attention-scores"]
    wrong = record.wrong[0]
    monkeypatch.setitem(record.right, "really-wrong", wrong.source)
    assert "gets 0 points" in fault(Trial(record.id, "right", "really-wrong", 1, REDUCED))
    monkeypatch.setattr(prove, "BLANK", record.model_answer)
    assert fault(Trial(record.id, "blank", "blank", 1, REDUCED)) == "a blank answer gets 2 points"
    monkeypatch.setattr(prove, "_wrong", lambda record: (wrong.__class__(wrong.name, wrong.hint, record.model_answer),))
    assert "loses 0 points in place of 2" in fault(Trial(record.id, "wrong", wrong.name, 1, REDUCED))
    monkeypatch.setattr(prove, "_wrong", lambda record: (wrong.__class__(wrong.name, "Another hint.", wrong.source),))
    assert "must hear 'Another hint.'" in fault(Trial(record.id, "wrong", wrong.name, 1, REDUCED))


@pytest.mark.parametrize("exercise", value_records())
def test_a_case_that_is_drawn_once_is_as_if_it_were_drawn_again(exercise):
    record, once = records()[exercise], prove.drawing_once(exercise)
    for _ in range(2):
        rng, again = random.Random(4), random.Random(4)
        for sizes in (record.other_sizes, record.first_sizes | record.other_length, record.other_sizes):
            case, same = record.draw(rng, sizes), once.draw(again, sizes)
            assert case.keys() == same.keys()
            for name in case:
                np.testing.assert_array_equal(same[name], case[name], strict=True)
                same[name].fill(0)  # what a judge does to it stays with that judge
        assert rng.getstate() == again.getstate()


def test_the_command_ends_with_the_counts():
    run = grading("prove", "attention-scores", *OPTIONS)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "attention-scores: 22 wrong, 9 right, 1 blank answers",
        "All 50 grades are right, over 3 seeds.",
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
    assert records()["kqv"].wrong[0].hint in result["parts"][1]["message"]


def test_try_refuses_what_it_cannot_judge(tmp_path):
    assert "must be one of kqv, attention-scores" in grading("try", "unknown", "answer.py").stderr
    missing = grading("try", "kqv", str(tmp_path / "missing.py"))
    assert "FILE.py must be a text file" in missing.stderr
    assert missing.returncode != 0
