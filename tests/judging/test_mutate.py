"""Machine-made wrong answers: those that are accepted and compute something else are found."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from checkout import ROOT

from grading.__main__ import main
from grading.authoring import mutate, prove
from grading.authoring.mutants import Mutant
from grading.authoring.mutate import (
    EQUIVALENT,
    REFUSED,
    SURVIVOR,
    Task,
    Verdict,
    as_text,
    is_mutated,
    table,
    tasks,
    verdict,
)
from grading.authoring.prove import computing_once
from grading.exercises import records, value_records
from grading.isolation.sandbox import missing_walls
from grading.judging.record import Part

REDUCED = bool(missing_walls())
OPTIONS = ["--reduced-isolation"] if REDUCED else []
MUTATED = [exercise for exercise, record in records().items() if is_mutated(record)]
FEW, MORE = 2, 10  # mutants of each exercise

SCORES = "def attention_scores(queries, keys):\n    {}\n    return queries @ keys.mT / keys.shape[-1] ** {}\n"


def survivors(exercise: str, sample: int, turn: int) -> list[str]:
    """Return the report on accepted wrong answers; judged here, so that the exercises of a topic share a server."""
    found = [(task, verdict(task)) for task in tasks(exercise, REDUCED, sample, turn)]
    return [as_text([each]) for each in found if each[1].kind == SURVIVOR]


@pytest.mark.parametrize("exercise", MUTATED)
def test_no_mutant_of_today_survives(exercise, turn):
    assert survivors(exercise, FEW, turn) == []


@pytest.mark.thorough
@pytest.mark.parametrize("exercise", MUTATED)
def test_none_of_many_mutants_survives(exercise, turn):
    assert survivors(exercise, MORE, turn) == []


def of_scores(power: str, first: str = "pass") -> Task:
    """Return an answer to an exercise as a mutant."""
    return Task("attention-scores", "model answer", Mutant(0, 1, "a", "b", SCORES.format(first, power)), 1, REDUCED)


@pytest.fixture
def blind_judge(monkeypatch):
    """Let the judge of an exercise accept everything."""

    def forget() -> None:
        for function in (computing_once, mutate._record, mutate._cases, mutate._disputed):
            function.cache_clear()

    record = records()["attention-scores"]
    blind = replace(record, parts=(Part("attention-scores-check", 2, lambda *given: "Right"),))
    monkeypatch.setitem(records(), record.id, blind)
    forget()
    yield
    forget()


@pytest.mark.parametrize(("power", "kind"), [("0.5", EQUIVALENT), ("(1 / 2)", EQUIVALENT), ("0.4", SURVIVOR)])
def test_a_hole_in_the_judge_is_found(blind_judge, power, kind):
    assert verdict(of_scores(power)).kind == kind


def test_a_survivor_tells_what_differs_and_where(blind_judge):
    assert "scores is not the reference's (b=" in verdict(of_scores("0.4")).differs
    assert "its gradient does not reach queries" in verdict(of_scores("0.5", "queries = queries.detach()")).differs
    assert (
        "queries is changed by the call"
        in verdict(of_scores("0.5", "x = queries.clone(); queries.zero_(); queries = x")).differs
    )
    assert "ZeroDivisionError" in verdict(of_scores("0.5", "1 // (len(queries) - 1)")).differs


def test_a_judge_that_sees_keeps_the_hole_closed():
    assert verdict(of_scores("0.4")).kind == REFUSED
    assert verdict(of_scores("0.5")).kind == EQUIVALENT


def test_an_endless_mutant_ends(monkeypatch):
    monkeypatch.setattr(mutate, "SECONDS", 2)
    assert verdict(of_scores("0.5", "while True: pass")).kind == REFUSED


def test_an_endless_mutant_that_is_accepted_ends_too(blind_judge, monkeypatch):
    monkeypatch.setattr(mutate, "COMPARED_SECONDS", 2)
    assert "runs with all before it for 2 seconds" in verdict(of_scores("0.5", "while True: pass")).differs


@pytest.mark.parametrize("exercise", value_records())
def test_every_exercise_is_compared_on_its_own_sizes_and_on_others(exercise):
    record, words = records()[exercise], [case.words for case in mutate._cases(exercise)]
    for sizes in (record.first_sizes, record.first_sizes | record.other_length, record.other_sizes):
        told = ", ".join(f"{name}={size}" for name, size in sizes.items())
        assert {f"{told}, seed {seed}" for seed in mutate.MORE_SEEDS} <= set(words)
    assert len(set(words)) >= 10


def test_a_record_that_looks_for_ever_for_a_case_gives_up(monkeypatch):
    def draw(rng: random.Random, sizes: dict[str, int]) -> dict:
        while sizes["dh"] == 1:
            pass
        return record.draw(rng, sizes)

    record = records()["attention-scores"]
    monkeypatch.setattr(mutate, "CASE_SECONDS", 0.2)
    monkeypatch.setattr(mutate, "_record", lambda exercise: replace(record, draw=draw))
    cases = mutate._cases.__wrapped__("attention-scores")
    assert [case for case in cases if "dh=1," in case.words] == []
    assert len(cases) >= 10


def test_only_answers_that_are_results_are_left_out():
    assert [exercise for exercise in records() if exercise not in MUTATED] == [
        "simple-experiment",
        "full-experiment",
        "training-run",
        "head-claim",
    ]


def test_the_table_counts_every_mutant_of_an_exercise_once():
    task = of_scores("0.5")
    found = [(task, Verdict(kind, "", 0.5)) for kind in (REFUSED, REFUSED, REFUSED, EQUIVALENT, SURVIVOR, SURVIVOR)]
    assert [list(row.values()) for row in table(found)] == [["attention-scores", 6, 3, 1, 2, 3]]
    text = as_text(found)
    assert text.count("line 1: survivor\n- a\n+ b\n") == 2
    assert "equivalent\n- a" not in text
    assert "line 1: equivalent\n- a\n+ b\n" in as_text(found, verbose=True)
    assert text.splitlines()[-2].split() == ["all", "6", "3", "1", "2", "3"]
    assert text.splitlines()[-1] == "6 mutants: 3 refused, 1 equivalent, 2 survivors."


def grading(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "grading", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_ctrl_c_shows_what_was_found_so_far(monkeypatch, capsys):
    def interrupted(*given: object) -> Iterator[tuple[Task, Verdict]]:
        yield of_scores("0.4"), Verdict(SURVIVOR, "scores is off", 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(mutate, "judged", interrupted)
    monkeypatch.setattr(sys, "argv", ["grading", "mutate", "causal-mask", "--sample", "3"])
    with pytest.raises(SystemExit, match=r"^Interrupted after 1 of \d mutants\. Name exercises to try only those\.$"):
        main()
    printed = capsys.readouterr().out
    assert "line 1: survivor\n- a\n+ b\nscores is off\n" in printed
    assert printed.endswith("1 mutants: 0 refused, 0 equivalent, 1 survivors.\n")


def test_ctrl_c_promises_nothing_that_is_not_kept(monkeypatch):
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prove, "prove", interrupted)
    monkeypatch.setattr(sys, "argv", ["grading", "prove", "causal-mask"])
    with pytest.raises(SystemExit, match=r"^Interrupted\.$"):
        main()


def test_the_command_exits_with_a_status_of_its_own_if_a_mutant_survives(monkeypatch, capsys):
    found = [(of_scores("0.4"), Verdict(SURVIVOR, "scores is off", 1))]
    monkeypatch.setattr(mutate, "judged", lambda tried, workers: found)
    monkeypatch.setattr(sys, "argv", ["grading", "mutate", "causal-mask", "--sample", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "line 1: survivor\n- a\n+ b\nscores is off\n" in capsys.readouterr().out


def test_the_command_prints_a_table_and_says_what_it_leaves_out():
    run = grading("mutate", "causal-mask", "head-claim", "--sample", "3", "--turn", "1", "--json", *OPTIONS)
    assert run.returncode == 0, run.stderr
    (row,) = json.loads(run.stdout)["table"]
    assert (row["exercise"], row["survivors"], row["mutants"]) == ("causal-mask", 0, row["refused"] + row["equivalent"])
    assert 3 <= row["mutants"] <= 6
    assert "Left out, because their answers are results and not code: head-claim." in run.stderr
