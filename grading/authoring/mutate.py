"""Finds holes in the grading: machine-made wrong answers that get full points although they compute something else.

Every mutant of the recorded right answers is judged like a submission. A mutant that gets full points is compared with
the reference on more cases than the judge draws. If it differs there, it is a survivor, a mistake that would go
unnoticed. Otherwise it is equivalent to the answer that it was made from.
"""

import copy
import functools
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grading.authoring.mutants import Mutant, mutants
from grading.authoring.prove import SEEDS, computing_once
from grading.exercises import records, topic_of
from grading.isolation.answers import Answer, AnswerEnded, AnswerServer, Cell
from grading.judging.judge import (
    Tolerances,
    as_given,
    failure_told,
    gradients_of,
    inputs_after,
    judge,
    right,
    tensors,
    tolerances,
)
from grading.judging.record import SETUP, Arrays, Record, ValueRecord
from grading.processes.workers import answer_server, side_by_side
from transformer_lm.checks.engine.calling import FIRST, Way
from transformer_lm.checks.engine.contract import PublicExercise
from transformer_lm.checks.engine.diagnosis import compare_gradients, require_unchanged
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.engine.written_tests import TestExercise
from transformer_lm.text_tables import aligned

SECONDS = 5  # for an answer, as in a submission: a mutant may run forever
COMPARED_SECONDS = 20  # for an accepted mutant: another verdict, or all cases of a comparison
MORE_SEEDS = (11, 12)  # for another verdict on an accepted mutant, and for cases to compare it on
CASE_SECONDS = 3  # to draw a case; with impossible sizes, a record may search forever

REFUSED, EQUIVALENT, SURVIVOR = "refused", "equivalent", "survivor"


@dataclass(frozen=True)
class Task:
    """A mutant to judge, with the name of the answer that it was made from."""

    exercise: str
    answer: str
    mutant: Mutant
    seed: int
    reduced: bool


@dataclass(frozen=True)
class Verdict:
    """The verdict on a mutant; its kind is `refused`, `equivalent` or `survivor`, and `differs` explains the last."""

    kind: str
    differs: str
    seconds: float


def is_mutated(record: Record) -> bool:
    """Return whether answers to an exercise are code, rather than a result that students submit."""
    return isinstance(record.public, PublicExercise | TestExercise)


def tasks(exercise: str, reduced: bool, sample: int | None = None, turn: int = 0) -> list[Task]:
    """Return the mutants of all right answers to an exercise, or about `sample` of them; each turn takes others."""
    record = records()[exercise]
    answers = {"model answer": record.model_answer} | record.right
    names = list(answers)
    return [
        Task(exercise, names[mutant.answer], mutant, SEEDS[mutant.line % len(SEEDS)], reduced)
        for mutant in mutants(answers.values(), sample, turn)
    ]


def judged(tried: Iterable[Task], workers: int | None = None) -> Iterator[tuple[Task, Verdict]]:
    """Yield each mutant with its verdict."""
    return side_by_side(verdict, tried, workers)


def verdict(task: Task) -> Verdict:
    """Judge a mutant, and compare it with the reference if it gets full points."""
    start = time.perf_counter()
    kind, differs = REFUSED, ""
    if _accepted(task, task.seed, SECONDS):
        differs = _difference(task)
        kind = SURVIVOR if differs else EQUIVALENT
    return Verdict(kind, differs, time.perf_counter() - start)


def _difference(task: Task) -> str:
    """Return how an accepted mutant differs from a right answer, or an empty text."""
    for seed in MORE_SEEDS:
        if not _accepted(task, seed, COMPARED_SECONDS):
            return f"refused with seed {seed}, accepted with seed {task.seed}"
    record = _record(task.exercise)
    if not isinstance(record, ValueRecord):
        return ""
    found = _differences(task, task.mutant.source)
    disputed = _disputed(task.exercise, task.reduced) if found else set()
    return next((f"{how} ({case})" for case, how in found.items() if case not in disputed), "")


# --- the results ----------------------------------------------------------------------------------

