"""Cheating earns nothing: a class of cheats is graded like any other, and each gets what its honest part deserves."""

import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from cheats import CHEATS, CHECKS, NOTEBOOK, SCRIPT, TOPIC, TRACE, ZERO_HEAD, Cheat
from checkout import ROOT
from nbgrader.api import Gradebook

from grading.exercises import topics
from grading.isolation.sandbox import missing_walls
from grading.runs.class_run import ClassRun

pytestmark = pytest.mark.skipif(
    bool(missing_walls()), reason=f"isolation is incomplete here: {'; '.join(missing_walls())}"
)

HONEST = [
    Cheat("wrong", "Gives wrong answers."),
    Cheat(
        "wrong-head", "Gives wrong answers, with the right layers.", answers={"self-attention": ZERO_HEAD}, deserves=1
    ),
    Cheat("solved", "Gives right answers.", answers={r.id: r.model_answer for r in topics()[TOPIC]}, deserves=8),
]
EVERYONE = {cheat.name: cheat for cheat in [*CHEATS, *HONEST]}


@dataclass
class Graded:
    """A graded class: its folder, what broke the run, by student, and which processes outlived their answer."""

    course: Path
    broken: dict[str, BaseException] = field(default_factory=dict)
    outlived: list[str] = field(default_factory=list)

    def points(self, student: str) -> dict[str, float]:
        """Return the points of each check."""
        with Gradebook(f"sqlite:///{self.course}/gradebook.db") as gradebook:
            notebooks = gradebook.find_submission(TOPIC, student).notebooks
            return {grade.name: grade.score for each in notebooks for grade in each.grades if grade.name in CHECKS}

    def told(self, student: str) -> str:
        """Return what the judge says under the checks."""
        notebook = nbformat.read(self.folder("autograded", student) / NOTEBOOK, as_version=4)
        checks = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") in CHECKS]
        texts = [output.get("text", "") for cell in checks for output in cell.outputs]
        return " ".join(" ".join(text.split()) for text in texts if text.startswith("Graded: "))

    def folder(self, step: str, student: str) -> Path:
        return self.course / step / student / TOPIC


def nbgrader(course: Path, *arguments: str) -> None:
    command, here = [sys.executable, "-m", "nbgrader", *arguments], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=course, env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def hand_in(course: Path, cheat: Cheat) -> None:
    folder = course / "submitted" / cheat.name / TOPIC
    folder.mkdir(parents=True)
    released = nbformat.read(course / "release" / TOPIC / NOTEBOOK, as_version=4)
    if NOTEBOOK not in cheat.links:
        nbformat.write(cheat.submitted(released), folder / NOTEBOOK)
    for name, text in cheat.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name, target in cheat.links.items():
        (folder / name).symlink_to(course / target)


def grade(graded: Graded, students: list[str]) -> None:
    """Grade students; where one of them breaks the run, find out who, and grade the others."""
    run = ClassRun(graded.course, TOPIC, students)
    try:
        for student in run.grade(run.to_do()):
            if student == "leaves-a-process":
                graded.outlived += [name for name in process_names() if name in TRACE]
    except Exception as error:
        if len(students) == 1:
            graded.broken[students[0]] = error
            return
        left = run.to_do()
        for part in (left[: len(left) // 2], left[len(left) // 2 :]):
            if part:
                grade(graded, part)


def process_names() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            yield path.read_text().strip()
        except OSError:  # it has just ended
            continue


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> Graded:
    """The class: every cheat has submitted, and so have a few honest students."""
    course = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "source", course / "source")
    shutil.copy(ROOT / "nbgrader_config.py", course)
    nbgrader(course, "generate_assignment", TOPIC, "--create", "--force")
    for cheat in EVERYONE.values():
        hand_in(course, cheat)
    graded = Graded(course)
    grade(graded, list(EVERYONE))
    return graded


@pytest.mark.parametrize("cheat", HONEST, ids=lambda cheat: cheat.name)
def test_honest_work_gets_what_it_deserves(graded, cheat):
    assert graded.broken.get(cheat.name) is None
    assert sum(graded.points(cheat.name).values()) == cheat.deserves


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_earns_nothing(graded, cheat):
    assert graded.broken.get(cheat.name) is None, "it breaks the run for the whole class"
    assert sum(graded.points(cheat.name).values()) <= cheat.deserves, cheat.does
    if cheat.says:
        assert cheat.says in graded.told(cheat.name)


def test_the_table_is_long_and_each_cheat_says_what_it_does():
    assert len(CHEATS) >= 45
    assert len(EVERYONE) == len(CHEATS) + len(HONEST), "two students have one name"
    assert all(re.fullmatch(r"[A-Z].+\.", cheat.does) for cheat in CHEATS)


def test_nothing_that_a_cheat_has_started_outlives_it(graded):
    assert graded.outlived == []


def test_a_text_of_a_student_has_a_limit(graded):
    assert (graded.folder("autograded", "nonsense-long-text") / NOTEBOOK).stat().st_size < 1_000_000


def test_links_are_not_followed(graded):
    solved = (graded.course / "source" / TOPIC / NOTEBOOK).read_bytes()
    copies = [path for path in graded.folder("autograded", "links-to-the-gradebook").rglob("*") if path.is_file()]
    contents = {path.name: path.read_bytes() for path in copies}
    assert [name for name, content in contents.items() if content == solved or content.startswith(b"SQLite")] == []


def test_scripts_do_not_reach_the_feedback(graded):
    nbgrader(graded.course, "generate_feedback", TOPIC, "--student", "scripts")
    (page,) = graded.folder("feedback", "scripts").glob("*.html")
    text = page.read_text()
    assert "Graded: 0 of 2 points" in text
    assert SCRIPT not in text
    assert "onerror=" not in re.sub(r"&lt;.*?&gt;", "", text)
    assert 'href="javascript:' not in text


def test_a_name_is_no_formula_in_the_exported_grades(graded, tmp_path):
    name = "=cmd|' C calc'!A0"
    ClassRun(graded.course, TOPIC).write_csv(tmp_path / "grades.csv")
    with (tmp_path / "grades.csv").open(newline="", encoding="utf-8") as file:
        students = [row["student_id"] for row in csv.DictReader(file)]
    assert f"'{name}" in students
    assert name not in students
