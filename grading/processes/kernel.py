"""Executes whole notebooks for nbgrader in a sandboxed kernel, so that a failing cell costs only that cell.

The kernel has no network and can't write files outside the sandbox. Even the folder of its sockets can't be filled or
tampered with, because the grader opens the sockets and passes them on.
"""

import asyncio
import functools
import json
import math
import multiprocessing.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import zmq
from jupyter_client.client import KernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.client import NotebookClient
from nbclient.exceptions import CellExecutionComplete, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute
from nbgrader.utils import find_all_files
from traitlets import Bool, Integer, Unicode, default

from grading.exercises import hidden_from, sealed_in, topics
from grading.isolation import sandbox
from grading.isolation.answers import INSIDE
from grading.isolation.inside.confine import FILES, MEMORY
from grading.isolation.student_edition import write_student_edition
from grading.isolation.temporary import temporary_folder

FONTS = Path("/etc/fonts")  # without them, matplotlib's first figure prints a warning, for which nbgrader gives 0
CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
PROCESSES = 64  # threads count too: a kernel alone has about 12
RESTARTS = 5
LONGEST_MESSAGE = 16 * 2**20
KILLED = "was stopped by the system"
MEMORY_FOR_MESSAGES = 2**30  # growth allowed to the grader while a kernel runs

# The program that starts inside. It must not contain words in braces, which jupyter_client would fill in.
LAUNCHER = """
import contextlib, json, os, resource, subprocess, sys
settings = json.loads(sys.argv.pop(1))
subprocess.run(["cp", "-r", settings["given"] + "/.", "."], check=True)
for kind, most in settings["limits"].items():
    with contextlib.suppress(ValueError, OSError):  # a lower limit holds already, or the system has none of this kind
        resource.setrlimit(getattr(resource, kind), (most, most))
if settings["cores"]:
    os.sched_setaffinity(0, settings["cores"])
if settings["confine"]:
    sys.path.insert(0, settings["confine"])
    import confine
    confine.refuse_system_calls(notebook=True)
    sys.path.pop(0)

import zmq
def bind(channel, address, bind=zmq.Socket.bind):
    if address in settings["sockets"]:
        channel.setsockopt(zmq.USE_FD, settings["sockets"][address])
    return bind(channel, address)
zmq.Socket.bind = bind

from ipykernel.kernelapp import IPKernelApp
IPKernelApp.launch_instance()
"""


