"""Selects the parts of a submission that are run and judged: its cells, in order, up to the check of each exercise."""

import functools
from collections.abc import Iterable
from pathlib import Path

from nbformat import NotebookNode

from grading.exercises import topics
from grading.isolation.answers import AnswerServer, Cell
from grading.judging.judge import ExerciseResult, judge
from grading.judging.record import Record
from grading.nbgrader_steps.repair import read_submission
from transformer_lm.checks.engine.source import defined_names
from transformer_lm.checks.engine.verdict import Mark

OWN_SECONDS = 5  # per exercise; a right answer takes half a second
SHARED_SECONDS = 15  # in addition, for all exercises of a submission together


def marks(cell: NotebookNode) -> NotebookNode:
    """Return nbgrader's metadata of a cell: its grade_id, and whether it is locked, a solution, graded."""
    return cell.metadata.get("nbgrader", NotebookNode())


def is_check(cell: NotebookNode) -> bool:
    """Return whether a cell is a check that is graded automatically."""
    return cell.cell_type == "code" and bool(marks(cell).get("grade")) and not marks(cell).get("solution")


def marks_of_parts(graded: NotebookNode | dict) -> dict[str, Mark]:
    """Return the judge's results for the parts of the exercises in a graded notebook."""
    judged = graded["metadata"].get("grading", {}).get("exercises", ())
    return {part["name"]: Mark.from_table(part) for exercise in judged for part in exercise["parts"]}


def read_released(path: Path) -> NotebookNode:
    """Return a released notebook, which must not be changed because it is cached for the next submission."""
    return _kept(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _kept(path: Path, time: int) -> NotebookNode:
    return read_submission(path)


def records_of(assignment: str, released: NotebookNode) -> list[Record]:
    """Return the records of the exercises in a released notebook; none in a notebook of another course."""
    answered = {marks(cell).get("grade_id") for cell in released.cells if marks(cell).get("solution")}
    return [record for record in topics().get(assignment, ()) if record.solution_cell in answered]


def judged(
    submitted: NotebookNode, released: NotebookNode, records: Iterable[Record], server: AnswerServer, folder: Path
) -> list[ExerciseResult]:
    """Judge the exercises of a repaired submission in order; `folder` contains the other submitted files.

    Each exercise has some seconds, and one that hangs also uses a budget shared by all. So no submission takes long,
    and no answer pays for the others.
    """
    results: list[ExerciseResult] = []
    left_out: dict[int, str] = {}
    shared: float = SHARED_SECONDS
    for record in records:
        used = server.used
        cells = cells_before(submitted, released, record.parts[0].name)
        names = [marks(cell).get("grade_id") for cell in submitted.cells]
        solution = names.index(record.solution_cell)
        limit = OWN_SECONDS + shared
        results.append(judge(record, cells, server, None, solution, left_out, folder, limit))
        shared -= min(shared, max(0, server.used - used - OWN_SECONDS))
    return results


def cells_before(submitted: NotebookNode, released: NotebookNode, check: str) -> list[Cell]:
    """Return the code that is run before a check: set-up, answers and the student's own cells, but not other checks.

    Unchanged released cells are left out, except for the set-up: demonstrations define nothing that is needed and may
    take long, and a stub would override an answer in another cell.
    """
    untouched = {cell.source.strip() for cell in released.cells if not marks(cell).get("locked")}
    given = frozenset().union(*(defined_names(cell.source) for cell in released.cells if cell.cell_type == "code"))
    cells = []
    for number, cell in enumerate(submitted.cells):
        if marks(cell).get("grade_id") == check:
            break
        left_out = is_check(cell) or (not marks(cell).get("locked") and cell.source.strip() in untouched)
        if cell.cell_type == "code" and not left_out:
            cells.append(Cell(number, cell.source, given))
    return cells
