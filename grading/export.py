"""Exports grades as CSV files that are safe to open in a spreadsheet, also for Canvas and Moodle."""

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nbgrader.api import Assignment, Gradebook, MissingEntry, Student
from nbgrader.plugins.export import ExportPlugin
from traitlets import Bool, Dict, Enum, Unicode, default

from grading.nbgrader_steps.late import renew_penalties
from transformer_lm.files import replacing

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
# What a spreadsheet takes for a formula, even in full-width characters, after blanks or invisible characters, or after
# a character that separates cells where a comma does not.
STARTS = "-=+@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b"
INVISIBLE = r"\x00-\x08\x0b\x0c\x0e- \x7f-\xa0\xad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
FORMULA = re.compile(rf"^(?=[\t\r\n])|(^|[\t\r\n;|])([{INVISIBLE}]*)(?=[{STARTS}])")


class GradesExportPlugin(ExportPlugin):
    """Shared by all exports: the choice of students and assignments, and late penalties by the current policy."""

    default_name = "grades.csv"

    def export(self, gradebook: Gradebook) -> None:
        """Write the grades to the file given by `--to`, or to one with a default name."""
        path = Path(self.to or self.default_name)
        wanted = set(map(str, self.assignment))
        assignments = [each for each in gradebook.assignments if not wanted or each.name in wanted]
        for assignment in assignments:
            renew_penalties(gradebook, assignment.name, self.config)
        students = set(map(str, self.student))
        chosen = [student for student in gradebook.students if not students or student.id in students]
        self.write(path, gradebook, assignments, sorted(chosen, key=lambda student: student.id))
        self.log.info("Exported grades to %s", path)

    def write(self, path: Path, gradebook: Gradebook, assignments: list[Assignment], students: list[Student]) -> None:
        """Write the file."""
        raise NotImplementedError


class SafeCsvExportPlugin(GradesExportPlugin):
    """The plugin for `nbgrader export`: the columns of nbgrader's own plugin, safe to open in a spreadsheet."""

    def write(self, path: Path, gradebook: Gradebook, assignments: list[Assignment], students: list[Student]) -> None:
        """Write a row for each assignment of each student."""
        chosen = {student.id for student in students}
        rows = (row for assignment in assignments for row in grade_rows(gradebook, assignment))
        write_csv(path, (row for row in rows if row["student_id"] in chosen))


class CourseSiteExportPlugin(GradesExportPlugin):
    """A table for a learning management system, with a row for each student and a column for each assignment.

    A site finds students by one column, so its values are written unchanged. A student whose value there is empty, or
    would be taken for a formula by a spreadsheet, is left out with a warning. Names are only for human readers, and get
    a quote in front of a formula.
    """

    identifier = Enum(("id", "email"), help="How the site identifies students: nbgrader's id, or the email.").tag(
        config=True
    )
    columns = Dict(help="The site's names of the assignments, by nbgrader's names.").tag(config=True)
    nothing_is_zero = Bool(False, help="Give 0 points instead of no grade to students without a submission.").tag(
        config=True
    )
    no_grade = ""  # how the file marks a missing score

    @default("identifier")
    def _identifier_default(self) -> str:
        return "id"

    def write(self, path: Path, gradebook: Gradebook, assignments: list[Assignment], students: list[Student]) -> None:
        """Write a header and the rows after it."""
        table = {assignment.name: _scores(gradebook, assignment) for assignment in assignments}
        for assignment in assignments:
            waiting = sum(each.needs_manual_grade for each in gradebook.assignment_submissions(assignment.name))
            if waiting:
                self.log.warning("%s: %s submissions need manual grading.", assignment.name, waiting)
        headers = [self.columns.get(assignment.name, assignment.name) for assignment in assignments]
        missing = 0.0 if self.nothing_is_zero else self.no_grade
        rows = [
            [*self.about(student), *(scores.get(student.id, missing) for scores in table.values())]
            for student in students
            if self._can_be_found(student)
        ]
        maxima = [assignment.max_score for assignment in assignments]
        write_rows(path, [*self.first_rows(headers, maxima), *rows])

    def first_rows(self, headers: list[str], maxima: list[float]) -> list[list[object]]:
        """Return the rows before the students, from the names and maxima of the assignments."""
        raise NotImplementedError

    def about(self, student: Student) -> list[object]:
        """Return the cells before a student's scores."""
        raise NotImplementedError

    def identified_by(self, student: Student) -> str:
        """Return the value by which the site finds a student."""
        return (student.id if self.identifier == "id" else student.email) or ""

    def _can_be_found(self, student: Student) -> bool:
        found_by = self.identified_by(student)
        if not found_by:
            self.log.warning("%s is left out: there is no %s.", student.id, self.identifier)
        elif defused(found_by) != found_by:
            self.log.warning("%s is left out: a spreadsheet would take this for a formula.", found_by)
        return bool(found_by) and defused(found_by) == found_by