class SandboxedExecute(Execute):
    """Executes notebooks like nbgrader's Execute, in a kernel that can do no harm.

    A cell that ends its kernel or can't be stopped gets an error, and the others are executed again without it.
    """

    notebook_timeout = Integer(300, help="The seconds that the cells of a notebook have together.").tag(config=True)
    output_limit = Integer(4_000_000, help="The bytes of output after which a cell is stopped.").tag(config=True)
    reduced_isolation = Bool(False, help="Go on where students' code can't be isolated.").tag(config=True)
    skip_cells_with_tag = Unicode(help="A tag that no cell has, so that none is skipped.")

    was_killed = False  # so that a caller can tell whether to try again

    @default("skip_cells_with_tag")
    def _skip_cells_with_tag_default(self) -> str:
        return uuid.uuid4().hex

    @default("shutdown_kernel")
    def _shutdown_kernel_default(self) -> str:
        return "immediate"

    def preprocess(self, nb: NotebookNode, resources: dict | None = None, km: None = None) -> tuple[NotebookNode, dict]:
        """Execute every code cell; a cell that can't be executed gets an error, as no output would earn full points.

        Raises IsolationIncomplete where students' code can't be isolated, unless `reduced_isolation` is set, and
        RuntimeError if no kernel starts.
        """
        missing = sandbox.missing_walls()
        if missing and not self.reduced_isolation:
            raise sandbox.IsolationIncomplete(list(missing))
        if missing:
            self.log.warning("STUDENTS' CODE RUNS WITH ALL YOUR RIGHTS: isolation is off for %s", "; ".join(missing))
        self.resources = {} if resources is None else resources
        self._end = time.monotonic() + self.notebook_timeout
        cells = {i: cell for i, cell in enumerate(nb.cells) if cell.cell_type == "code" and cell.source.strip()}
        waiting, left_out, executed = dict(cells), {}, set()
        while waiting and len(left_out) <= RESTARTS and time.monotonic() < self._end:
            waiting = {i: cell for i, cell in cells.items() if i not in left_out}
            left_out |= self._execute(nb, waiting)
            executed |= cells.keys() - waiting.keys()
        reason = f"more than {RESTARTS} cells ended their kernel"
        if time.monotonic() >= self._end:
            reason = f"the {self.notebook_timeout} seconds of the notebook are over"
        not_executed = [_error("NotExecuted", f"This cell was not executed: {reason}.")]
        for i in left_out.keys() | (cells.keys() - executed):
            cells[i].outputs, cells[i].execution_count = left_out.get(i, not_executed), None
        return nb, self.resources

    def _execute(self, nb: NotebookNode, waiting: dict[int, NotebookNode]) -> dict[int, list[NotebookNode]]:
        """Execute waiting cells in a new kernel, up to one that must be left out; return the outputs for that cell."""
        NotebookClient.__init__(self, nb)
        self._room_in_notebook = 5 * self.output_limit
        with self._kernel() as watch:
            while waiting and time.monotonic() < self._end:
                i = next(iter(waiting))
                cell, self._room, self._interruption = waiting.pop(i), self.output_limit, None
                seconds, start = self._get_timeout(cell), time.monotonic()
                watch.until = start + seconds + self.iopub_timeout + 5
                try:
                    self.execute_cell(cell, i)
                except Exception as error:  # whatever a kernel does must not affect other cells
                    reason = _reason(error, watch, seconds, time.monotonic() - start)
                    self.was_killed |= reason.startswith(KILLED)
                    printed = [output for output in cell.outputs if output.output_type == "stream"]
                    return {i: [*printed, _error("CellLeftOut", f"This cell {reason}. The others ran without it.")]}
        return {}

    @contextmanager
    def _kernel(self) -> Iterator["_Watch"]:
        """Start a supervised kernel, and end it with everything that it has started."""
        with ExitStack() as stack:
            folder = stack.enter_context(temporary_folder("kernel-"))
            (folder / "work").mkdir()
            self._copy_given_files(folder / "given")
            sockets = {}
            for number in range(1, len(CHANNELS) + 1):
                channel = stack.enter_context(socket.socket(socket.AF_UNIX))
                channel.bind(f"{folder}/socket-{number}")
                channel.listen()
                sockets[f"ipc://{folder}/socket-{number}"] = channel.fileno()
            log = stack.enter_context((folder / "log").open("w+"))
            to_popen = {"cwd": folder / "work", "stderr": log, "pass_fds": tuple(sockets.values())}
            self.km = _Manager(folder, self._command(folder, sockets))
            try:
                stack.enter_context(self.setup_kernel(stdout=subprocess.DEVNULL, **to_popen))
            except RuntimeError as error:
                log.seek(0)
                reason = (log.read().strip().splitlines() or [str(error)])[-1]
                raise RuntimeError(f"the kernel must start, got: {reason}") from error
            info = self.wait_for_reply(self.kc.kernel_info())
            self.nb.metadata["language_info"] = info["content"]["language_info"]
            yield stack.enter_context(_Watch(self.km.provisioner.process))

    def _command(self, folder: Path, sockets: dict[str, int]) -> list[str]:
        """Return the command line of the kernel, which is always this Python, whatever the notebook specifies."""
        assignment = self.resources.get("nbgrader", {}).get("assignment")
        course = _edition(assignment if assignment in topics() else min(topics()), os.getpid())
        given, connection = folder / "given", folder / "connection.json"
        readable = {course: Path("/course"), given: Path("/given"), connection: Path("/connection.json")}
        readable[INSIDE] = Path("/inside")
        limits = {"RLIMIT_AS": MEMORY, "RLIMIT_FSIZE": FILES, "RLIMIT_CORE": 0, "RLIMIT_NPROC": PROCESSES}
        own_count = ["unshare", "--user", "--map-current-user"] if sandbox.ROOT else []  # of processes, for the limit
        if sandbox.missing_walls():
            readable, own_count = {path: path for path in readable}, []
            del limits["RLIMIT_NPROC"]  # outside, all processes of the user would count
        settings = {"sockets": sockets, "given": str(readable[given]), "limits": limits}
        settings["cores"] = sandbox.own_cores()
        settings["confine"] = "" if sandbox.missing_walls() else str(readable[INSIDE])
        program = ["env", "-u", "MPLBACKEND", f"PYTHONPATH={readable[course]}"]  # kernels show figures in their own way
        program += ["NBGRADER_EXECUTION=autograde"]  # like nbgrader; some notebooks look at it
        program += [*own_count, sys.executable, "-c", LAUNCHER, json.dumps(settings), "-f", str(readable[connection])]
        if sandbox.missing_walls():
            return program
        readable |= {FONTS: FONTS} if FONTS.exists() else {}
        # Notebooks of other courses may need any package.
        return sandbox.command(program, readable, own_user=True, all_packages=assignment not in topics())

    def _copy_given_files(self, folder: Path) -> None:
        """Copy the files that the course releases with the assignment; students can't add any."""
        folder.mkdir()
        course = getattr(getattr(self.parent, "parent", None), "coursedir", None)
        if course is not None and "path" in self.resources.get("metadata", {}):
            source = course.format_path(course.source_directory, ".", self.resources["nbgrader"]["assignment"])
            beside = Path(self.resources["metadata"]["path"]).resolve()
            for file in find_all_files(source, [*course.ignore, "*.ipynb"]):
                name = Path(file).relative_to(source)
                if (beside / name).resolve() == beside / name and (beside / name).is_file():  # no link leads elsewhere
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(beside / name, folder / name)
        _let_everyone_read(folder)

    def _get_timeout(self, cell: NotebookNode | None) -> int:
        left = max(1, math.ceil(self._end - time.monotonic()))
        return min(super()._get_timeout(cell) or left, left)

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        """Keep the outputs of a cell up to the limit, then stop the cell."""
        size = len(repr(msg)) + sum(map(len, msg["buffers"]))
        if self._interruption is None and size <= min(self._room, self._room_in_notebook):
            self._room, self._room_in_notebook = self._room - size, self._room_in_notebook - size
            return super().process_message(msg, cell, cell_index)
        self._stop(cell, msg["content"].get("text", ""))
        if msg["msg_type"] == "status" and msg["content"]["execution_state"] == "idle":
            raise CellExecutionComplete
        return None

    def _stop(self, cell: NotebookNode, text: str = "") -> None:
        """Report that a cell's output is too long, after the beginning of its text, and interrupt the cell."""
        if self._interruption is None:
            most = f"{self.output_limit:,} bytes for a cell, and 5 times that for a notebook"
            too_long = _error("OutputTooLong", f"This cell was stopped: its output is too long. At most {most}.")
            cell.outputs += [new_output("stream", text=str(text)[:1000]), too_long]
            self._interruption = asyncio.ensure_future(self._interrupt())

    async def _interrupt(self) -> None:
        """Interrupt a cell and wait for the reply, so that the next cell is not hit."""
        self.kc.control_channel.send(self.kc.session.msg("interrupt_request", {}))
        with suppress(Exception):
            await self.kc.control_channel.get_msg(timeout=self.iopub_timeout)

    async def on_cell_executed(self, **kwargs: Any) -> None:
        """Add an error that is missing from the outputs, and detect a cell that has asked its kernel to exit."""
        content = kwargs["execute_reply"]["content"]
        if any(asked["source"] == "ask_exit" and not asked["keepkernel"] for asked in content.get("payload", [])):
            raise DeadKernelError("Kernel was asked to end")
        if len(repr(content)) > self.output_limit:
            self._stop(kwargs["cell"])
        if self._interruption is None:
            super().on_cell_executed(**kwargs)
        else:
            await self._interruption


