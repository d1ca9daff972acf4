"""A sample class: students who get everything right, make honest mistakes, or try to break the grading."""

import shutil
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from grading.nbgrader_steps.gradebook import gradebook_of
from grading.nbgrader_steps.submission import marks

ASSIGNMENT = "01_self_attention"
DUE = datetime(2030, 1, 31, 12, tzinfo=UTC)

Change = Callable[[NotebookNode], None]


def edited(cell: str, old: str, new: str) -> Change:
    """Return the edit that replaces a text in the answer to an exercise."""

    def change(notebook: NotebookNode) -> None:
        answer = _cell(notebook, cell)
        if old not in answer.source:
            raise ValueError(f"old must occur in the answer {cell}, got {old!r}.")
        answer.source = answer.source.replace(old, new)

    return change


def _cell(notebook: NotebookNode, grade_id: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if marks(cell).get("grade_id") == grade_id)


def _patches_the_check(notebook: NotebookNode) -> None:
    edited("attention-scores", "return queries @", "return 0 * queries @")(notebook)
    notebook.cells.insert(
        3, new_code_cell("checks.attention_scores = lambda answer: print('✓ attention-scores: right')")
    )


def _duplicated(notebook: NotebookNode) -> None:
    place = notebook.cells.index(_cell(notebook, "kqv"))
    copy = deepcopy(notebook.cells[place])
    copy.id = "copy"
    notebook.cells.insert(place, copy)


def _without_metadata(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        cell.metadata = NotebookNode()


WEIGHTED = "return weights @ v"

# Each student submits the solved notebook with one change.
STUDENTS: dict[str, Change] = {
    "perfect": lambda notebook: None,
    "forgot-the-scale": edited("attention-scores", " / math.sqrt(dh)", ""),
    "wrong-softmax-axis": edited("self-attention", "softmax(dim=-1)", "softmax(dim=1)"),
    "queries-first": edited("kqv", "return keys, queries, values", "return queries, keys, values"),
    "no-transpose": edited("attention-scores", "keys.transpose(1, 2)", "keys.reshape(len(keys), dh, -1)"),
    "typing-error": edited("self-attention", "weights = ", "wieghts = "),
    "late": lambda notebook: None,
    "cheats-ready-made": edited("self-attention", WEIGHTED, "return F.scaled_dot_product_attention(q, k, v)"),
    "cheats-with-the-check": _patches_the_check,
    "hangs": edited("self-attention", WEIGHTED, "while True:\n            pass"),
    "crashes": edited("attention-scores", "dh = ", "__import__('ctypes').string_at(0); dh = "),
    "eats-memory": edited("attention-scores", "dh = ", "hog = torch.ones(10**11); dh = "),
    "duplicated-cell": _duplicated,
    "metadata-lost": _without_metadata,
}


def write_class(course: Path) -> None:
    """Write submissions into a course folder whose assignment has been released, and set the due date."""
    solved = solved_notebook(course)
    for student, change in STUDENTS.items():
        notebook = deepcopy(solved)
        change(notebook)
        late = timedelta(hours=2) if student == "late" else timedelta(days=-1)
        write_submission(course, student, nbformat.writes(notebook), DUE + late)
    released = course / "release" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    write_submission(course, "blank", released.read_text(), DUE)
    write_submission(course, "broken-file", released.read_text()[:5000], DUE)
    with gradebook_of(course) as gradebook:
        gradebook.update_or_create_assignment(ASSIGNMENT, duedate=DUE.replace(tzinfo=None))


def solved_notebook(course: Path, assignment: str = ASSIGNMENT) -> NotebookNode:
    """Return the released notebook with the answers of the source filled in."""
    source, released = (
        nbformat.read(course / step / assignment / f"{assignment}.ipynb", 4) for step in ("source", "release")
    )
    for cell in released.cells:
        if marks(cell).get("solution"):
            lines = _cell(source, marks(cell).grade_id).source.splitlines()
            cell.source = "\n".join(line for line in lines if not line.endswith((" BEGIN SOLUTION", " END SOLUTION")))
    return released


def write_submission(
    course: Path, student: str, notebook: str, time: datetime = DUE, assignment: str = ASSIGNMENT
) -> Path:
    """Write a student's submission, replacing an earlier one, and return its folder."""
    folder = course / "submitted" / student / assignment
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / f"{assignment}.ipynb").write_text(notebook)
    (folder / "timestamp.txt").write_text(f"{time:%Y-%m-%d %H:%M:%S} UTC")
    return folder
