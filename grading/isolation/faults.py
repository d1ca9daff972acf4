"""Faults of the machine, told from faults of a submission: nobody loses a point by a full disk."""

import errno
from pathlib import Path

# What no submission can bring about, whatever is in it.
MACHINES = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS),
        *(errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN),
        *(errno.EPIPE, errno.ECONNRESET, errno.ESHUTDOWN),
    }
)
REMEDIES = {
    errno.ENOSPC: "Make room in the course folder and in the temporary folder, which TMPDIR names.",
    errno.EDQUOT: "Make room in the course folder and in the temporary folder, which TMPDIR names.",
    errno.ENOMEM: "End other programs, or grade with fewer workers: --workers 1.",
    errno.EAGAIN: "End other programs, or grade with fewer workers: --workers 1.",
    errno.EMFILE: "Allow more open files, as with `ulimit -n 4096`, or grade with fewer workers: --workers 1.",
}
NEEDED = "the machine must have what grading needs"
ANY_REMEDY = "See what the machine lacks: disk, memory, or somebody who ends its processes."


class ServerLost(RuntimeError):
    """The answer server can't start or is gone: a fault of the machine, never of the student's code."""


class MachineFault(Exception):
    """This machine can't grade any more; the text says why, and what to do."""


def is_machines(error: BaseException, submission: Path | None = None) -> bool:
    """Tell whether an error is the machine's.

    Where a `submission` has been looked at before, so that its files are known to be readable, all errors of the system
    are the machine's, apart from those at its own files: these may have been replaced.
    """
    if isinstance(error, MemoryError | ServerLost):
        return True
    if not isinstance(error, OSError) or error.errno == errno.ENAMETOOLONG:
        return False
    elsewhere = submission is not None and submission not in Path(str(error.filename)).parents
    return error.errno in MACHINES or elsewhere


def machine_fault(error: BaseException, student: str) -> MachineFault:
    """Return the error that stops a run, from what happened at one student's submission, which is not to blame."""
    cause = error.__cause__ if isinstance(error, ServerLost) and error.__cause__ else error
    number = errno.ENOMEM if isinstance(cause, MemoryError) else getattr(cause, "errno", None)
    reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".:")[:500]
    return MachineFault(f"{NEEDED}, got {reason}, at the submission of {student}. {REMEDIES.get(number, ANY_REMEDY)}")
