"""Connects nbgrader with the judge: an exporter, and preprocessors that nbgrader_config.py names.

Sanitising repairs a submission and keeps its outputs. Grading runs a check in a sandboxed kernel only if it has no
record or if this is requested; points come from the judge, with a message under each check.
"""

import glob
import os
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.api import Grade, Gradebook, Notebook
from nbgrader.converters import Autograde
from nbgrader.preprocessors import NbGraderPreprocessor, SaveAutoGrades
from nbgrader.utils import compute_checksum, determine_grade
from traitlets import Bool

from grading.judging.judge import ExerciseResult
from grading.nbgrader_steps import nbgrader_patches
from grading.nbgrader_steps.hand_marks import Seen, fingerprint, given, read_seen, still_holds, write_seen
from grading.nbgrader_steps.handed_in import LONGEST_TIME
from grading.nbgrader_steps.repair import UnreadableSubmission, read_submission, repair
from grading.nbgrader_steps.submission import is_check, judged, marks, read_released, records_of
from grading.processes.kernel import SandboxedExecute
from grading.processes.workers import answer_server

WIDTH = 96  # characters in a line of feedback
NOTICE = "before-grading"  # id of the cell that lists the repairs


@dataclass(frozen=True)
class Ready:
    """The findings of a class run, ready for nbgrader: results, and new outputs of code cells if they were executed."""

    results: list[ExerciseResult]
    outputs: list[tuple[list[NotebookNode], int | None]] | None


ready: dict[Path, Ready] = {}  # by submitted file


def released_path(coursedir: object, assignment: str, notebook: str) -> Path:
    """Return the path of an assignment's released notebook."""
    return Path(coursedir.format_path(coursedir.release_directory, ".", assignment)) / f"{notebook}.ipynb"


def _released(step: NbGraderPreprocessor, resources: dict) -> NotebookNode:
    """Return the released notebook for a step's submission."""
    ids = resources["nbgrader"]
    return read_released(released_path(step.parent.parent.coursedir, ids["assignment"], ids["notebook"]))


def _handed_in(step: NbGraderPreprocessor, ids: dict) -> Path:
    """Return the folder of the original submission."""
    course = step.parent.parent.coursedir
    return Path(course.format_path(course.submitted_directory, ids["student"], ids["assignment"]))


def _ready(step: NbGraderPreprocessor, ids: dict) -> Ready | None:
    return ready.get(_handed_in(step, ids) / f"{ids['notebook']}.ipynb")


def locked_sources(notebook: Notebook) -> dict[str, str]:
    """Return the text of locked cells by name, including rubrics and hidden tests, which the release leaves out."""
    return {cell.name: cell.source for cell in notebook.source_cells if cell.locked}


def restore_locked_cells(notebook: NotebookNode, sources: dict[str, str]) -> None:
    """Restore the text of locked cells."""
    for cell in notebook.cells:
        cell.source = sources.get(marks(cell).get("grade_id"), cell.source)


class SubmissionExporter(NotebookExporter):
    """Reads any submitted file; one that is not a notebook becomes an empty notebook that says so.

    Of the other submitted files, only the timestamp is copied, because a file such as `jedi.py` would run with the
    rights of the instructor who opens a graded notebook. The judge reads the files that it needs from the submission.

    If a step fails, the environment variable that says that nbgrader is grading is deleted. nbgrader itself leaves it
    set, and every kernel that the same Jupyter server starts later would take its notebook for a submission.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        if isinstance(self.parent, Autograde):
            course = self.parent.coursedir
            # nbgrader skips folders that match one of these patterns, which may be whole paths.
            patterns = [pattern for pattern in course.ignore if not os.path.isabs(pattern)]
            course.ignore = [*patterns, *map(glob.escape, self.parent.assignments)]

    def from_filename(self, filename: str, resources: dict | None = None, **options: object) -> tuple[str, dict]:
        """Return the notebook after all steps, as text."""
        try:
            return self._after_all_steps(filename, resources, **options)
        except BaseException:
            os.environ.pop("NBGRADER_EXECUTION", None)
            raise

    def _after_all_steps(self, filename: str, resources: dict, **options: object) -> tuple[str, dict]:
        try:
            ours = isinstance(self.parent, Autograde) and not self.parent._sanitizing  # written by the previous step
            notebook, unreadable = read_submission(Path(filename), is_ours=ours), ""
        except UnreadableSubmission as error:
            notebook, unreadable = nbformat.v4.new_notebook(), str(error)
        resources["grading"] = {"unreadable": unreadable}
        folder = os.path.dirname(filename)
        if isinstance(self.parent, Autograde) and self.parent._sanitizing:
            ids = resources["nbgrader"]
            _copy_time(Path(folder), Path(self.parent._format_dest(ids["assignment"], ids["student"])))
        resources.setdefault("metadata", {})["path"] = folder
        return super().from_notebook_node(notebook, resources=resources, **options)


def _copy_time(handed_in: Path, graded: Path) -> None:
    """Copy the timestamp of a submission, by which nbgrader later recognises a newer one."""
    source, copy = handed_in / "timestamp.txt", graded / "timestamp.txt"
    copy.unlink(missing_ok=True)
    if source.is_file() and not source.is_symlink() and source.stat().st_size <= LONGEST_TIME:
        graded.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


class RepairSubmission(NbGraderPreprocessor):
    """Repairs a submission and lists the repairs at its top for the instructor."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Repair the notebook."""
        unreadable = resources["grading"]["unreadable"]
        repairs = repair(nb, _released(self, resources))
        ids = resources["nbgrader"]
        with Gradebook(ids["db_url"]) as gradebook:
            restore_locked_cells(nb, locked_sources(gradebook.find_notebook(ids["notebook"], ids["assignment"])))
        nb.metadata["grading"] = {"unreadable": unreadable}  # anything that a student has written there is removed
        if unreadable:
            title, notes = "Not graded; needs manual grading", [unreadable]
        else:
            title, notes = "Repaired before grading", repairs
        for cell in nb.cells:
            if cell.id == NOTICE:
                cell.id = f"not-{NOTICE}"
        if notes:
            self.log.warning("%s: %s. %s", resources["nbgrader"]["student"], title, " ".join(notes))
            text = "\n".join([f"**{title}:**", "", *(f"- {note}" for note in notes)])
            nb.cells.insert(0, nbformat.v4.new_markdown_cell(text, id=NOTICE))
        return nb, resources


