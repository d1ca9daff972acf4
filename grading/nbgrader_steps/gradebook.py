"""Opens the gradebook of a course, SQLite or PostgreSQL by its URL, once per run, and reports its failures."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbgrader.api import Comment, Grade, Gradebook, InvalidEntry, SubmittedAssignment, SubmittedNotebook
from nbgrader.apps.baseapp import NbGrader
from nbgrader.coursedir import CourseDirectory
from sqlalchemy import Index, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, InterfaceError, NoSuchModuleError, OperationalError

# nbgrader queries the rows of one submission. Without these indexes, the database would search the rows of the whole
# class each time, and the time of a run would be quadratic in the size of the class.
INDEXES = (
    Index("submitted_assignment_student", SubmittedAssignment.student_id),
    Index("submitted_notebook_assignment", SubmittedNotebook.assignment_id),
    Index("grade_notebook", Grade.notebook_id),
    Index("comment_notebook", Comment.notebook_id),
)

# A host that is switched off does not answer at all, and the system would wait for minutes.
os.environ.setdefault("PGCONNECT_TIMEOUT", "10")


class GradebookLost(Exception):
    """The gradebook can't be reached; the text tells the instructor why, without the password."""


def nbgrader_of(root: Path) -> NbGrader:
    """Return nbgrader with the settings of a course folder; it logs only errors, and shows none."""
    app = NbGrader(log_level=logging.ERROR)
    app.initialize([], root=str(root))
    for name in (app.log.name, "traitlets", "tornado.application"):  # the last one gets tracebacks of a lost database
        log = logging.getLogger(name)
        log.handlers = [logging.NullHandler()]
        log.setLevel(logging.ERROR)
        log.propagate = False
    return app


@contextmanager
def opened(course: CourseDirectory) -> Iterator[Gradebook]:
    """Open the gradebook named in a course's settings. Raises GradebookLost if it can't be reached."""
    with reached(course.db_url), Gradebook(course.db_url, course.course_id) as gradebook:
        yield gradebook


@contextmanager
def gradebook_of(root: Path) -> Iterator[Gradebook]:
    """Open the gradebook of a course folder. Raises GradebookLost if it can't be reached."""
    with opened(nbgrader_of(root.resolve()).coursedir) as gradebook:
        yield gradebook


@contextmanager
def reached(url: str) -> Iterator[None]:
    """Raise GradebookLost if a database URL is unusable, or if the database fails in the body."""
    _require_driver(url)
    try:
        yield
    except (DatabaseError, InterfaceError, InvalidEntry) as error:
        # nbgrader turns all errors at a commit into an InvalidEntry.
        reason = error.__context__ if isinstance(error, InvalidEntry) else error
        if not is_lost(reason):
            raise
        raise lost(url, reason.orig) from error


def is_lost(error: BaseException | None) -> bool:
    """Return whether a database can't be reached or is damaged; for damage, SQLite raises its most general error."""
    return isinstance(error, OperationalError | InterfaceError) or type(error) is DatabaseError


def _require_driver(url: str) -> None:
    """Raise GradebookLost if a URL can't be parsed, or if its driver is not installed."""
    try:
        parsed = make_url(url)
        if url.partition("://")[2].count("@") > 1:
            raise ValueError("a part of the password is taken for something else")
    except (ArgumentError, ValueError):  # its text may quote part of the password
        rule = "db_url must be a URL such as postgresql+psycopg://user@host/name, got one that can't be read."
        raise GradebookLost(f"{rule} In a password, write : as %3A and @ as %40.") from None
    try:
        parsed.get_dialect().import_dbapi()
    except (ImportError, NoSuchModuleError) as error:
        remedy = "Write postgresql+psycopg://, and install the extra: pip install 'transformer-lm[postgres]'."
        rule = f"db_url must name a database and a driver that are installed, got {parsed.drivername}"
        raise GradebookLost(f"{rule}: {error}. {remedy}") from error


def lost(url: str, reason: object) -> GradebookLost:
    """Return the error that says that a gradebook fails, and why."""
    place = make_url(url).set(query={}).render_as_string(hide_password=True)
    return GradebookLost(f"the gradebook must be reachable, got {place}: {' '.join(str(reason).split()).rstrip('.')}.")


def add_indexes(gradebook: Gradebook) -> None:
    """Add the missing indexes to a gradebook."""
    for index in INDEXES:
        index.create(gradebook.engine, checkfirst=True)
