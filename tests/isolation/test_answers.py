"""The answer process: what it can't do, what it can't leave behind, and what it may send."""

import ast
import errno
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from checkout import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from grading.exercises import hidden_from, records
from grading.isolation import answers, sandbox
from grading.isolation.answers import Answer, AnswerEnded, AnswerServer, Cell, ServerLost
from grading.isolation.inside import messages
from grading.isolation.inside.confine import PROCESSES
from grading.isolation.inside.forbid import SOURCES
from grading.isolation.sandbox import IsolationIncomplete, missing_walls, own_cores
from grading.processes.workers import answer_server, side_by_side

TOPIC = "01_self_attention"
ISOLATED = pytest.mark.skipif(
    bool(missing_walls()), reason=f"isolation is incomplete here: {'; '.join(missing_walls())}"
)


def outcome(code: str) -> str:
    """Return what a cell reports by raising: the text after its marker."""
    with Answer(answer_server(TOPIC, bool(missing_walls())), "kqv", [Cell(0, code)], True) as answer:
        answer.keep_running()
        return answer.errors.get(0, "")


def tried(expression: str, imports: str = "import os, socket, subprocess, sys") -> str:
    """Return the value of an expression inside the sandbox, or the error it raises."""
    code = f"{imports}\ntry:\n    value = repr({expression})\nexcept BaseException as error:\n    value = repr(error)\n"
    return reported(outcome(f"{code}raise ValueError('<<' + value + '>>')"))


def reported(error: str) -> str:
    """Return the text between the last brackets of a cell's error."""
    return error.rpartition("<<")[2].rpartition(">>")[0]


@ISOLATED
def test_it_is_an_unprivileged_user_without_capabilities():
    user = int(tried("os.getuid()"))
    assert user == (65534 if os.getuid() == 0 else os.getuid())
    assert "Error" in tried("os.setuid(0)")
    assert "PermissionError" in tried("os.chroot('/')")


@ISOLATED
def test_it_has_no_network():
    for address in ("('1.1.1.1', 53)", "('127.0.0.1', 53)", "('::1', 53)"):
        assert "PermissionError" in tried(f"socket.create_connection({address}, timeout=2)")
    assert "PermissionError" in tried("socket.socket(socket.AF_VSOCK)")
    assert "gaierror" in tried("socket.getaddrinfo('example.org', 80)")


@ISOLATED
def test_it_sees_no_files_but_those_it_needs():
    names = ("bin", "course", "dev", "etc", "inside", "lib", "lib64", "proc", "scratch", "sys", "usr")
    python = [Path(sys.prefix), Path(sys.base_prefix)]
    shown = [*python, *(Path("/") / name for name in names)]
    # Python may be in a home folder: then the folders above it exist, with nothing in them except the path to Python.
    for folder in {parent for path in python for parent in path.parents}:
        way = {path.parts[len(folder.parts)] for path in shown if folder in path.parents}
        assert set(eval(tried(f"os.listdir({str(folder)!r})"))) <= way
    for hidden in (ROOT / "grading", ROOT / "source", ROOT / ".git", ROOT / "transformer_lm", "/etc/passwd", "/var"):
        assert "FileNotFoundError" in tried(f"os.stat({str(hidden)!r})")
    assert set(eval(tried("os.listdir('/proc')"))) == set()


@ISOLATED
def test_it_writes_nowhere_but_in_its_own_folder():
    for place in ("/x", "/course/x", "/usr/x", "/inside/server.py", str(Path(sys.prefix) / "x")):
        assert "Error" in tried(f"open({place!r}, 'a')")
    assert tried("open('x', 'w').write('1')") == "1"


@ISOLATED
def test_it_starts_no_program():
    """A new Python process would have torch's ready-made attention."""
    for program in (sys.executable, "/bin/sh", "/usr/bin/env"):
        assert "PermissionError" in tried(f"subprocess.run([{program!r}])")
        assert "PermissionError" in tried(f"os.execv({program!r}, ['x'])")
    assert tried("os.system('true')") != "0"


