"""What the package knows about the release: up to date, complete, and without a solution."""

import json
import shutil

import nbformat
import pytest
from checkout import ROOT
from test_release import ASSIGNMENTS, solution_lines

from grading.authoring.outline import write_outlines
from grading.exercises import topics
from transformer_lm.course.outlines import FOLDER, assignments, load_outline, outline_with


def test_the_outlines_are_those_of_the_release(tmp_path):
    fresh = {path.name: path.read_bytes() for path in write_outlines(ROOT / "release", tmp_path)}
    committed = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    assert fresh == committed, "transformer_lm/course/released is stale: run `make release`"


def test_an_outline_of_an_assignment_that_is_gone_is_deleted(tmp_path):
    shutil.copytree(ROOT / "release" / ASSIGNMENTS[1], tmp_path / "release" / ASSIGNMENTS[1])
    shutil.copytree(FOLDER, tmp_path / "outlines")
    write_outlines(tmp_path / "release", tmp_path / "outlines")
    assert [path.stem for path in (tmp_path / "outlines").iterdir()] == [ASSIGNMENTS[1]]


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_an_outline_has_every_cell_and_its_points(assignment):
    released = nbformat.read(ROOT / "release" / assignment / f"{assignment}.ipynb", as_version=4)
    outline = load_outline(assignment)
    marks = [cell.metadata.get("nbgrader", {}) for cell in released.cells]
    assert [cell.name for cell in outline.cells] == [mark.get("grade_id", "") for mark in marks]
    assert [cell.points for cell in outline.cells] == [mark.get("points", 0) for mark in marks]
    for record in topics()[assignment]:
        assert {part.name for part in record.parts} <= {cell.name for cell in outline.checks_of(record.solution_cell)}
        assert outline_with(record.solution_cell) is outline


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_an_outline_holds_no_line_of_a_solution(assignment):
    sources = "\n".join(cell["source"] for cell in json.loads((FOLDER / f"{assignment}.json").read_text()))
    lines = solution_lines(ROOT / "source" / assignment / f"{assignment}.ipynb")
    assert lines
    assert [line for line in lines if line in sources] == []


def test_the_names_of_an_answer_are_those_that_its_checks_are_given():
    outline = load_outline("01_self_attention")
    assert outline.names_of("kqv") == {"create_kqv_parameters", "kqv"}
    assert outline.names_of("self-attention") == {"SelfAttention"}
    assert load_outline("04_language_model").names_of("training-run") == frozenset()  # a file


def test_what_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"assignment must be one of 01_self_attention, .*, got '07'"):
        load_outline("07")
    with pytest.raises(ValueError, match=r"exercise must be one of kqv, .*, got 'unknown'"):
        outline_with("unknown")
    assert assignments() == ASSIGNMENTS
