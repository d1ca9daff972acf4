"""All changes to nbgrader itself, in one place, with the version that they were tested with.

Everything else uses nbgrader's own extension points: subclasses named in nbgrader_config.py.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from nbgrader.api import Gradebook, SubmittedAssignment
from sqlalchemy import create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import SAWarning
from sqlalchemy.orm import scoped_session, sessionmaker

from grading.nbgrader_steps.gradebook import is_lost

# After an update, compare nbgrader's code with the changes here, run all tests, and enter the new version.
TESTED_WITH = "0.9.6"


def install() -> None:
    """Change how nbgrader saves a submission; a second call has no effect."""
    if not event.contains(SubmittedAssignment.timestamp, "set", _forget_scores):
        event.listen(SubmittedAssignment.timestamp, "set", _forget_scores, active_history=True)
    # nbgrader creates rows in an order that is harmless, but that SQLAlchemy warns about.
    warnings.filterwarnings("ignore", "Object of type <Submitted", SAWarning)


def _forget_scores(submission: SubmittedAssignment, new: object, old: object, initiator: object) -> None:
    """Reset old scores when nbgrader saves a new submission's time, because it may be stopped before the new scores."""
    if new != old:
        for notebook in submission.notebooks:
            for grade in notebook.grades:
                grade.auto_score, grade.needs_manual_grade = None, True


@contextmanager
def kept_open(url: str) -> Iterator[list[BaseException]]:
    """Share one engine among all uses of this gradebook in this process; give a list of the database's failures.

    nbgrader opens it eight times for each submission, and each time it connects, looks for all tables and compiles all
    queries again. That takes as long as everything else it does. nbgrader takes a failure of the database for one of
    the submission; the list tells them apart.
    """
    engine, courses, failures = create_engine(url, pool_pre_ping=True), set(), []
    opens, closes = Gradebook.__init__, Gradebook.close

    @event.listens_for(engine, "handle_error")
    def note(context: ExceptionContext) -> None:
        if is_lost(context.sqlalchemy_exception) and not context.is_pre_ping:
            failures.append(context.original_exception)

    def share(self: Gradebook, db_url: str, course_id: str = "default_course", authenticator: object = None) -> None:
        if db_url != url:
            return opens(self, db_url, course_id, authenticator)
        self.engine, self.course_id, self.authenticator = engine, course_id, authenticator
        self.db = scoped_session(sessionmaker(bind=engine))
        if course_id not in courses:
            self.check_course(course_id)
            courses.add(course_id)

    def give_back(self: Gradebook) -> None:
        self.db.remove() if self.engine is engine else closes(self)

    Gradebook.__init__, Gradebook.close = share, give_back
    try:
        yield failures
    finally:
        Gradebook.__init__, Gradebook.close = opens, closes
        engine.dispose()