@ISOLATED
def test_nothing_is_left_of_an_answer():
    leave = """
import ctypes, os, time
open('/scratch/left', 'w').write('x')
open('/dev/shm/left', 'w').write('x')
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(15, b'left-behind', 0, 0, 0)
    while True:
        time.sleep(1)
"""
    outcome(leave)
    assert "left-behind" not in running()
    assert tried("[os.listdir(folder) for folder in ('/scratch', '/dev/shm')]") == "[[], []]"


def running() -> set[str]:
    names = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "State:\tZ" not in (process / "status").read_text():
                names.add((process / "comm").read_text().strip())
        except OSError:
            continue
    return names


@ISOLATED
def test_it_can_signal_no_other_process():
    assert tried("os.kill(-1, 0)") in ("None", "ProcessLookupError(3, 'No such process')")
    assert "ProcessLookupError" in tried(f"os.kill({os.getpid()}, 9)")
    assert tried("os.getppid()") == "0"


@ISOLATED
def test_a_fork_bomb_ends():
    bomb = """
import os, time
children = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        children += 1
except BlockingIOError:
    raise ValueError(f'<<{children}>>')
"""
    assert int(reported(outcome(bomb))) == PROCESSES - 1


def test_memory_is_limited():
    assert "MemoryError" in tried("bytearray(6 * 2**30)")
    assert "allocate memory" in tried("torch.ones(2**30)", imports="import torch")


def test_files_are_limited():
    assert "Error" in tried("open('/scratch/x', 'wb').write(b'x' * 2**27)") or missing_walls()
    assert "PermissionError" in tried("os.memfd_create('x')") or missing_walls()


def test_printing_for_ever_ends(monkeypatch):
    monkeypatch.setattr(answers, "CELL_SECONDS", 1)
    assert "runs for more than 1 seconds" in outcome("while True: print('x' * 10**6)")


def test_what_a_cell_prints_takes_no_memory():
    """IPython would keep it for its history."""
    code = """
import resource
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
for _ in range(300):
    print("x" * 2**20)
raise ValueError(f"<<{peak() - before}>>")
"""
    assert int(reported(outcome(code))) < 100  # of 300 MB


def test_an_answer_need_not_hurry_because_its_server_starts_slowly(monkeypatch):
    with AnswerServer({}, bool(missing_walls())) as server:
        start = server.start
        monkeypatch.setattr(server, "start", lambda: (time.sleep(3), start()))
        with Answer(server, "kqv", [Cell(0, "x = 1")], False, seconds=3) as answer:
            answer.keep_running()
            assert answer.errors == {}
            assert answer.ask("defines", name="x")[0] == {"defined": True}


USES_THE_PROCESSOR = """
import time
start = time.process_time()
while time.process_time() < start + 0.2:
    pass
"""


@contextmanager
def busy_processes(number: int, core: int) -> Iterator[None]:
    """Keep a core busy; each process in a separate session, because the system shares the core between sessions."""
    code = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    start = partial(subprocess.Popen, stdout=subprocess.PIPE, start_new_session=True)
    processes = [start([sys.executable, "-S", "-c", code]) for _ in range(number)]
    try:
        for process in processes:
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@ISOLATED
def test_an_answer_does_not_pay_for_the_processor_that_others_use(monkeypatch):
    """It gets a sixteenth of the core: measured by the clock, it takes longer than allowed."""
    monkeypatch.setattr(answers, "CELL_SECONDS", 2)
    with AnswerServer({}) as server:
        server.start()
        (core,) = server_process(server).cpu_affinity()
        answer = Answer(server, "kqv", [Cell(0, USES_THE_PROCESSOR)], False)
        with busy_processes(15, core), answer:
            answer.keep_running()
            assert answer.errors == {}
        assert server.doubtful == 0


def test_an_answer_that_is_out_of_time_when_it_starts_again_is_no_fault_of_the_server():
    answer = Answer(answer_server(TOPIC, bool(missing_walls())), "kqv", [Cell(0, "x = 1")], False, seconds=0.005)
    with answer, pytest.raises(AnswerEnded):
        answer.keep_running()


OWN_PROCESSES = """
import os
for _ in range(3):
    if not os.fork():
        break
while True: pass
"""
OWN_THREADS = """
import threading, torch
def work():
    while True: torch.ones(500, 500) @ torch.ones(500, 500)
for _ in range(2): threading.Thread(target=work).start()
work()
"""


