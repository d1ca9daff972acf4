"""The filter of system calls around students' code: complete on both architectures, tested, without access to keys."""

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

from grading.isolation import sandbox
from grading.isolation.answers import INSIDE, Answer, Cell
from grading.isolation.inside import confine
from grading.isolation.inside.confine import ALLOW, ARCHITECTURES, CLONE, CLONE3, PROGRAMS, REFUSE, REFUSED, SOCKETS
from grading.isolation.inside.forbid import SOURCES
from grading.processes.workers import answer_server

TOPIC = "01_self_attention"
HEADERS = (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h"))
MISSING = sandbox.missing_walls()
isolated = pytest.mark.skipif(bool(MISSING), reason=f"isolation is incomplete here: {'; '.join(MISSING)}")
REFUSAL = REFUSE | errno.EPERM
AF_UNIX, AF_INET, AF_VSOCK = 1, 2, 40


def verdict(machine: str, call: int, argument: int = 0, notebook: bool = False, architecture: int | None = None) -> int:
    """Return what a machine's filter decides about a system call, by following it line by line as the kernel would."""
    data = {confine.CALL: call, confine.FIRST_ARGUMENT: argument}
    data[confine.ARCHITECTURE] = ARCHITECTURES[machine] if architecture is None else architecture
    comparisons = {
        confine.IF_EQUAL: lambda loaded, value: loaded == value,
        confine.IF_AT_LEAST: lambda loaded, value: loaded >= value,
        confine.IF_ANY_BIT: lambda loaded, value: loaded & value,
    }
    lines, at, loaded = confine._filter(machine, notebook), 0, 0
    while True:
        operation, if_so, if_not, value = lines[at]
        at += 1
        if operation == confine.RETURN:
            return value
        if operation == confine.LOAD:
            loaded = data[value]
        else:
            at += if_so if comparisons[operation](loaded, value) else if_not


@pytest.mark.parametrize(("column", "machine"), [*enumerate(ARCHITECTURES)])
def test_what_no_answer_needs_is_refused(column, machine):
    for name, numbers in (PROGRAMS | REFUSED).items():
        assert verdict(machine, numbers[column]) == REFUSAL, name
        assert verdict(machine, numbers[column], notebook=True) == (ALLOW if name in PROGRAMS else REFUSAL), name
    assert verdict(machine, CLONE3[column]) == REFUSE | errno.ENOSYS
    for namespace in confine.NEW_NAMESPACES.values():
        assert verdict(machine, CLONE[column], namespace | 17) == REFUSAL
    for numbers in SOCKETS.values():
        for family in (AF_INET, AF_VSOCK):
            assert verdict(machine, numbers[column], family) == REFUSAL
        assert verdict(machine, numbers[column], AF_VSOCK, notebook=True) == REFUSAL


@pytest.mark.parametrize(("column", "machine"), [*enumerate(ARCHITECTURES)])
def test_everything_else_is_allowed(column, machine):
    refused = {numbers[column] for numbers in (PROGRAMS | REFUSED).values()} | {CLONE3[column]}
    for call in set(range(500)) - refused:
        assert verdict(machine, call, AF_UNIX) == ALLOW
    fork_and_thread = (17, 0x3D0F00)
    assert all(verdict(machine, CLONE[column], flags) == ALLOW for flags in fork_and_thread)
    for family in confine.NOTEBOOK_FAMILIES:
        assert verdict(machine, SOCKETS["socket"][column], family, notebook=True) == ALLOW


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_no_other_set_of_numbers_leads_around_the_filter(machine):
    assert verdict(machine, 0x40000000 + 39) == REFUSAL
    for architecture in {*ARCHITECTURES.values(), 0x40000003} - {ARCHITECTURES[machine]}:
        assert verdict(machine, 39, architecture=architecture) == REFUSAL


@pytest.mark.skipif(not all(path.exists() for path in HEADERS), reason="the kernel's headers are not installed")
def test_the_numbers_are_those_of_the_kernels_headers():
    texts = [path.read_text() for path in HEADERS]
    for name, numbers in (PROGRAMS | REFUSED | SOCKETS | {"clone": CLONE, "clone3": CLONE3}).items():
        for number, text in zip(numbers, texts, strict=True):
            found = re.search(rf"#define __NR(?:3264)?_{name} (\d+)", text)
            assert found is None or int(found[1]) == number, name  # older headers lack newer calls


@isolated
def test_a_filter_that_does_not_work_is_told():
    script = "import sys; sys.path.insert(0, '/inside'); import confine; confine.become_unprivileged(); "
    script += "confine.refuse_system_calls = lambda: None; print(*confine.missing_walls(), sep='\\n')"
    command = sandbox.command([sys.executable, "-I", "-c", script], {INSIDE: Path("/inside")})
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    for name in ("keyctl", "io_uring_setup", "unshare", "clone", "AF_INET", "memfd_create"):
        assert f"a filter of system calls: it lets {name} through" in told


# Runs in a separate process, from a session with a keyring, as every login has one.
KEYS = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
session, join, search = -3, 1, 10
"""
FIND = f"{KEYS}raise ValueError(libc.syscall(keyctl, search, session, b'user', b'secret', 0))"
GRADE = f"""{KEYS}
from nbformat.v4 import new_code_cell, new_notebook
from grading.isolation.answers import Answer, AnswerServer, Cell
from grading.processes.kernel import SandboxedExecute
libc.syscall(keyctl, join, None)
if libc.syscall(add_key, b"user", b"secret", b"ticket", 6, session) < 0:
    raise SystemExit("no keys here")
with AnswerServer({{}}) as server, Answer(server, "kqv", [Cell(0, {FIND!r})], False) as answer:
    answer.keep_running()
    print(answer.errors[0].split()[-1])
notebook = new_notebook(cells=[new_code_cell({FIND!r})])
SandboxedExecute().preprocess(notebook, {{}})
print(notebook.cells[0].outputs[0].evalue)
"""


@isolated
def test_students_code_finds_no_key_of_the_user_who_grades():
    graded = subprocess.run([sys.executable, "-c", GRADE], capture_output=True, text=True, cwd=ROOT, timeout=300)
    if "no keys here" in graded.stderr:
        pytest.skip("this system keeps no keys")
    assert graded.stdout.split() == ["-1", "-1"], graded.stderr


@isolated
@pytest.mark.parametrize("folder", ["/scratch", "/dev/shm", "/proc", *sorted(map(str, filter(Path.is_dir, SOURCES)))])
def test_one_answer_can_leave_nothing_for_the_next(folder):
    leave = f"open('{folder}/left', 'w').write('x')"
    find = f"import os\nraise ValueError(os.path.exists('{folder}/left'))"
    with Answer(answer_server(TOPIC), "kqv", [Cell(0, leave)], False) as answer:
        answer.keep_running()
    with Answer(answer_server(TOPIC), "kqv", [Cell(0, find)], False) as answer:
        answer.keep_running()
        assert "False" in answer.errors[0]


@isolated
def test_nothing_but_two_folders_of_limited_size_can_be_written_inside():
    """If root grades, /dev belongs to another user than the answer's; for all others it must be read-only."""
    shown = subprocess.run(
        sandbox.command(["cat", "/proc/self/mountinfo"], {}), capture_output=True, text=True, check=True
    ).stdout
    mounts = [line.split() for line in shown.splitlines()]
    writable = {fields[4]: fields for fields in mounts if "rw" in fields[5].split(",")}
    folders = {place for place, fields in writable.items() if not place.startswith("/dev/") or place == "/dev/shm"}
    assert folders - {"/proc"} == {sandbox.SCRATCH, "/dev/shm"}
    for folder in (sandbox.SCRATCH, "/dev/shm"):
        assert f"size={confine.FILES // 1024}k" in writable[folder][-1]
