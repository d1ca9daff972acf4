"""Grade a class: judging goes on side by side, one process writes to the gradebook, and a run can be killed.

For each student who is done, a small file says for which submission. It is written last: a run that starts again
does over whatever has none, and leaves the others alone.
"""

import functools
import glob
import hashlib
import json
import re
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.api import Gradebook, SubmittedAssignment
from nbgrader.apps import NbGraderAPI
from nbgrader.apps.baseapp import NbGrader
from nbgrader.converters import Autograde
from nbgrader.utils import parse_utc, setenv

from grading.cluster import on_cluster
from grading.export import grade_rows, write_csv
from grading.gradebook import add_indexes, kept_open, lost, nbgrader_of, opened
from grading.pipeline import (
    Ready,
    Rerun,
    SubmissionExporter,
    locked_sources,
    ready,
    released_path,
    restore_locked_cells,
)
from grading.repair import UnreadableSubmission, read_submission, repair
from grading.sandbox import IsolationIncomplete
from grading.submission import judged, read_released, records_of
from grading.workers import answer_server, side_by_side


@dataclass(frozen=True)
class Job:
    """A submission to grade, as it was when its `digest` was taken: each of its notebooks, with the released one.

    `locked` has the cells of each notebook, by their names, that nobody may change. Workers have no gradebook to ask.
    """

    root: Path
    assignment: str
    student: str
    digest: str
    notebooks: dict[Path, Path]
    locked: dict[str, dict[str, str]]
    reduced: bool
    rerun: bool


@dataclass(frozen=True)
class Judged:
    """What a worker found out about a submission; `notes` are for a person to read."""

    ready: dict[Path, Ready] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failed: bool = False


@dataclass(frozen=True)
class Row:
    """A line of the table that ends a run."""

    student: str
    score: float
    max_score: float
    late: timedelta
    needs_a_person: bool
    notes: str


