"""Proves that grades are right: every wrong answer is refused for the intended reason, every right one is accepted."""

import copy
import functools
import itertools
import math
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grading.exercises import records, topic_of
from grading.isolation.answers import Cell
from grading.judging.judge import ExerciseResult, judge
from grading.judging.record import SETUP, Arrays, FileRecord, Record, ValueRecord, WrongAnswer
from grading.processes.workers import answer_server, side_by_side

SEEDS = (1, 2, 3)
TURNS = 10
BLANK = "# YOUR CODE HERE\nraise NotImplementedError()\n"


@dataclass(frozen=True)
class Trial:
    """An answer to try: its kind is `wrong`, `right` or `blank`."""

    exercise: str
    kind: str
    name: str
    seed: int
    reduced: bool


def trials(exercises: list[str], reduced: bool, every_seed: bool = False, turn: int = 0) -> Iterator[Trial]:
    """Yield every recorded answer of the exercises: right ones with every seed, the others with one seed each.

    There are many wrong answers, so the seeds take turns: at another turn, each answer gets another seed. With
    `every_seed`, every answer gets every seed.
    """
    for exercise in exercises:
        record = records()[exercise]
        others = [("wrong", wrong.name) for wrong in _wrong(record)] + [("blank", "blank")]
        for place, (kind, name) in enumerate(others, start=turn):
            for seed in SEEDS if every_seed else (SEEDS[place % len(SEEDS)],):
                yield Trial(exercise, kind, name, seed, reduced)
        for name in ("model answer", *record.right):
            for seed in SEEDS:
                yield Trial(exercise, "right", name, seed, reduced)


def sampled(exercise: str, reduced: bool, turn: int) -> Iterator[Trial]:
    """Yield every right answer of an exercise with one seed, the blank answer, and some of the wrong ones.

    Each turn takes other wrong answers and seeds, so that TURNS successive turns try every wrong answer.
    """
    record, seeds = records()[exercise], SEEDS[turn % len(SEEDS) :] + SEEDS[: turn % len(SEEDS)]
    answers = [("right", name) for name in ("model answer", *record.right)] + [("blank", "blank")]
    answers += [("wrong", wrong.name) for wrong in _wrong(record)[turn % TURNS :: TURNS]]
    for (kind, name), seed in zip(answers, itertools.cycle(seeds), strict=False):
        yield Trial(exercise, kind, name, seed, reduced)


def fault(trial: Trial) -> str | None:
    """Judge an answer; return what is wrong with the verdict, if anything."""
    record, result = records()[trial.exercise], judged(trial)
    if trial.kind == "blank":
        return None if result.points == 0 else f"a blank answer gets {result.points} points"
    if trial.kind == "right":
        full = all(part.points >= part.max_points for part in result.parts)
        return None if full else f"gets {result.points} points: {_messages(result)}"
    wrong = _wrong_of(trial)
    for part in result.parts:
        lost = part.max_points - part.points
        loses = part.name in record.fails(wrong)
        if part.max_points:
            should_lose = 0 if not loses else part.max_points if wrong.costs is None else wrong.costs
            if not math.isclose(lost, should_lose, abs_tol=1e-9):
                return f"loses {lost} points instead of {should_lose} for {part.name}: {_messages(result)}"
        elif loses and lost <= 0:  # form: how other mistakes affect it does not matter
            return f"loses nothing for {part.name}"
    heard = {part.mark.failure.mistake for part in result.parts if part.mark.failure}
    if wrong.hint in heard and wrong.says in _messages(result):
        return None
    return f"must get {wrong.hint!r} {wrong.says!r}, got {sorted(map(str, heard))}: {_messages(result)!r}"


@functools.lru_cache(maxsize=1)  # answers are tried exercise by exercise
def computing_once(exercise: str) -> Record:
    """Return a record with cached computations, because dozens of answers are tried on the same cases."""
    record = records()[exercise]
    if not isinstance(record, ValueRecord):
        return record
    drawn: dict[tuple, tuple[Arrays, tuple]] = {}

    def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
        before = (rng.getstate(), *sizes.items())
        if before not in drawn:
            drawn[before] = record.draw(rng, sizes), rng.getstate()
        case, after = drawn[before]
        rng.setstate(after)
        return copy.deepcopy(case)

    once = replace(record, draw=draw, reference=_kept(record.reference))
    for method in ("outputs", "gradients"):  # of the recorded answers, right and wrong
        object.__setattr__(once, method, _kept(getattr(record, method)))
    return once


def _kept(function: Callable) -> Callable:
    """Return a function of a case, its last argument, that caches its results and returns copies of them."""
    results: dict[tuple, object] = {}

    def call(*arguments: Any) -> object:
        *others, case = arguments
        key = (*others, *((name, array.dtype.str, array.shape, array.tobytes()) for name, array in case.items()))
        if key not in results:
            results[key] = function(*arguments)
        return copy.deepcopy(results[key])

    return call


def prove(tried: Iterable[Trial], workers: int | None = None) -> Iterator[tuple[Trial, str | None]]:
    """Yield each trial with what is wrong with its grade, if anything."""
    return side_by_side(fault, tried, workers)


def _wrong(record: Record) -> tuple[WrongAnswer, ...]:
    return record.wrong + record.misbehaving


def _wrong_of(trial: Trial) -> WrongAnswer:
    return next(wrong for wrong in _wrong(records()[trial.exercise]) if wrong.name == trial.name)


def source_of(trial: Trial) -> str:
    """Return the text of the answer that is tried."""
    if trial.kind == "blank":
        return BLANK
    record = records()[trial.exercise]
    return _wrong_of(trial).source if trial.kind == "wrong" else record.right.get(trial.name, record.model_answer)


def judged(trial: Trial) -> ExerciseResult:
    """Return the judge's result for the answer that is tried."""
    source = source_of(trial)
    record, server = computing_once(trial.exercise), answer_server(topic_of(trial.exercise), trial.reduced)
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(record, FileRecord) and source != BLANK:
            record.write(source, Path(folder))
        cells = [Cell(0, SETUP), Cell(1, source)]
        return judge(record, cells, server, trial.seed, solution=1, folder=Path(folder))


def _messages(result: ExerciseResult) -> str:
    return "\n".join(part.message for part in result.parts if part.points < part.max_points)
