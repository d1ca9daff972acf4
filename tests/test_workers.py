"""Judging side by side: few tasks wait, each worker has an answer process of its own, none outlives the run."""

import os
import time
from itertools import count

import psutil

from grading.answers import Answer, Cell
from grading.sandbox import missing_walls
from grading.workers import answer_server, side_by_side

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
    """A class may be large; what waits must not be."""
    taken = count()
    tasks = (next(taken) for _ in range(1000))
    results = side_by_side(_same, tasks, workers=2)
    assert next(results)[0] in range(10)
    assert next(taken) < 10
    results.close()
