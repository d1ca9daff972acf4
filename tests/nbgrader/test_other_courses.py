"""nbgrader's own example course, with ordinary assert cells and hidden tests, graded through our pipeline."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from sample_class import REDUCED, ROOT, python

from grading.nbgrader_steps.submission import marks

STUDENTS = {
    "solved": lambda source: source,
    "untouched": None,
    "half": lambda source: source.replace("range(1, n + 1)", "range(1, n)"),
    "kills-its-kernel": lambda source: source.replace("return sum(squares(n))", "import os; os._exit(0)"),
}


def solved_from(source: Path, released: Path, change) -> nbformat.NotebookNode:
    """Return a released notebook with the source's answers, changed."""
    notebook = nbformat.read(released, as_version=4)
    answers = {marks(cell).get("grade_id"): cell.source for cell in nbformat.read(source, as_version=4).cells}
    for cell in notebook.cells:
        if marks(cell).get("solution") and change:
            cell.source = change(answers[marks(cell).grade_id])
    return notebook


def add_hidden_test(path: Path) -> None:
    """Give the example course a test that students do not see, which it lacks."""
    notebook = nbformat.read(path, as_version=4)
    check = next(cell for cell in notebook.cells if marks(cell).get("grade_id") == "correct_squares")
    check.source += "\n### BEGIN HIDDEN TESTS\nassert squares(3) == [1, 4, 9]\n### END HIDDEN TESTS"
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def courses(tmp_path_factory):
    """The example course with the same submissions, graded three times: by stock nbgrader, by ours, by a class run."""
    folder = tmp_path_factory.mktemp("courses")
    python(folder, "nbgrader", "quickstart", "stock")
    stock, ours, run = folder / "stock", folder / "ours", folder / "run"
    add_hidden_test(stock / "source" / "ps1" / "problem1.ipynb")
    python(stock, "nbgrader", "generate_assignment", "ps1", "--create", "--force")
    for student, change in STUDENTS.items():
        for released in (stock / "release" / "ps1").glob("*.ipynb"):
            path = stock / "submitted" / student / "ps1" / released.name
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(solved_from(stock / "source" / "ps1" / released.name, released, change), path)
    shutil.copytree(stock, ours)
    pipeline = (ROOT / "nbgrader_config.py").read_text().partition("# Grading:")[2]
    with (ours / "nbgrader_config.py").open("a") as file:
        file.write(f"\n# Grading:{pipeline}c.Rerun.reduced_isolation = {REDUCED}\n")
    shutil.copytree(ours, run)
    shutil.rmtree(stock / "submitted" / "kills-its-kernel")  # here stock nbgrader gives up
    for course in (stock, ours):
        python(course, "nbgrader", "autograde", "ps1")
    python(ours, "nbgrader", "generate_feedback", "ps1")
    python(run, "grading", "run", "ps1", *(["--reduced-isolation"] if REDUCED else []))
    return stock, ours, run


def grades(course: Path) -> dict[tuple[str, str, str], tuple]:
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        return {
            (grade.student.id, grade.notebook.name, grade.name): (grade.auto_score, grade.needs_manual_grade)
            for submission in book.assignment_submissions("ps1")
            for notebook in submission.notebooks
            for grade in notebook.grades
        }


def test_the_scores_are_those_of_stock_nbgrader(courses):
    stock, ours, run = map(grades, courses)
    assert stock
    assert {key: ours[key] for key in stock} == stock
    assert run == ours
    earned = {
        student: sum(score or 0 for (who, *_), (score, _) in stock.items() if who == student) for student in STUDENTS
    }
    assert earned["solved"] > earned["half"] > earned["untouched"] == 0


def test_a_dead_kernel_costs_one_cell(courses):
    found = {name: score for (who, _, name), (score, _) in grades(courses[1]).items() if who == "kills-its-kernel"}
    solved = {name: score for (who, _, name), (score, _) in grades(courses[1]).items() if who == "solved"}
    lost = {name for name in found if found[name] != solved[name]}
    assert 0 < len(lost) < len(found)


def test_feedback_shows_no_hidden_test(courses):
    graded = (courses[1] / "autograded" / "half" / "ps1" / "problem1.ipynb").read_text()
    assert "squares(3) == [1, 4, 9]" in graded  # they were run
    pages = [path.read_text() for path in (courses[1] / "feedback").rglob("problem1.html")]
    assert len(pages) == len(STUDENTS)
    assert not any("HIDDEN TESTS" in page or "squares(3)" in page.replace(" ", "") for page in pages)
