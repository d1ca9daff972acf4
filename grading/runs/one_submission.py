"""Judges one submission in a worker, and returns the findings to the process that saves them."""

import faulthandler
import functools
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from nbformat import NotebookNode
from nbgrader.apps.baseapp import NbGrader
from nbgrader.converters import Autograde

from grading.isolation.answers import Answer, AnswerEnded, AnswerServer, Cell
from grading.isolation.faults import ANY_REMEDY, NEEDED, MachineFault, ServerLost, is_machines, machine_fault
from grading.isolation.sandbox import IsolationIncomplete
from grading.nbgrader_steps.gradebook import nbgrader_of
from grading.nbgrader_steps.pipeline import Ready, Rerun, SubmissionExporter, restore_locked_cells
from grading.nbgrader_steps.repair import UnreadableSubmission, read_submission, repair
from grading.nbgrader_steps.submission import judged, read_released, records_of
from grading.processes.workers import answer_server

SUBMISSION_SECONDS = 300  # no submission takes half of this; one that is executed again has more


@dataclass(frozen=True)
class Job:
    """A submission to grade, as it was when its `digest` was taken: each of its notebooks with the released one.

    There are no notebooks if a `problem` prevents grading. `locked` has the locked cells of each notebook, by name,
    because workers have no access to the gradebook.
    """

    root: Path
    assignment: str
    student: str
    digest: str
    problem: str
    notebooks: dict[Path, Path]
    locked: dict[str, dict[str, str]]
    reduced: bool
    rerun: bool


@dataclass(frozen=True)
class Judged:
    """The findings of a worker about a submission; `notes` are for the instructor.

    A submission that has `failed` is tried again at the next run. One that is `doubtful` is tried again when nothing
    else is running, because something else may have used the processor or the memory.
    """

    ready: dict[Path, Ready] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failed: bool = False
    doubtful: bool = False


def judge_submission(job: Job) -> Judged:
    """Judge a submission in a worker. Errors are recorded, and grading of the class goes on.

    After an error that may be the machine's fault, it is tried once more with a new answer process. Raises MachineFault
    if that fails too, unless the machine can judge something else. The worker ends if it takes too long.
    """
    _end_after(SUBMISSION_SECONDS)
    try:
        return _judged_twice(job)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _judged_twice(job: Job) -> Judged:
    """Judge a submission, and once more if the machine may have been at fault."""
    try:
        return _judged(job)
    except IsolationIncomplete:
        raise
    except Exception as error:
        if not is_machines(error, _folder(job)):
            return _stopped(error)
    answer_server(job.assignment, job.reduced).stop()
    try:
        return _judged(job)
    except IsolationIncomplete:
        raise
    except Exception as error:
        at_fault = is_machines(error, _folder(job))
        if not at_fault or (isinstance(error, MemoryError | ServerLost) and _machine_works(job)):
            return _stopped(error)
        raise machine_fault(error, job.student) from error


def _end_after(seconds: float) -> None:
    """End this process after this many seconds, even if Python itself is blocked."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=_nobody())


@functools.cache
def _nobody() -> TextIO:
    return open(os.devnull, "w")


def _folder(job: Job) -> Path | None:
    return next(iter(job.notebooks)).parent if job.notebooks else None


def _stopped(error: Exception) -> Judged:
    note = f"The judge stopped at it, with {type(error).__name__}: {error}. It needs manual grading."
    return Judged(notes=[note[:500]], failed=True)


def _machine_works(job: Job) -> bool:
    """Return whether a minimal answer can be judged here."""
    try:
        with Answer(answer_server(job.assignment, job.reduced), "", [Cell(0, "x = 1")], False) as answer:
            answer.keep_running()
            return answer.ask("defines", name="x")[0] == {"defined": True}
    except (OSError, MemoryError, ServerLost, AnswerEnded):
        return False


def given_up(job: Job) -> Judged:
    """Return empty findings for a submission that has ended two workers. Raises MachineFault if the machine fails."""
    if not _machine_works(job):
        raise MachineFault(f"{NEEDED}, but workers end, and not even a minimal answer runs. {ANY_REMEDY}")
    return without_a_worker(job)


def without_a_worker(job: Job) -> Judged:
    """Return empty findings for a submission that has ended several workers."""
    note = f"Each worker that judged it has ended, or took more than {SUBMISSION_SECONDS} seconds."
    return Judged(notes=[f"{note} It needs manual grading."], failed=True)


def _judged(job: Job) -> Judged:
    """Judge a submission. Errors are raised."""
    if not job.notebooks:
        return Judged()
    server = answer_server(job.assignment, job.reduced)
    server.doubtful = 0
    found = _found(job, server)
    return replace(found, doubtful=server.doubtful > 0)


def _found(job: Job, server: AnswerServer) -> Judged:
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
            results = judged(notebook, released, records, server, path.parent)
        found.ready[path] = Ready(results, _executed(job, path.stem, notebook))
        server.doubtful += _rerun_step(job).was_killed
    return found


def _executed(job: Job, name: str, notebook: NotebookNode) -> list[tuple[list[NotebookNode], int | None]] | None:
    """Execute a notebook again if needed; return outputs and execution counts of its code cells."""
    step = _rerun_step(job)
    course = step.parent.parent.coursedir
    ids = {"assignment": job.assignment, "student": job.student, "notebook": name}
    given = course.format_path(course.source_directory, ".", job.assignment)
    resources = {"nbgrader": ids, "metadata": {"path": given}}
    step.was_killed = False
    if not step.is_needed(notebook, resources):
        return None
    _end_after(SUBMISSION_SECONDS + step.notebook_timeout)
    restore_locked_cells(notebook, job.locked[name])
    notebook.metadata["grading"] = {"unreadable": ""}
    step.preprocess(notebook, resources)
    return [(cell.outputs, cell.execution_count) for cell in notebook.cells if cell.cell_type == "code"]


def _rerun_step(job: Job) -> Rerun:
    """Return the preprocessor that executes notebooks, with the current settings of the course."""
    settings = job.root / "nbgrader_config.py"
    return _rerun_step_of(job.root, job.reduced, job.rerun, settings.stat().st_mtime_ns if settings.exists() else 0)


@functools.lru_cache(maxsize=4)
def _rerun_step_of(root: Path, reduced: bool, rerun: bool, settings_time: int) -> Rerun:
    app = nbgrader_for(root, reduced, rerun)
    converter = Autograde(coursedir=app.coursedir, config=app.config)
    return Rerun(parent=SubmissionExporter(parent=converter, config=app.config))


def nbgrader_for(root: Path, reduced: bool, rerun: bool) -> NbGrader:
    """Return nbgrader with the settings of a course folder and of this run."""
    app = nbgrader_of(root)
    for step in ("Rerun", "JudgeAnswers"):
        app.config[step].reduced_isolation = reduced
    app.config.Rerun.always = rerun
    return app
