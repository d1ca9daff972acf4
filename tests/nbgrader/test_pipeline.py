"""Inside nbgrader: `autograde`, `generate_feedback` and `export` work as usual, with the judge's scores."""

import csv
import json
import re
from datetime import timedelta

import nbformat
import pytest
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from sample_class import ASSIGNMENT, FULL_SCORE, REDUCED, SCORES, gradebook, new_course, python, sample_course, scores
from sentences import opening

import grading.nbgrader_steps.pipeline  # noqa: F401 - as nbgrader_config.py loads it
from grading.authoring.demo import DUE, edited, solved_notebook, write_submission
from grading.nbgrader_steps.submission import marks

AUTOGRADE = ("nbgrader", "autograde", ASSIGNMENT, *(["--JudgeAnswers.reduced_isolation=True"] if REDUCED else []))


def cells(course, student, step="autograded"):
    notebook = nbformat.read(course / step / student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", as_version=4)
    return {marks(cell).get("grade_id", cell.id): cell for cell in notebook.cells}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The sample class, graded by `nbgrader autograde`; what it printed is in autograde.log."""
    course = sample_course(tmp_path_factory.mktemp("graded"))
    (course / "autograde.log").write_text(python(course, *AUTOGRADE))
    python(course, "nbgrader", "generate_feedback", ASSIGNMENT)
    return course


def submit(course, student, change=lambda notebook: None, time=DUE):
    notebook = solved_notebook(course)
    change(notebook)
    return write_submission(course, student, nbformat.writes(notebook), time)


def add_outputs(notebook):
    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.outputs = [new_output("stream", text=f"output {number}\n")]
        cell.execution_count = number


def huge_output(notebook):
    notebook.cells[2].outputs = [new_output("stream", text="x" * 15_000_000)]


def foreign_kernel(notebook):
    notebook.metadata.kernelspec = {"name": "ir", "display_name": "R", "language": "R"}
    notebook.metadata.language_info = {"name": "R"}


def worth_a_thousand_points(notebook):
    marks(next(cell for cell in notebook.cells if marks(cell).get("grade_id") == "kqv-check"))["points"] = 1000


def two_answers_in_one_cell(notebook):
    first, second = (cell for cell in notebook.cells if marks(cell).get("grade_id") in ("kqv", "attention-scores"))
    first.source += "\n\n" + second.source
    notebook.cells.remove(second)


def experiment(notebook):
    next(cell for cell in notebook.cells if cell.id == "q1-experiment").source = "torch.randn(9).softmax(dim=0)"


# What students submit again after the instructor has marked a written answer and an exercise, with comments.
BY_HAND = {
    "by-hand-same": lambda notebook: None,
    "by-hand-text": edited("q1-answer", "Each entry", "No entry"),
    "by-hand-code": edited("attention-scores", "dh = queries.shape[-1]", "dh = queries.shape[2]"),
    "by-hand-experiment": experiment,  # which belongs to the written answer below it
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course with odd submissions, graded, some of them submitted again and graded again."""
    course = new_course(tmp_path_factory.mktemp("course"))
    for student in ("again", "killed", "same-time", "odd-last", *BY_HAND):
        submit(course, student)
    submit(course, "outputs", add_outputs)
    submit(course, "odd-huge", huge_output)
    submit(course, "odd-kernel", foreign_kernel)
    submit(course, "odd-points", worth_a_thousand_points)
    submit(course, "odd-merged", two_answers_in_one_cell)
    submit(course, "odd-reversed", lambda notebook: notebook.cells.reverse())
    submit(course, "odd-nothing", lambda notebook: notebook.cells.clear())
    (submit(course, "odd-binary") / f"{ASSIGNMENT}.ipynb").write_bytes(bytes(range(256)) * 100)
    (submit(course, "odd-list") / f"{ASSIGNMENT}.ipynb").write_text("[1, 2]")
    add_files(course, submit(course, "odd-files"))
    python(course, *AUTOGRADE)
    return course


def add_files(course, folder):
    """Put files beside a notebook that would run in an instructor's kernel, or fill a disk, and one of the course's."""
    (course / "source" / ASSIGNMENT / "given.txt").write_text("given")
    (folder / "package").mkdir()
    for name in ("jedi.py", "sitecustomize.py", ".hidden.py", "package/__init__.py", "given.txt"):
        (folder / name).write_text("raise SystemExit")
    with (folder / "sparse.bin").open("wb") as file:
        file.truncate(400_000_000)


def mark_by_hand(book, student):
    """Do what the Formgrader does when the instructor marks."""
    for name, mark, credit in (("q1-answer", 0.5, None), ("attention-scores-check", 1.5, 0.25)):
        grade = book.find_grade(name, ASSIGNMENT, ASSIGNMENT, student)
        grade.manual_score, grade.extra_credit, grade.needs_manual_grade = mark, credit, False
    for name in ("q1-answer", "attention-scores"):
        book.find_comment(name, ASSIGNMENT, ASSIGNMENT, student).manual_comment = f"On {name}."


@pytest.fixture(scope="module")
def regraded(course):
    """The gradebook before, just after nbgrader had saved a new time, and at the end."""
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        for student in BY_HAND:
            mark_by_hand(book, student)
        book.db.commit()
    before, hour = gradebook(course), timedelta(hours=1)
    submit(course, "again", edited("attention-scores", " / math.sqrt(dh)", ""), DUE + hour)
    for student, change in (BY_HAND | {"killed": lambda notebook: None}).items():
        submit(course, student, change, DUE + hour)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        for student, time in (("killed", DUE + hour), ("same-time", DUE)):
            book.update_or_create_submission(ASSIGNMENT, student, timestamp=f"{time:%Y-%m-%d %H:%M:%S} UTC")
    between = gradebook(course)
    python(course, *AUTOGRADE)
    return before, between, gradebook(course)


def test_every_submission_gets_the_score_it_deserves(graded):
    assert scores(graded) == SCORES


def test_what_waits_for_a_person_is_marked_so(graded):
    grades = gradebook(graded)["perfect"]["grades"]
    assert {name for name, (_, _, waits) in grades.items() if waits} == {"q1-answer", "q2-answer"}
    assert all(waits for _, _, waits in gradebook(graded)["broken-file"]["grades"].values())
    assert not any(waits for _, _, waits in gradebook(graded)["blank"]["grades"].values())


def test_a_late_submission_is_known_to_be_late(graded):
    assert {student for student, known in gradebook(graded).items() if known["late"]} == {"late"}


def test_each_check_has_points_and_a_message_under_it(graded):
    for name, cell in cells(graded, "forgot-the-scale").items():
        if name.endswith(("-check", "-check-layers", "-check-parameters")):
            assert cell.outputs[-1].text.startswith("Graded: ")
    told = cells(graded, "forgot-the-scale")["attention-scores-check"].outputs[-1].text
    assert told.startswith("Graded: 0 of 2 points.\ntried:    attention_scores(queries (b=2, i=5, dh=11)")
    assert f"hint:     {opening('not-scaled')}" in told
    assert max(map(len, told.splitlines())) <= 96
    assert (
        opening("ready-made-attention") in cells(graded, "cheats-ready-made")["self-attention-check"].outputs[-1].text
    )
    assert "runs for more than" in cells(graded, "hangs")["self-attention-check"].outputs[-1].text
    assert "crashes Python itself" in cells(graded, "crashes")["attention-scores-check"].outputs[-1].text
    assert "memory" in cells(graded, "eats-memory")["attention-scores-check"].outputs[-1].text


def test_whoever_left_a_cell_untouched_is_told_so(graded):
    for name, cell in cells(graded, "blank").items():
        if name.endswith("-check"):
            assert "the cell is as it was released" in cell.outputs[-1].text


def test_repairs_are_noted_at_the_top_and_in_the_log(graded):
    assert "`kqv` occurred more than once" in cells(graded, "duplicated-cell")["before-grading"].source
    assert "broken JSON" in cells(graded, "broken-file")["before-grading"].source
    assert "before-grading" not in cells(graded, "perfect")
    log = (graded / "autograde.log").read_text()
    assert "duplicated-cell: Repaired before grading" in log
    assert "has changed!" not in log  # no false alarm about the rubrics, which come back here
    assert "ERROR" not in log


def test_rubrics_are_there_for_whoever_marks(graded):
    for student in ("perfect", "blank"):
        for question in ("q1-question", "q2-question"):
            assert "½ point" in cells(graded, student)[question].source


def test_feedback_teaches_everyone(graded):
    pages = {path.parts[-3]: path.read_text() for path in (graded / "feedback").rglob("*.html")}
    assert pages.keys() == SCORES.keys()
    assert opening("not-scaled") in pages["forgot-the-scale"]
    assert opening("softmax-over-queries") in pages["wrong-softmax-axis"]
    assert opening("queries-first", "kqv") in pages["queries-first"]
    assert "NameError" in pages["typing-error"]


def test_outputs_stay_as_the_student_left_them(course):
    before = [cell for cell in cells(course, "outputs", "submitted").values() if cell.cell_type == "code"]
    after = [cell for cell in cells(course, "outputs").values() if cell.cell_type == "code"]
    assert [cell.outputs[0] for cell in before] == [cell.outputs[0] for cell in after]
    assert scores(course)["outputs"] == FULL_SCORE


def test_odd_files_are_repaired_or_left_to_a_person_and_cost_nobody_else_a_grade(course):
    assert {student: score for student, score in scores(course).items() if student.startswith("odd-")} == {
        "odd-huge": 9,
        "odd-kernel": 9,
        "odd-points": 9,
        "odd-merged": 9,
        "odd-reversed": 9,
        "odd-nothing": 0,
        "odd-binary": 0,
        "odd-list": 0,
        "odd-last": 9,
        "odd-files": 9,
    }
    graded = course / "autograded" / "odd-huge" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    assert graded.stat().st_size < 2_000_000


def test_of_other_files_only_the_time_and_what_is_given_lie_beside_a_graded_notebook(course):
    folder = course / "autograded" / "odd-files" / ASSIGNMENT
    assert sorted(path.name for path in folder.rglob("*")) == [f"{ASSIGNMENT}.ipynb", "given.txt", "timestamp.txt"]
    assert (folder / "given.txt").read_text() == "given"
    assert (course / "submitted" / "odd-files" / ASSIGNMENT / "jedi.py").exists()


def test_a_worse_resubmission_gets_its_own_score(regraded):
    before, _, after = regraded
    assert (before["again"]["score"], after["again"]["score"]) == (9, 5)
    assert after["again"]["time"] > before["again"]["time"]


def test_no_score_outlives_its_submission(regraded):
    """nbgrader saves the new time first. If it is killed then, the gradebook has no score, not the old one."""
    before, between, after = (each["killed"] for each in regraded)
    assert between["time"] > before["time"]
    assert (before["score"], between["score"], after["score"]) == (9, 0, 9)
    assert all(score is None and waits for score, _, waits in between["grades"].values())


def test_the_same_time_again_keeps_the_scores(regraded):
    before, between, after = (each["same-time"] for each in regraded)
    assert before == between == after


def by_hand(course, student):
    """Return marks, extra credit and whether they need manual grading, by cell, and the instructor's comments."""
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        notebook = book.find_submission_notebook(ASSIGNMENT, ASSIGNMENT, student)
        marked = [grade for grade in notebook.grades if grade.manual_score is not None]
        return (
            {grade.name: (grade.manual_score, grade.extra_credit, grade.needs_manual_grade) for grade in marked},
            {comment.name: comment.manual_comment for comment in notebook.comments if comment.manual_comment},
        )


def test_what_a_person_gave_stays_and_waits_if_the_answer_is_another_one(course, regraded):
    comments = {"q1-answer": "On q1-answer.", "attention-scores": "On attention-scores."}
    kept = {
        student: ({"q1-answer": (0.5, None, text_waits), "attention-scores-check": (1.5, 0.25, code_waits)}, comments)
        for student, text_waits, code_waits in (
            ("by-hand-same", False, False),
            ("by-hand-text", True, False),
            ("by-hand-code", False, True),
            ("by-hand-experiment", True, False),
        )
    }
    assert {student: by_hand(course, student) for student in BY_HAND} == kept
    assert {regraded[2][student]["score"] for student in BY_HAND} == {9 - 2 + 1.75 + 0.5}
    python(course, *AUTOGRADE, "--student", "by-hand-*", "--force")
    # Cells that waited still wait, and the others still do not.
    assert {student: by_hand(course, student) for student in BY_HAND} == kept


def test_a_mark_that_was_looked_at_again_does_not_wait_again(course, regraded):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        mark_by_hand(book, "by-hand-text")
        book.db.commit()
    python(course, *AUTOGRADE, "--student", "by-hand-text", "--force")
    assert by_hand(course, "by-hand-text")[0]["q1-answer"] == (0.5, None, False)


def test_exported_grades_are_quoted_and_hold_no_formula(graded):
    with Gradebook(f"sqlite:///{graded / 'gradebook.db'}") as book:
        book.update_or_create_student("perfect", first_name="=HYPERLINK(1)", last_name='Doe, "Jane"', email="@me")
    python(graded, "nbgrader", "export", "--to", "out.csv")
    with (graded / "out.csv").open(newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert {student: float(row["score"]) for student, row in rows.items()} == SCORES
    assert rows["perfect"]["first_name"] == "'=HYPERLINK(1)"
    assert rows["perfect"]["last_name"] == 'Doe, "Jane"'
    assert rows["perfect"]["email"] == "'@me"


def test_rerun_makes_new_outputs_in_the_sandbox(course):
    submit(course, "rerun")
    python(course, *AUTOGRADE, "--student", "rerun", "--Rerun.always=True", f"--Rerun.reduced_isolation={REDUCED}")
    found = cells(course, "rerun")
    assert scores(course)["rerun"] == FULL_SCORE
    assert found["kqv-check"].outputs[0].text.startswith("✓ kqv")
    look = next(cell for cell in found.values() if cell.source.startswith("torch.manual_seed(2)"))
    assert re.search(r"the same output, reversed:\s+True", look.outputs[0].text)
    assert json.dumps(found["attention-scores-check"].outputs).count("Graded") == 1
