"""The first wall around students' code: bubblewrap, with few files, no network and no other processes."""

import functools
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from grading.isolation.inside.confine import FILES, UNPRIVILEGED

SCRATCH = "/scratch"  # the only writable folder inside
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/sys/devices/system/cpu")
INSTALL = "Install bubblewrap (Debian: sudo apt-get install bubblewrap; it needs Linux with user namespaces)."
ROOT = os.getuid() == 0
# Where the package, with all its answers, would be if it was installed as a copy.
INSTALLED = Path(sysconfig.get_path("purelib")) / "transformer_lm"
# Packages that students' code may import, with their dependencies, if installed. Everything else is hidden, because
# some packages contain ready-made attention.
PACKAGES = (
    *("torch", "numpy", "safetensors", "matplotlib", "tqdm", "tokenizers", "sacrebleu", "pycodestyle"),
    *("ipykernel", "ipywidgets", "nbclient", "einops", "jaxtyping", "pandas", "pytest", "regex", "scikit-learn"),
    *("scipy", "seaborn", "sympy", "torchinfo"),
)


class IsolationIncomplete(Exception):
    """This machine can't isolate students' code as it should."""

    def __init__(self, missing: list[str]) -> None:
        self.missing = missing
        super().__init__(f"isolation must be complete, but this machine lacks {'; '.join(missing)}. {INSTALL}")

    def __reduce__(self) -> tuple:
        return type(self), (self.missing,)  # what a worker process sends


def command(
    program: list[str],
    readable: Mapping[Path, Path],
    writable: Iterable[Path] = (),
    own_user: bool = False,
    all_packages: bool = False,
) -> list[str]:
    """Return the command line that runs a program inside the sandbox.

    Inside are the system's programs, Python with the packages that students may use (or `all_packages`), the files that
    `readable` maps from outside to inside, and the folders in `writable`. Programs started by root stay root inside,
    with only the right to become another user. If `own_user` is set, they start as an unprivileged user.
    """
    python = (Path(sys.base_prefix), Path(sys.prefix))
    system = [Path(path) for path in SYSTEM if Path(path).exists()]
    binds = {path: path for path in (*system, *python)} | dict(readable)
    size = ("--size", str(FILES))
    hidden = {INSTALLED: set()} if all_packages else _hidden_packages()
    parents = {parent for inside in (*binds.values(), *writable) for parent in inside.parents}
    return [
        *("bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *(("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if ROOT else ("--unshare-user",)),
        *("--die-with-parent", "--new-session", "--clearenv"),
        *(part for name, value in environment(Path(SCRATCH)).items() for part in ("--setenv", name, value)),
        *(part for parent in sorted(parents) for part in ("--dir", str(parent))),  # every user may enter it
        *(part for outside, inside in binds.items() for part in ("--ro-bind", str(outside), str(inside))),
        *(part for folder, shown in hidden.items() if folder.is_dir() for part in _covered(folder, shown)),
        *("--proc", "/proc", "--dev", "/dev"),
        *(part for folder in (SCRATCH, "/dev/shm") for part in ("--perms", "1777", *size, "--tmpfs", folder)),
        *("--remount-ro", "/dev"),  # otherwise a user other than root could leave something there
        *(part for folder in writable for part in ("--bind", str(folder), str(folder))),
        *("--remount-ro", "/", "--chdir", SCRATCH, "--"),
        *(_as_unprivileged() if own_user else ()),
        *program,
    ]


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment variables of students' code, with the only writable folder."""
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


def _covered(folder: Path, shown: Iterable[Path]) -> list[str]:
    """Return the arguments that hide a folder, except for the parts shown; nothing can be written to it."""
    binds = [part for path in sorted(shown) for part in ("--ro-bind", str(path), str(path))]
    return ["--tmpfs", str(folder), *binds, "--remount-ro", str(folder)]


@functools.cache
def _hidden_packages() -> dict[Path, set[Path]]:
    """Return the package folders to hide, each with the parts that stay visible; nothing of other environments does."""
    base, own = Path(sys.base_prefix), Path(sys.prefix)
    shown = {base / name: {own} if base / name in own.parents else set() for name in ("envs", "pkgs")}
    found: dict[Path, Path] = {}
    for root in (own, base, Path("/usr"), Path("/usr/local")):
        for name in ("site-packages", "dist-packages"):
            for folder in sorted(root.glob(f"lib*/python3*/{name}")):
                found.setdefault(folder.resolve(), folder)  # lib64 may be a link to lib
    shown |= {folder: set() for folder in found.values()}
    for path in _importable():
        if installed := found.get(path.parent.resolve()):
            shown[installed].add(installed / path.name)
    return shown


def _importable() -> set[Path]:
    """Return the files and folders of the packages that students may use and of their dependencies."""
    paths, known, waiting = set(), set(), list(PACKAGES)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in known:
            continue
        known.add(name)
        with suppress(PackageNotFoundError):
            package = distribution(name)
            required = [line for line in package.requires or () if "extra ==" not in line]
            waiting += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required]
            folder = Path(str(package.locate_file("")))
            tops = {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}
            tops = tops or set((package.read_text("top_level.txt") or name).split())  # as Debian installs them
            paths |= {folder / top for top in tops if (folder / top).exists()}
    return paths


def own_cores() -> list[int]:
    """Return the core for students' code that this process starts; parallel workers use different cores.

    Empty where a process can't be bound to a core.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    allowed = sorted(os.sched_getaffinity(0))
    identity = multiprocessing.current_process()._identity or (os.getpid(),)  # workers are counted from 1
    return [allowed[identity[-1] % len(allowed)]]


def _as_unprivileged() -> list[str]:
    """Return the command that starts a program as a user who owns nothing, if this is root."""
    if not ROOT:
        return []
    return ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups", "--inh-caps=-all"]


@functools.cache
def missing_walls() -> tuple[str, ...]:
    """Return the protections that this machine lacks, in words; empty if isolation is complete."""
    if shutil.which("bwrap") is None:
        return ("a separate user, files, network and processes (bubblewrap is not installed)",)
    confine = Path(__file__).parent / "inside" / "confine.py"
    script = "import sys; sys.path.insert(0, '/inside'); import confine; confine.become_unprivileged(); "
    script += "print(*confine.missing_walls(), sep='\\n')"
    tried = subprocess.run(
        command([sys.executable, "-I", "-c", script], {confine.parent: Path("/inside")}), capture_output=True, text=True
    )
    if tried.returncode != 0:
        reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        return (f"a separate user, files, network and processes (bubblewrap: {reason})",)
    return tuple(line for line in tried.stdout.splitlines() if line)
