"""`python -m grading run`: in parallel, resumable, killed at any moment without harm."""

import csv
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import nbformat
import pytest
from sample_class import (
    ASSIGNMENT,
    FULL_SCORE,
    OUT_OF,
    REDUCED,
    ROOT,
    RUN,
    SCORES,
    done,
    gradebook,
    new_course,
    python,
    scores,
    small_class,
    start,
    wait_for,
)

from grading.authoring.demo import DUE, edited, solved_notebook, write_submission
from grading.exercises import topics
from grading.nbgrader_steps.gradebook import gradebook_of
from grading.runs.class_run import ClassRun
from grading.runs.one_submission import Judged
from grading.runs.source_digest import deciding_files, grading_digest


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The sample class after `make demo`, which is `python -m grading run`; what it printed is in run.log."""
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"}
    demo = subprocess.run(["make", "demo"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    course = shutil.copytree(ROOT / "demo", tmp_path_factory.mktemp("run") / "course")
    (course / "run.log").write_text(demo.stdout)
    return course


def test_the_demo_has_a_score_and_feedback_for_everybody(graded):
    lines = (graded / "run.log").read_text().splitlines()
    assert len(SCORES) >= 12
    for student, score in SCORES.items():
        (line,) = [line for line in lines if line.startswith(f"{student} ")]
        assert f" {score:g} of {OUT_OF:g}" in line
        assert (graded / "feedback" / student / ASSIGNMENT / f"{ASSIGNMENT}.html").exists()


def test_it_gives_the_scores_of_nbgrader_autograde(graded):
    assert scores(graded) == SCORES


def test_it_prints_a_table_with_what_a_person_must_know(graded):
    lines = {line.split()[0]: line for line in (graded / "run.log").read_text().splitlines() if line}
    assert f"{FULL_SCORE:g} of {OUT_OF:g} + by hand" in lines["perfect"]
    assert "2:00:00" in lines["late"]
    assert "occurred more than once" in lines["duplicated-cell"]
    assert "broken JSON" in lines["broken-file"]
    assert lines["blank"].strip().endswith(f"0 of {OUT_OF:g}")


def test_it_writes_a_csv_of_all_grades(graded):
    with (graded / "grades.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["student_id"]: float(row["score"]) for row in rows} == SCORES


def test_what_is_graded_is_left_alone_and_what_changed_is_graded_again(graded, tmp_path):
    course = tmp_path / "course"
    shutil.copytree(graded, course)
    run = ClassRun(course, ASSIGNMENT, reduced=REDUCED)
    assert run.to_do() == []
    assert run.to_do(force=True) == sorted(SCORES)
    broken = solved_notebook(course)
    edited("attention-scores", " / math.sqrt(dh)", "")(broken)
    write_submission(course, "perfect", nbformat.writes(broken), DUE + timedelta(hours=1))
    shutil.rmtree(course / "autograded" / "late")
    assert run.to_do() == ["late", "perfect"]
    assert sorted(run.grade(run.to_do(), workers=1)) == ["late", "perfect"]
    assert run.to_do() == []
    assert scores(course) == SCORES | {"perfect": FULL_SCORE - 4}


def as_by_another_judge(course: Path) -> None:
    """Make all grades look like those of a judge that has been changed since."""
    for file in course.glob(f"autograded/.done/{ASSIGNMENT}/*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"grading": "of another time"}))


def test_after_a_change_of_the_judge_the_same_command_grades_again_and_says_so(tmp_path):
    course = small_class(tmp_path / "course", 3)
    assert "has changed" not in python(course, *RUN)
    assert "3 of 3 are graded already" in python(course, *RUN)
    right = gradebook(course)
    as_by_another_judge(course)
    with gradebook_of(course) as book:  # points that this judge would not give, and some by hand
        notebook = (ASSIGNMENT, ASSIGNMENT, "student-00")
        book.find_grade("self-attention-check", *notebook).auto_score = 0
        written = next(each for each in book.find_submission_notebook(*notebook).grades if each.needs_manual_grade)
        written.manual_score, written.needs_manual_grade, name = 0.5, False, written.name
        book.db.commit()
    said = python(course, *RUN)
    assert f"The grading of {ASSIGNMENT} has changed. Grading 3 again." in said
    assert "graded already" not in said
    now = gradebook(course)
    assert now["student-01"] == right["student-01"]
    assert now["student-00"]["score"] == right["student-00"]["score"] + 0.5
    assert now["student-00"]["grades"][name][1:] == (0.5, False)
    assert "3 of 3 are graded already" in python(course, *RUN)


def test_what_a_run_of_before_has_noted_is_graded_again(graded, tmp_path):
    course = tmp_path / "course"
    shutil.copytree(graded, course)
    (file,) = course.glob(f"autograded/.done/{ASSIGNMENT}/perfect.json")
    old = json.loads(file.read_text())
    del old["grading"]
    file.write_text(json.dumps(old))
    run = ClassRun(course, ASSIGNMENT, reduced=REDUCED)
    assert run.to_do() == run.outdated == ["perfect"]
    assert "perfect" in {row.student for row in run.rows()}


def test_a_grade_stays_if_a_changed_judge_cannot_grade(graded, tmp_path, monkeypatch):
    course = tmp_path / "course"
    shutil.copytree(graded, course)
    as_by_another_judge(course)
    run = ClassRun(course, ASSIGNMENT, ["perfect"], reduced=REDUCED)
    monkeypatch.setattr(
        "grading.runs.class_run.side_by_side",
        lambda work, jobs, *_, **__: ((job, Judged(notes=["It failed."], failed=True)) for job in jobs),
    )
    assert list(run.grade(run.to_do())) == ["perfect"]
    assert run.left == {"perfect": "It failed."}
    assert scores(course) == SCORES
    assert (course / "autograded" / "perfect" / ASSIGNMENT).is_dir()
    assert run.to_do() == ["perfect"]


@pytest.fixture
def sources(tmp_path) -> Path:
    """A copy of the code that grades."""
    for package in ("grading", "transformer_lm"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.pyc", "*.safetensors"))
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "touched"),
    [
        ("grading/judging/judge.py", set(topics())),
        ("grading/judging/form.py", {"01_self_attention", "02_multi_head_attention"}),
        ("grading/isolation/inside/answering.py", set(topics())),
        ("transformer_lm/checks/engine/diagnosis.py", set(topics())),
        ("transformer_lm/checks/topic_04_language_model/labels.py", {"04_language_model"}),
        ("grading/exercises/topic_04_language_model/labels.py", {"04_language_model"}),
        ("grading/exercises/topic_06_encoder_decoder/__init__.py", {"06_encoder_decoder"}),
        ("transformer_lm/checks/engine/hints.toml", set()),
        ("transformer_lm/checks/topic_04_language_model/hints.toml", set()),
        ("transformer_lm/checks/topic_04_language_model/training_run.py", {"04_language_model"}),
        ("transformer_lm/checks/topic_05_attention_heatmaps/head_claim.py", {"05_attention_heatmaps"}),
        ("grading/results/class_report.py", set()),
        ("grading/results/feedback_page.py", set()),
        ("transformer_lm/plots/heads.py", set()),
    ],
)
def test_a_change_touches_the_assignments_that_it_can_give_other_points(sources, changed, touched):
    before = {topic: grading_digest(topic, sources) for topic in topics()}
    assert len(set(before.values())) == len(topics())
    with (sources / changed).open("a") as file:
        file.write("CHANGED = True\n")
    assert {topic for topic in topics() if grading_digest(topic, sources) != before[topic]} == touched


def test_every_module_that_judges_an_assignment_is_in_its_digest():
    """Python itself says which of our modules it has loaded for the judge and the records of an assignment."""
    code = (
        "import sys; from grading.runs import one_submission\n"
        "from pathlib import Path; from importlib import import_module\n"
        "folder = f'grading.exercises.topic_{sys.argv[1]}'\n"
        "for path in Path(*folder.split('.')).glob('*.py'): import_module(f'{folder}.{path.stem}')\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('grading.')), sep='\\n')"
    )
    for topic in topics():
        done = subprocess.run([sys.executable, "-c", code, topic], cwd=ROOT, capture_output=True, text=True, check=True)
        assert set(map(Path, done.stdout.split())) <= set(deciding_files(topic))


def test_what_is_handed_in_without_a_notebook_loses_its_old_grade(graded, tmp_path):
    course = tmp_path / "course"
    shutil.copytree(graded, course)
    folder = write_submission(course, "perfect", "", DUE + timedelta(hours=1))
    (folder / f"{ASSIGNMENT}.ipynb").rename(folder / "my homework.ipynb")
    run = ClassRun(course, ASSIGNMENT, reduced=REDUCED)
    assert list(run.grade(run.to_do(), workers=1)) == ["perfect"]
    (row,) = [row for row in run.rows() if row.student == "perfect"]
    assert (row.score, row.needs_a_person) == (0, True)
    assert not (course / "autograded" / "perfect" / ASSIGNMENT).exists()
    assert run.to_do() == []


def test_another_gradebook_gets_all_grades(graded, tmp_path):
    course = tmp_path / "course"
    shutil.copytree(graded, course)
    (course / "gradebook.db").unlink()
    python(course, "nbgrader", "generate_assignment", ASSIGNMENT, "--create", "--force")
    run = ClassRun(course, ASSIGNMENT, reduced=REDUCED)
    assert run.to_do() == sorted(SCORES)
    assert list(run.rows()) == []


def test_some_students_can_be_graded_alone(graded):
    run = ClassRun(graded, ASSIGNMENT, ["blank", "late"], reduced=REDUCED)
    assert run.students == ["blank", "late"]
    assert [row.student for row in run.rows()] == ["blank", "late"]


def test_what_does_not_exist_is_refused_in_one_sentence(graded):
    unknown = python(graded, *RUN, "--students", "nobody", fails=True)
    assert "students must have submitted 01_self_attention, got nobody." in unknown
    assert "Traceback" not in unknown
    unknown = python(graded, *("07_unknown" if word == ASSIGNMENT else word for word in RUN), fails=True)
    assert "assignment must be one that was released (01_self_attention), got 07_unknown." in unknown


def test_submissions_without_the_notebook_are_left_to_a_person(tmp_path):
    course = new_course(tmp_path / "course")
    solved = nbformat.writes(solved_notebook(course))
    folder = write_submission(course, "renamed", solved, DUE)
    (folder / f"{ASSIGNMENT}.ipynb").rename(folder / "my homework.ipynb")
    (write_submission(course, "bad-time", nbformat.writes(solved_notebook(course)), DUE) / "timestamp.txt").write_text(
        "?"
    )
    write_submission(course, "a[b]*", solved, DUE)
    write_submission(course, "n" * 250, solved, DUE)
    (write_submission(course, "=1+1,x", nbformat.writes(solved_notebook(course)), DUE) / "data,1.csv").write_text("1,2")
    run = ClassRun(course, ASSIGNMENT, reduced=REDUCED)
    assert sorted(run.grade(run.to_do(), workers=2)) == ["=1+1,x", "a[b]*", "bad-time", "n" * 250, "renamed"]
    assert list(run.left) == ["n" * 250]  # too long for the files that record what is done
    assert "must be printable text of at most 200 bytes" in run.left["n" * 250]
    rows = {row.student: row for row in run.rows()}
    assert "There is no 01_self_attention.ipynb, but my homework.ipynb, timestamp.txt" in rows["renamed"].notes
    assert rows["renamed"].needs_a_person
    assert rows["renamed"].score == 0
    assert "takes a name with *, ? or [ for a pattern" in rows["a[b]*"].notes
    assert "timestamp.txt must hold a time" in rows["bad-time"].notes
    assert rows["=1+1,x"].score == FULL_SCORE
    run.write_csv(course / "out.csv")
    with (course / "out.csv").open(newline="") as file:
        assert {row["student_id"] for row in csv.DictReader(file)} == {"'=1+1,x", "a[b]*", "bad-time", "renamed"}
    assert run.to_do() == ["n" * 250]


def test_notebooks_are_executed_again_if_asked_to(tmp_path):
    course = new_course(tmp_path / "course")
    for student in ("first", "second"):
        write_submission(course, student, nbformat.writes(solved_notebook(course)), DUE)
    python(course, *RUN, "--rerun")
    assert scores(course) == {"first": 9, "second": 9}
    for student in ("first", "second"):
        path = course / "autograded" / student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
        outputs = [cell.outputs for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert outputs[2][0].text.startswith("✓ kqv")
        assert sum("Graded: " in json.dumps(each) for each in outputs) == 8


def test_interrupting_keeps_what_is_done(tmp_path):
    course = small_class(tmp_path / "course", 8)
    process = start(course)
    wait_for(lambda: len(done(course)) >= 1, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "Interrupted. Finished work is kept" in output
    assert "Traceback" not in output
    before = done(course)
    assert before
    assert set(scores(course).values()) <= {9, 5}
    python(course, *RUN)
    assert done(course) >= before
    assert set(scores(course).values()) == {9, 5}


@pytest.mark.parametrize(("kills", "students"), [(2, 6), pytest.param(10, 12, marks=pytest.mark.thorough)])
def test_a_run_killed_at_random_moments_ends_with_the_same_gradebook(kills, students, tmp_path):
    calm = small_class(tmp_path / "calm", students)
    killed = shutil.copytree(calm, tmp_path / "killed")
    python(calm, *RUN)
    luck = random.Random()
    for number in range(kills):
        process = start(killed)
        # Every other moment is while it grades, the others while it starts.
        if number % 2:
            count = len(done(killed))
            wait_for(lambda before=count: len(done(killed)) > before, process)
            time.sleep(luck.random() * 0.5)
        else:
            time.sleep(luck.random() * 6)
        process.kill()
        process.communicate()
        assert sqlite3.connect(killed / "gradebook.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)
    python(killed, *RUN)
    assert gradebook(killed) == gradebook(calm)
    assert done(killed) == done(calm)
    assert sorted(path.name for path in (killed / "autograded").iterdir()) == sorted(
        path.name for path in (calm / "autograded").iterdir()
    )
