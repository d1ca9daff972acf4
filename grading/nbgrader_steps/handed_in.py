"""Inspects the files that a student has submitted, before any of them is opened.

None of them is trusted. Names need not be valid text, an entry may be a link, a pipe or a folder, and files come and
go. Only regular files that are not too large are read, here or later.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nbgrader.utils import parse_utc

from grading.isolation.faults import is_machines

MOST_FILES = 1000  # folders count too
MOST_BYTES = 200_000_000  # of all files, including holes
LONGEST_TIME = 200  # bytes of timestamp.txt
NAMED = 5  # files named in a sentence

Entry = tuple[str, os.stat_result]  # a path and its status


@dataclass(frozen=True)
class HandedIn:
    """The content of a submission's folder: a fingerprint, the file names, and the reason if it can't be graded."""

    digest: str
    names: tuple[str, ...] = ()
    problem: str = ""


def handed_in(folder: Path) -> HandedIn | None:
    """Return the content of a submission's folder, or None if there is no such folder."""
    digest = hashlib.sha256()
    try:
        entries = list(islice(_entries(folder), MOST_FILES + 1))
        problem = _problem(entries)
        for path, known in entries:
            digest.update(
                os.fsencode(os.path.relpath(path, folder.parent))
                + f" {stat.S_IFMT(known.st_mode)} {known.st_size} ".encode()
            )
            if problem:  # then no file is opened
                digest.update(f"{known.st_mtime_ns} {known.st_mode}".encode())
            elif stat.S_ISREG(known.st_mode):
                digest.update(_contents(Path(path)))
        problem = problem or _odd_time(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if is_machines(error):
            raise
        digest.update(str(error).encode("utf-8", "surrogateescape"))
        where = os.path.basename(error.filename or folder)
        return HandedIn(digest.hexdigest(), problem=f"{where} can't be read: {error.strerror}.")
    names = tuple(os.path.relpath(path, folder) for path, known in entries if stat.S_ISREG(known.st_mode))
    return HandedIn(digest.hexdigest(), names, problem)


def _entries(folder: Path) -> Iterator[Entry]:
    """Yield the folder, its parent, and everything in it. Raises OSError if something can't be inspected."""
    yield from ((str(path), path.lstat()) for path in (folder.parent, folder))
    for path, folders, files in os.walk(folder, onerror=_raise):
        for name in sorted([*folders, *files]):
            inner = os.path.join(path, name)
            yield inner, os.lstat(inner)


def _raise(error: OSError) -> None:
    raise error


def _problem(entries: list[Entry]) -> str:
    """Return a sentence on why these can't be graded; empty if they can."""
    links = [path for path, known in entries if stat.S_ISLNK(known.st_mode)]
    if links:
        return f"It contains links, which lead out of it: {listed(links)}."
    plain = (stat.S_IFREG, stat.S_IFDIR)
    odd = [path for path, known in entries if stat.S_IFMT(known.st_mode) not in plain]
    if odd:
        return f"It contains something that is neither a file nor a folder: {listed(odd)}."
    if len(entries) > MOST_FILES:
        return f"It contains more than {MOST_FILES:,} files and folders."
    size = sum(known.st_size for _, known in entries if stat.S_ISREG(known.st_mode))
    if size > MOST_BYTES:
        return f"Its files take {size / 1e6:,.0f} MB: at most {MOST_BYTES // 10**6} MB are graded."
    return ""


def listed(paths: Sequence[str]) -> str:
    """Return the names of some files in one line, and the number of the others."""
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return ", ".join(os.path.basename(path) for path in paths[:NAMED]) + more


def _contents(path: Path) -> bytes:
    """Return a fingerprint of a file, which is not opened if it has since become a link or a pipe."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _odd_time(folder: Path) -> str:
    """Return a sentence if nbgrader can't parse the time of a submission."""
    path = folder / "timestamp.txt"
    try:
        if path.is_file() and path.stat().st_size <= LONGEST_TIME:
            time = path.read_text().strip()
            parse_utc(time) if time else None
        elif os.path.lexists(path):
            raise ValueError
    except (ValueError, OverflowError, TypeError, AttributeError):  # dateutil may raise anything
        return "timestamp.txt must hold a time, such as 2030-01-31 12:00:00 UTC. Correct it, and run again."
    return ""