class ClassRun:
    """One assignment of the course in a folder, to be graded for some students, or for all who have handed in.

    Raises ValueError if the assignment has not been released, or if one of the students has handed in nothing, and
    GradebookLost whenever the gradebook can't be reached.
    """

    def __init__(
        self, root: Path, assignment: str, students: list[str] | None = None, reduced: bool = False, rerun: bool = False
    ) -> None:
        self.root, self.assignment, self.reduced, self.rerun = root.resolve(), assignment, reduced, rerun
        app = _nbgrader(self.root, reduced, rerun)
        self._course = app.coursedir
        with self._gradebook() as gradebook:
            known = {each.name: each.notebooks for each in gradebook.assignments}
            if assignment not in known:
                released = ", ".join(sorted(known)) or "none so far"
                raise ValueError(f"assignment must be one that was released ({released}), got {assignment}.")
            self._locked = {notebook.name: locked_sources(notebook) for notebook in known[assignment]}
            add_indexes(gradebook)
        self._api = NbGraderAPI(config=app.config, coursedir=self._course)
        handed_in = sorted(self._api.get_submitted_students(assignment))
        missing = sorted(set(students or ()) - set(handed_in))
        if missing:
            raise ValueError(f"students must have handed in {assignment}, got {', '.join(missing)}.")
        self.students = [student for student in handed_in if not students or student in set(students)]

    def _gradebook(self) -> AbstractContextManager[Gradebook]:
        return opened(self._course)

    def _folder(self, step: str, student: str) -> Path:
        return Path(self._course.format_path(step, student, self.assignment))

    def _submission(self, student: str) -> Path:
        return self._folder(self._course.submitted_directory, student)

    def _autograded(self, student: str) -> Path:
        return self._folder(self._course.autograded_directory, student)

    # What is done, and what is to do.

    def to_do(self, force: bool = False) -> list[str]:
        """Return the students whose submission, as it is now, has not been graded yet; all of them with `force`."""
        with self._gradebook() as gradebook:
            saved = self._saved(gradebook)
        return [each for each in self.students if force or each not in saved or not self._is_done(each)]

    def _saved(self, gradebook: Gradebook) -> set[str]:
        """Return who has grades in the gradebook; it may be another one than at the last run."""
        wanted = SubmittedAssignment.assignment_id == gradebook.find_assignment(self.assignment).id
        return {student for (student,) in gradebook.db.query(SubmittedAssignment.student_id).filter(wanted)}

    def _done_file(self, student: str) -> Path:
        # nbgrader looks for students in folders whose names do not start with a dot.
        return self._folder(self._course.autograded_directory, ".done") / f"{student}.json"

    def _done(self, student: str) -> dict:
        try:
            return json.loads(self._done_file(student).read_text())
        except (OSError, ValueError):
            return {}

    def _is_done(self, student: str) -> bool:
        done = self._done(student)
        graded = self._autograded(student).is_dir()
        return done.get("digest") == self._digest(student) and done["graded"] == graded

    def _digest(self, student: str) -> str:
        """Return a fingerprint of what a grade depends on: the files handed in, and the release."""
        handed_in = [path for path in sorted(self._submission(student).rglob("*")) if path.is_file()]
        released = [released_path(self._course, self.assignment, notebook) for notebook in self._locked]
        digest = hashlib.sha256()
        for path in handed_in + released:
            digest.update(f"{path.name} {path.stat().st_size} ".encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    # Grading.

    def grade(self, students: list[str], workers: int | None = None, cluster: str | None = None) -> Iterator[str]:
        """Grade these students, here or on the cluster at an address; yield each one's name when the grades are saved.

        Raises ClusterUnusable if the cluster can't be used. What is done until then is kept.
        """
        jobs, done = map(self._job, students), self._done_file("").parent
        if cluster:
            found = on_cluster(judge_submission, jobs, cluster, shared=done, given_up=_without_a_worker)
        else:
            found = side_by_side(judge_submission, jobs, workers)
        # The workers of this machine are forked before the gradebook is first used, and inherit no connection to it.
        with _patient() as asked, kept_open(self._course.db_url) as failures, closing(found):
            for job, result in found:
                self._save(job, result, failures)
                yield job.student
                if asked:
                    raise KeyboardInterrupt

    def _links(self, student: str) -> list[str]:
        """Return what in a submission leads elsewhere, such as to the solution or to another student's work."""
        folder = self._submission(student)
        return [path.name for path in (folder.parent, folder, *sorted(folder.rglob("*"))) if path.is_symlink()]

    def _job(self, student: str) -> Job:
        notebooks = {}
        for name in self._locked:
            path = self._submission(student) / f"{name}.ipynb"
            if path.is_file() and not self._links(student) and not _is_pattern(student):
                notebooks[path] = released_path(self._course, self.assignment, name)
        digest = self._digest(student)
        return Job(self.root, self.assignment, student, digest, notebooks, self._locked, self.reduced, self.rerun)

    def _save(self, job: Job, found: Judged, failures: list[object]) -> None:
        """Let nbgrader write gradebook and graded notebook, then note that this submission is done.

        Raises GradebookLost if one of the `failures` of the gradebook was the reason that it could not.
        """
        notes, folder = [*found.notes, *self._odd_time(job.student)], self._autograded(job.student)
        if found.failed or not job.notebooks:
            shutil.rmtree(folder, ignore_errors=True)  # what was graded before is no longer what is handed in
            notes += [] if found.failed else [self._what_is_missing(job.student)]
        else:
            ready.update(found.ready)
            outcome = self._api.autograde(self.assignment, job.student)
            ready.clear()
            if failures:
                raise lost(self._course.db_url, failures[-1])
            notes += [] if outcome["success"] else [f"nbgrader could not grade it: {_reason(outcome)}"]
        graded = folder.is_dir()
        if not graded:
            self._save_zeros(job.student)
        done = self._done_file(job.student)
        done.parent.mkdir(parents=True, exist_ok=True)
        unfinished = done.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({"digest": job.digest, "notes": notes, "graded": graded}))
        unfinished.replace(done)

    def _what_is_missing(self, student: str) -> str:
        if _is_pattern(student):
            return "nbgrader takes a name with *, ? or [ for a pattern: rename the folder, and run again."
        links = self._links(student)
        if links:
            return f"It holds links, which lead out of it: {', '.join(links)}."
        there = ", ".join(sorted(path.name for path in self._submission(student).iterdir())) or "nothing"
        return f"There is no {next(iter(self._locked))}.ipynb, but {there}. Rename it, and run again."

    def _odd_time(self, student: str) -> list[str]:
        """Return a note if nbgrader can't read the time of a submission."""
        path = self._submission(student) / "timestamp.txt"
        try:
            parse_utc(path.read_text().strip()) if path.exists() else None
        except (ValueError, OverflowError):
            return ["timestamp.txt must hold a time, such as 2030-01-31 12:00:00 UTC: mend it, and run again."]
        return []

    def _save_zeros(self, student: str) -> None:
        """Save that there is nothing to grade: 0 points, for a person to look at."""
        with self._gradebook() as gradebook:
            gradebook.update_or_create_student(student)
            submission = gradebook.update_or_create_submission(self.assignment, student)
            for grade in (grade for notebook in submission.notebooks for grade in notebook.grades):
                grade.auto_score, grade.needs_manual_grade = 0, True
            gradebook.db.commit()

    def rows(self) -> Iterator[Row]:
        """Yield what the gradebook says about each student of this run who has been graded."""
        with self._gradebook() as gradebook:
            saved = self._saved(gradebook)
            for student in self.students:
                if student in saved and self._done(student):
                    submission = gradebook.find_submission(self.assignment, student)
                    yield Row(
                        student,
                        submission.score - (submission.late_submission_penalty or 0),
                        submission.max_score,
                        timedelta(seconds=round(submission.total_seconds_late)),
                        submission.needs_manual_grade,
                        " ".join(self._done(student)["notes"]),
                    )

    def write_csv(self, path: Path) -> None:
        """Write the grades of this assignment, of every student in the gradebook."""
        with self._gradebook() as gradebook:
            write_csv(path, grade_rows(gradebook, gradebook.find_assignment(self.assignment)))