@ISOLATED
@pytest.mark.parametrize("code", [OWN_PROCESSES, OWN_THREADS])
def test_an_answer_gains_no_time_by_waiting_for_itself(monkeypatch, code):
    monkeypatch.setattr(answers, "CELL_SECONDS", 2)
    start = time.monotonic()
    assert "runs for more than 2 seconds" in outcome(code)
    assert time.monotonic() - start < 2 * answers.PATIENCE - 2


@ISOLATED
@pytest.mark.parametrize(("code", "counted"), [("while True: pass", 0), ("import time; time.sleep(20)", 1)])
def test_only_a_stop_before_the_processor_time_is_used_counts(monkeypatch, code, counted):
    monkeypatch.setattr(answers, "CELL_SECONDS", 2)
    server = answer_server(TOPIC)
    server.doubtful = 0
    start = time.monotonic()
    assert "runs for more than 2 seconds" in outcome(code)
    assert time.monotonic() - start < 2 * answers.PATIENCE + 5
    assert server.doubtful == counted


@ISOLATED
def test_an_answer_stays_on_its_core():
    assert eval(tried("len(os.sched_getaffinity(0))")) == 1
    assert "PermissionError" in tried(f"os.sched_setaffinity(0, {os.sched_getaffinity(0)})")


def test_workers_side_by_side_take_different_cores():
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    cores = [core for _, cores in side_by_side(_own_cores, range(8), workers=2) for core in cores]
    assert len(set(cores)) == min(2, allowed)


def _own_cores(task: int) -> list[int]:
    time.sleep(0.2)  # so that no worker does it all
    return own_cores()


def test_what_kills_its_process_is_left_out_and_told():
    cells = [
        Cell(0, "x = 1"),
        Cell(1, "import ctypes; ctypes.string_at(0)"),
        Cell(2, "import os; os._exit(3)"),
        Cell(3, "y = x"),
    ]
    with Answer(answer_server(TOPIC, bool(missing_walls())), "kqv", cells, False) as answer:
        answer.keep_running()
        assert "crashes Python itself (SIGSEGV)" in answer.errors[1]
        assert "ends its own Python process" in answer.errors[2]
        assert set(answer.errors) == {1, 2}
        assert answer.ask("defines", name="y")[0] == {"defined": True}


def test_the_package_inside_holds_no_answers():
    imports = "from transformer_lm import attention, modeling_attention, checks"
    assert "would give away exercise attention-scores" in tried("attention.attention_scores(1, 2)", imports)
    assert "would give away exercise self-attention" in tried("modeling_attention.SelfAttention(2, 3)", imports)
    assert "function kqv" in tried("checks.kqv", imports)


def test_everything_that_computes_attention_in_the_package_is_hidden_from_topic_01():
    assert set(hidden_from("02_multi_head_attention")) < set(hidden_from(TOPIC))
    assert len(hidden_from(TOPIC)) >= 12


def test_ready_made_attention_is_gone_under_every_name():
    q = "torch.ones(1, 2, 4)"
    imports = "import torch, importlib\nfrom torch import nn\nfrom torch.nn import functional as F"
    for call in (
        f"F.scaled_dot_product_attention({q}, {q}, {q})",
        f"getattr(torch._C._nn, 'scaled_dot_' + 'product_attention')({q}, {q}, {q})",
        f"torch.ops.aten._scaled_dot_product_attention_math({q}, {q}, {q})",
        f"torch.ops.aten._scaled_dot_product_flash_attention_for_cpu({q}[None], {q}[None], {q}[None])",
        f"torch.jit.trace(lambda x: F.scaled_dot_product_attention(x, x, x), {q})",
        "nn.MultiheadAttention(4, 1)",
        "nn.Transformer(4, 1)",
        "nn.TransformerEncoderLayer(4, 1)",
        "nn.TransformerDecoderLayer(4, 1)",
        "F.multi_head_attention_forward()",
        "importlib.import_module('torch._higher_order_ops.flex_attention').math_attention()",
    ):
        assert "ready-made" in tried(call, imports), call
    if not missing_walls():  # nor can it be loaded again from torch's files
        for load in ("reload(F)", "import_module('torch._inductor.fx_passes.fuse_attention')"):
            assert "Error" in tried(f"importlib.{load}", imports)


