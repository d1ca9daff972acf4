"""Grades as CSV: quoted where it must be, and without formulas that a spreadsheet would run."""

import csv
from collections.abc import Iterator
from pathlib import Path

from nbgrader.api import Assignment, Gradebook, MissingEntry
from nbgrader.plugins.export import ExportPlugin

COLUMNS = (
    "assignment",
    "duedate",
    "timestamp",
    "student_id",
    "last_name",
    "first_name",
    "email",
    "raw_score",
    "late_submission_penalty",
    "score",
    "max_score",
)
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


class SafeCsvExportPlugin(ExportPlugin):
    """What `nbgrader export` writes: the columns of nbgrader's own plugin, safe to open in a spreadsheet."""

    def export(self, gradebook: Gradebook) -> None:
        """Write the grades to the file of `--to`, or to grades.csv."""
        path = Path(self.to or "grades.csv")
        students, assignments = set(map(str, self.student)), set(map(str, self.assignment))
        rows = (
            row
            for assignment in gradebook.assignments
            if not assignments or assignment.name in assignments
            for row in grade_rows(gradebook, assignment)
            if not students or row["student_id"] in students
        )
        write_csv(path, rows)
        self.log.info("Exported grades to %s", path)


def grade_rows(gradebook: Gradebook, assignment: Assignment) -> Iterator[dict[str, object]]:
    """Yield a row for each student: what was handed in and what it scored, or 0 if nothing was."""
    for student in gradebook.students:
        row = {
            "assignment": assignment.name,
            "duedate": assignment.duedate,
            "timestamp": None,
            "student_id": student.id,
            "last_name": student.last_name,
            "first_name": student.first_name,
            "email": student.email,
            "raw_score": 0.0,
            "late_submission_penalty": 0.0,
            "score": 0.0,
            "max_score": assignment.max_score,
        }
        try:
            submission = gradebook.find_submission(assignment.name, student.id)
        except MissingEntry:
            yield row
            continue
        penalty = submission.late_submission_penalty or 0.0
        yield row | {
            "timestamp": submission.timestamp,
            "raw_score": submission.score,
            "late_submission_penalty": penalty,
            "score": max(0.0, submission.score - penalty),
        }


def write_csv(path: Path, rows: Iterator[dict[str, object]]) -> None:
    """Write rows under a temporary name, then put the file in place."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in rows:
            writer.writerow({name: defused(value) for name, value in row.items()})
    unfinished.replace(path)


def defused(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula: what looks like one gets a quote before it."""
    if isinstance(value, str) and value.lstrip(" ").startswith(FORMULA_STARTS):
        return f"'{value}"
    return value