COLUMNS = ("exercise", "mutants", REFUSED, EQUIVALENT, "survivors", "seconds")


def table(found: Iterable[tuple[Task, Verdict]]) -> list[dict[str, Any]]:
    """Return a row for each exercise, in the order of the course: the number of mutants of each kind, and the time."""
    by_exercise: dict[str, list[Verdict]] = {}
    for task, verdict in found:
        by_exercise.setdefault(task.exercise, []).append(verdict)
    return [_row(exercise, by_exercise[exercise]) for exercise in records() if exercise in by_exercise]


def _row(exercise: str, verdicts: list[Verdict]) -> dict[str, Any]:
    kinds = Counter(verdict.kind for verdict in verdicts)
    counts = (len(verdicts), kinds[REFUSED], kinds[EQUIVALENT], kinds[SURVIVOR])
    return dict(zip(COLUMNS, (exercise, *counts, round(sum(verdict.seconds for verdict in verdicts))), strict=True))


def as_text(found: list[tuple[Task, Verdict]], verbose: bool = False) -> str:
    """Return the survivors, line by line, and the table; with `verbose`, the equivalent mutants too."""
    listed = (EQUIVALENT, SURVIVOR) if verbose else (SURVIVOR,)
    lines = [_told(task, verdict) for kind in listed for task, verdict in found if verdict.kind == kind]
    rows = table(found)
    total: dict[str, Any] = {"exercise": "all"} | {column: sum(row[column] for row in rows) for column in COLUMNS[1:]}
    shown = [dict(zip(COLUMNS, COLUMNS, strict=True)), *rows, total]
    lines.append(aligned([[str(row[column]) for column in COLUMNS] for row in shown], left=1))
    counts = f"{total[REFUSED]} refused, {total[EQUIVALENT]} equivalent, {total['survivors']} survivors"
    return "\n".join([*lines, f"{total['mutants']} mutants: {counts}."])


def _told(task: Task, verdict: Verdict) -> str:
    mutant = task.mutant
    lines = f"{task.exercise}, {task.answer!r}, line {mutant.line}: {verdict.kind}\n- {mutant.before}\n+ {mutant.after}"
    return f"{lines}\n{verdict.differs}\n" if verdict.differs else f"{lines}\n"


def as_json(found: list[tuple[Task, Verdict]]) -> str:
    """Return the table and every accepted mutant as JSON."""
    accepted = [
        {"exercise": task.exercise, "answer": task.answer, "seed": task.seed} | asdict(task.mutant) | asdict(verdict)
        for task, verdict in found
        if verdict.kind != REFUSED
    ]
    return json.dumps({"table": table(found), "accepted": accepted}, indent=2, ensure_ascii=False)


# --- judging --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)  # mutants are tried exercise by exercise
def _record(exercise: str) -> Record:
    """Return the record of an exercise without the parts about form, because a mutant has no comments."""
    record = copy.copy(computing_once(exercise))
    object.__setattr__(record, "parts", tuple(part for part in record.parts if part.points))
    return record


def _server(task: Task) -> AnswerServer:
    return answer_server(topic_of(task.exercise), task.reduced)


def _cells(source: str) -> list[Cell]:
    return [Cell(0, SETUP), Cell(1, source)]


def _accepted(task: Task, seed: int, seconds: float) -> bool:
    """Return whether a mutant gets full points within this many seconds."""
    record, cells = _record(task.exercise), _cells(task.mutant.source)
    result = judge(record, cells, _server(task), seed, 1, seconds=seconds, stop_at_loss=True)
    return result.points >= result.max_points