class CanvasExportPlugin(CourseSiteExportPlugin):
    """The file that Canvas imports under Grades: Import, with students and a column for each assignment, in UTF-8.

    An assignment that exists in Canvas is found by its title there, or by its title and number, as Canvas exports them:
    `c.CanvasExportPlugin.columns = {"01_self_attention": "Self-attention (1234)"}`. Canvas creates the others.
    """

    default_name = "canvas.csv"
    identifier_column = Enum(
        ("SIS Login ID", "SIS User ID", "ID"), "SIS Login ID", help="The column of Canvas that identifies students."
    ).tag(config=True)
    section = Unicode("", help="The section of all students; Canvas requires the column, but it may be empty.").tag(
        config=True
    )

    def first_rows(self, headers: list[str], maxima: list[float]) -> list[list[object]]:
        """Return the header and the maximum points."""
        columns = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
        return [[*columns, *headers], ["    Points Possible", "", "", "", "", *maxima]]

    def about(self, student: Student) -> list[object]:
        """Return name, ids and section."""
        name = ", ".join(filter(None, (student.last_name, student.first_name))) or student.id
        ids = {"ID": "", "SIS User ID": "", "SIS Login ID": ""} | {self.identifier_column: self.identified_by(student)}
        return [defused(name), *ids.values(), defused(self.section)]


class MoodleExportPlugin(CourseSiteExportPlugin):
    """The file that Moodle imports under Grades: Import: CSV file; one column identifies students, others are grades.

    Moodle asks for the meaning of each column. It reads `-` as no grade; an empty cell would fail in a new grade item.
    """

    default_name = "moodle.csv"
    no_grade = "-"
    identifier_column = Enum(
        ("Username", "ID number", "Email address"), "Username", help="The field of Moodle that identifies students."
    ).tag(config=True)

    @default("identifier")
    def _identifier_default(self) -> str:
        return "email" if self.identifier_column == "Email address" else "id"

    def first_rows(self, headers: list[str], maxima: list[float]) -> list[list[object]]:
        """Return the header."""
        return [["First name", "Last name", self.identifier_column, *headers]]

    def about(self, student: Student) -> list[object]:
        """Return the names and what identifies a student."""
        return [defused(student.first_name or ""), defused(student.last_name or ""), self.identified_by(student)]


def _scores(gradebook: Gradebook, assignment: Assignment) -> dict[str, float]:
    """Return the score of each submission after its late penalty, by student."""
    submissions = gradebook.assignment_submissions(assignment.name)
    return {each.student_id: round(max(0.0, each.score - each.late_submission_penalty), 2) for each in submissions}


def grade_rows(gradebook: Gradebook, assignment: Assignment) -> Iterator[dict[str, object]]:
    """Yield a row for each student: the submission and its score, or 0 if there is no submission."""
    for student in sorted(gradebook.students, key=lambda student: student.id):
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
    """Write rows of COLUMNS, safe to open in a spreadsheet."""
    write_rows(path, [COLUMNS, *([defused(row[name]) for name in COLUMNS] for row in rows)])


def write_rows(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """Write rows as a file of comma-separated values."""
    with replacing(path) as written, written.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def defused(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula: anything that looks like one gets a quote in front."""
    return FORMULA.sub(r"\1'\2", value) if isinstance(value, str) else value
