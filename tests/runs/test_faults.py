"""Faults of the machine while a class is graded: no score is lost or changed, and a second run does the rest."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import nbformat
import psutil
import pytest
from sample_class import ASSIGNMENT, RUN, done, gradebook, python, scores, small_class, start, wait_for

from grading.isolation.sandbox import missing_walls
from grading.runs import class_run, one_submission
from grading.runs.class_run import ClassRun
from grading.runs.one_submission import Judged, judge_submission

REDUCED = bool(missing_walls())
STUDENTS = 4


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A class that was graded without any fault."""
    course = small_class(tmp_path_factory.mktemp("calm") / "course", STUDENTS)
    python(course, *RUN)
    return course


@pytest.fixture
def graded(calm, tmp_path):
    """A copy of it."""
    return shutil.copytree(calm, tmp_path / "course")


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a separate disk of 300 KB."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk: run the tests as root to try full disks.")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", folder], capture_output=True, text=True)
    if mount.returncode and not os.environ.get("CI"):
        pytest.skip(f"this machine mounts no small disk: {mount.stderr.strip()}")
    assert mount.returncode == 0, mount.stderr
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def files(course: Path) -> dict[str, bytes]:
    """Return all graded notebooks."""
    return {str(path.relative_to(course)): path.read_bytes() for path in course.glob("autograded/*/*/*.ipynb")}


def run(course: Path, *options: str, **environment: str) -> tuple[int, str]:
    """Grade a class; return the exit status and what is printed."""
    command = [sys.executable, "-m", *RUN, *options]
    ended = subprocess.run(
        command, cwd=course, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stdout + ended.stderr


def finishes_like(course: Path, calm: Path) -> None:
    """Check that a second run does the rest, and that the gradebook is that of an undisturbed run."""
    status, _ = run(course)
    assert status == 0
    assert gradebook(course) == gradebook(calm)
    assert done(course) == done(calm)
    assert files(course).keys() == files(calm).keys()


def test_a_full_temporary_folder_stops_a_run_and_changes_nothing(graded, calm, small_disk):
    before = files(graded)
    status, told = run(graded, "--force", TMPDIR=str(small_disk))
    assert status == 1
    assert "No space left on device" in told
    assert "Make room in the course folder and in the temporary folder" in told
    assert "Finished work is kept; run the same command again to continue." in told
    assert gradebook(graded) == gradebook(calm)
    assert files(graded) == before
    finishes_like(graded, calm)


def test_a_full_disk_under_the_graded_notebooks_keeps_those_that_are_there(calm, tmp_path, small_disk):
    course = shutil.copytree(calm, tmp_path / "course")
    shutil.copytree(course / "autograded", small_disk, dirs_exist_ok=True)
    shutil.rmtree(course / "autograded")
    (course / "autograded").symlink_to(small_disk)
    before = files(course)
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_bsize - 12_000))
    status, told = run(course, "--force")
    assert (status, "No space left on device" in told) == (1, True), told
    assert "Finished work is kept; run the same command again to continue." in told
    assert gradebook(course) == gradebook(calm)
    assert files(course).keys() == before.keys()
    (small_disk / "ballast").unlink()
    finishes_like(course, calm)