# --- comparing ------------------------------------------------------------------------------------


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError once this process has used this many seconds of processor time."""

    def stop(*given: object) -> None:
        raise TimeoutError(f"a case must be drawn within {seconds} seconds.")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass(frozen=True)
class _Case:
    """Inputs to compare an accepted mutant on, in words and as arrays, with expected outputs and tolerances."""

    words: str
    inputs: Arrays
    expected: Arrays
    allowed: Tolerances
    gradients: dict[str, Arrays]


@functools.lru_cache(maxsize=1)
def _cases(exercise: str) -> list[_Case]:
    """Return cases with the record's sizes, with other sizes, with all sizes 1, and with inputs that are all the same.

    Sizes that the record can't draw or the model answer can't handle are left out.
    """
    record = _record(exercise)
    assert isinstance(record, ValueRecord)
    found = []
    for seed in MORE_SEEDS:
        rng = random.Random(seed)
        for sizes in _sizes(record, rng):
            luck, told = random.Random(rng.getrandbits(64)), ", ".join(f"{name}={size}" for name, size in sizes.items())
            # Unforeseen sizes may raise anything.
            with suppress(Exception), np.errstate(all="ignore"), _within(CASE_SECONDS):
                for words, inputs in _varied(record, record.draw(luck, sizes), sizes == record.first_sizes):
                    expected, allowed = record.reference(inputs), tolerances(record, inputs, luck)
                    gradients = record.gradients(record.model_answer, inputs)
                    found.append(_Case(f"{told}{words}, seed {seed}", inputs, expected, allowed, gradients))
    return found


def _sizes(record: ValueRecord, rng: random.Random) -> Iterator[dict[str, int]]:
    """Yield sizes: the record's own, then all 1, then arbitrary ones, equal or not."""
    first = record.first_sizes
    yield from (first, first | record.other_length, record.other_sizes)
    for name in first:
        yield first | {name: 1}
    if len(record.ones) > 1:
        yield record.smallest_sizes
    for most in (4, 9, 24):
        yield {name: rng.randint(1, most) for name in first}


def _varied(record: ValueRecord, case: Arrays, more: bool) -> Iterator[tuple[str, Arrays]]:
    """Yield the case, and if `more`, the case with all zeros, and with all ones, in the inputs of each call."""
    yield "", case
    for number in (0, 1) if more else ():
        same = {name: np.full_like(case[name], number) for name in record.public.reads if case[name].dtype.kind == "f"}
        if same:
            yield f", every input {number}", case | same


def _differences(task: Task, source: str) -> dict[str, str]:
    """Describe how an answer differs from the reference, by the cases on which it does."""
    record = _record(task.exercise)
    assert isinstance(record, ValueRecord)
    found: dict[str, str] = {}
    cells, seconds = _cells(source), COMPARED_SECONDS
    with Answer(_server(task), record.id, cells, record.forbids_attention, seconds=seconds) as answer:
        for case in _cases(task.exercise):
            try:
                answer.keep_running()
                how = _compared(record, answer, case)
            except AnswerEnded as ended:
                found[case.words] = f"it {ended}"
                break  # it would take as long on the other cases
            if how:
                found[case.words] = how
    return found


def _compared(record: ValueRecord, answer: Answer, case: _Case) -> str:
    """Return how an answer differs from the reference on a case, or an empty text."""
    inputs = {name: as_given(array) for name, array in case.inputs.items()}
    for way in (FIRST.way, Way(evaluate=True)):
        reply, found = answer.ask("call", inputs, name=record.defines, **asdict(way))
        failed = failure_told(reply)
        if failed:
            return failed.yours
        outputs = {name: found[f"outputs/{name}"] for name in case.expected if f"outputs/{name}" in found}
        off = [name for name in case.expected if not right(name, outputs, case.expected, case.allowed)]
        if off:
            return f"{', '.join(off)} is not the reference's"
        try:
            require_unchanged(case.words, inputs, inputs_after(found))
            if way.gradients:
                for output, expected in case.gradients.items():
                    compare_gradients(case.words, output, gradients_of(output, found), tensors(expected))
        except CheckFailed as different:
            return different.yours
    return ""


@functools.lru_cache(maxsize=1)
def _disputed(exercise: str, reduced: bool) -> set[str]:
    """Return the cases on which a recorded right answer differs from the reference; there, any output is accepted."""
    record = _record(exercise)
    task = Task(exercise, "", Mutant(0, 0, "", "", ""), 0, reduced)
    return {case for source in (record.model_answer, *record.right.values()) for case in _differences(task, source)}
