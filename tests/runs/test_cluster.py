"""Grading on a cluster of real processes: the same grades as here, whatever happens to a worker."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pytest
import torch
from local_servers import LocalCluster
from sample_class import ASSIGNMENT, REDUCED, RUN, done, gradebook, python, small_class, start, wait_for

from grading.runs import class_run, cluster
from grading.runs.class_run import ClassRun
from grading.runs.cluster import ClusterUnusable, on_cluster
from grading.runs.one_submission import Job, Judged, judge_submission

STUDENTS = 8
KILLER = "student-00"


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Two workers, each with a nanny that restarts it."""
    made = LocalCluster(tmp_path_factory.mktemp("cluster")).add_workers(2, "--nthreads", "1")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """The same class twice: graded by the workers of this machine, and not graded yet."""
    folder = tmp_path_factory.mktemp("classes")
    course = small_class(folder / "cluster", STUDENTS)
    shutil.copytree(course, folder / "here")
    run = ClassRun(folder / "here", ASSIGNMENT, reduced=REDUCED)
    assert sorted(run.grade(run.to_do(), workers=2)) == run.students
    return folder / "here", course


def test_a_run_interrupted_and_a_worker_killed_leave_the_grades_of_a_calm_run(classes, workers):
    here, course = classes
    process = start(course, "--cluster", workers.address)
    wait_for(lambda: done(course), process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "Interrupted. Finished work is kept" in output
    assert "Traceback" not in output
    run = ClassRun(course, ASSIGNMENT, reduced=REDUCED)
    to_do, graded, killed = run.to_do(), [], 0
    assert 1 < len(to_do) < STUDENTS
    for student in run.grade(to_do, cluster=workers.address):
        graded.append(student)
        if len(graded) == 1:
            killed = workers.judging()[0]
            killed.kill()
    assert killed not in workers.judging()
    assert sorted(graded) == to_do  # none is lost, and none comes twice
    assert gradebook(course) == gradebook(here)
    assert done(course) == done(here)
    assert not list(course.rglob(".ticket"))
    assert run.to_do() == []


def kill_with(job: Job) -> Judged:
    """Judge a submission, unless it is the one at which every worker ends."""
    if job.student == KILLER:
        os.kill(os.getpid(), signal.SIGKILL)
    return judge_submission(job)


def test_a_submission_that_ends_each_worker_is_noted_and_takes_no_other_with_it(classes, workers, monkeypatch):
    here, _ = classes
    (here / "submitted" / KILLER / ASSIGNMENT / "more.txt").write_text("what was graded before is another submission")
    monkeypatch.setattr(class_run, "judge_submission", kill_with)
    run = ClassRun(here, ASSIGNMENT, [f"student-{number:02}" for number in range(4)], reduced=REDUCED)
    assert sorted(run.grade(run.students, cluster=workers.address)) == run.students
    assert list(run.left) == [KILLER]
    rows = {row.student: row for row in run.rows()}
    assert "Each worker that judged it has ended" in rows[KILLER].notes
    assert rows[KILLER].needs_a_person
    assert KILLER in run.to_do()
    assert [rows[student].score for student in run.students] == [0, 5, 9, 5]


def where(number: int) -> tuple[int, str]:
    """Return how many threads a worker computes with, and in which folder it works; leave it with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    return threads, os.getcwd()


def results(workers: LocalCluster, folder: Path, tasks: Iterable[int] = range(5)) -> dict:
    return dict(on_cluster(where, tasks, workers.address, folder, given_up=str))


def test_workers_compute_with_one_thread_wherever_they_are(workers, tmp_path):
    found = results(workers, tmp_path)
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert {threads for threads, _ in found.values()} == {1}
    assert os.getcwd() not in {folder for _, folder in found.values()}


def test_few_tasks_are_taken_at_a_time(workers, tmp_path):
    taken = count()
    found = on_cluster(where, (next(taken) for _ in range(1000)), workers.address, tmp_path, given_up=str)
    assert next(found)[0] in range(10)
    assert next(taken) < 10
    found.close()


def test_workers_of_another_version_are_refused(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "VERSION", "code 0, Python 4, torch 5")
    with pytest.raises(ClusterUnusable, match=r"must have the versions .*torch 5\), got code .* at tcp://"):
        results(workers, tmp_path)


def test_workers_that_do_not_see_the_folder_are_refused(workers, tmp_path):
    def tasks():
        (tmp_path / ".ticket").unlink()  # as in a folder of the same name on another machine
        yield 0

    with pytest.raises(ClusterUnusable, match="must see the course folder under the same path"):
        results(workers, tmp_path, tasks())


def test_workers_with_several_threads_are_refused_and_a_scheduler_that_ends_is_missed(classes, tmp_path, monkeypatch):
    several = LocalCluster(tmp_path)
    try:
        monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.2)
        monkeypatch.setattr(cluster, "WORKERLESS_SECONDS", 1)
        with pytest.raises(ClusterUnusable, match="must have workers, got none for 1 seconds"):
            results(several, tmp_path)
        several.add_workers(1, "--nthreads", "2", "--no-nanny")
        refused = python(classes[0], *RUN, "--force", "--cluster", several.address, fails=True)
        assert "workers must have one thread each, got 2 at tcp://" in refused
        assert f"Start it with: dask worker {several.address} --nthreads 1" in refused
        assert "Traceback" not in refused

        def tasks():
            yield 0
            several.stop()
            yield from range(1, 9)

        with pytest.raises(ClusterUnusable, match="the scheduler must keep running until the end"):
            results(several, tmp_path, tasks())
    finally:
        several.stop()


def test_a_scheduler_that_does_not_answer_is_named_in_one_sentence(tmp_path):
    start = time.monotonic()
    with pytest.raises(ClusterUnusable, match=r"scheduler that answers, got tcp://127\.0\.0\.1:1\. Start one"):
        list(on_cluster(where, [0], "tcp://127.0.0.1:1", tmp_path, given_up=str))
    assert time.monotonic() - start < 30


def test_without_distributed_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ClusterUnusable, match=r"pip install 'transformer-lm\[cluster\]'"):
        list(on_cluster(where, [0], "tcp://127.0.0.1:1", tmp_path, given_up=str))
