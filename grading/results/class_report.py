"""Reports how a class did: points for each part of each exercise, and the most frequent mistakes.

Points come from the gradebook, so manual changes count. The judge's messages are read from the graded notebooks, where
they are stored with the outputs.
"""

import json
import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from nbgrader.api import BaseCell, Grade, Gradebook, SubmittedAssignment, SubmittedNotebook

from grading.exercises import records
from grading.nbgrader_steps.gradebook import nbgrader_of, opened
from grading.nbgrader_steps.submission import marks_of_parts
from grading.results.pages import plain_number, printable, rendered
from transformer_lm.checks.engine.verdict import Mark

WIDTH = 100
NAMED = 12  # mistakes listed for a part; others are only counted


@dataclass
class Mistake:
    """A mistake in the words of its hint, the students who made it, and its details if it is not about numbers."""

    hint: str
    example: str = ""
    students: list[str] = field(default_factory=list)


@dataclass
class PartReport:
    """The results of a class for one graded cell."""

    name: str
    most: float
    counts: Counter = field(default_factory=Counter)  # full, part, none, waits
    points: float = 0
    mistakes: list[Mistake] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of submissions."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """The mean score of submissions that do not need manual grading."""
        return self.points / max(1, self.count - self.counts["waits"])


@dataclass
class ExerciseReport:
    """The results of a class for the parts of one exercise."""

    title: str
    parts: list[PartReport] = field(default_factory=list)


@dataclass(frozen=True)
class ClassReport:
    """The results of a class for an assignment."""

    assignment: str
    students: int
    waiting: int  # submissions
    mean: float
    most: float
    exercises: list[ExerciseReport]


def class_report(root: Path, assignment: str) -> ClassReport:
    """Return the results of a class for an assignment of the course in a folder.

    Raises ValueError if nothing of that assignment has been graded.
    """
    course = nbgrader_of(root).coursedir
    with opened(course) as gradebook:
        rows = _grades(gradebook, assignment)
        order = _order(gradebook, assignment) if rows else {}
    if not rows:
        raise ValueError(f"assignment must be one that has been graded, got {assignment}.")
    folders = {row[0]: Path(course.format_path(course.autograded_directory, row[0], assignment)) for row in rows}
    judged = _judged_by_part(folders)
    parts = {name: PartReport(name, most) for name, most in order.items()}
    totals: dict[str, float] = defaultdict(float)
    waiting: set[str] = set()
    made: dict[str, dict[str, Mistake]] = defaultdict(dict)
    for student, name, points, waits in rows:
        part, mark = parts[name], judged.get((student, name))
        part.counts[_state(points, part.most, waits)] += 1
        part.points += 0 if waits else points
        totals[student] += points
        waiting |= {student} if waits else set()
        if mark and points < part.most:
            made[name].setdefault(_id(mark), _mistake(mark)).students.append(student)
    for name, mistakes in made.items():
        parts[name].mistakes = sorted(mistakes.values(), key=lambda each: (-len(each.students), each.hint))
    mean = sum(totals.values()) / len(totals)
    return ClassReport(assignment, len(totals), len(waiting), mean, sum(order.values()), _by_exercise(parts))


def _id(mark: Mark) -> str:
    """Return the key by which a mark is counted: the id of the mistake, which survives a rewording of its hint."""
    return mark.failure.mistake or mark.failure.hint if mark.failure else mark.praise


def _mistake(mark: Mark) -> Mistake:
    if not mark.failure:
        return Mistake(mark.praise)
    return Mistake(mark.failure.hint, mark.failure.yours if mark.failure.error else "")


def _state(points: float, most: float, waits: bool) -> str:
    if waits:
        return "waits"
    if points >= most:
        return "full"
    return "part" if points > 0 or most == 0 else "none"


def _grades(gradebook: Gradebook, assignment: str) -> list[tuple[str, str, float, bool]]:
    """Return student, cell, points and need for manual grading of all grades in the gradebook, in one query."""
    known = {each.name: each.id for each in gradebook.assignments}
    query = (
        gradebook.db.query(SubmittedAssignment.student_id, BaseCell.name, Grade.score, Grade.needs_manual_grade)
        .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
        .join(BaseCell, BaseCell.id == Grade.cell_id)
        .filter(SubmittedAssignment.assignment_id == known.get(assignment))
        .order_by(SubmittedAssignment.student_id)
    )
    return [tuple(row) for row in query.all()]


def _order(gradebook: Gradebook, assignment: str) -> dict[str, float]:
    """Return the graded cells of an assignment with their points, in the order of its notebooks."""
    found: dict[str, float] = {}
    for notebook in gradebook.find_assignment(assignment).notebooks:
        graded = {cell.name: cell.max_score for cell in [*notebook.grade_cells, *notebook.task_cells]}
        found |= {cell.name: graded.pop(cell.name) for cell in notebook.source_cells if cell.name in graded} | graded
    return found


def _judged_by_part(folders: dict[str, Path]) -> dict[tuple[str, str], Mark]:
    """Return the judge's results by student and part, from the folders of graded notebooks."""
    said: dict[tuple[str, str], Mark] = {}
    for student, folder in folders.items():
        for path in folder.glob("*.ipynb"):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            said |= {(student, name): mark for name, mark in marks_of_parts(notebook).items()}
    return said


