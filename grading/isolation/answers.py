"""The judge's side of an answer: start the answer process, run a student's cells in it, and ask for results."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from grading.isolation import sandbox
from grading.isolation.cells_read import Cell, cells_read
from grading.isolation.faults import ServerLost
from grading.isolation.inside.messages import Disconnected, MalformedMessage, receive, send
from grading.isolation.student_edition import write_student_edition
from grading.isolation.temporary import temporary_folder

INSIDE = Path(__file__).parent / "inside"
COURSE = Path("/course")  # location of the package's student edition inside the sandbox

START_SECONDS = 120
CELL_SECONDS = 10
CALL_SECONDS = 10
CALLS = 10_000  # of a function that an answer gets
LONGEST_CELLS = 2 * 2**20  # characters of all cells together, as sent
EXERCISE_SECONDS = 60  # for all cells and calls together
# While an answer waits for a processor in use by others, its clock is stopped, up to this many times the limit.
PATIENCE = 6
SHORTEST_WAIT = 0.1  # seconds that a request for the times may take on a busy machine
ENOUGH_TO_START = 1  # seconds; with less time left, an answer may be late even if nothing is wrong
TEXT = 2000  # characters of a text that an answer reports


class AnswerEnded(Exception):
    """The answer's process has ended or had to be stopped; the text tells the student how."""


class AnswerServer:
    """The parent process of all answers, which loads torch once and forks a confined process for each answer.

    `hidden` contains the names that are left out of the package `transformer_lm`, with the exercises they answer. With
    `reduced`, it runs even if isolation is incomplete; otherwise that raises IsolationIncomplete.

    `doubtful` counts the answers that were stopped by the clock before they had used up their processor time, or that
    the system killed. Something else may have used processor or memory, so a caller can set it to 0 and try such an
    answer again when nothing else runs. `used` is the number of seconds of all answers together.
    """

    def __init__(self, hidden: Mapping[str, str], reduced: bool = False) -> None:
        self.missing = list(sandbox.missing_walls())
        if self.missing and not reduced:
            raise sandbox.IsolationIncomplete(self.missing)
        self.doubtful, self.used = 0, 0.0
        self._hidden = hidden
        self._process: subprocess.Popen | None = None
        self._kept = ExitStack()  # folder and log, until the process ends

    def __enter__(self) -> "AnswerServer":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process and wait until torch is loaded. Raises ServerLost if that fails."""
        try:
            self._start()
        except (OSError, MemoryError) as error:
            self.stop()
            raise ServerLost(f"the answer process must start, got: {error}") from error

    def _start(self) -> None:
        folder = self._kept.enter_context(temporary_folder("answers-"))
        folder.chmod(0o755)
        edition = write_student_edition(folder / "edition", self._hidden).parent
        log = self._kept.enter_context((folder / "log").open("w+"))
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                self._command(edition),
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                cwd=folder,
                env=os.environ | sandbox.environment(scratch=folder),
            )
        if self._received(1) != b"r":
            log.seek(0)
            reason = log.read().strip().splitlines() or ["no reason given"]
            raise OSError(reason[-1])

    def _command(self, edition: Path) -> list[str]:
        script = "import runpy, sys; sys.path[:0] = sys.argv[1:3]; runpy.run_module('server', run_name='__main__')"
        python = [sys.executable, "-P", "-c", script]
        cores = [f"--core={core}" for core in sandbox.own_cores()]
        if self.missing:
            return [*python, str(INSIDE), str(edition), *cores]
        return sandbox.command(
            [*python, "/inside", str(COURSE), "--strict", *cores], {INSIDE: Path("/inside"), edition: COURSE}
        )

    def _received(self, size: int) -> bytes:
        try:
            return self._control.recv(size)
        except OSError:
            return b""

    def stop(self) -> None:
        """End the process with all its answers."""
        if self._process is not None:
            self._control.close()  # the signal to end
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._kept.close()

    def keep_running(self) -> None:
        """Start the process unless it is running. Raises ServerLost if that fails."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self.start()

    def fork(self) -> socket.socket:
        """Return a connection to a new answer. Raises ServerLost if the process has ended."""
        self.keep_running()
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        except OSError as error:
            raise self._lost() from error
        return ours

    def times(self) -> tuple[float, float]:
        """Return the seconds that the answer has run and has waited for a processor; 0 where they are not counted.

        Raises ServerLost if the process has ended.
        """
        told = self._ordered(b"t", 16)
        return int.from_bytes(told[:8], "big") / 1e9, int.from_bytes(told[8:], "big") / 1e9

    def kill(self) -> int:
        """Kill the running answer and everything it has started; return how it ended, like `os.waitpid`.

        Raises ServerLost if the process has ended.
        """
        return int.from_bytes(self._ordered(b"k", 4), "big")

    def _ordered(self, order: bytes, size: int) -> bytes:
        """Send an order to the process and return its reply, of a known size."""
        try:
            self._control.sendall(order)
        except OSError as error:
            raise self._lost() from error
        reply = self._received(size)
        if len(reply) < size:
            raise self._lost()
        return reply

    def _lost(self) -> ServerLost:
        """Stop what is left of the process, so that the next answer gets a new one, and return the error to raise."""
        self.stop()
        return ServerLost("the answer process must keep running, but it is gone. Was it killed, or is memory short?")