def _is_pattern(student: str) -> bool:
    """Tell whether nbgrader would look for other students too, or for none, by this name."""
    return glob.escape(student) != student


@contextmanager
def _patient() -> Iterator[list]:
    """Let Ctrl-C wait until a submission is saved; give a list that is no longer empty when it was pressed.

    nbgrader would take it for an error of the submission, and where Python cleans up, it would be lost. Pressed again,
    it interrupts at once.
    """
    asked: list[bool] = []
    if threading.current_thread() is not threading.main_thread():  # where no signal arrives
        yield asked
        return

    def note(*signals: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _reason(outcome: dict) -> str:
    """Return the error, in one line, that nbgrader has logged."""
    errors = re.findall(r"^\s*([\w.]+(?:Error|Exception): .*)$", outcome.get("log", ""), re.MULTILINE)
    return errors[-1] if errors else "it gives no reason"


def table(rows: Iterable[Row]) -> str:
    """Return rows as a text table."""
    lines = [("student", "points", "late", "notes")]
    for row in rows:
        notes = [row.notes] if row.notes else []
        points = f"{row.score:g} of {row.max_score:g}" + (" + by hand" if row.needs_a_person else "")
        lines.append((row.student, points, str(row.late) if row.late else "", " ".join(notes)))
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    padded = [[*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def judge_submission(job: Job) -> Judged:
    """Judge a submission, in a worker. Whatever goes wrong with one is noted, and the class goes on."""
    try:
        return _judged(job)
    except IsolationIncomplete:
        raise
    except Exception as error:
        note = f"The judge stopped at it, with {type(error).__name__}: {error}. A person must look at it."
        return Judged(notes=[note[:500]], failed=True)


def _without_a_worker(job: Job) -> Judged:
    """Return what is known of a submission that has ended one worker of a cluster after the other: nothing."""
    return Judged(notes=["Each worker that judged it has ended. A person must look at it."], failed=True)


def _judged(job: Job) -> Judged:
    found = Judged()
    for path, released_at in job.notebooks.items():
        released = read_released(released_at)
        records = records_of(job.assignment, released)
        try:
            notebook = read_submission(path)
        except UnreadableSubmission as unreadable:
            found.notes.append(str(unreadable))
            continue
        found.notes.extend(repair(notebook, released))
        results = []
        if records:
            results = judged(notebook, released, records, answer_server(job.assignment, job.reduced), path.parent)
        found.ready[path] = Ready(results, _executed(job, path.stem, notebook))
    return found


def _executed(job: Job, name: str, notebook: NotebookNode) -> list[tuple[list[NotebookNode], int | None]] | None:
    """Execute a notebook again if there is a reason to; return outputs and numbers of its code cells."""
    settings = job.root / "nbgrader_config.py"
    step = _rerun_step(job.root, job.reduced, job.rerun, settings.stat().st_mtime_ns if settings.exists() else 0)
    course = step.parent.parent.coursedir
    ids = {"assignment": job.assignment, "student": job.student, "notebook": name}
    given = course.format_path(course.source_directory, ".", job.assignment)
    resources = {"nbgrader": ids, "metadata": {"path": given}}
    if not step.is_needed(notebook, resources):
        return None
    restore_locked_cells(notebook, job.locked[name])
    notebook.metadata["grading"] = {"unreadable": ""}
    with setenv(NBGRADER_EXECUTION="autograde"):  # as nbgrader does
        step.preprocess(notebook, resources)
    return [(cell.outputs, cell.execution_count) for cell in notebook.cells if cell.cell_type == "code"]


@functools.lru_cache(maxsize=4)
def _rerun_step(root: Path, reduced: bool, rerun: bool, settings_time: int) -> Rerun:
    app = _nbgrader(root, reduced, rerun)
    converter = Autograde(coursedir=app.coursedir, config=app.config)
    return Rerun(parent=SubmissionExporter(parent=converter, config=app.config))


def _nbgrader(root: Path, reduced: bool, rerun: bool) -> NbGrader:
    """Return nbgrader with the settings of a course folder and of this run."""
    app = nbgrader_of(root)
    for step in ("Rerun", "JudgeAnswers"):
        app.config[step].reduced_isolation = reduced
    app.config.Rerun.always = rerun
    return app
