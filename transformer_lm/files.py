"""Files that are never half written."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = "unfinished-"  # how a folder begins that a process leaves behind if it is killed


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield where to write a file, in a folder of its own; if nothing is raised, it then takes the place of `path`.

    At any time `path` is the old file or the new one, whole, even if the process is killed, the machine loses its
    power, or several processes write it at once.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=path.parent) as folder:
        written = Path(folder) / path.name
        yield written
        flush(written)
        os.replace(written, path)
    flush(path.parent)


def write_whole(path: str | os.PathLike, content: str | bytes) -> None:
    """Write a text, in UTF-8 and with its line ends as they are, or bytes to a file, which is never half written."""
    with replacing(path) as written:
        written.write_bytes(content.encode() if isinstance(content, str) else content)


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk: a name must not get there before what it names."""
    if os.name == "nt":
        return  # Windows opens no folders, and flushes no file that is open for reading
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
