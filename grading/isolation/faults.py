"""Distinguishes faults of the machine from those of a submission: a full disk must not cost a student points."""

import errno
from pathlib import Path

# Errors that no submission can cause.
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
ANY_REMEDY = "Check the disk, the memory, and whether something kills processes of this machine."


class ServerLost(RuntimeError):
    """The answer server can't start or has ended, which is a fault of the machine, never of the student's code."""


class MachineFault(Exception):
    """This machine can't go on grading; the text says why, and what to do."""


def is_machines(error: BaseException, submission: Path | None = None) -> bool:
    """Return whether an error is a fault of the machine.

    If a `submission` has been inspected before, so that its files are known to be readable, all system errors are
    faults of the machine, except errors on the submission's own files, which may have been replaced.
    """
    if isinstance(error, MemoryError | ServerLost):
        return True
    if not isinstance(error, OSError) or error.errno == errno.ENAMETOOLONG:
        return False
    elsewhere = submission is not None and submission not in Path(str(error.filename)).parents
    return error.errno in MACHINES or elsewhere


def machine_fault(error: BaseException, student: str) -> MachineFault:
    """Return the error that stops a run, made from an error at one student's submission that is not its fault."""
    cause = error.__cause__ if isinstance(error, ServerLost) and error.__cause__ else error
    number = errno.ENOMEM if isinstance(cause, MemoryError) else getattr(cause, "errno", None)
    remedy = ANY_REMEDY if number is None else REMEDIES.get(number, ANY_REMEDY)
    reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".:")[:500]
    return MachineFault(f"{NEEDED}, got {reason}, at the submission of {student}. {remedy}")
