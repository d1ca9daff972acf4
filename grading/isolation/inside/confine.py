"""Forks a confined process that can do little harm: the second wall, inside the one that bubblewrap builds.

Each answer gets its own user, process, network, IPC and mount namespaces. So it sees no other process, can't signal or
trace one, has no network and no capabilities, and its files are in its own memory and vanish with it. It may fork, but
not start a program, because a fresh Python would regain what this one has lost. Killing the returned process kills
everything that it has started. A filter refuses the system calls that no answer needs, among them access to the keys of
the user who grades, which no namespace separates.
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

UNPRIVILEGED = 65534  # the user `nobody`, who owns nothing
PROCESSES = 4  # threads count too; a right answer needs one, and a tqdm progress bar another
MEMORY = 4 * 2**30  # of address space; torch alone takes about 1
FILES = 64 * 2**20  # bytes of all files together
CPU_SECONDS = 120

# From Linux: <sched.h>, <sys/mount.h>, <sys/prctl.h>, <linux/capability.h>.
NEW_NAMESPACES = {"user": 0x10000000, "mount": 0x20000, "process": 0x20000000, "network": 0x40000000, "IPC": 0x8000000}
NEW_NAMESPACE = 0x7E020000  # any of these, its own host name or control group
READ_ONLY, NO_SETUID, NO_DEVICES = 1, 2, 4
SET_DUMPABLE, SET_NO_NEW_PRIVILEGES, SET_CHILD_SUBREAPER = 4, 38, 36
CAPABILITIES_VERSION_3 = 0x20080522
BIND = 4096
JOIN_SESSION_KEYRING = 1
# From <linux/seccomp.h>, <linux/filter.h>, <linux/audit.h>.
SET_SECCOMP, FILTER = 22, 2
LOAD, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
CALL, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # their offsets in a filter's data
REFUSE, ALLOW = 0x00050000, 0x7FFF0000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# System calls and their numbers on x86_64 and on aarch64, from <asm/unistd_64.h> and <asm-generic/unistd.h>.
PROGRAMS = {"execve": (59, 221), "execveat": (322, 281)}
REFUSED = {
    # Unlocked keys of the user who grades.
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    # Other processes, and the processors of other answers.
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271)},
    **{"pidfd_getfd": (438, 438), "sched_setaffinity": (203, 122)},
    # Memory that no limit covers.
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194)},
    **{"msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180)},
    # Namespaces and mounts.
    **{"unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41)},
    **{"mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429)},
    **{"fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433)},
    **{"mount_setattr": (442, 442), "open_tree_attr": (467, 467)},
    # Calls that open up the system itself.
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106)},
}
SOCKETS = {"socket": (41, 198), "socketpair": (53, 199)}  # refused for all families but these
NOTEBOOK_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
CLONE, CLONE3 = (56, 220), (435, 435)

_libc = ctypes.CDLL(None, use_errno=True)


def become_unprivileged() -> None:
    """Drop root's rights for good, if this is root; other users keep theirs."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    _call("prctl", SET_DUMPABLE, 1)  # otherwise a new user namespace can't be set up after a change of user


def cover(paths: Sequence[Path]) -> None:
    """Make files and folders appear empty to this process and its forks. Raises OSError where that is impossible."""
    _enter("user")
    _enter("mount")
    for path in paths:
        if path.is_dir():
            _mount_empty(path, READ_ONLY)  # otherwise one answer could leave something there for the next one
        elif path.exists():
            _call("mount", b"/dev/null", bytes(path), None, BIND, None)


def leave_keyring() -> None:
    """Replace the session keyring, which has the keys of the user who grades, with an empty one."""
    if sys.platform == "linux" and platform.machine() in ARCHITECTURES:  # `missing_walls` reports other errors
        _system_call(REFUSED["keyctl"], JOIN_SESSION_KEYRING)


def refuse_system_calls(notebook: bool = False) -> None:
    """Refuse system calls that students' code does not need, for good, by a filter that needs no privileges.

    With `notebook`, it may start programs and talk to itself over its network, as Jupyter's kernels do. Raises OSError
    where filters are not available.
    """
    leave_keyring()
    lines = _filter(platform.machine(), notebook)
    _call("prctl", SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    _call("prctl", SET_SECCOMP, FILTER, struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)), 0, 0)


def fork_confined(run: Callable[[], None], strict: bool) -> int | None:
    """Call `run` in a confined process and return its id.

    With `strict`, nothing runs unless every wall can be built, and None is returned; otherwise missing walls are
    skipped.
    """
    if sys.platform == "linux":
        _call("prctl", SET_CHILD_SUBREAPER, 1)  # a fork of a fork becomes this process's own child
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
    """Kill a confined process and everything that it has started, and return how it ended, like `os.waitpid`."""
    if pid is None:
        return 0
    for stop in (os.kill, os.killpg):
        with suppress(ProcessLookupError, PermissionError):
            stop(pid, signal.SIGKILL)
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:  # except on Linux, a fork of a fork is not this process's child
        return 0


def times(pid: int | None) -> tuple[int, int]:
    """Return the nanoseconds that a process has run and has waited for a processor; 0 where they are not counted.

    Waiting for its own threads and processes does not count, because they share its core.
    """
    ran, waited = _run_and_waited(f"/proc/{pid}/task/{pid}")
    others = [str(thread) for thread in Path(f"/proc/{pid}/task").glob("*") if thread.name != str(pid)]
    others += [f"/proc/{child}" for child in _children(pid)]
    others_ran = sum(_run_and_waited(other)[0] for other in others)
    with suppress(OSError, IndexError, ValueError):
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]  # ticks of children that ended
        others_ran += sum(map(int, ended)) * 10**9 // os.sysconf("SC_CLK_TCK")
    return ran + others_ran, max(0, waited - others_ran)


