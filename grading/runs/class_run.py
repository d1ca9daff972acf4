"""Grades a class: workers judge in parallel, one process writes to the gradebook, and a run may be killed at any time.

For each graded student, a small file records the submission and the version of the judge. It is written last. So a new
run grades only submissions that have no such file or were graded before the judge was changed.
"""

import glob
import hashlib
import json
import logging
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from pathlib import Path

from nbgrader.api import Gradebook, SubmittedAssignment
from nbgrader.apps import NbGraderAPI

from grading.export import grade_rows, write_csv
from grading.isolation.faults import ANY_REMEDY, NEEDED, MachineFault, is_machines, machine_fault
from grading.nbgrader_steps.gradebook import add_indexes, lost, opened
from grading.nbgrader_steps.handed_in import HandedIn, handed_in, listed
from grading.nbgrader_steps.nbgrader_patches import kept_open
from grading.nbgrader_steps.pipeline import locked_sources, ready, released_path
from grading.processes.workers import WorkersLost, side_by_side
from grading.results.pages import printable
from grading.runs.cluster import on_cluster
from grading.runs.one_submission import Job, Judged, given_up, judge_submission, nbgrader_for, without_a_worker
from grading.runs.source_digest import grading_digest
from transformer_lm.files import write_whole
from transformer_lm.text_tables import aligned

LONGEST_NAME = 200  # bytes of a student's name
CHANGED = "It was changed during the run."


@dataclass(frozen=True)
class Row:
    """A row of the table at the end of a run."""

    student: str
    score: float
    max_score: float
    late: timedelta
    needs_a_person: bool
    notes: str


