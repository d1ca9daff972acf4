"""Course folders to grade in, runs to watch, and the contents of their gradebooks."""

import atexit
import functools
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbgrader.apps import NbGraderAPI

from grading.authoring.demo import ASSIGNMENT, Change, edited, solved_notebook, write_class, write_submission
from grading.exercises import topics
from grading.isolation.sandbox import missing_walls
from grading.nbgrader_steps.gradebook import gradebook_of, nbgrader_of
from grading.runs.class_run import ClassRun
from transformer_lm.course.outlines import load_outline

ROOT = Path(__file__).parents[1]
REDUCED = bool(missing_walls())  # these submissions are our own, so they may be graded everywhere


def points_of_checks(topic: str) -> dict[str, float]:
    """Return the points of every check of a topic by its name, as the records have them."""
    return {part.name: part.points for record in topics()[topic] for part in record.parts}


# Without the written questions, which wait for manual grading. There is one more point for a short `forward`.
FULL_SCORE = sum(points_of_checks(ASSIGNMENT).values()) + 1
OUT_OF = sum(cell.points for cell in load_outline(ASSIGNMENT).cells)
LOST = {
    "perfect": 0,
    "late": 0,
    "duplicated-cell": 0,
    "metadata-lost": 0,
    "queries-first": 1,
    "wrong-softmax-axis": 4,
    "typing-error": 4,
    "cheats-ready-made": 4,
    "hangs": 4,
    "forgot-the-scale": 4,
    "no-transpose": 6,
    "cheats-with-the-check": 6,
    "crashes": 6,
    "eats-memory": 6,
    "blank": FULL_SCORE,
    "broken-file": FULL_SCORE,
}
SCORES = {student: FULL_SCORE - lost for student, lost in LOST.items()}

RUN = ("grading", "run", ASSIGNMENT, *(["--reduced-isolation"] if REDUCED else []))


def python(folder: Path, *arguments: str, fails: bool = False) -> str:
    """Run a module of Python in a folder; return what it prints."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def start(course: Path, *options: str) -> subprocess.Popen:
    """Start a run in a course folder."""
    return subprocess.Popen(
        [sys.executable, "-m", *RUN, *options],
        cwd=course,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(course: Path) -> set[str]:
    """Return the students whom a run has finished."""
    files = course.glob(f"autograded/.done/{ASSIGNMENT}/*.json")
    return {path.stem for path in files if json.loads(path.read_text())["digest"]}


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, seconds: float = 90) -> None:
    """Wait until a condition holds, a process has ended, or the time is over."""
    deadline = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


def new_course(folder: Path, assignment: str = ASSIGNMENT, db_url: str | None = None) -> Path:
    """Make a course folder with a fresh release and no submissions; its gradebook is SQLite without a URL."""
    if db_url is None:
        return shutil.copytree(_released(assignment), folder, dirs_exist_ok=True)
    return _release(folder, assignment, f"\nc.CourseDirectory.db_url = {db_url!r}\n")


@functools.cache  # nbgrader needs some seconds, and releases the same to everybody
def _released(assignment: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="released-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _release(folder, assignment)


def _release(folder: Path, assignment: str, setting: str = "") -> Path:
    """Write the source of an assignment and the settings into a folder, and let nbgrader release it."""
    shutil.copytree(ROOT / "source" / assignment, folder / "source" / assignment)
    (folder / "nbgrader_config.py").write_text((ROOT / "nbgrader_config.py").read_text() + setting)
    python(folder, "nbgrader", "generate_assignment", assignment, "--create", "--force")
    return folder


def small_class(folder: Path, students: int, db_url: str | None = None) -> Path:
    """Make a course folder in which every other student has forgotten the scale."""
    course = new_course(folder, db_url=db_url)
    for number in range(students):
        notebook = solved_notebook(course)
        if number % 2:
            edited("attention-scores", " / math.sqrt(dh)", "")(notebook)
        write_submission(course, f"student-{number:02}", nbformat.writes(notebook))
    return course


def sample_course(folder: Path) -> Path:
    """Make a course folder with the sample class."""
    write_class(new_course(folder))
    return folder


def changed(*edits: tuple[str, str, str]) -> Change:
    """Return a function that edits a notebook: in the cell of this name, one text replaces another."""

    def change(notebook: nbformat.NotebookNode) -> None:
        for edit in edits:
            edited(*edit)(notebook)

    return change


def graded_course(
    folder: Path, assignment: str, changes: dict[str, Change], before: Callable[[Path], None] = lambda course: None
) -> Path:
    """Make a course whose students submit the solved notebook, each with a change, and one a blank; grade it here.

    `before` is called with the course folder before grading, to put other files into the submissions.
    """
    course = new_course(folder, assignment)
    for student, change in changes.items():
        notebook = solved_notebook(course, assignment)
        change(notebook)
        write_submission(course, student, nbformat.writes(notebook), assignment=assignment)
    released = (course / "release" / assignment / f"{assignment}.ipynb").read_text()
    write_submission(course, "blank", released, assignment=assignment)
    before(course)
    run = ClassRun(course, assignment, reduced=REDUCED)
    assert sorted(run.grade(run.to_do(), workers=1)) == run.students  # another worker would need seconds to start
    return course


def feedback(course: Path, student: str, assignment: str) -> str:
    """Return the words of a student's feedback page, which is made when it is first asked for."""
    page = course / "feedback" / student / assignment / f"{assignment}.html"
    if not page.exists():
        app = nbgrader_of(course)
        api = NbGraderAPI(config=app.config, coursedir=app.coursedir)
        assert api.generate_feedback(assignment, student)["success"]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page.read_text())).split())


def gradebook(course: Path, assignment: str = ASSIGNMENT) -> dict[str, dict]:
    """Return all that the gradebook knows of each submission, without ids."""
    found = {}
    with gradebook_of(course) as book:
        for submission in book.assignment_submissions(assignment):
            notebooks = submission.notebooks
            found[submission.student_id] = {
                "time": submission.timestamp,
                "late": submission.total_seconds_late,
                "score": submission.score,
                "grades": {
                    grade.name: (grade.auto_score, grade.manual_score, grade.needs_manual_grade)
                    for notebook in notebooks
                    for grade in notebook.grades
                },
                "comments": {
                    comment.name: comment.auto_comment for notebook in notebooks for comment in notebook.comments
                },
            }
    return found


def scores(course: Path, assignment: str = ASSIGNMENT) -> dict[str, float]:
    return {student: known["score"] for student, known in gradebook(course, assignment).items()}
