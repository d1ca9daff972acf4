"""A class of 32, half of which submit files meant to stop a run: the others get what they deserve, in time."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell
from sample_class import ASSIGNMENT, FULL_SCORE, OUT_OF, RUN, changed, new_course, scores

from grading.authoring.demo import solved_notebook, write_submission
from grading.isolation.sandbox import missing_walls
from grading.nbgrader_steps.pipeline import NOTICE
from grading.nbgrader_steps.repair import MAX_CELLS
from grading.runs.class_run import ClassRun

NOTEBOOK = f"{ASSIGNMENT}.ipynb"
HONEST = 15
MOST_SECONDS = 15 * 60  # for the whole class, on a busy machine


def _latin_name(folder: Path) -> None:
    (Path(os.fsdecode(os.fsencode(folder) + b"/r\xe9sum\xe9.txt"))).write_text("honest, and not in UTF-8")


def _link(folder: Path) -> None:
    (folder / "memory").symlink_to("/proc/self/mem")


def _time_is_a_folder(folder: Path) -> None:
    (folder / "timestamp.txt").unlink()
    (folder / "timestamp.txt").mkdir()


def _time_is_a_pipe(folder: Path) -> None:
    (folder / "timestamp.txt").unlink()
    os.mkfifo(folder / "timestamp.txt")


def _notebook_is_a_pipe(folder: Path) -> None:
    (folder / NOTEBOOK).unlink()
    os.mkfifo(folder / NOTEBOOK)


def _time_is_huge(folder: Path) -> None:
    (folder / "timestamp.txt").write_text("9" * 10_000_000)


def _many_cells(folder: Path) -> None:
    (folder / NOTEBOOK).write_text('{"cells": [' + "{}," * 3_000_000 + '{}], "metadata": {}, "nbformat": 4}')


def _sparse(folder: Path) -> None:
    with (folder / "model.bin").open("wb") as file:
        file.truncate(400_000_000)


def _terminal(folder: Path) -> None:
    (folder / NOTEBOOK).rename(folder / "\x1b[2J\x1b[31mhomework\n\u202e.ipynb")


def _many_files(folder: Path) -> None:
    for number in range(3000):
        (folder / f"{number}.txt").touch()


FILES = {
    "latin-name": _latin_name,
    "link": _link,
    "time-folder": _time_is_a_folder,
    "time-pipe": _time_is_a_pipe,
    "time-huge": _time_is_huge,
    "notebook-pipe": _notebook_is_a_pipe,
    "many-cells": _many_cells,
    "many-files": _many_files,
    "sparse": _sparse,
    "terminal": _terminal,
}


def _helpers(notebook: nbformat.NotebookNode) -> None:
    chain = [f"def h{number}(x):\n    return h{number + 1}(x)" for number in range(1000)]
    notebook.cells[3:3] = [new_code_cell(source) for source in chain]
    changed(("attention-scores", "dh = ", "h0; dh = "))(notebook)


def _attachments(notebook: nbformat.NotebookNode) -> None:
    for cell in notebook.cells:
        cell.metadata |= {f"key{number}": "x" for number in range(3000)}
        if cell.cell_type == "markdown":
            cell.attachments = {f"{number}.png": {"image/png": "AAAA"} for number in range(3000)}


def _append(notebook: nbformat.NotebookNode, name: str, text: str) -> None:
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == name:
            cell.source = f"{cell.source}\n{text}"


def _made_up_shape(notebook: nbformat.NotebookNode) -> None:
    """Report a weight that takes no byte to send, and gigabytes to multiply by."""
    hollow = "nn.Parameter(torch.empty(3 * 10**8, 0))"
    body = f"def create_kqv_parameters(input_size, hidden):\n    layer = nn.Linear(1, 1); layer.weight = {hollow}\n"
    _append(notebook, "kqv", f"{body}    return layer")


def _many_cells_and_a_repair(notebook: nbformat.NotebookNode) -> None:
    notebook.cells.extend(new_code_cell() for _ in range(MAX_CELLS - len(notebook.cells)))
    del notebook.cells[-1]
    notebook.cells.insert(1, new_markdown_cell("**Repaired before grading:** full points", id=NOTICE))
    notebook.cells[2].metadata = {}


CODE = {
    "made-up-shape": _made_up_shape,
    "most-cells": _many_cells_and_a_repair,
    "helpers": _helpers,
    "attachments": _attachments,
    "comment": lambda notebook: _append(
        notebook, "self-attention", "import sys\nif sys.gettrace(): raise SystemExit\n" + "####" + "(," * 3000
    ),
    "busy": lambda notebook: _append(
        notebook, "kqv", "import os\nfor _ in range(15):\n    if not os.fork():\n        while True: pass"
    ),
    "blanks": lambda notebook: _append(notebook, "attention-scores", "x = 1" + " " * 9000 + "?!"),
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = new_course(tmp_path_factory.mktemp("hostile") / "course")
    for number in range(HONEST):
        notebook = solved_notebook(course)
        if number % 2:
            changed(("attention-scores", " / math.sqrt(dh)", ""))(notebook)
        write_submission(course, f"honest-{number:02}", nbformat.writes(notebook))
    for name, spoil in FILES.items():
        spoil(write_submission(course, name, nbformat.writes(solved_notebook(course))))
    for name, spoil in CODE.items():
        notebook = solved_notebook(course)
        spoil(notebook)
        write_submission(course, name, json.dumps(notebook))
    return course


def test_honest_students_get_what_they_deserve_beside_hostile_ones_and_in_time(course):
    start = time.monotonic()
    command = [sys.executable, "-m", *RUN, "--workers", "2"]
    run = subprocess.run(command, cwd=course, capture_output=True, text=True, check=False, timeout=MOST_SECONDS)
    print(run.stdout, run.stderr, f"{time.monotonic() - start:.0f} seconds")
    assert "Traceback" not in run.stderr
    assert run.returncode == 0, run.stdout + run.stderr
    found = scores(course)
    assert {student: found[student] for student in found if student.startswith("honest")} == {
        f"honest-{number:02}": FULL_SCORE - 4 * (number % 2) for number in range(HONEST)
    }
    assert found["latin-name"] == found["most-cells"] == FULL_SCORE  # nothing is wrong with them
    for student in FILES.keys() - {"latin-name", "terminal"}:
        (line,) = [line for line in run.stdout.splitlines() if line.startswith(f"{student} ")]
        assert f"0 of {OUT_OF:g} + by hand" in line
    assert "\x1b" not in run.stdout
    assert "\u202e" not in run.stdout
    assert ClassRun(course, ASSIGNMENT, reduced=bool(missing_walls())).to_do() == []
