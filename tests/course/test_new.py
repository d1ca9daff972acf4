"""`python -m grading new`: an exercise that works before a word of it is edited."""

import nbformat
import pytest
from course_copy import copied_course, run_in
from sample_class import gradebook

from grading.authoring.demo import edited, solved_notebook, write_submission
from grading.isolation.sandbox import missing_walls

EXERCISE, TOPIC = "position-means", "02_multi_head_attention"
REDUCED = " --reduced-isolation" if missing_walls() else ""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of the course with a new, unedited exercise, released and graded for two students."""
    course = copied_course(tmp_path_factory.mktemp("course"))
    commands = [
        f"python -m grading new {EXERCISE} --topic {TOPIC}",
        f"python -m grading freeze {EXERCISE}",
        f"python -m grading prove {EXERCISE}{REDUCED}",
        "python -m grading totals",
        f"nbgrader generate_assignment {TOPIC} --create --force",
        "python -m grading outline",
    ]
    done = run_in(course, "\n".join(commands))
    assert done.returncode == 0, done.stdout
    for student, change in {"ada": lambda notebook: None, "bob": edited(EXERCISE, ".mean(", ".sum(")}.items():
        notebook = solved_notebook(course, TOPIC)
        change(notebook)
        write_submission(course, student, nbformat.writes(notebook), assignment=TOPIC)
    done = run_in(course, f"python -m grading run {TOPIC}{REDUCED}")
    assert done.returncode == 0, done.stdout
    return course


def test_a_new_exercise_is_two_files_three_cells_and_hints(course):
    done = run_in(course, "git init -q . && git add -A && git status --short")
    assert "checks/topic_02_multi_head_attention/position_means.py" in done.stdout
    notebook = nbformat.read(course / "source" / TOPIC / f"{TOPIC}.ipynb", as_version=4)
    cells = {cell.metadata.get("nbgrader", {}).get("grade_id"): cell for cell in notebook.cells}
    assert cells[f"{EXERCISE}-task"].source.startswith("## Exercise 7 · Position means (2 points, 10 minutes)")
    assert cells[f"{EXERCISE}-check"].source == "checks.position_means(position_means)"
    assert "## position-means" in (course / "transformer_lm" / "course" / "hint_texts" / f"{TOPIC}.md").read_text()


def test_its_points_are_written_where_people_read_them(course):
    assert "**Points** 20." in nbformat.read(course / "source" / TOPIC / f"{TOPIC}.ipynb", as_version=4).cells[0].source
    assert "gives 20." in nbformat.read(course / "notebooks" / f"{TOPIC}.ipynb", as_version=4).cells[0].source
    assert "| 45 + 180 | 20 |" in (course / "README.md").read_text()


def test_its_answers_are_graded(course):
    grades = {student: known["grades"][f"{EXERCISE}-check"][0] for student, known in gradebook(course, TOPIC).items()}
    assert grades == {"ada": 2, "bob": 0}


@pytest.mark.parametrize(
    ("exercise", "topic", "message"),
    [
        ("Position Means", TOPIC, "EXERCISE must be lower-case words joined by hyphens"),
        ("kqv", TOPIC, "EXERCISE must be a new id, got 'kqv'"),
        ("more-means", "02", "--topic must be one of 01_self_attention, 02_multi_head_attention"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_written(course, exercise, topic, message):
    before = sorted(course.rglob("*means*"))
    done = run_in(course, f"python -m grading new '{exercise}' --topic {topic}")
    assert done.returncode == 1
    assert message in done.stdout
    assert sorted(course.rglob("*means*")) == before
