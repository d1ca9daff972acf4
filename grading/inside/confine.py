"""A fork of this process that can do little harm: the second wall, inside the one that bubblewrap builds.

Each answer gets user, process, network, IPC and mount namespaces of its own. So it sees no other process, can
signal or trace none, has no network, loses every capability, and its files live in its own memory and vanish with it.
It may fork, but start no program: a fresh Python would have back what this one has lost. Killing the returned process
kills whatever it has started.
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

UNPRIVILEGED = 65534  # `nobody`: owns nothing
PROCESSES = 16  # threads count too
MEMORY = 4 * 2**30  # of address space, of which torch alone takes about 1
FILES = 64 * 2**20  # bytes in all files together
CPU_SECONDS = 120

# From Linux: <sched.h>, <sys/mount.h>, <sys/prctl.h>, <linux/capability.h>.
NEW_NAMESPACES = {"user": 0x10000000, "mount": 0x20000, "process": 0x20000000, "network": 0x40000000, "IPC": 0x8000000}
NO_SETUID, NO_DEVICES = 2, 4
SET_DUMPABLE, SET_NO_NEW_PRIVILEGES, SET_CHILD_SUBREAPER = 4, 38, 36
CAPABILITIES_VERSION_3 = 0x20080522
BIND = 4096
# From <linux/seccomp.h>, <linux/filter.h>, and for each architecture its number, execve and execveat.
SET_SECCOMP, FILTER = 22, 2
LOAD, IF_EQUAL, IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
REFUSE, ALLOW = 0x00050000, 0x7FFF0000
EXECUTING = {"x86_64": (0xC000003E, 59, 322), "aarch64": (0xC00000B7, 221, 281)}

_libc = ctypes.CDLL(None, use_errno=True)


def become_unprivileged() -> None:
    """Leave root's rights for good, if this is root; other users keep theirs."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    _call("prctl", SET_DUMPABLE, 1)  # else a new user namespace can't be set up after a change of user


def cover(paths: Sequence[Path]) -> None:
    """Make files and folders empty, for this process and those it forks. Raises OSError where that can't be done."""
    _enter("user")
    _enter("mount")
    for path in paths:
        if path.is_dir():
            _mount_empty(path)
        elif path.exists():
            _call("mount", b"/dev/null", bytes(path), None, BIND, None)


def fork_confined(run: Callable[[], None], strict: bool) -> int | None:
    """Call `run` in a confined process and return its id.

    With `strict`, nothing runs unless every wall stands, and None comes back; else what the system lacks is left out.
    """
    if sys.platform == "linux":
        _call("prctl", SET_CHILD_SUBREAPER, 1)  # the fork of a fork becomes this process's own child
    reading, writing = os.pipe()
    first = os.fork()
    if first == 0:
        _in_new_namespaces(run, strict, writing)
    os.close(writing)
    os.waitpid(first, 0)
    with open(reading, "rb") as pipe:
        pid = pipe.read()
    return int(pid) if pid else None


def kill(pid: int | None) -> int:
    """Kill a confined process with all that it has started, and return how it ended, as `os.waitpid` does."""
    if pid is None:
        return 0
    for stop in (os.kill, os.killpg):
        with suppress(ProcessLookupError, PermissionError):
            stop(pid, signal.SIGKILL)
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:  # apart from Linux, the fork of a fork is not this process's child
        return 0


def missing_walls() -> list[str]:
    """Return the namespaces and limits that can't be had here, with the system's reason."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        faults = _faults()
        os.write(writing, "\n".join(faults).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading) as pipe:
        return pipe.read().splitlines()


def _in_new_namespaces(run: Callable[[], None], strict: bool, writing: int) -> NoReturn:
    """Enter the namespaces; the process namespace takes effect for the next fork."""
    status = 1
    try:
        faults = _faults()
        if faults and strict:
            return
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.setsid()
            _limit()
            _drop_capabilities()
            run()
            status = 0
        else:
            os.write(writing, str(child).encode())
    finally:
        os._exit(status)


def _faults() -> list[str]:
    """Build each wall that can be had; return those that can't."""
    if sys.platform != "linux":
        return [f"walls between processes: {sys.platform} has none of Linux's"]
    faults = []
    for name in NEW_NAMESPACES:
        try:
            _enter(name)
            if name == "mount":
                _use_own_folders()
        except OSError as error:
            faults.append(f"{name} namespace: {error.strerror}")
    try:
        _start_no_programs()
    except OSError as error:
        faults.append(f"a ban on other programs: {error.strerror}")
    return faults


def _enter(namespace: str) -> None:
    """Enter a new namespace; in a new user namespace this user stays the same."""
    user, group = os.getuid(), os.getgid()
    _call("unshare", NEW_NAMESPACES[namespace])
    if namespace == "user":
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _use_own_folders() -> None:
    """Take empty folders where an answer could leave something behind, or look at others."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory runs out, the answer goes first
    for folder in (tempfile.gettempdir(), "/dev/shm", "/proc"):
        _mount_empty(Path(folder))
    os.chdir(tempfile.gettempdir())


def _mount_empty(folder: Path) -> None:
    _call("mount", b"tmpfs", bytes(folder), b"tmpfs", NO_SETUID | NO_DEVICES, f"size={FILES}".encode())


def _start_no_programs() -> None:
    """Refuse execve and execveat from now on, by a filter of system calls; it needs no privilege."""
    if platform.machine() not in EXECUTING:
        raise OSError(errno.ENOSYS, f"not known for {platform.machine()}")
    _call("prctl", SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    architecture, *calls = EXECUTING[platform.machine()]
    lines = (  # jumps count the lines to leave out: if equal, if not
        (LOAD, 0, 0, 4),  # the architecture
        (IF_EQUAL, 0, 4, architecture),
        (LOAD, 0, 0, 0),  # the number of the call
        (IF_EQUAL, 2, 0, calls[0]),
        (IF_EQUAL, 1, 0, calls[1]),
        (IF_AT_LEAST, 0, 1, 0x40000000),  # the same calls under other numbers, for programs with short pointers
        (RETURN, 0, 0, REFUSE | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    _call("prctl", SET_SECCOMP, FILTER, struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)), 0, 0)


def _limit() -> None:
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_NPROC, PROCESSES),
        (resource.RLIMIT_FSIZE, FILES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # a system that lacks one of them has said so in missing_walls
            resource.setrlimit(kind, (most, most))


def _drop_capabilities() -> None:
    if sys.platform == "linux":
        header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION_3, 0)
        _call("capset", header, (ctypes.c_uint32 * 6)())


def _call(function: str, *arguments: object) -> None:
    """Call a function of the C library; raise OSError if it fails."""
    if getattr(_libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
