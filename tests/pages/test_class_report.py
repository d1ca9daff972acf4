"""`python -m grading report`: what a class got right, and which mistakes it made."""

import json
import re
from datetime import timedelta

import nbformat
import pytest
from nbgrader.api import Grade, Gradebook
from sample_class import ASSIGNMENT, REDUCED, RUN, new_course, python
from sentences import opening

from grading.authoring.demo import edited, solved_notebook, write_submission
from grading.nbgrader_steps.gradebook import GradebookLost, gradebook_of
from grading.results.class_report import as_page, as_text, class_report
from grading.results.pages import printable
from grading.runs.class_run import Row, table
from transformer_lm.checks.engine.verdict import Failure

UNSCALED = edited("attention-scores", " / math.sqrt(dh)", "")
STUDENTS = {
    "ada": lambda notebook: None,
    "bob": UNSCALED,
    "cyd": UNSCALED,
    "dan": edited("attention-scores", "dh = queries", "dh = querys"),
    "eve": edited("self-attention", "weights = ", "weights="),
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A graded class, in which one of ada's written answers has been marked."""
    course = new_course(tmp_path_factory.mktemp("course"))
    for student, change in STUDENTS.items():
        notebook = solved_notebook(course)
        change(notebook)
        write_submission(course, student, nbformat.writes(notebook))
    python(course, "grading", "run", ASSIGNMENT, *(["--reduced-isolation"] if REDUCED else []))
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        grade = book.find_grade("q1-answer", ASSIGNMENT, ASSIGNMENT, "ada")
        grade.manual_score, grade.needs_manual_grade = 1, False
        book.db.commit()
    return course


def test_mistakes_are_counted_by_what_they_are_the_frequent_first(course):
    report = class_report(course, ASSIGNMENT)
    parts = {part.name: part for exercise in report.exercises for part in exercise.parts}
    scores = parts["attention-scores-check"]
    assert dict(scores.counts) == {"full": 2, "none": 3}
    assert [mistake.students for mistake in scores.mistakes] == [["bob", "cyd"], ["dan"]]
    assert scores.mistakes[0].hint.startswith(opening("not-scaled"))
    assert "NameError" in scores.mistakes[1].example
    assert scores.mistakes[0].example == ""
    assert dict(parts["self-attention-check-style"].counts) == {"full": 4, "part": 1}
    assert parts["self-attention-check-style"].mistakes[0].students == ["eve"]
    assert dict(parts["q1-answer"].counts) == {"full": 1, "waits": 4}
    assert (report.students, report.waiting) == (5, 5)
    assert [exercise.title for exercise in report.exercises][:2] == [
        "Keys, queries and values in one product",
        "Attention scores",
    ]


def test_the_terminal_tells_counts_and_names_nobody_unless_asked(course):
    said = python(course, "grading", "report", ASSIGNMENT, "--html", "report.html")
    assert (course / "report.html").read_text() == as_page(class_report(course, ASSIGNMENT))
    assert "attention-scores-check       2 full · 3 none, 0.8 of 2 on average" in said
    assert re.search(rf"^ +2  {opening('not-scaled')}", said, re.MULTILINE)
    assert "5 submissions need manual grading." in said
    assert "q1-answer                    1 full · 4 to mark, 1 of 1 on average" in said
    assert not set(STUDENTS) & set(re.findall(r"\w+", said))
    assert "bob, cyd" in as_text(class_report(course, ASSIGNMENT), names=True)


def test_the_page_needs_nothing_else_and_names_nobody_unless_asked(course):
    report = class_report(course, ASSIGNMENT)
    page = as_page(report)
    assert opening("not-scaled") in page
    assert not re.search(r"<script|https?://|\bbob\b", page)
    assert "bob, cyd" in as_page(report, names=True)


def test_what_a_student_s_code_says_commands_no_terminal_and_is_no_markup(course):
    path = course / "autograded" / "dan" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    text = path.read_text()
    notebook = json.loads(text)
    evil = Failure("a", "raises \x1b[31m<b>", "c", "\x1b]0;<script>\x07", error="\x1b[31m<b>")
    notebook["metadata"]["grading"]["exercises"][1]["parts"][0]["failure"] = evil.as_table()
    path.chmod(0o644)
    path.write_text(json.dumps(notebook))
    report = class_report(course, ASSIGNMENT)
    path.write_text(text)
    assert "]0;<script>" in as_text(report)
    assert "\x1b" not in as_text(report)
    assert "<script>" not in as_page(report)


def test_an_assignment_that_is_not_graded_is_refused_in_one_sentence(course):
    said = python(course, "grading", "report", "07_unknown", fails=True)
    assert said.strip().splitlines()[-1] == "assignment must be one that has been graded, got 07_unknown."


def test_signs_that_command_a_terminal_are_shown_as_codes():
    assert printable("Zoë \x1b[2K\r\u202eabc\udce9\x07\n") == "Zoë \\x1b[2K\\r\\u202eabc\\udce9\\x07\\n"
    row = Row("\x1b[1Aada", 1, 2, timedelta(), False, "a\nb\x1b]0;x\x07")
    assert table([row]).splitlines()[1:] == ["\\x1b[1Aada  1 of 2        a\\nb\\x1b]0;x\\x07"]


def test_a_try_prints_no_command_to_the_terminal(tmp_path):
    answer = "def attention_scores(queries, keys):\n    raise ValueError('\\x1b[2K\\u202e')\n"
    (tmp_path / "answer.py").write_text(answer)
    options = ["--reduced-isolation"] if REDUCED else []
    said = python(tmp_path, "grading", "try", "attention-scores", "answer.py", *options)
    assert "raises ValueError" in said
    assert "\x1b" not in said
    assert "\u202e" not in said


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\x07" * 5_000])
def test_a_damaged_gradebook_is_one_sentence(course, content):
    path = course / "gradebook.db"
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        for command in (("grading", "report", ASSIGNMENT), RUN):
            said = python(course, *command, fails=True)
            assert said.startswith("the gradebook must be reachable, got sqlite:///")
            assert "Traceback" not in said
    finally:
        path.write_bytes(before)


def test_a_gradebook_that_is_damaged_in_the_middle_is_one_sentence(course):
    path = course / "gradebook.db"
    before = path.read_bytes()

    def damage_in_the_middle():
        with gradebook_of(course) as book:
            path.write_bytes(before[:100] + b"\x07" * (len(before) - 100))
            list(book.db.query(Grade))

    try:
        with pytest.raises(GradebookLost, match="must be reachable"):
            damage_in_the_middle()
    finally:
        path.write_bytes(before)