class ClassRun:
    """One assignment of the course in a folder, to be graded for some students, or for all who have submitted.

    After a run, `left` says why some students are not graded. After `to_do`, `outdated` lists the students whose grades
    are for the current submission, but by a judge or records that have changed since.

    Raises ValueError if the assignment has not been released or one of the students has not submitted, and
    GradebookLost whenever the gradebook can't be reached.
    """

    def __init__(
        self, root: Path, assignment: str, students: list[str] | None = None, reduced: bool = False, rerun: bool = False
    ) -> None:
        self.root, self.assignment, self.reduced, self.rerun = root.resolve(), assignment, reduced, rerun
        app = nbgrader_for(self.root, reduced, rerun)
        self._course = app.coursedir
        with self._gradebook() as gradebook:
            known = {each.name: each.notebooks for each in gradebook.assignments}
            if assignment not in known:
                released = ", ".join(sorted(known)) or "none so far"
                raise ValueError(f"assignment must be one that was released ({released}), got {assignment}.")
            self._locked = {notebook.name: locked_sources(notebook) for notebook in known[assignment]}
            add_indexes(gradebook)
        self._api = NbGraderAPI(config=app.config, coursedir=self._course)
        submitted = sorted(self._api.get_submitted_students(assignment))
        missing = sorted(set(students or ()) - set(submitted))
        if missing:
            raise ValueError(f"students must have submitted {assignment}, got {', '.join(missing)}.")
        self.students = [student for student in submitted if not students or student in set(students)]
        self.left: dict[str, str] = {}
        self.outdated: list[str] = []
        self._grading = grading_digest(assignment)

    def _gradebook(self) -> AbstractContextManager[Gradebook]:
        return opened(self._course)

    def _folder(self, step: str, student: str) -> Path:
        return Path(self._course.format_path(step, student, self.assignment))

    def _submission(self, student: str) -> Path:
        return self._folder(self._course.submitted_directory, student)

    def _autograded(self, student: str) -> Path:
        return self._folder(self._course.autograded_directory, student)

    # Finished and remaining submissions.

    def to_do(self, force: bool = False) -> list[str]:
        """Return the students whose current submission has not been graded by this judge, or all with `force`."""
        with self._gradebook() as gradebook:
            saved = self._saved(gradebook)
        graded = {each for each in self.students if each in saved and self._is_graded(each)}
        self.outdated = sorted(each for each in graded if self._done(each).get("grading") != self._grading)
        return [each for each in self.students if force or each not in graded or each in self.outdated]

    def _saved(self, gradebook: Gradebook) -> set[str]:
        """Return the students with grades in the gradebook, which may not be that of the last run."""
        wanted = SubmittedAssignment.assignment_id == gradebook.find_assignment(self.assignment).id
        return {student for (student,) in gradebook.db.query(SubmittedAssignment.student_id).filter(wanted)}

    def _done_file(self, student: str) -> Path:
        # nbgrader looks for students in folders whose names do not start with a dot.
        return self._folder(self._course.autograded_directory, ".done") / f"{student}.json"

    def _done(self, student: str) -> dict:
        try:
            done = json.loads(self._done_file(student).read_text())
        except (OSError, ValueError):
            return {}
        return done if isinstance(done, dict) and {"digest", "notes", "graded"} <= done.keys() else {}

    def _is_graded(self, student: str) -> bool:
        """Return whether a submission was graded in its current state, by any version of the judge."""
        done = self._done(student)
        graded = self._autograded(student).is_dir()
        return bool(done) and done["graded"] == graded and done["digest"] == self._digest(self._handed_in(student))

    def _handed_in(self, student: str) -> HandedIn | None:
        return handed_in(self._submission(student))

    def _digest(self, found: HandedIn | None) -> str:
        """Return a fingerprint of the submitted files and the release, on which a grade depends."""
        digest = hashlib.sha256(found.digest.encode() if found else b"gone")
        for notebook in self._locked:
            digest.update(released_path(self._course, self.assignment, notebook).read_bytes())
        return digest.hexdigest()

    # Grading.

    def grade(self, students: list[str], workers: int | None = None, cluster: str | None = None) -> Iterator[str]:
        """Grade these students, here or on the cluster at an address; yield each name when it is done.

        Submissions that could not be graded are in `left`. Raises ClusterUnusable if the cluster can't be used, and
        MachineFault if the machine can't go on. Grades saved by then are kept.
        """
        self.left.clear()
        jobs, done = map(self._job, students), self._done_file("").parent
        # The first local workers are forked before the gradebook is used, so they inherit no connection to it.
        with _patient() as asked, kept_open(self._course.db_url) as failures:
            how = asked.__len__, attrgetter("doubtful")
            if cluster:
                found = on_cluster(judge_submission, jobs, cluster, done, without_a_worker, *how)
            else:
                found = side_by_side(judge_submission, jobs, workers, given_up, *how)
            try:
                with closing(found):
                    for job, result in found:
                        self._save(job, result, failures, asked)
                        yield job.student
                        if asked:
                            raise KeyboardInterrupt
            except WorkersLost as error:
                raise MachineFault(f"{NEEDED}, but {error}. {ANY_REMEDY}") from error
            except (OSError, MemoryError) as error:
                raise machine_fault(error, "the next student") from error

    def _job(self, student: str) -> Job:
        found = self._handed_in(student)
        problem = _unusable(student) or ("Its folder is gone." if found is None else found.problem)
        names = () if found is None else found.names
        here = {name: self._submission(student) / f"{name}.ipynb" for name in self._locked}
        notebooks = {
            path: released_path(self._course, self.assignment, name)
            for name, path in here.items()
            if not problem and path.name in names
        }
        if not problem and not notebooks:
            there = listed(names) or "nothing"
            problem = f"There is no {next(iter(self._locked))}.ipynb, but {there}. Rename it, and run again."
        digest = self._digest(found)
        given = notebooks, self._locked, self.reduced, self.rerun
        return Job(self.root, self.assignment, student, digest, problem, *given)

    def _save(self, job: Job, found: Judged, failures: list[BaseException], asked: list) -> None:
        """Let nbgrader write gradebook and graded notebook, then note that this submission is done.

        The earlier graded notebook is kept if the submission has not changed, or if this fails. Raises GradebookLost if
        this fails because of one of the gradebook's `failures`, and MachineFault if the machine is the reason.
        """
        student, notes, failed = job.student, [*found.notes], found.failed
        before = self._done(student).get("digest")
        if self._has_changed(job) or not _can_be_saved(student):
            self.left[student] = job.problem or CHANGED
            return
        with self._earlier_kept(student):
            if not failed and not job.problem:
                self._done_file(student).unlink(missing_ok=True)  # from here on, gradebook and notebook may differ
                error = self._graded_by_nbgrader(job, found, failures, asked)
                changed = not error and self._has_changed(job)
                notes += [f"nbgrader could not grade it: {error}"] if error else [CHANGED] if changed else []
                failed = bool(error) or changed
            notes += [job.problem] if job.problem else []
            if failed:
                self.left[student] = " ".join(notes)
                if before == job.digest:
                    self._put_back(student)
                    return
            graded = self._autograded(student).is_dir()
            if not graded:
                self._save_zeros(student)
            self._note_done(student, "" if failed else job.digest, notes, graded)

    def _has_changed(self, job: Job) -> bool:
        """Return whether a submission has changed since its job was created."""
        found = self._handed_in(job.student)
        return found is None or self._digest(found) != job.digest

    def _graded_by_nbgrader(self, job: Job, found: Judged, failures: list[BaseException], asked: list) -> str:
        """Let nbgrader save the findings of a worker; return the reason if it could not."""
        for attempt in (1, 2):
            errors = _Errors()
            self._api.log.addHandler(errors)
            ready.update(found.ready)
            try:
                outcome = self._api.autograde(self.assignment, job.student)
            finally:
                ready.clear()
                self._api.log.removeHandler(errors)
            if len(asked) > 1:  # nbgrader takes it for an error of the submission
                raise KeyboardInterrupt
            if failures:
                raise lost(self._course.db_url, failures[-1])
            if outcome["success"]:
                return ""
            machines = [error for error in errors.seen if is_machines(error, self._submission(job.student))]
            if not machines:
                last = outcome["error"].strip().splitlines()[-1]
                reason = f"{type(errors.seen[-1]).__name__}: {errors.seen[-1]}" if errors.seen else last
                return " ".join(reason.split())[:500]
            if attempt == 2:
                raise machine_fault(machines[-1], job.student)
        raise AssertionError

    def _aside(self, student: str) -> Path:
        """Return the folder for the earlier graded notebook during a new grading."""
        return self._folder(self._course.autograded_directory, ".aside") / student

    @contextmanager
    def _earlier_kept(self, student: str) -> Iterator[None]:
        """Move the earlier graded notebook aside; restore it if this fails, or at the next run if this is killed."""
        folder, aside = self._autograded(student), self._aside(student)
        self._put_back(student)
        if folder.is_dir():
            aside.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(aside)
        try:
            yield
        except BaseException:
            self._put_back(student)
            raise
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):  # raised while there are others
            aside.parent.rmdir()
            aside.parent.parent.rmdir()

    def _put_back(self, student: str) -> None:
        folder, aside = self._autograded(student), self._aside(student)
        if aside.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)

    def _note_done(self, student: str, digest: str, notes: list[str], graded: bool) -> None:
        done = {"digest": digest, "grading": self._grading, "notes": notes, "graded": graded}
        write_whole(self._done_file(student), json.dumps(done))

    def _save_zeros(self, student: str) -> None:
        """Save 0 points for manual grading, because there is nothing to grade."""
        with self._gradebook() as gradebook:
            gradebook.update_or_create_student(student)
            submission = gradebook.update_or_create_submission(self.assignment, student)
            for grade in (grade for notebook in submission.notebooks for grade in notebook.grades):
                grade.auto_score, grade.needs_manual_grade = 0, True
            gradebook.db.commit()

    def rows(self) -> Iterator[Row]:
        """Yield a row from the gradebook for each graded student of this run."""
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


