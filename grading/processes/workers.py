"""Parallel worker processes for judging, each with its own answer process. A worker that ends is replaced."""

import multiprocessing
import multiprocessing.util
import os
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import torch

from grading.exercises import hidden_from_answers
from grading.isolation.answers import AnswerServer

Task = TypeVar("Task")
Result = TypeVar("Result")

WAITING = 2  # tasks for each worker, including the current one
LOOK_SECONDS = 0.5  # between checks for an interrupt
ENDING_SECONDS = 10  # for a worker that has nothing left to do

_servers: dict[tuple[int, str, bool], AnswerServer] = {}  # of this process and the processes that it was forked from


class WorkersLost(Exception):
    """Workers keep ending, whatever their tasks are."""


def answer_server(topic: str, reduced: bool = False) -> AnswerServer:
    """Return this process's answer process for a topic, which is started on first use and stopped with this process.

    Raises IsolationIncomplete where students' code can't be isolated, unless `reduced` isolation is allowed.
    """
    key = os.getpid(), topic, reduced
    if key not in _servers:
        _servers[key] = AnswerServer(hidden_from_answers(topic), reduced)
        multiprocessing.util.Finalize(None, _servers[key].stop, exitpriority=10)
    return _servers[key]


def side_by_side(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    workers: int | None = None,
    given_up: Callable[[Task], Result] | None = None,
    interrupted: Callable[[], object] = bool,
    doubtful: Callable[[Result], bool] = lambda result: False,
) -> Generator[tuple[Task, Result], None, None]:
    """Yield each task with its result as soon as it is available; only a few tasks wait at a time.

    A task whose worker ends, or whose result is `doubtful`, is repeated when nothing else is running. If its worker
    ends again, its result is that of `given_up`, called in another worker.

    Raises WorkersLost if there is no `given_up` or if that worker ends too, KeyboardInterrupt soon after the run was
    `interrupted`, and any error of the work.
    """
    again: list[Task] = []
    with closing(_Team(workers or os.cpu_count() or 1, interrupted)) as team:
        for task, results in team.done(work, tasks):
            if not results or doubtful(results[0]):
                again.append(task)
            else:
                yield task, results[0]
        for task in again:
            yield task, team.done_alone(work, task, given_up)


class _Worker(Generic[Task]):
    """A process that does its tasks one at a time."""

    def __init__(self) -> None:
        # Forked workers have torch loaded already; elsewhere fork is not safe.
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, os.getpid()))
        self._process.start()
        theirs.close()  # so that the connection ends with the process
        self.tasks: deque[Task] = deque()

    def give(self, work: Callable[[Task], object], task: Task) -> None:
        """Give the worker a task. If it has ended, that is noticed when its result is taken."""
        self.tasks.append(task)
        with suppress(OSError):
            self.connection.send((work, task))

    def result(self) -> list:
        """Return a list of the next result, which is empty if the worker has ended; raise any error of the work."""
        try:
            result, error = self.connection.recv()
        except (EOFError, OSError):
            return []
        if error is not None:
            raise error
        return [result]

    def end(self) -> None:
        """End the process: at once if it is busy, otherwise after it has cleaned up."""
        if not self.tasks:
            with suppress(OSError):
                self.connection.send(None)  # closing is not enough, because workers forked later hold this end too
            self._process.join(ENDING_SECONDS)
        self._process.kill()
        self._process.join()
        self.connection.close()


class _Team:
    """Workers that are started on demand. Each has a task in reserve, so that it never waits for one."""

    def __init__(self, most: int, interrupted: Callable[[], object]) -> None:
        self._most, self._interrupted = most, interrupted
        self._workers: dict[Any, _Worker] = {}

    def done(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[Task, list[Result]]]:
        """Yield each task with a list of its result, which is empty if its worker has ended."""
        back: deque[Task] = deque()  # tasks in reserve for a worker that has ended
        tasks = iter(tasks)
        while True:
            for task in islice(chain(_emptied(back), tasks), self._room()):
                self._freest().give(work, task)
            busy = [connection for connection, worker in self._workers.items() if worker.tasks]
            if not busy:
                return
            for connection in wait(busy, LOOK_SECONDS):
                worker = self._workers[connection]
                results = worker.result()
                task = worker.tasks.popleft()
                if not results:
                    back += worker.tasks
                    worker.end()
                    del self._workers[connection]
                yield task, results
            if self._interrupted():
                raise KeyboardInterrupt

    def done_alone(
        self, work: Callable[[Task], Result], task: Task, given_up: Callable[[Task], Result] | None
    ) -> Result:
        """Return the result of a task, or that of `given_up`. Raises WorkersLost if neither is available."""
        for attempt in (work, given_up):
            if attempt is not None:
                ((_, results),) = self.done(attempt, [task])
                if results:
                    return results[0]
        raise WorkersLost("one worker after the other has ended")

    def _room(self) -> int:
        """Return the number of tasks that may still be assigned."""
        return WAITING * self._most - sum(len(worker.tasks) for worker in self._workers.values())

    def _freest(self) -> _Worker:
        """Return the worker with the fewest tasks, or a new one if all are busy and more are allowed."""
        freest = min(self._workers.values(), key=lambda worker: len(worker.tasks), default=None)
        if freest is None or (freest.tasks and len(self._workers) < self._most):
            freest = _Worker()
            self._workers[freest.connection] = freest
        return freest

    def close(self) -> None:
        """End all workers; unfinished tasks are dropped."""
        for worker in self._workers.values():
            worker.end()


def _emptied(back: deque[Task]) -> Iterator[Task]:
    """Yield the items of a queue until it is empty."""
    while back:
        yield back.popleft()


def _serve(connection: Connection, parent: int) -> None:
    """Do the tasks that come through a connection until it ends."""
    torch.set_num_threads(1)  # one core for each worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process
    given: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_take, args=(connection, parent, given.put), daemon=True).start()
    for work, task in iter(given.get, None):
        try:
            done: tuple = work(task), None
        except Exception as error:
            done = None, error
        with suppress(BrokenPipeError):  # the result is no longer wanted
            connection.send(done)


def _take(connection: Connection, parent: int, put: Callable[[object], None]) -> None:
    """Take tasks at once, so that the main process never waits; end this process when the main process is killed."""
    with suppress(EOFError, OSError):
        while True:
            if connection.poll(0.5):
                put(connection.recv())
            elif os.getppid() != parent:
                os._exit(1)  # the answer process ends when its connection closes
    put(None)
