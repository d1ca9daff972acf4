"""What a late submission costs: the policy of nbgrader_config.py, in class runs, feedback and exports."""

import csv
from datetime import timedelta

import nbformat
import pytest
from nbgrader.api import Gradebook
from sample_class import ASSIGNMENT, RUN, new_course, python
from traitlets import TraitError

from grading.authoring.demo import DUE, solved_notebook, write_submission
from grading.nbgrader_steps.late import LatePolicy, in_words, why_no_penalty

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("settings", "late", "taken_off"),
    [
        ({}, 30 * DAY, 0),
        ({"percent": 10}, timedelta(0), 0),
        ({"percent": 10}, timedelta(seconds=1), 2),
        ({"percent": 10}, DAY, 2),
        ({"percent": 10}, DAY + timedelta(seconds=1), 4),
        ({"percent": 10, "of": "score"}, DAY, 0.8),
        ({"percent": 1, "each": "hour"}, timedelta(minutes=90), 0.4),
        ({"percent": 10, "grace": HOUR}, HOUR, 0),
        ({"percent": 10, "grace": HOUR}, DAY + HOUR, 2),
        ({"percent": 10, "at_most": 25}, 9 * DAY, 5),
        ({"percent": 10}, 9 * DAY, 8),  # never more than was earned
        ({"zero_after": 2 * DAY}, 2 * DAY, 0),
        ({"zero_after": 2 * DAY}, 2 * DAY + HOUR, 8),
        ({"percent": 10, "extra_time": {"ada": 3 * DAY}}, 3 * DAY, 0),
        ({"percent": 10, "extra_time": {"ada": 3 * DAY}, "grace": HOUR}, 3 * DAY + 2 * HOUR, 2),
        ({"percent": 10, "extra_time": {"bob": 3 * DAY}}, HOUR, 2),
    ],
)
def test_a_penalty_follows_the_policy(settings, late, taken_off):
    assert LatePolicy(**settings).penalty("ada", 8, 20, late) == pytest.approx(taken_off)


def test_nothing_is_taken_off_nothing():
    assert LatePolicy(percent=10).penalty("ada", 0, 20, DAY) == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"percent": 110}, "LatePolicy.percent must be between 0 and 100 percent, got 110."),
        ({"at_most": -1}, "LatePolicy.at_most must be between 0 and 100 percent, got -1."),
        ({"grace": -HOUR}, "LatePolicy.grace must not be negative"),
        ({"zero_after": -DAY}, "LatePolicy.zero_after must not be negative"),
        ({"extra_time": {"ada": 3}}, "must give students a timedelta that is not negative, got 3 for 'ada'"),
        ({"each": "week"}, "each"),
        ({"grace": 3}, "grace"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings, said):
    with pytest.raises(TraitError, match=said.replace("(", r"\(")):
        LatePolicy(**settings)


def test_a_time_is_told_in_its_two_largest_units():
    assert in_words(timedelta(seconds=5)) == "1 minute"
    assert in_words(2 * HOUR) == "2 hours"
    assert in_words(DAY + 3 * HOUR + timedelta(minutes=4)) == "1 day 3 hours"


def test_the_policy_holds_in_class_runs_and_a_change_of_it_too(tmp_path):
    course = new_course(tmp_path / "course")
    config = (course / "nbgrader_config.py").read_text()
    for student, late in (("in-time", timedelta(0)), ("late", 2 * HOUR), ("ill", 2 * HOUR)):
        write_submission(course, student, nbformat.writes(solved_notebook(course)), DUE + late)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        book.update_or_create_assignment(ASSIGNMENT, duedate=DUE.replace(tzinfo=None))

    def run_with(policy: str) -> dict[str, tuple[float, float]]:
        (course / "nbgrader_config.py").write_text(f"{config}from datetime import timedelta\n{policy}")
        python(course, *RUN)
        with (course / "grades.csv").open(newline="") as file:
            return {
                row["student_id"]: (float(row["late_submission_penalty"]), float(row["score"]))
                for row in csv.DictReader(file)
            }

    ill = "c.LatePolicy.extra_time = {'ill': timedelta(hours=2)}\n"
    assert run_with(f"c.LatePolicy.percent = 10\n{ill}") == {"in-time": (0, 9), "late": (1, 8), "ill": (0, 9)}
    assert run_with("c.LatePolicy.percent = 30\n") == {"in-time": (0, 9), "late": (3, 6), "ill": (3, 6)}
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:  # marked by hand afterwards
        grade = book.find_grade("q1-answer", ASSIGNMENT, ASSIGNMENT, "late")
        grade.manual_score, grade.needs_manual_grade = 1, False
        book.db.commit()
    python(course, "nbgrader", "export", "--LatePolicy.percent=10", "--LatePolicy.of=score", "--to", "out.csv")
    with (course / "out.csv").open(newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert rows["late"]["score"] == "9.0"  # 10 less a tenth of 10
    assert why_no_penalty(course, ASSIGNMENT) == []
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        book.find_submission(ASSIGNMENT, "late").timestamp = None
        book.db.commit()
    timeless = "Submissions without timestamp.txt, from which LatePolicy takes nothing off: 1."
    assert why_no_penalty(course, ASSIGNMENT) == [timeless]
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        book.find_assignment(ASSIGNMENT).duedate = None
        book.db.commit()
    assert f"LatePolicy takes nothing off: {ASSIGNMENT} has no due date." in python(course, *RUN)
    (course / "nbgrader_config.py").write_text(f"{config}c.LatePolicy.percent = 200\n")
    refused = python(course, *RUN, fails=True)
    assert refused.strip().splitlines()[-1] == "LatePolicy.percent must be between 0 and 100 percent, got 200."
    assert "Traceback" not in refused
