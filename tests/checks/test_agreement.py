"""The visible check and the judge agree: each recorded answer goes through both, part by part."""

import contextlib
import io
import linecache
from collections.abc import Iterable, Iterator
from pathlib import Path

import nbformat
import pytest
import torch
from checkout import ROOT

from grading.authoring.prove import SEEDS, Trial, judged, sampled, source_of, trials
from grading.exercises import records
from grading.isolation.sandbox import missing_walls
from grading.judging.record import SETUP, FileRecord, Record
from transformer_lm import checks
from transformer_lm.checks.engine.ready_made import READY_MADE

REDUCED = bool(missing_walls())


def check_cells() -> dict[str, str]:
    """Return the check cells of all assignments, by their names."""
    notebooks = [nbformat.read(path, as_version=4) for path in sorted(ROOT.glob("source/*/*.ipynb"))]
    cells = [cell for notebook in notebooks for cell in notebook.cells if cell.cell_type == "code"]
    return {cell.metadata.get("nbgrader", {}).get("grade_id"): cell.source for cell in cells}


CHECKS = check_cells()


def defined(record: Record, source: str) -> dict:
    """Return what the cell of an answer defines, in this process; Python finds its source, as for cells of IPython."""
    file, namespace = f"<cell of {record.id}>", {"__name__": "__main__"}
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(SETUP, namespace)
    exec(compile(source, file, "exec"), namespace)
    return namespace


def checked(record: Record, source: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield for each part what the student's check says about an answer; nothing if it passes."""
    if isinstance(record, FileRecord):
        record.write(source, folder)
        namespace = {}
    else:
        namespace = defined(record, source)
    namespace["checks"] = checks
    for part in record.parts:
        torch.manual_seed(1)
        try:
            with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
                exec(CHECKS[part.name], namespace)
            yield part.name, ""
        except checks.CheckFailed as failed:
            yield part.name, str(failed)


# What only the judge can find: its inputs, sizes and trainings are unknown to students, and that is their purpose.
JUDGE_ALONE = {
    "other-sizes": "the answer fits the sizes that students see, and no others",
    "mask-kept": "the answer keeps what it made of the masks that students see",
    "not-reproduced": "the judge trains a model with the settings of the report, which takes longer than a check may",
}


def disagreements(trial: Trial, folder: Path) -> dict[str, str]:
    """Return the parts of an answer about which check and judge disagree, with what both say.

    The judge accepts what a check accepts, and vice versa, with one difference: the judge marks each part
    by itself, even if others fail, and gives partial credit. A check of the whole answer may refuse it.
    """
    said = dict(checked(records()[trial.exercise], source_of(trial), folder))
    parts = judged(trial).parts
    refused = [part.name for part in parts if part.points < part.max_points or part.mark.failure]
    found = {}
    for part in parts:
        if part.name in refused:
            mistake = part.mark.failure.mistake if part.mark.failure else None
            differs = not said[part.name] and mistake not in JUDGE_ALONE
        else:
            differs = bool(said[part.name]) and not refused
        if differs:
            found[part.name] = f"the judge gives {part.points}: {part.message}\nthe check says: {said[part.name]}"
    return found


def in_all(tried: Iterable[Trial], folder: Path) -> dict[Trial, dict[str, str]]:
    return {trial: found for trial in tried if trial.kind != "blank" if (found := disagreements(trial, folder))}


@pytest.mark.parametrize("exercise", records())
def test_check_and_judge_agree_on_every_right_answer_and_today_s_wrong_ones(exercise, turn, tmp_path):
    assert in_all(sampled(exercise, REDUCED, turn), tmp_path) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("exercise", records())
def test_check_and_judge_agree_on_every_recorded_answer(exercise, turn, tmp_path):
    tried = trials([exercise], REDUCED, turn=turn)
    assert in_all((trial for trial in tried if trial.kind == "wrong" or trial.seed == SEEDS[0]), tmp_path) == {}


def test_no_check_promises_points_for_ready_made_attention(tmp_path, capsys):
    trial = Trial("self-attention", "wrong", "ready-made-function", 1, REDUCED)
    said = dict(checked(records()["self-attention"], source_of(trial), tmp_path))
    assert READY_MADE in said["self-attention-check"]
    assert READY_MADE in said["self-attention-check-shapes"]
    checks.short_forward("self-attention", defined(records()["self-attention"], source_of(trial))["SelfAttention"])
    assert capsys.readouterr().out == f"No extra point: {READY_MADE}\n"


def test_every_part_has_a_check_cell_of_its_name():
    assert {part.name for record in records().values() for part in record.parts} <= CHECKS.keys()


def test_what_the_judge_alone_can_find_is_found(tmp_path):
    """Each exception is needed: without it, an answer is accepted by its check and refused by the judge."""
    answers = (("kqv", "fits-known-sizes"), ("target-mask", "mask-kept"), ("full-experiment", "one-head"))
    for mistake, (exercise, name) in zip(JUDGE_ALONE, answers, strict=True):
        trial = Trial(exercise, "wrong", name, 1, REDUCED)
        (part,) = [part for part in judged(trial).parts if part.points < part.max_points]
        assert part.mark.failure.mistake == mistake
        assert dict(checked(records()[exercise], source_of(trial), tmp_path))[part.name] == ""
