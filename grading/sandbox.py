"""The first wall around students' code: bubblewrap, with few files, no network and no view of other processes."""

import functools
import multiprocessing
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

from grading.inside.confine import FILES, UNPRIVILEGED

SCRATCH = "/scratch"  # the one folder inside that can be written
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/sys/devices/system/cpu")
INSTALL = "Install bubblewrap (Debian: sudo apt-get install bubblewrap; it needs Linux with user namespaces)."
ROOT = os.getuid() == 0
# Where the package would lie, with all its answers, if it was installed as a copy: covered inside.
INSTALLED = Path(sysconfig.get_path("purelib")) / "transformer_lm"


class IsolationIncomplete(Exception):
    """This machine can't keep students' code apart as it should."""

    def __init__(self, missing: list[str]) -> None:
        self.missing = missing
        super().__init__(f"isolation must be complete, but here is none for: {'; '.join(missing)}. {INSTALL}")

    def __reduce__(self) -> tuple:
        return type(self), (self.missing,)  # as it comes from a worker


def command(
    program: list[str], readable: Mapping[Path, Path], writable: Iterable[Path] = (), own_user: bool = False
) -> list[str]:
    """Return the command line that runs a program inside the sandbox.

    Inside are the system's programs, Python with its packages, what `readable` maps from outside to inside, and
    the folders of `writable`. Root's programs stay root inside, with the right to become another user and no other,
    unless `own_user` is set: then they start as an unprivileged user.
    """
    python = {Path(prefix): Path(prefix) for prefix in (sys.base_prefix, sys.prefix)}
    binds = {Path(path): Path(path) for path in SYSTEM if Path(path).exists()} | python | dict(readable)
    parents = {parent for inside in (*binds.values(), *writable) for parent in inside.parents}
    return [
        *("bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *(("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if ROOT else ("--unshare-user",)),
        *("--die-with-parent", "--new-session", "--clearenv"),
        *(part for name, value in environment(Path(SCRATCH)).items() for part in ("--setenv", name, value)),
        *(part for parent in sorted(parents) for part in ("--dir", str(parent))),  # passable for every user
        *(part for outside, inside in binds.items() for part in ("--ro-bind", str(outside), str(inside))),
        *(("--tmpfs", str(INSTALLED)) if INSTALLED.is_dir() else ()),
        *("--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", str(FILES), "--tmpfs", SCRATCH),
        *(part for folder in writable for part in ("--bind", str(folder), str(folder))),
        *("--remount-ro", "/", "--chdir", SCRATCH, "--"),
        *(_as_unprivileged() if own_user else ()),
        *program,
    ]


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment of students' code, with the one folder that can be written."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "USER": "student",
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # grades must not depend on the machine
    }


def own_cores() -> list[int]:
    """Return the core for students' code that this process starts: workers side by side take different ones.

    Empty where a process can't be kept on a core.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    allowed = sorted(os.sched_getaffinity(0))
    identity = multiprocessing.current_process()._identity or (os.getpid(),)  # workers are counted from 1
    return [allowed[identity[-1] % len(allowed)]]


def _as_unprivileged() -> list[str]:
    """Return the command that starts a program as a user who owns nothing, when this is root."""
    if not ROOT:
        return []
    return ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups", "--inh-caps=-all"]


@functools.cache
def missing_walls() -> tuple[str, ...]:
    """Return which protections this machine can't give, in words; none if isolation is complete."""
    if shutil.which("bwrap") is None:
        return ("a user, files, network and processes of their own (bubblewrap is not installed)",)
    confine = Path(__file__).parent / "inside" / "confine.py"
    script = "import sys; sys.path.insert(0, '/inside'); import confine; confine.become_unprivileged(); "
    script += "print(*confine.missing_walls(), sep='\\n')"
    tried = subprocess.run(
        command([sys.executable, "-I", "-c", script], {confine.parent: Path("/inside")}),
        capture_output=True,
        text=True,
    )
    if tried.returncode != 0:
        reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        return (f"a user, files, network and processes of their own (bubblewrap: {reason})",)
    return tuple(line for line in tried.stdout.splitlines() if line)