class _Manager(AsyncKernelManager):
    """Talks to a kernel through sockets in a folder, and starts it only with the given command."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        ports = {f"{channel}_port": number for number, channel in enumerate(CHANNELS, start=1)}
        super().__init__(transport="ipc", ip=f"{folder}/socket", connection_file=f"{folder}/connection.json", **ports)
        self._command = command
        self.context.setsockopt(zmq.MAXMSGSIZE, LONGEST_MESSAGE)
        self.write_connection_file()
        Path(self.connection_file).chmod(0o644)  # for the user inside; no other can enter the folder

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(argv=self._command, display_name="sandbox", language="python", interrupt_mode="message")

    def client(self, **kwargs: Any) -> KernelClient:
        client = super().client(**kwargs)
        client.context.setsockopt(zmq.MAXMSGSIZE, LONGEST_MESSAGE)
        return client


class _Watch(threading.Thread):
    """Kills a kernel when its work is done, or earlier if it exceeds its time or fills the grader's memory.

    This is a thread, because a flood of messages may keep the event loop from checking the clock.
    """

    def __init__(self, process: subprocess.Popen) -> None:
        super().__init__(daemon=True)
        self.process, self.until = process, math.inf
        self.time_is_over = self.memory_is_full = False
        self._ended = threading.Event()

    def __enter__(self) -> "_Watch":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        grader = psutil.Process()
        most = grader.memory_info().rss + MEMORY_FOR_MESSAGES
        while not (self.time_is_over or self.memory_is_full or self._ended.wait(0.1)):
            self.time_is_over = time.monotonic() > self.until
            self.memory_is_full = grader.memory_info().rss > most
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its process group, which may have outlived it


def _reason(error: Exception, watch: _Watch, seconds: int, taken: float) -> str:
    """Return the reason why a cell must be left out."""
    status = watch.process.poll() or 0
    if watch.memory_is_full:
        return "sends more than the grader's memory can hold"
    if watch.time_is_over or (isinstance(error, CellTimeoutError) and taken >= seconds):
        return f"runs for more than {seconds} seconds and can't be interrupted"
    if isinstance(error, CellTimeoutError):
        return f"ended, but its output did not arrive, as happens with more than {LONGEST_MESSAGE >> 20} MB at once"
    if not isinstance(error, DeadKernelError):
        return f"makes its kernel send invalid messages ({type(error).__name__})"
    killer = -status if status < 0 else max(0, status - 128)  # bubblewrap reports a signal like a shell
    if killer == signal.SIGKILL:
        return f"{KILLED}, perhaps for lack of memory"
    if killer:
        return f"makes its Python process crash (signal {killer}), perhaps for lack of memory"
    return "ends its own Python process: leave out exit(), quit() and os._exit()"


def _error(name: str, text: str) -> NotebookNode:
    return new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"])


@functools.cache
def _edition(topic: str, process: int) -> Path:
    """Write the package without the answers to a topic and later ones, once per process; it is removed at the end."""
    kept = ExitStack()
    folder = kept.enter_context(temporary_folder("edition-"))
    multiprocessing.util.Finalize(None, kept.close, exitpriority=10)
    write_student_edition(folder, hidden_from(topic), sealed_in(topic))
    _let_everyone_read(folder)
    return folder


def _let_everyone_read(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