def _can_be_saved(student: str) -> bool:
    """Return whether a name can be stored in the gradebook, and, with a few more letters, as a folder's name."""
    return student.isprintable() and len(student.encode()) <= LONGEST_NAME


def _unusable(student: str) -> str:
    """Return a sentence on why a name can't be graded; empty if it can."""
    if not _can_be_saved(student):
        most = f"at most {LONGEST_NAME} bytes"
        return f"The name of the folder must be printable text of {most}. Rename it, and run again."
    if glob.escape(student) != student:
        return "nbgrader takes a name with *, ? or [ for a pattern: rename the folder, and run again."
    return ""


class _Errors(logging.Handler):
    """Keeps the errors that nbgrader catches, logs and takes for faults of the submission."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the error that is being handled."""
        error = sys.exc_info()[1]
        if error is not None:
            self.seen.append(error)


@contextmanager
def _patient() -> Iterator[list]:
    """Delay Ctrl-C until a suitable moment; give a list with an entry for each time it was pressed.

    nbgrader would take it for an error of the submission, and during Python's cleanup it would be lost. Pressed again,
    it interrupts at once.
    """
    asked: list[bool] = []
    if threading.current_thread() is not threading.main_thread():  # no signal arrives here
        yield asked
        return

    def note(*signals: object) -> None:
        asked.append(True)
        if len(asked) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def table(rows: Iterable[Row]) -> str:
    """Return rows as a text table."""
    lines = [("student", "points", "late", "notes")]
    for row in rows:
        notes = [row.notes] if row.notes else []
        points = f"{row.score:g} of {row.max_score:g}" + (" + by hand" if row.needs_a_person else "")
        lines.append((row.student, points, str(row.late) if row.late else "", " ".join(notes)))
    return aligned([tuple(map(printable, line)) for line in lines])
