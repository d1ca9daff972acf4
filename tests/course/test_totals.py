"""Points and minutes, copied from the cells of an assignment to the pages where people read them."""

import shutil

import nbformat
import pytest
from course_copy import ROOT
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from grading.authoring.totals import Totals, write_totals


def test_the_totals_that_people_read_are_fresh(tmp_path):
    for name in ("source", "notebooks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "README.md", tmp_path)
    assert write_totals(tmp_path) == []


def test_points_come_from_cells_and_minutes_from_headings():
    graded = {"nbgrader": {"grade": True, "points": 2, "grade_id": "a"}}
    notebook = new_notebook(
        cells=[
            new_markdown_cell("## Exercise 1 (2 points, 40 minutes)\n\nscores (3 points)"),
            new_code_cell("", metadata=graded),
            new_markdown_cell("**Q1 (1 point, 2 hours).**"),
        ]
    )
    assert Totals.of(notebook) == Totals(2, 150)
    assert Totals(2, 150).time == "2.5 hours"
    assert Totals(2, 105).time == "105 minutes"


@pytest.mark.parametrize("place", ["README.md", "notebooks/01_self_attention.ipynb", "source"])
def test_stale_totals_are_written_again(tmp_path, place):
    for name in ("source", "notebooks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "README.md", tmp_path)
    path = tmp_path / ("source/01_self_attention/01_self_attention.ipynb" if place == "source" else place)
    before = path.read_text()
    stale = {"README.md": ("| 45 + 90 | 10 |", "| 45 + 95 | 11 |"), "source": ("**Points** 10.", "**Points** 9.")}
    old, new = stale.get(place, ("gives 10.", "gives 9."))
    assert before.count(old) == 1
    path.write_text(before.replace(old, new))
    assert write_totals(tmp_path) == [path]
    notebook = path.suffix == ".ipynb"
    read = (lambda text: nbformat.reads(text, as_version=4)) if notebook else str
    assert read(path.read_text()) == read(before)
