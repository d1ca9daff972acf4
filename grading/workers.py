"""Processes that judge side by side, each with an answer process of its own."""

import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TypeVar

import torch

from grading.answers import AnswerServer
from grading.exercises import hidden_from_answers

Task = TypeVar("Task")
Result = TypeVar("Result")

_servers: dict[tuple[int, str, bool], AnswerServer] = {}  # of this process, and those that it was forked from


def answer_server(topic: str, reduced: bool = False) -> AnswerServer:
    """Return this process's answer process for a topic, started when first used and stopped with this process.

    Raises IsolationIncomplete where students' code can't be isolated, unless `reduced` isolation is allowed.
    """
    key = os.getpid(), topic, reduced
    if key not in _servers:
        _servers[key] = AnswerServer(hidden_from_answers(topic), reduced)
        multiprocessing.util.Finalize(None, _servers[key].stop, exitpriority=10)
    return _servers[key]


def side_by_side(
    work: Callable[[Task], Result], tasks: Iterable[Task], workers: int | None = None
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result, as soon as it is there; few tasks wait at a time, however many there are."""
    workers = workers or os.cpu_count() or 1
    # Forked workers have torch loaded already; elsewhere fork is not safe.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare, initargs=(os.getpid(),)) as pool:
        waiting: dict[Future, Task] = {}
        try:
            for task in tasks:
                waiting[pool.submit(work, task)] = task
                if len(waiting) > 2 * workers:
                    yield from _finished(waiting)
            while waiting:
                yield from _finished(waiting)
        finally:
            pool.shutdown(cancel_futures=True)


def _finished(waiting: dict[Future, Task]) -> Iterator[tuple[Task, Result]]:
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        yield waiting.pop(future), future.result()


def _prepare(parent: int) -> None:
    """Make a worker use one core, leave Ctrl-C to the main process, and end when that is killed."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)  # the answer process ends when nobody listens to it
