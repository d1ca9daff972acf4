"""All that changes nbgrader itself, in one place, with the version that it was tested with.

Everything else extends nbgrader where it offers to be extended: by subclasses that nbgrader_config.py names.
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

# After an update, compare nbgrader's code with what is changed here, run all tests, and write the new version.
TESTED_WITH = "0.9.6"


def install() -> None:
    """Change what nbgrader does while it saves a submission; a second call changes nothing."""
    if not event.contains(SubmittedAssignment.timestamp, "set", _forget_scores):
        event.listen(SubmittedAssignment.timestamp, "set", _forget_scores, active_history=True)
    # nbgrader makes rows in an order that SQLAlchemy warns of, and which does no harm.
    warnings.filterwarnings("ignore", "Object of type <Submitted", SAWarning)


def _forget_scores(submission: SubmittedAssignment, new: object, old: object, initiator: object) -> None:
    """Let no score outlive its submission: nbgrader saves the new time first, and may be stopped before the scores."""
    if new != old:
        for notebook in submission.notebooks:
            for grade in notebook.grades:
                grade.auto_score, grade.needs_manual_grade = None, True


@contextmanager
def kept_open(url: str) -> Iterator[list[object]]:
    """Let whoever opens this gradebook, in this process, share one engine; give a list of how the database failed.

    nbgrader opens it eight times for each submission, and each time connects, looks for all tables and compiles all
    queries anew: that takes as long as all else that it does. A failure of the database it takes for one of the
    submission; the list tells them apart.
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
