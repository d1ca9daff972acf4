"""Judges on a dask.distributed cluster: the same work as in local workers, on many machines.

The scheduler loads this file to pass tasks on. So the file imports little, and tasks and results are sent as bytes.
"""

import hashlib
import importlib.metadata
import logging
import pickle
import platform
import secrets
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from grading.isolation.faults import MachineFault
from grading.isolation.sandbox import IsolationIncomplete

if TYPE_CHECKING:
    from distributed import Client, Future

Task = TypeVar("Task")
Result = TypeVar("Result")

PROJECT = Path(__file__).parents[2]
REACH_SECONDS = 5
LOOK_SECONDS = 1  # between checks for remaining workers and for an interrupt
WORKERLESS_SECONDS = 60
HOW_TO_START = "dask worker {} --nthreads 1"

_seen: set[str] = set()  # runs that this worker may join


class ClusterUnusable(Exception):
    """The cluster can't be reached or can't be used for grading; the text says what to change."""


def _version() -> str:
    """Return the versions that must be the same everywhere: the project's code, Python and torch."""
    code = hashlib.sha256()
    for path in sorted(path for package in ("grading", "transformer_lm") for path in (PROJECT / package).rglob("*.py")):
        code.update(f"{path.relative_to(PROJECT)} ".encode() + path.read_bytes())
    torch = importlib.metadata.version("torch")
    return f"code {code.hexdigest()[:8]}, Python {platform.python_version()}, torch {torch}"


VERSION = _version()  # as loaded; a worker that keeps running while the code changes has the old version


def on_cluster(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    address: str,
    shared: Path,
    given_up: Callable[[Task], Result],
    interrupted: Callable[[], object] = bool,
    doubtful: Callable[[Result], bool] = lambda result: False,
) -> Generator[tuple[Task, Result], None, None]:
    """Yield each task with its result as soon as it is available; only a few tasks wait at a time.

    A task whose worker ends, or whose result is `doubtful`, is repeated when nothing else is running. If it keeps
    ending workers, its result is that of `given_up`. `shared` is a folder that all workers must be able to read; a file
    is written there for the duration of the run.

    Raises ClusterUnusable if there is no scheduler, no worker, or a worker that must not join, and KeyboardInterrupt
    soon after the run was `interrupted`.
    """
    with _connected(address) as client, _ticket(shared) as ticket:
        cluster = _Cluster(client, work, ticket, interrupted)
        again: list[Task] = []
        for task in tasks:
            cluster.submit(task)
            if len(cluster.waiting) > 2 * cluster.size():
                yield from cluster.sure(again.append, doubtful)
        while cluster.waiting:
            yield from cluster.sure(again.append, doubtful)
        for task in again:  # alone, because it may have been lost with a worker that another task has ended
            ended: list[Task] = []
            cluster.submit(task)
            yield from cluster.finished(ended.append)
            yield from ((task, given_up(task)) for task in ended)


