"""PostgreSQL as the gradebook, on a server of these tests: the same grades as in SQLite; none is lost when it stops."""

import csv
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from local_servers import PASSWORD, PostgresServer
from nbgrader.apps import NbGraderAPI
from sample_class import ASSIGNMENT, REDUCED, RUN, done, gradebook, python, scores, small_class, start, wait_for
from sqlalchemy import text

from grading.authoring.demo import DUE
from grading.nbgrader_steps.gradebook import INDEXES, GradebookLost, gradebook_of, nbgrader_of, reached
from grading.runs.class_run import ClassRun

STUDENTS = 8


@pytest.fixture(scope="module")
def server():
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        try:
            made = PostgresServer(Path(folder))
        except FileNotFoundError as missing:
            pytest.skip(str(missing))
        yield made
        made.stop()


@pytest.fixture(scope="module")
def url(server):
    return server.new_database("course")


@pytest.fixture(scope="module")
def in_sqlite(tmp_path_factory):
    """A class that was graded in one go; all were late."""
    course = _late(small_class(tmp_path_factory.mktemp("sqlite") / "course", STUDENTS))
    python(course, *RUN)
    return course


@pytest.fixture(scope="module")
def in_postgres(tmp_path_factory, server, url):
    """The same class, graded in two runs, because the server has stopped in the middle of the first."""
    course = _late(small_class(tmp_path_factory.mktemp("postgres") / "course", STUDENTS, url))
    process = start(course)
    wait_for(lambda: len(done(course)) >= 3, process)
    server.stop()
    output, _ = process.communicate(timeout=60)
    (course / "stopped.log").write_text(output)
    (course / "unreachable.log").write_text(python(course, *RUN, fails=True))
    server.start()
    assert 3 <= len(done(course)) < STUDENTS
    (course / "finished.log").write_text(python(course, *RUN))
    return course


def _late(course: Path) -> Path:
    with gradebook_of(course) as book:
        book.update_or_create_assignment(ASSIGNMENT, duedate=(DUE - timedelta(minutes=90)).replace(tzinfo=None))
    return course


def test_the_gradebook_is_that_of_sqlite_even_if_the_server_stops_in_the_middle(in_postgres, in_sqlite):
    assert gradebook(in_postgres) == gradebook(in_sqlite)
    assert scores(in_postgres) == {f"student-{number:02}": 5 if number % 2 else 9 for number in range(STUDENTS)}
    assert done(in_postgres) == done(in_sqlite)
    assert not (in_postgres / "gradebook.db").exists()


def test_a_server_that_stops_or_does_not_answer_is_named_in_one_sentence(in_postgres, url):
    for name in ("stopped", "unreachable"):
        output = (in_postgres / f"{name}.log").read_text()
        assert f"the gradebook must be reachable, got {url.replace(PASSWORD, '***')}: " in output
        assert "Traceback" not in output
        assert PASSWORD not in output
    assert "Finished work is kept; run the same command again to continue." in (in_postgres / "stopped.log").read_text()
    assert f"of {STUDENTS} are graded already" in (in_postgres / "finished.log").read_text()


@pytest.mark.parametrize(
    "moment",
    [
        "UPDATE ON grade FOR EACH ROW WHEN (NEW.auto_score > 0)",  # zeros could be saved all the time
        "INSERT ON submitted_assignment FOR EACH ROW",  # nbgrader logs this with a traceback
    ],
)
def test_a_short_failure_of_the_database_is_not_taken_for_one_of_a_submission(in_postgres, moment, caplog):
    with gradebook_of(in_postgres) as book:
        book.remove_submission(ASSIGNMENT, "student-00")
        for command in (
            """CREATE OR REPLACE FUNCTION end_connection() RETURNS trigger LANGUAGE plpgsql
               AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END'""",
            f"CREATE TRIGGER ends_connection BEFORE {moment} EXECUTE FUNCTION end_connection()",
        ):
            book.db.execute(text(command))
        book.db.commit()
    run = ClassRun(in_postgres, ASSIGNMENT, ["student-00"], reduced=REDUCED)
    try:
        with pytest.raises(GradebookLost, match="terminating connection"):
            list(run.grade(run.students, workers=1))
    finally:
        with gradebook_of(in_postgres) as book:
            book.db.execute(text(f"DROP TRIGGER ends_connection ON {moment.split()[2]}"))
            book.db.commit()
    assert caplog.text == ""
    assert run.to_do() == ["student-00"]


def test_a_run_keeps_one_connection_and_leaves_none(in_postgres, server):
    run = ClassRun(in_postgres, ASSIGNMENT, ["student-00", "student-01"], reduced=REDUCED)
    assert server.connections() == 0
    assert [server.connections() for _ in run.grade(run.students, workers=1)] == [1, 1]
    run.write_csv(in_postgres / "grades.csv")
    assert server.connections() == 0
    assert [row.score for row in run.rows()] == [9, 5]


def test_indexes_are_added_to_a_gradebook_that_has_none(in_sqlite, in_postgres):
    for course in (in_sqlite, in_postgres):
        with gradebook_of(course) as book:
            for index in INDEXES:
                index.drop(book.engine)
        ClassRun(course, ASSIGNMENT)
        with gradebook_of(course) as book:
            for index in INDEXES:
                with pytest.raises(Exception, match="already exists"):
                    index.create(book.engine)


def test_the_formgrader_feedback_and_export_say_the_same(in_sqlite, in_postgres):
    said = []
    for course in (in_sqlite, in_postgres):
        app = nbgrader_of(course)
        api = NbGraderAPI(config=app.config, coursedir=app.coursedir)
        pages = [
            api.get_assignments(),
            api.get_notebooks(ASSIGNMENT),
            sorted(api.get_submissions(ASSIGNMENT), key=lambda row: row["student"]),
            sorted(api.get_notebook_submissions(ASSIGNMENT, ASSIGNMENT), key=lambda row: row["student"]),
            api.get_students(),
            api.get_student_notebook_submissions("student-01", ASSIGNMENT),
        ]
        said.append([{**row, "id": "", "index": ""} for page in pages for row in page])
        assert api.generate_feedback(ASSIGNMENT, "student-01")["success"]
        assert (course / "feedback" / "student-01" / ASSIGNMENT / f"{ASSIGNMENT}.html").exists()
        python(course, "nbgrader", "export", "--to", "exported.csv")
        with (course / "exported.csv").open(newline="") as file:
            said[-1] += sorted(csv.DictReader(file), key=lambda row: row["student_id"])
    assert said[0] == said[1]


def test_what_a_url_needs_is_said_without_its_password(monkeypatch):
    for unreadable in (
        f"postgresql://grader@host:{PASSWORD}/name",
        f"postgresql://grader:1@{PASSWORD}@host/name",
        f"postgresql+psycopg://grader:1@2/{PASSWORD}@host/name",
        f"postgresql+psycopg://grader:1@2?{PASSWORD}@host/name",
        PASSWORD,
    ):
        with pytest.raises(GradebookLost, match="db_url must be a URL such as") as refused, reached(unreadable):
            pass
        assert PASSWORD not in str(refused.value)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with (
        pytest.raises(GradebookLost, match=r"pip install 'transformer-lm\[postgres\]'") as refused,
        reached(f"postgresql+psycopg://grader:{PASSWORD}@host/name"),
    ):
        pass
    assert PASSWORD not in str(refused.value)