@ISOLATED
def test_packages_that_no_exercise_needs_are_not_there():
    """Neither to import nor to read: `transformers` has a ready-made attention in plain text."""
    for name in ("transformers", "nbgrader", "sqlalchemy", "distributed", "jupyterlab"):
        assert "ModuleNotFoundError" in tried(f"importlib.import_module('{name}')", "import importlib")
        assert tried(f"[os.path.exists(folder + '/{name}') for folder in sys.path]").count("True") == 0
    for name in ("tqdm", "tokenizers", "sympy", "pytest", "matplotlib.animation", "torch.utils.data"):
        assert "module" in tried(f"importlib.import_module('{name}')", "import importlib")


def test_no_python_code_that_students_can_read_computes_attention():
    """In every package that is shown: a new version of torch may keep it in other places."""
    shown = [path for paths in sandbox._hidden_packages().values() for path in paths]
    files = [file for path in shown for file in (path.rglob("*.py") if path.is_dir() else [path])]
    for file in {file for file in files if not {file, *file.parents} & {*SOURCES}}:
        text = file.read_text(errors="replace") if file.suffix == ".py" else ""
        if "softmax(" in text and re.search("attention|attn", text, re.IGNORECASE):
            for function in ast.walk(ast.parse(text)):
                code = ast.unparse(function) if isinstance(function, ast.FunctionDef) else ""
                assert not ("softmax(" in code and re.search(r"matmul|bmm| @ |einsum", code)), (file, function.name)


def test_the_process_ends_with_its_judge():
    script = (
        "import sys\nfrom grading.processes.workers import answer_server\n"
        f"server = answer_server('{TOPIC}', True); server.fork()\n"
        "print(server._process.pid, flush=True); sys.stdin.read()"
    )
    judge = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    server = int(judge.stdout.readline())
    judge.kill()
    judge.wait()
    judge.stdin.close()
    judge.stdout.close()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{server}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{server}").exists()


@pytest.mark.parametrize(
    "forged",
    [
        b"garbage" * 100,
        b"\xff" * 8,
        messages._SIZES.pack(2, 0) + b"[]",
        messages._SIZES.pack(2, 16) + b"{}" + b"\xff" * 16,
        messages._SIZES.pack(10**5, 0) + b"[" * 10**5,
    ],
)
def test_forged_messages_end_the_answer_and_nothing_else(forged):
    code = f"""
import gc, socket
for thing in gc.get_objects() + gc.get_referrers(socket.socket):
    if isinstance(thing, socket.socket) and thing.fileno() >= 0:
        thing.sendall({forged!r})
"""
    with Answer(answer_server(TOPIC, bool(missing_walls())), "kqv", [Cell(0, code)], False) as answer:
        answer.keep_running()
        assert answer.errors in ({}, {0: "sends what no answer should send"})
    assert tried("1 + 1") == "2"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_whatever_arrives_is_a_message_or_refused(data):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.close()
        ours.settimeout(5)
        with pytest.raises((messages.Disconnected, messages.MalformedMessage)):
            _read_all(ours)


def _read_all(connection):
    while True:
        table, arrays = messages.receive(connection)
        assert isinstance(table, dict)
        assert isinstance(arrays, dict)


def test_arrays_arrive_as_they_were_sent():
    arrays = {"number": np.array(3), "matrix": np.arange(6.0).reshape(2, 3).T, "nothing": np.zeros((0, 2), np.float32)}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        messages.send(theirs, {"a": [1, None]}, arrays)
        table, received = messages.receive(ours)
    assert table == {"a": [1, None]}
    for name, array in arrays.items():
        assert received[name].dtype == array.dtype
        np.testing.assert_array_equal(received[name], array)


def test_reduced_isolation_for_one_is_none_for_the_next():
    reduced = answer_server(TOPIC, reduced=True)
    if missing_walls():
        with pytest.raises(IsolationIncomplete):
            answer_server(TOPIC)
    else:
        assert answer_server(TOPIC) is not reduced


def test_no_message_is_ever_unpickled():
    between_instructors_machines = ROOT / "grading" / "runs" / "cluster.py"  # as dask itself does, and never to a jail
    for path in {*(ROOT / "grading").rglob("*.py")} - {between_instructors_machines}:
        assert "pickle" not in path.read_text().replace("never pickle", "").replace("no pickle", ""), path