class _Cluster(Generic[Task, Result]):
    """The tasks that were sent to a cluster and whose results have not been collected yet."""

    def __init__(
        self,
        client: "Client",
        work: Callable[[Task], Result],
        ticket: tuple[Path, str],
        interrupted: Callable[[], object],
    ) -> None:
        self._client, self._work, self._ticket, self._interrupted = client, work, ticket, interrupted
        self.waiting: dict[Future, Task] = {}

    def size(self) -> int:
        """Return the current number of workers, or 1 if they have not connected yet."""
        with _scheduler_needed():
            return len(self._client.nthreads()) or 1

    def submit(self, task: Task) -> None:
        """Send a task to the cluster. It is not pure: grading the same submission again is another task."""
        given = pickle.dumps((self._work, task))
        with _scheduler_needed():
            self.waiting[self._client.submit(_carried_out, given, *self._ticket, VERSION, pure=False)] = task

    def sure(self, again: Callable[[Task], None], doubtful: Callable[[Result], bool]) -> Iterator[tuple[Task, Result]]:
        """Wait until tasks are done, and yield them. Calls `again` with those that are lost or doubtful."""
        for task, result in self.finished(again):
            if doubtful(result):
                again(task)
            else:
                yield task, result

    def finished(self, lost: Callable[[Task], None]) -> Iterator[tuple[Task, Result]]:
        """Wait until tasks are done, and yield them. Calls `lost` with those whose workers have ended, one by one."""
        from distributed.scheduler import KilledWorker

        for future in self._done():
            task = self.waiting.pop(future)
            try:
                with _scheduler_needed():
                    result = future.result()
            except KilledWorker:
                lost(task)
            except (ClusterUnusable, IsolationIncomplete, MachineFault):
                raise
            except Exception as error:
                raise ClusterUnusable(
                    f"scheduler and workers must be able to load the project, got {type(error).__name__}: {error}. "
                    f"Start them in its environment, with PYTHONPATH={PROJECT}"
                ) from error
            else:
                yield task, pickle.loads(result)

    def _done(self) -> "set[Future]":
        from distributed import wait

        workers_seen = time.monotonic()
        while True:
            with _scheduler_needed(), suppress(TimeoutError):
                return wait(list(self.waiting), timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED").done
            if self._interrupted():
                raise KeyboardInterrupt
            with _scheduler_needed():
                if self._client.nthreads():
                    workers_seen = time.monotonic()
            if time.monotonic() - workers_seen > WORKERLESS_SECONDS:
                address = self._client.scheduler.address
                raise ClusterUnusable(
                    f"the cluster must have workers, got none for {WORKERLESS_SECONDS} seconds at {address}. "
                    f"Start some: {HOW_TO_START.format(address)}"
                )


@contextmanager
def _scheduler_needed() -> Iterator[None]:
    """Raise ClusterUnusable in the body if the scheduler no longer answers."""
    from distributed import CancelledError
    from distributed.client import ClosedClientError

    try:
        yield
    except (CancelledError, ClosedClientError, OSError) as error:
        raise ClusterUnusable(
            "the scheduler must keep running until the end, but it has ended. Start it again."
        ) from error


@contextmanager
def _connected(address: str) -> "Iterator[Client]":
    """Open a client of the scheduler; tasks unfinished at the end are cancelled."""
    try:
        import distributed
    except ImportError:
        raise ClusterUnusable(
            "--cluster needs distributed, which is not installed: pip install 'transformer-lm[cluster]'."
        ) from None
    for name in ("distributed", "distributed.client"):  # each has its own level
        logging.getLogger(name).setLevel(logging.CRITICAL)  # important errors are raised
    try:
        client = distributed.Client(address, timeout=REACH_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterUnusable(
            f"--cluster must be the address of a dask scheduler that answers, got {address}. "
            "Start one with `dask scheduler`, which prints its address."
        ) from error
    try:
        yield client
    finally:
        client.close()  # this releases all its tasks


@contextmanager
def _ticket(shared: Path) -> Iterator[tuple[Path, str]]:
    """Write a file by which workers verify that they see this very folder; give its path and content."""
    shared.mkdir(parents=True, exist_ok=True)
    path, word = shared / ".ticket", secrets.token_hex(8)
    path.write_text(word)
    try:
        yield path, word
    finally:
        path.unlink(missing_ok=True)


def _carried_out(given: bytes, ticket: Path, word: str, version: str) -> bytes:
    """Do a task, on a worker; return its result."""
    if word not in _seen:
        _admit(ticket, word, version)
        _seen.add(word)
    work, task = pickle.loads(given)
    if "torch" in sys.modules:  # reload it if the work needs it
        sys.modules["torch"].set_num_threads(1)
    try:
        return pickle.dumps(work(task))
    except IsolationIncomplete as incomplete:
        here = f"on {socket.gethostname()}"
        raise IsolationIncomplete([f"{wall}, {here}" for wall in incomplete.missing]) from None


def _admit(ticket: Path, word: str, version: str) -> None:
    """Raise ClusterUnusable if this worker must not join a run."""
    from distributed import get_worker

    worker = get_worker()
    name, threads = f"{worker.address} on {socket.gethostname()}", worker.state.nthreads
    start = HOW_TO_START.format(worker.scheduler.address)
    if threads != 1:  # one task at a time, because there is one answer process and one environment
        raise ClusterUnusable(f"workers must have one thread each, got {threads} at {name}. Start it with: {start}")
    if version != VERSION:
        rule = f"workers must have the versions of the process that grades ({version})"
        raise ClusterUnusable(f"{rule}, got {VERSION} at {name}. Update the project there, and start it again: {start}")
    try:
        found = ticket.read_text()
    except OSError:
        found = ""
    if found != word:
        rule = "workers must see the course folder under the same path, as on a shared file system"
        raise ClusterUnusable(f"{rule}, got another {ticket.parent} or none at {name}.")