def _run_and_waited(folder: str) -> tuple[int, int]:
    """Return how long a thread has run and waited, in nanoseconds; it may have ended by now."""
    with suppress(OSError, ValueError, IndexError):
        ran, waited = Path(folder, "schedstat").read_text().split()[:2]
        return int(ran), int(waited)
    return 0, 0


def _children(pid: int | str | None) -> list[str]:
    """Return all running processes that a process has started."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in file.read_text().split():
                found += [child, *_children(child)]
    return found


def missing_walls() -> list[str]:
    """Return the namespaces and limits that are not available, with the system's reason; each is built and tried."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        faults = _faults() or _gaps()
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
            os._exit(status)
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
    """Build each wall that is available; return those that are not."""
    if sys.platform != "linux":
        return [f"walls between processes ({sys.platform} does not have those of Linux)"]
    faults = []
    for name in NEW_NAMESPACES:
        try:
            _enter(name)
            if name == "mount":
                _use_own_folders()
        except OSError as error:
            faults.append(f"{name} namespace: {error.strerror}")
    try:
        refuse_system_calls()
    except OSError as error:
        faults.append(f"a filter of system calls: {error.strerror}")
    return faults


def _enter(namespace: str) -> None:
    """Enter a new namespace; in a new user namespace, the user stays the same."""
    user, group = os.getuid(), os.getgid()
    _call("unshare", NEW_NAMESPACES[namespace])
    if namespace == "user":
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _use_own_folders() -> None:
    """Mount empty folders where an answer could leave something behind or see other answers' files."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, the answer is killed first
    for folder in (tempfile.gettempdir(), "/dev/shm", "/proc"):
        _mount_empty(Path(folder))
    os.chdir(tempfile.gettempdir())


def _mount_empty(folder: Path, flags: int = 0) -> None:
    _call("mount", b"tmpfs", bytes(folder), b"tmpfs", NO_SETUID | NO_DEVICES | flags, f"size={FILES}".encode())


def _filter(machine: str, notebook: bool) -> list[tuple[int, int, int, int]]:
    """Return the filter for a machine type: operation, lines to skip if true and if false, value."""
    column = _column(machine)
    refused = (REFUSED if notebook else REFUSED | PROGRAMS).values()
    families = NOTEBOOK_FAMILIES if notebook else (socket.AF_UNIX,)
    refuse, allow = (RETURN, 0, 0, REFUSE | errno.EPERM), (RETURN, 0, 0, ALLOW)
    lines = [(LOAD, 0, 0, ARCHITECTURE), (IF_EQUAL, 1, 0, ARCHITECTURES[machine]), refuse]
    # Numbers above are the same calls for programs with 32-bit pointers.
    lines += [(LOAD, 0, 0, CALL), (IF_AT_LEAST, 0, 1, 0x40000000), refuse]
    for numbers in refused:
        lines += [(IF_EQUAL, 0, 1, numbers[column]), refuse]
    # A filter can't read the flags of clone3. Where clone3 does not exist, the C library uses clone.
    lines += [(IF_EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, REFUSE | errno.ENOSYS)]
    argument = (LOAD, 0, 0, FIRST_ARGUMENT)
    lines += [(IF_EQUAL, 0, 4, CLONE[column]), argument, (IF_ANY_BIT, 0, 1, NEW_NAMESPACE), refuse, allow]
    for numbers in SOCKETS.values():
        known = [(IF_EQUAL, len(families) - i, 0, family) for i, family in enumerate(families)]
        lines += [(IF_EQUAL, 0, len(known) + 3, numbers[column]), argument, *known, refuse, allow]
    return [*lines, allow]


def _column(machine: str) -> int:
    """Return the index of a machine type's system call numbers. Raises OSError for unknown machines."""
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"not known for {machine}")
    return list(ARCHITECTURES).index(machine)


def _system_call(numbers: tuple[int, int], *arguments: int) -> int:
    """Make a system call and return its error number, or 0."""
    number = numbers[_column(platform.machine())]
    result = _libc.syscall(*(ctypes.c_long(part) for part in (number, *arguments, *[0] * (6 - len(arguments)))))
    return ctypes.get_errno() if result == -1 else 0


def _gaps() -> list[str]:
    """Try the calls that the filter should refuse, with invalid arguments; return those that it lets through."""
    gaps = [name for name, numbers in (PROGRAMS | REFUSED).items() if _system_call(numbers, -1) != errno.EPERM]
    if _clones(NEW_NAMESPACES["user"]):
        gaps.append("clone")
    for family in ("AF_INET", "AF_NETLINK", "AF_VSOCK"):
        with suppress(OSError):
            socket.socket(getattr(socket, family)).close()
            gaps.append(family)
    return [f"a filter of system calls: it lets {name} through" for name in gaps]


def _clones(flags: int) -> bool:
    """Return whether a process can be forked with these flags."""
    caller = os.getpid()
    error = _system_call(CLONE, flags | signal.SIGCHLD)
    if os.getpid() != caller:
        os._exit(0)
    return error == 0


def _limit() -> None:
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_NPROC, PROCESSES),
        (resource.RLIMIT_FSIZE, FILES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # missing_walls has reported those that the system lacks
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