def without_bubblewrap(*arguments: str) -> subprocess.CompletedProcess:
    folder = Path(sys.executable).parent
    environment = os.environ | {"PATH": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "grading", *arguments], capture_output=True, text=True, env=environment, cwd=ROOT
    )


def test_without_bubblewrap_it_refuses_and_says_what_to_install(tmp_path):
    answer = tmp_path / "answer.py"
    answer.write_text("import torch\n" + records()["attention-scores"].model_answer)
    refused = without_bubblewrap("try", "attention-scores", str(answer))
    assert refused.returncode != 0
    assert "bubblewrap is not installed" in refused.stderr
    assert "apt-get install bubblewrap" in refused.stderr
    assert "--reduced-isolation" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_with_reduced_isolation_it_goes_on_and_says_so_loudly(tmp_path):
    answer = tmp_path / "answer.py"
    answer.write_text("import torch\n" + records()["attention-scores"].model_answer)
    judged = without_bubblewrap("try", "attention-scores", str(answer), "--json", "--reduced-isolation")
    assert judged.returncode == 0, judged.stderr
    assert judged.stderr.startswith("REDUCED ISOLATION")
    assert json.loads(judged.stdout)["points"] == 2


def test_a_call_after_the_end_is_an_end_too():
    with Answer(
        answer_server(TOPIC, bool(missing_walls())), "kqv", [Cell(0, "import sys\ndef f(*a): sys.exit()")], False
    ) as answer:
        answer.keep_running()
        with pytest.raises(AnswerEnded, match="ends its own Python process"):
            answer.ask("layers", {"probe": np.zeros((1, 2), np.float32)}, name="f", arguments=[1, 2], attributes=[""])
        with pytest.raises(AnswerEnded, match="at an earlier call"):
            answer.ask("defines", name="f")


def test_the_server_says_why_it_does_not_start(monkeypatch):
    monkeypatch.setattr(answers, "INSIDE", ROOT / "docs")
    with (
        AnswerServer(hidden_from(TOPIC), reduced=True) as server,
        pytest.raises(ServerLost, match="No module named server"),
    ):
        server.fork()


def server_process(server: AnswerServer) -> psutil.Process:
    """Return the process that forks answers: the last in the line that the judge has started."""
    started = psutil.Process(server._process.pid)
    return next(process for process in [*reversed(started.children(recursive=True)), started] if process.cmdline())


def test_a_server_that_is_killed_is_no_students_fault():
    """The next answer gets a new server."""
    with AnswerServer({}, bool(missing_walls())) as server:
        server.start()
        process = server_process(server)
        answer = Answer(server, "kqv", [Cell(0, "x = 1")], False)
        answer.keep_running()
        process.kill()
        process.wait()
        with pytest.raises(ServerLost, match="must keep running"), answer:
            answer.ask("defines", name="x")
        with Answer(server, "kqv", [Cell(0, "x = 1")], False, seconds=3) as answer:
            answer.keep_running()
            assert answer.ask("defines", name="x")[0] == {"defined": True}


def test_an_answer_that_the_system_kills_is_not_the_servers_fault():
    with AnswerServer({}, bool(missing_walls())) as server:
        server.start()
        process = server_process(server)
        with Answer(server, "kqv", [Cell(0, "x = 1")], False, seconds=3) as answer:
            answer.keep_running()
            process.children(recursive=True)[-1].kill()
            with pytest.raises(AnswerEnded, match="was stopped by the system"):
                answer.ask("defines", name="x")


def test_a_full_disk_is_no_students_fault(monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(answers, "write_student_edition", full)
    with AnswerServer({}, bool(missing_walls())) as server, pytest.raises(ServerLost, match="No space left"):
        server.fork()


def test_an_answer_that_can_not_be_forked_is_no_students_fault(monkeypatch):
    with AnswerServer({}, bool(missing_walls())) as server:
        fork = server.fork

        def hang_up() -> socket.socket:
            connection = fork()
            connection.shutdown(socket.SHUT_RDWR)
            return connection

        monkeypatch.setattr(server, "fork", hang_up)
        with Answer(server, "kqv", [Cell(0, "x = 1")], False) as answer, pytest.raises(ServerLost, match="must start"):
            answer.keep_running()
