"""Judging in parallel: few tasks wait, each worker has its own answer process, and none outlives the run."""

import os
import signal
import time
from itertools import count
from pathlib import Path

import psutil
import pytest

from grading.isolation.answers import Answer, Cell
from grading.isolation.sandbox import missing_walls
from grading.processes.workers import WorkersLost, answer_server, side_by_side

TOPIC = "01_self_attention"


def _server_process(number: int) -> tuple[int, int]:
    server = answer_server(TOPIC, bool(missing_walls()))
    with Answer(server, "kqv", [Cell(0, f"x = {number}")], False) as answer:
        answer.keep_running()
        time.sleep(0.5)
        assert answer.ask("defines", name="x")[0] == {"defined": True}
        return os.getpid(), server._process.pid


def test_each_process_has_an_answer_process_of_its_own():
    mine = _server_process(0)
    found = dict(side_by_side(_server_process, range(6), workers=2))
    assert len(found) == 6
    assert len(set(found.values())) == 2
    assert mine not in found.values()
    assert len({server for _, server in [mine, *found.values()]}) == 3


def test_workers_and_their_answer_processes_end_with_the_run():
    found = list(side_by_side(_server_process, range(2), workers=1))
    deadline = time.monotonic() + 20
    processes = {pid for _, pids in found for pid in pids}
    while any(map(psutil.pid_exists, processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(psutil.pid_exists, processes))


def _same(number: int) -> int:
    return number


def test_few_tasks_are_taken_at_a_time():
    """A class may be large; the queue must not be."""
    taken = count()
    tasks = (next(taken) for _ in range(1000))
    results = side_by_side(_same, tasks, workers=2)
    assert next(results)[0] in range(10)
    assert next(taken) < 10
    results.close()


def _sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_an_interrupt_waits_for_no_worker():
    pressed: list[bool] = []
    results = side_by_side(_sleep, [0, 3600, 3600], workers=2, interrupted=pressed.__len__)
    assert next(results) == (0, 0)
    pressed.append(True)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert time.monotonic() - start < 60


def _end_at(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_worker_that_ends_is_replaced_and_its_task_given_up_after_a_second_try():
    found = dict(side_by_side(_end_at, range(6), workers=2, given_up=str))
    assert found == {0: 0, 1: 1, 2: "2", 3: 3, 4: 4, 5: 5}


def test_workers_that_always_end_are_an_error():
    with pytest.raises(WorkersLost, match="one worker after the other has ended"):
        list(side_by_side(_end_at, range(3), workers=2))


def _once(path: Path) -> int:
    """Count how often a task is done."""
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size


def test_what_is_doubtful_is_done_once_more_and_then_counts(tmp_path):
    tasks = [tmp_path / "first", tmp_path / "second"]
    (tmp_path / "second").write_text("x")
    found = dict(side_by_side(_once, tasks, workers=2, doubtful=lambda count: count == 1))
    assert found == {tasks[0]: 2, tasks[1]: 2}


def _refuse(number: int) -> int:
    raise ValueError(f"number must not be given, got {number}.")


def test_what_the_work_raises_ends_the_run():
    with pytest.raises(ValueError, match="must not be given, got 0"):
        list(side_by_side(_refuse, [0], workers=1))
