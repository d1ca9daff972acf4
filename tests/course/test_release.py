"""From source to release, with nbgrader itself: `nbgrader generate_assignment`."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from checkout import ROOT
from nbgrader.api import Gradebook

ASSIGNMENTS = sorted(folder.name for folder in (ROOT / "source").iterdir() if folder.is_dir())


def nbgrader(course: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments], cwd=course, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def notebooks(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.ipynb"))


def cells(path: Path) -> dict[str, nbformat.NotebookNode]:
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course folder with freshly generated releases, a gradebook and no submissions."""
    course = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "source", course / "source")
    shutil.copy(ROOT / "nbgrader_config.py", course)
    for assignment in ASSIGNMENTS:
        nbgrader(course, "generate_assignment", assignment, "--create", "--force")
    return course


def points(course: Path, topic: str) -> dict[str, float]:
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        return {cell.name: cell.max_score for cell in gradebook.find_notebook(topic, topic).grade_cells}


def test_regenerating_the_release_changes_no_byte(course):
    fresh = {path.relative_to(course): path.read_bytes() for path in (course / "release").rglob("*") if path.is_file()}
    committed = {path.relative_to(ROOT): path.read_bytes() for path in (ROOT / "release").rglob("*") if path.is_file()}
    assert fresh.keys() == committed.keys()
    assert fresh == committed, "release/ is stale: run `make release`"


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_no_line_of_a_solution_is_in_its_release_or_in_an_earlier_one(assignment):
    released = "\n".join(
        cell.source
        for earlier in ASSIGNMENTS[: ASSIGNMENTS.index(assignment) + 1]
        for path in notebooks(ROOT / "release" / earlier)
        for cell in nbformat.read(path, as_version=4).cells
    )
    lines = [line for path in notebooks(ROOT / "source" / assignment) for line in solution_lines(path)]
    assert len(lines) > 20
    assert [line for line in lines if line in released] == []


def solution_lines(path: Path) -> list[str]:
    """Return the lines between solution or rubric markers, and those of model answers to written questions."""
    found = []
    for cell in cells(path).values():
        marks = cell.metadata.get("nbgrader", {})
        regions = re.findall(r"BEGIN (?:SOLUTION|MARK SCHEME)(.*?)END (?:SOLUTION|MARK SCHEME)", cell.source, re.DOTALL)
        if marks.get("grade") and marks.get("solution"):
            regions = [cell.source]
        found += [line.strip() for region in regions for line in region.splitlines() if len(line.strip("# =\n")) > 3]
    return found


def test_source_and_release_hold_no_outputs():
    for path in notebooks(ROOT / "source") + notebooks(ROOT / "release"):
        for cell in cells(path).values():
            assert cell.get("outputs", []) == [], (path, cell.id)
            assert cell.get("execution_count") is None


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_the_points_are_those_of_the_title_and_of_the_readme(course, assignment):
    (said,) = re.findall(
        r"\*\*Points\*\* (\d+)", cells(ROOT / "source" / assignment / f"{assignment}.ipynb")["title"].source
    )
    assert sum(points(course, assignment).values()) == int(said)
    (row,) = [line for line in (ROOT / "README.md").read_text().splitlines() if f"| [{assignment[:2]} " in line]
    assert row.endswith(f"| {said} |")
