"""Writing files so that they are never left half written."""

import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = "unfinished-"  # prefix of a folder that a process leaves behind if it is killed


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a path to write to, in a temporary folder; if no error is raised, the file then replaces `path`.

    At any time `path` is the old file or the new one, whole, even if the process is killed, the machine loses
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
    """Write bytes, or a text in UTF-8 with unchanged line endings, to a file, which is never left half written."""
    with replacing(path) as written:
        written.write_bytes(content.encode() if isinstance(content, str) else content)


def flush(path: Path) -> None:
    """Wait until a file or folder is on disk, because a name must not be stored before its content."""
    if os.name == "nt":
        return  # Windows cannot open folders, or flush files that are open for reading
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_member(archive: tarfile.TarFile, member: str | tarfile.TarInfo) -> bytes:
    """Return what is in a file of an archive."""
    file = archive.extractfile(member)
    assert file is not None
    return file.read()