class Rerun(SandboxedExecute):
    """Executes the notebook again in the sandbox, if requested or if a check in it has no record."""

    always = Bool(False, help="Execute every notebook again, not only those with checks that have no record.").tag(
        config=True
    )

    def is_needed(self, nb: NotebookNode, resources: dict) -> bool:
        """Return whether there is a reason to execute a notebook."""
        records = records_of(resources["nbgrader"]["assignment"], _released(self, resources))
        recorded = {part.name for record in records for part in record.parts}
        checks = {marks(cell)["grade_id"] for cell in nb.cells if is_check(cell)}
        return self.always or bool(checks - recorded)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Execute the notebook if there is a reason to and it has not been executed yet."""
        found = _ready(self, resources["nbgrader"])
        if found and found.outputs is not None:
            code = [cell for cell in nb.cells if cell.cell_type == "code"]
            for cell, (outputs, count) in zip(code, found.outputs, strict=True):
                cell.outputs, cell.execution_count = outputs, count
        elif self.is_needed(nb, resources) and not nb.metadata["grading"]["unreadable"]:
            return super().preprocess(nb, resources)
        return nb, resources


class JudgeAnswers(NbGraderPreprocessor):
    """Asks the judge for points and writes its messages under the checks."""

    reduced_isolation = Bool(False, help="Grade even where students' code cannot be isolated fully.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Add points and messages."""
        ids = resources["nbgrader"]
        released = _released(self, resources)
        records = records_of(ids["assignment"], released)
        results: list[ExerciseResult] = []
        if records and not nb.metadata["grading"]["unreadable"]:
            found = _ready(self, ids)
            if found:
                results = found.results
            else:
                server = answer_server(ids["assignment"], self.reduced_isolation)
                results = judged(nb, released, records, server, _handed_in(self, ids))
        parts = {part.name: part for result in results for part in result.parts}
        nb.metadata["grading"]["exercises"] = [result.as_table() for result in results]  # for feedback and report
        for cell in nb.cells:
            part = parts.get(marks(cell).get("grade_id"))
            if part:
                text = f"Graded: {part.points:g} of {part.max_points:g} points.\n{_wrapped(part.message)}\n"
                cell.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=text))
        resources["grading"]["points"] = {name: part.points for name, part in parts.items()}
        return nb, resources


def _wrapped(message: str) -> str:
    """Return a message in lines that fit a page, aligned with where their text begins."""
    lines = message.splitlines()
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent=" " * 10, drop_whitespace=True) for line in lines)


class SaveGrades(SaveAutoGrades):
    """Saves the judge's points to the gradebook, all at once; checks without a record are scored by their output.

    Manual scores are kept, and flagged for manual grading again if the answer or the judge's verdict has changed.
    """

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Save all grades and comments of a notebook."""
        ids = resources["nbgrader"]
        self.unreadable = nb.metadata["grading"]["unreadable"]
        self.points = resources["grading"]["points"]
        path = self._seen_file(ids)
        before, now = read_seen(path), {}
        with Gradebook(ids["db_url"]) as gradebook:
            notebook = gradebook.find_submission_notebook(ids["notebook"], ids["assignment"], ids["student"])
            cells = {marks(cell).get("grade_id"): cell for cell in nb.cells}
            for grade in notebook.grades:
                answer = fingerprint(nb, cells[grade.name])
                self._save_grade(grade, cells[grade.name], answer, before.get(grade.name))
                now[grade.name] = Seen(answer, grade.auto_score, given(grade), grade.needs_manual_grade)
            for comment in notebook.comments:
                blank = marks(cells[comment.name]).get("checksum") == compute_checksum(cells[comment.name])
                comment.auto_comment = "No response." if blank and not marks(cells[comment.name]).get("task") else None
            gradebook.db.commit()
        write_seen(path, now)  # last; if it is never written, marks are reviewed again
        return nb, resources

    def _seen_file(self, ids: dict) -> Path:
        # nbgrader looks for students in folders whose names do not start with a dot.
        course = self.parent.parent.coursedir
        folder = Path(course.format_path(course.autograded_directory, ".seen", ids["assignment"]))
        return folder / ids["notebook"] / f"{ids['student']}.json"

    def _save_grade(self, grade: Grade, cell: NotebookNode, answer: str, seen: Seen | None) -> None:
        """Set the score of a cell. It needs manual grading if it has no score, or one given for another answer."""
        judged = self._judged(grade.name, cell)
        if any(points is not None for points in given(grade)):
            waits = not still_holds(grade, judged, answer, seen)
        else:
            waits = judged is None
        grade.auto_score, grade.needs_manual_grade = judged, bool(self.unreadable) or waits

    def _judged(self, name: str, cell: NotebookNode) -> float | None:
        """Return the points from automatic grading, or None if the cell needs manual grading."""
        if self.unreadable:
            return 0
        if name in self.points:
            return self.points[name]
        return determine_grade(cell, self.log)[0] if marks(cell).get("grade") else None  # None for a task


nbgrader_patches.install()