def _by_exercise(parts: dict[str, PartReport]) -> list[ExerciseReport]:
    """Return parts grouped by exercise; a cell without a record is its own group."""
    titles = {part.name: record.title for record in records().values() for part in record.parts}
    found: list[ExerciseReport] = []
    for name, part in parts.items():
        title = titles.get(name, name)
        if not found or found[-1].title != title:
            found.append(ExerciseReport(title))
        found[-1].parts.append(part)
    return found


def as_text(report: ClassReport, names: bool = False) -> str:
    """Return a report for the terminal."""
    points = f"{plain_number(report.mean)} of {report.most:g} points on average"
    lines = [f"{report.assignment}: {report.students} students, {points}"]
    if report.waiting:
        lines.append(f"{report.waiting} submissions need manual grading.")
    width = max(len(part.name) for exercise in report.exercises for part in exercise.parts)
    for exercise in report.exercises:
        lines += ["", exercise.title] if exercise.title != exercise.parts[0].name else [""]
        for part in exercise.parts:
            lines.append(f"  {part.name:{width}}  {_counts(part)}")
            for mistake in part.mistakes[:NAMED]:
                lines.append(_hanging(f"    {len(mistake.students):4}  ", mistake.hint))
                lines += [_hanging(" " * 10, f"for example: {mistake.example}")] if mistake.example else []
                lines += [_hanging(" " * 10, ", ".join(mistake.students))] if names else []
            more = sum(len(mistake.students) for mistake in part.mistakes[NAMED:])
            lines += [f"    {more:4}  other mistakes"] if more else []
    return "\n".join(lines)


def _counts(part: PartReport) -> str:
    """Describe how many students got full, some or no points."""
    words = {"full": "full", "part": "part", "none": "none", "waits": "to mark"}
    if not part.most:
        words |= {"full": "nothing off", "part": "marked down"}
    told_counts = [f"{part.counts[state]} {word}" for state, word in words.items() if part.counts[state]]
    mean = f", {plain_number(part.mean)} of {part.most:g} on average" if part.count > part.counts["waits"] else ""
    return " · ".join(told_counts) + (mean if part.most else "")


def _hanging(start: str, text: str) -> str:
    """Return a text in aligned lines, without control characters for the terminal."""
    return textwrap.fill(
        printable(" ".join(text.split())), WIDTH, initial_indent=start, subsequent_indent=" " * len(start)
    )


def as_page(report: ClassReport, names: bool = False) -> str:
    """Return a report as a self-contained page."""
    return rendered("report.html.j2", report=report, names=names, named=NAMED, counts=_counts)
