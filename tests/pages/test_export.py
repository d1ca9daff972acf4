"""Grades for Canvas and Moodle: the files that these platforms import, read back."""

import csv
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from sample_class import ROOT, python
from traitlets.config import Config

from grading.export import CanvasExportPlugin, MoodleExportPlugin, defused

DUE = datetime(2030, 1, 31, 12)
STUDENTS = {
    "ada": ("Ada", "Lovelace", "ada@example.org"),
    "007": ("Zoë", 'Doe, "Jane"', "zoe@example.org"),
    "eve": ("=HYPERLINK(1)", "@SUM(1)", None),
    "=1+1": ("Mal", "Lory", "+mal@example.org"),
    "nobody": ("No", "Body", "no@example.org"),
}
SCORES = {("first", "ada"): 9.25, ("first", "007"): 3, ("first", "eve"): 0, ("first", "=1+1"): 5, ("second", "ada"): 20}


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course with two assignments, of 10 and 20 points; ada submitted the first one a day late."""
    course = tmp_path_factory.mktemp("course")
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "transformers") as book:
        for name, most in (("first", 10), ("second", 20)):
            book.add_assignment(name, duedate=DUE)
            book.add_notebook(name, name)
            book.add_grade_cell("check", name, name, max_score=most, cell_type="code")
        for student, (first, last, email) in STUDENTS.items():
            book.add_student(student, first_name=first, last_name=last, email=email)
        for (assignment, student), score in SCORES.items():
            late = timedelta(days=student == "ada" and assignment == "first")
            book.add_submission(assignment, student, timestamp=DUE + late)
            grade = book.find_grade("check", assignment, assignment, student)
            grade.auto_score, grade.needs_manual_grade = score, False
        book.db.commit()
    return course


def exported(plugin: type, course: Path, settings: dict | None = None) -> list[list[str]]:
    """Return the rows of the file that a plugin writes with these settings."""
    config = Config({plugin.__name__: settings or {}, "LatePolicy": {"percent": 10}})
    config.AssignLatePenalties.plugin_class = "grading.nbgrader_steps.late.LatePolicy"
    path = course / "grades.csv"
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "transformers") as book:
        plugin(config=config, to=str(path)).export(book)
    assert not path.read_bytes().startswith(b"\xef\xbb\xbf")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_canvas_gets_its_columns_the_maxima_and_a_row_for_each_student(course):
    header, maxima, *rows = exported(CanvasExportPlugin, course)
    assert header == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "first", "second"]
    assert maxima == ["    Points Possible", "", "", "", "", "10.0", "20.0"]
    found = {row[3]: row for row in rows}
    assert found["ada"] == ["Lovelace, Ada", "", "", "ada", "", "8.25", "20.0"]  # a tenth of 10 points for the day
    assert found["007"] == ['Doe, "Jane", Zoë', "", "", "007", "", "3.0", ""]


def test_names_hold_no_formula_and_who_would_be_found_by_one_is_left_out(course):
    rows = exported(CanvasExportPlugin, course)[2:]
    found = {row[3]: row for row in rows}
    assert found["eve"][0] == "'@SUM(1), =HYPERLINK(1)"
    assert found.keys() == {"ada", "007", "eve", "nobody"}
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row)


@pytest.mark.parametrize(
    ("plugin", "settings", "told"),
    [
        (CanvasExportPlugin, {}, ["", ""]),
        (MoodleExportPlugin, {}, ["-", "-"]),
        (CanvasExportPlugin, {"nothing_is_zero": True}, ["0.0", "0.0"]),
        (MoodleExportPlugin, {"nothing_is_zero": True}, ["0.0", "0.0"]),
    ],
)
def test_who_handed_in_nothing_gets_no_grade_or_a_zero(course, plugin, settings, told):
    (row,) = [row for row in exported(plugin, course, settings) if "nobody" in row]
    assert row[-2:] == told


def test_canvas_finds_assignments_students_and_section_as_the_settings_say(course):
    settings = {
        "columns": {"first": "Self-attention (1234)"},
        "identifier": "email",
        "identifier_column": "SIS User ID",
        "section": "A",
    }
    header, _, *rows = exported(CanvasExportPlugin, course, settings)
    assert header[-2:] == ["Self-attention (1234)", "second"]
    assert ["Lovelace, Ada", "", "ada@example.org", "", "A", "8.25", "20.0"] in rows
    assert len(rows) == 3  # one has no email, and one of them is a formula


def test_moodle_gets_one_column_that_identifies_students(course):
    header, *rows = exported(MoodleExportPlugin, course)
    assert header == ["First name", "Last name", "Username", "first", "second"]
    assert ["Ada", "Lovelace", "ada", "8.25", "20.0"] in rows
    header, *rows = exported(MoodleExportPlugin, course, {"identifier_column": "Email address"})
    assert header[2] == "Email address"
    assert {row[2] for row in rows} == {"ada@example.org", "zoe@example.org", "no@example.org"}  # not +mal, nor nothing


def test_nbgrader_writes_these_files(course):
    (course / "nbgrader_config.py").write_text((ROOT / "nbgrader_config.py").read_text())
    said = python(course, "nbgrader", "export", "--exporter", "grading.export.CanvasExportPlugin", "--to", "canvas.csv")
    assert "=1+1 is left out: a spreadsheet would take this for a formula." in said
    assert (course / "canvas.csv").read_text().startswith("Student,ID,")
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "transformers") as book:
        book.find_grade("check", "first", "first", "eve").needs_manual_grade = True
        book.db.commit()
    said = python(course, "nbgrader", "export", "--exporter", "grading.export.MoodleExportPlugin")
    assert "first: 1 submissions need manual grading." in said
    assert (course / "moodle.csv").exists()


@pytest.mark.parametrize(
    ("value", "safe"),
    [
        ("Ada-Marie @ O'Hara = x", "Ada-Marie @ O'Hara = x"),
        ("ada@example.org", "ada@example.org"),
        ("Doe, -Jane", "Doe, -Jane"),
        (-1.5, -1.5),
        (None, None),
        ("=1+1", "'=1+1"),
        ("  =1+1", "'  =1+1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\uff0b1", "'\uff0b1"),
        ("\uff0d1", "'\uff0d1"),
        ("\uff20SUM(1)", "'\uff20SUM(1)"),
        ("\u200b\ufeff\u00a0\u202e=1", "'\u200b\ufeff\u00a0\u202e=1"),
        ("x;=1+1", "x;'=1+1"),
        ("x\t=1+1", "x\t'=1+1"),
        ("x\n@SUM(1);\u00a0+1", "x\n'@SUM(1);'\u00a0+1"),
        ("\tx", "'\tx"),
        ("\r=1", "'\r'=1"),
    ],
)
def test_whatever_a_spreadsheet_takes_for_a_formula_is_quoted(value, safe):
    assert defused(value) == safe