def children(process: subprocess.Popen, word: str) -> list[psutil.Process]:
    """Return the processes below a run whose command line has a word in it."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            found += [child] if word in " ".join(child.cmdline()) else []
        except psutil.Error:
            continue
    return found


def test_an_answer_server_killed_once_costs_nothing(calm, tmp_path):
    course = small_class(tmp_path / "course", STUDENTS)
    process = start(course, "--workers", "1")
    wait_for(lambda: done(course), process)
    for server in children(process, "bwrap"):
        server.kill()
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert gradebook(course) == gradebook(calm)


def test_answer_servers_that_are_always_killed_stop_a_run(calm, tmp_path):
    course = small_class(tmp_path / "course", STUDENTS)
    process = start(course, "--workers", "1")
    wait_for(lambda: done(course), process)
    before = done(course)
    while process.poll() is None:
        for server in children(process, "runpy.run_module"):
            server.kill()
        time.sleep(0.05)
    told = process.communicate()[0]
    assert process.returncode == 1
    assert "the machine must have what grading needs, got ServerLost" in told
    assert "Traceback" not in told
    assert done(course) >= before
    assert {student: score for student, score in scores(course).items() if student in done(course)}.items() <= scores(
        calm
    ).items()
    finishes_like(course, calm)


def test_a_worker_killed_is_replaced_and_costs_nothing(calm, tmp_path):
    course = small_class(tmp_path / "course", STUDENTS)
    process = start(course, "--workers", "2")
    wait_for(lambda: done(course), process)
    psutil.Process(process.pid).children()[0].kill()
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert gradebook(course) == gradebook(calm)
    assert done(course) == done(calm)


def kill_with(job):
    """Judge a submission, unless it is the one at which every worker ends."""
    if job.student == "student-00":
        os.kill(os.getpid(), signal.SIGKILL)
    return judge_submission(job)


def test_a_submission_that_ends_its_workers_is_left_to_a_person_and_takes_no_other_with_it(calm, tmp_path, monkeypatch):
    course = small_class(tmp_path / "course", STUDENTS)
    monkeypatch.setattr(class_run, "judge_submission", kill_with)
    run = ClassRun(course, ASSIGNMENT, reduced=REDUCED)
    assert sorted(run.grade(run.students, workers=2)) == run.students
    assert list(run.left) == ["student-00"]
    assert "Each worker that judged it has ended" in run.left["student-00"]
    rows = {row.student: row for row in run.rows()}
    assert rows["student-00"].needs_a_person
    assert scores(course) == scores(calm) | {"student-00": 0}
    assert run.to_do() == ["student-00"]  # for it may have been the machine after all
    monkeypatch.undo()
    assert list(run.grade(run.to_do(), workers=1)) == ["student-00"]
    assert not run.left
    assert gradebook(course) == gradebook(calm)


def test_a_submission_that_fails_now_keeps_the_grade_that_it_had(graded, calm, monkeypatch):
    monkeypatch.setattr(class_run, "judge_submission", kill_with)
    run = ClassRun(graded, ASSIGNMENT, reduced=REDUCED)
    assert sorted(run.grade(run.students, workers=2)) == run.students
    assert list(run.left) == ["student-00"]
    assert gradebook(graded) == gradebook(calm)
    assert files(graded).keys() == files(calm).keys()


def hold(job):
    """Judge a submission, or block the judge where Python checks no clock."""
    if job.student == "student-00":
        re.fullmatch("(a|aa)+", "a" * 100 + "b")
    return Judged(notes=["judged"], failed=True)


def test_a_submission_that_holds_the_judge_is_ended_by_the_clock(tmp_path, monkeypatch):
    course = small_class(tmp_path / "course", 2)
    monkeypatch.setattr(one_submission, "SUBMISSION_SECONDS", 1)
    monkeypatch.setattr(one_submission, "_judged", hold)
    run = ClassRun(course, ASSIGNMENT, reduced=REDUCED)
    assert sorted(run.grade(run.students, workers=1)) == run.students
    assert "took more than 1 seconds" in run.left["student-00"]
    assert run.left["student-01"] == "judged"


def test_what_is_changed_while_a_run_goes_on_is_graded_at_the_next(calm, tmp_path, monkeypatch):
    course = small_class(tmp_path / "course", 2)
    run = ClassRun(course, ASSIGNMENT, reduced=REDUCED)

    def side_by_side(work, jobs, *options, **more):
        for job in jobs:
            result = work(job)
            if job.student == "student-00":
                shutil.rmtree(course / "submitted" / "student-00" / ASSIGNMENT)
            else:
                (course / "submitted" / "student-01" / ASSIGNMENT / "more.txt").write_text("more")
            yield job, result

    monkeypatch.setattr(class_run, "side_by_side", side_by_side)
    assert sorted(run.grade(run.students)) == run.students
    assert set(run.left) == {"student-00", "student-01"}
    assert "changed during the run" in run.left["student-01"]
    assert scores(course) == {}
    monkeypatch.undo()
    assert list(run.grade(["student-01"], workers=1)) == ["student-01"]
    assert scores(course) == {"student-01": scores(calm)["student-01"]}


def test_what_nbgrader_fails_at_now_keeps_the_grade_that_it_had(graded, calm, monkeypatch):
    def fail(*arguments: object) -> None:
        raise ValueError("as if nbgrader had stumbled")

    monkeypatch.setattr("grading.nbgrader_steps.pipeline.JudgeAnswers.preprocess", fail)
    run = ClassRun(graded, ASSIGNMENT, ["student-00"], reduced=REDUCED)
    assert list(run.grade(run.students, workers=1)) == ["student-00"]
    assert "ValueError: as if nbgrader had stumbled" in run.left["student-00"]
    assert gradebook(graded) == gradebook(calm)
    assert files(graded).keys() == files(calm).keys()
    assert run.to_do() == ["student-00"]
    assert "NBGRADER_EXECUTION" not in os.environ  # nbgrader would leave it, and kernels started here would inherit it


@pytest.mark.skipif(REDUCED, reason="without the sandbox, answers are not separate processes")
def test_an_answer_that_the_system_kills_is_judged_again(calm, tmp_path):
    course = small_class(tmp_path / "course", 1)
    path = course / "submitted" / "student-00" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    notebook = nbformat.read(path, 4)
    next(cell for cell in notebook.cells if cell.cell_type == "code").source += "\nimport time; time.sleep(3)"
    nbformat.write(notebook, path)
    process = start(course, "--workers", "1")
    killed = []

    def kill() -> bool:
        """Kill an answer: what the answer server, a Python inside bubblewrap, has forked."""
        for child in children(process, "runpy.run_module"):
            with suppress(psutil.Error):
                if child.name().startswith("python") and child.parent().name().startswith("python"):
                    child.kill()
                    killed.append(child.pid)
        return bool(killed)

    wait_for(kill, process)
    told, _ = process.communicate(timeout=300)
    assert killed
    assert process.returncode == 0, told
    assert scores(course) == {"student-00": scores(calm)["student-00"]}


@pytest.mark.parametrize("text", ["1", "[1]", '{"graded": true}', "{"])
def test_a_damaged_note_of_what_is_done_means_that_it_is_to_do(graded, text):
    note = graded / "autograded" / ".done" / ASSIGNMENT / "student-00.json"
    note.write_text(text)
    assert ClassRun(graded, ASSIGNMENT, reduced=REDUCED).to_do() == ["student-00"]


def test_a_table_that_cannot_be_written_is_one_sentence(graded):
    (graded / "grades.csv").unlink()
    (graded / "grades.csv").mkdir()
    status, told = run(graded)
    assert status == 1
    assert "--csv must be a file that can be written, got grades.csv: Is a directory. Grades are saved." in told