class Answer:
    """A student's running cells, as a context manager so that nothing is left running.

    Cells that hang or end their process are noted in `left_out`, and the others are run again without them in a new
    process. `errors` says what went wrong with each cell. `kept` holds what judges remember from part to part. `folder`
    contains the files that were submitted with the notebook. All cells and calls together may take `seconds`.
    """

    def __init__(
        self,
        server: AnswerServer,
        exercise: str,
        cells: list[Cell],
        forbids_attention: bool,
        left_out: dict[int, str] | None = None,
        folder: Path | None = None,
        seconds: float = EXERCISE_SECONDS,
    ) -> None:
        self._server, self._exercise, self._forbids = server, exercise, forbids_attention
        self._cells, self._left_out = cells, {} if left_out is None else left_out
        self._leave_out_the_longest()
        self.kept: dict[str, Any] = {}
        self.folder = folder
        self._raised: dict[int, str] = {}
        self._connection: socket.socket | None = None
        self._seconds, self._seconds_left, self._patience = seconds, seconds, (PATIENCE - 1) * seconds

    def __enter__(self) -> "Answer":
        return self

    def keep_running(self) -> None:
        """Run the cells, or run them again if an earlier call has ended the process.

        Raises AnswerEnded if there is no time left.
        """
        while self._connection is None:
            if self._seconds_left <= 0:
                raise AnswerEnded(f"and the cells before it run for more than {self._seconds:.0f} seconds together")
            self._start()

    @property
    def errors(self) -> dict[int, str]:
        """The errors of failed cells, by number, in words that follow "it"."""
        return self._raised | self._left_out

    def without_cells(self) -> "Answer":
        """End the process, because there is only one at a time, and return another that has run no cell."""
        self._end()
        return Answer(self._server, self._exercise, [], self._forbids)

    @property
    def sources(self) -> list[str]:
        """The texts of all cells."""
        return [cell.source for cell in self._cells]

    def cells_of(self, name: str) -> tuple[Cell, ...]:
        """Return the cells that count for the form of the function or class with this name; see `cells_read`."""
        return cells_read(name, self._cells)

    def _leave_out_the_longest(self) -> None:
        """Leave out the longest cells until the others fit into one message."""
        sizes = {cell.number: len(json.dumps(cell.source)) for cell in self._cells}
        too_much = sum(sizes.values()) - LONGEST_CELLS
        for number in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if too_much <= 0:
                break
            too_much -= sizes[number]
            self._left_out[number] = "is too long to be run"

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._end()
        self._server.used += self._seconds - self._seconds_left

    def _start(self) -> None:
        """Run the cells; a cell that kills its process is left out the next time."""
        cells = [cell for cell in self._cells if cell.number not in self._left_out]
        self._connection, self._raised = self._server.fork(), {}
        self._ran = self._waited = 0.0
        job = {
            "exercise": self._exercise,
            "forbids_attention": self._forbids,
            "cells": [[cell.number, cell.source] for cell in cells],
        }
        running = None
        try:
            self._send(job)
            for cell in cells:
                self._told("starts", cell.number)
                running = cell.number
                error = self._told("ran", cell.number).get("error")
                if error:
                    self._raised[cell.number] = str(error)[:TEXT]
            self._told("ready", True)
        except AnswerEnded as ended:
            if running is None and self._seconds_left > ENOUGH_TO_START:
                raise ServerLost(f"an answer must start, but it {ended}.") from ended
            if running is None:
                raise
            self._left_out[running] = str(ended)

    def _told(self, what: str, value: object) -> dict:
        """Return the next message, whose entry `what` must be `value`; otherwise end the answer."""
        told, _ = self._reply(CELL_SECONDS)
        if told.get(what) != value:
            self._end()
            raise AnswerEnded("sends what no answer should send")
        return told

    def ask(self, do: str, arrays: dict[str, np.ndarray] | None = None, **request: Any) -> tuple[dict, dict]:
        """Send a request and return the reply with its arrays. Raises AnswerEnded if there is no reply."""
        if self._connection is None:
            raise AnswerEnded("ended its process at an earlier call")
        self._send({"do": do} | request, arrays)
        return self._reply(CALL_SECONDS)

    def converse(self, do: str, respond: Callable[[dict, dict], tuple[dict, dict]], **request: Any) -> dict:
        """Send a request, respond to the answer's own requests in between, and return the reply.

        Raises AnswerEnded if there is no reply, or if there are too many such requests.
        """
        reply, arrays = self.ask(do, **request)
        for _ in range(CALLS):
            if "wants" not in reply:
                return reply
            with self._counted():  # the judge's computations count as the answer's time
                response = respond(reply, arrays)
            self._send(*response)
            reply, arrays = self._reply(CALL_SECONDS)
        self._end()
        raise AnswerEnded(f"calls what it is given more than {CALLS} times")

    def _send(self, table: dict, arrays: dict[str, np.ndarray] | None = None) -> None:
        assert self._connection is not None
        self._connection.settimeout(max(0.001, min(PATIENCE * CALL_SECONDS, self._seconds_left)))
        try:
            with self._counted():  # it may be slow to receive
                send(self._connection, table, arrays)
        except Disconnected:
            raise AnswerEnded(self._ending(self._end())) from None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Subtract the time of the body from the time that is left."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds_left -= time.monotonic() - start

    def _reply(self, seconds: float) -> tuple[dict, dict]:
        """Return the next message. Ends the answer if the whole message does not arrive in time."""
        limit, ran = max(0.0, min(seconds, self._seconds_left)), self._ran
        assert self._connection is not None
        awaited = _Awaited(self._connection, limit, self._newly_waited)
        try:
            with self._counted():
                return receive(awaited)
        except TimeoutError:
            self._server.doubtful += awaited.out_of_patience or self._ran - ran < 0.9 * limit
            self._end()
            told = f"for more than {seconds}" if limit == seconds else f"with all before it for {self._seconds:.0f}"
            raise AnswerEnded(f"runs {told} seconds: is there a loop that does not end?") from None
        except MalformedMessage:
            self._end()
            raise AnswerEnded("sends what no answer should send") from None
        except Disconnected:
            raise AnswerEnded(self._ending(self._end())) from None

    def _newly_waited(self) -> float:
        """Return how long the answer has waited for a processor since the last call, and give it that time back."""
        before = self._waited
        self._ran, self._waited = self._server.times()
        waited = min(max(0.0, self._waited - before), self._patience)
        self._patience -= waited
        self._seconds_left += waited
        return waited

    def _end(self) -> int:
        if self._connection is None:
            return 0
        self._connection.close()
        self._connection = None
        self._newly_waited()
        return self._server.kill()

    def _ending(self, status: int) -> str:
        """Describe how a process ended on its own."""
        if status & 0x7F == signal.SIGXCPU:
            return "uses more processor time than it may"
        if status & 0x7F in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
            return f"crashes Python itself ({signal.Signals(status & 0x7F).name}), perhaps for lack of memory"
        if status & 0x7F == signal.SIGKILL:
            self._server.doubtful += 1
            return "was stopped by the system, perhaps for lack of memory"
        return "ends its own Python process: leave out exit(), quit() and os._exit()"


class _Awaited:
    """A connection whose bytes must arrive in time, not counting the other side's wait for a processor."""

    def __init__(self, connection: socket.socket, seconds: float, newly_waited: Callable[[], float]) -> None:
        self._connection, self._newly_waited = connection, newly_waited
        self._end = time.monotonic() + seconds
        self._last_end = time.monotonic() + PATIENCE * seconds

    @property
    def out_of_patience(self) -> bool:
        """Whether so much time has passed that waiting for a processor is no longer an excuse."""
        return time.monotonic() >= self._last_end

    def recv(self, size: int) -> bytes:
        while True:
            self._connection.settimeout(max(0.001, self._end - time.monotonic()))
            try:
                return self._connection.recv(size)
            except TimeoutError:
                waited = self._newly_waited()
                if waited < SHORTEST_WAIT or self.out_of_patience:
                    raise
                self._end = min(self._end + waited, self._last_end)
