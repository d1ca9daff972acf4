"""Temporary folders that do not outlive their process: leftovers of killed processes are removed by the next one."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# A file that the owning process keeps locked. The system unlocks it when that process ends, however it ends.
LOCK = ".grading-in-use"


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder and remove it at the end, together with any such folders that were left behind."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / "starting").open("w") as lock:
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
                (folder / "starting").rename(folder / LOCK)  # not before it is locked, or another would remove it
            yield folder


def _remove_abandoned() -> None:
    """Remove this user's folders that no process holds any more."""
    for path in Path(tempfile.gettempdir()).glob(f"*/{LOCK}"):
        folder = path.parent
        with suppress(OSError):  # another process may remove it at the same time, or hold its lock
            if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                with path.open("r+") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
