"""The messages of a check: one line when an answer is right, four lines when it is wrong."""

import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import Hint, hint
from transformer_lm.checks.engine.ready_made import READY_MADE
from transformer_lm.checks.engine.verdict import Failure

# Folders with code that the student did not write: this package, torch, Python's own modules and what is installed.
PACKAGE = Path(__file__).resolve().parents[2]
NOT_THEIRS = {
    PACKAGE,
    Path(torch.__file__).resolve().parent,
    *(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
}
CHECKING = "TRANSFORMER_LM_CHECKING"  # set while a whole notebook is checked: its kernel then displays failures as data
FAILURE = "application/vnd.transformer-lm.failure+json"  # the type of that data
NONE = hint("something-is-none")


class CheckFailed(AssertionError):
    """An answer is wrong: what was tried, what came out, what should have, and the likely mistake.

    A hint from the catalogue carries the id of the mistake.
    """

    def __init__(
        self, tried: str, yours: str, expected: str, hint: str, error: str = "", earned: float | None = None
    ) -> None:
        self.hint = hint
        self.failure = Failure(tried, yours, expected, str(hint), getattr(hint, "id", None), error, earned)
        super().__init__(str(self.failure))

    @property
    def tried(self) -> str:
        """What was tried."""
        return self.failure.tried

    @property
    def yours(self) -> str:
        """What came out."""
        return self.failure.yours

    @property
    def expected(self) -> str:
        """What should have come out."""
        return self.failure.expected

    @property
    def mistake(self) -> str | None:
        """The id of the mistake in the catalogue of hints, if it is a known one."""
        return self.failure.mistake

    def with_hint(self, hint: str) -> "CheckFailed":
        """Return the same failure with another hint, for a caller that knows more about the mistake."""
        return CheckFailed(self.tried, self.yours, self.expected, hint, self.failure.error, self.failure.earned)

    @classmethod
    def of(cls, failure: Failure) -> "CheckFailed":
        """Return the error for a failure that another process has found."""
        known = failure.hint if failure.mistake is None else Hint(failure.hint, failure.mistake)
        return cls(failure.tried, failure.yours, failure.expected, known, failure.error, failure.earned)

    def _render_traceback_(self) -> list[str]:
        """Tell IPython to show the four lines and leave out the traceback through the check's own code."""
        if os.environ.get(CHECKING):
            from IPython.display import display

            display({FAILURE: self.failure.as_table()}, raw=True)
        return str(self).splitlines()


def passed(exercise: str, what: str) -> None:
    """Print the one line for a right answer."""
    print(f"✓ {exercise}: {what}")


def kind(value: object) -> str:
    """Describe a value in words: None, the number of values, its shape, or its type."""
    if value is None:
        return "None: a function without `return` gives None"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} values"
    if isinstance(value, Tensor):
        return f"one tensor of shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"


@contextmanager
def described_errors(tried: str, expected: str) -> Iterator[None]:
    """Turn any error that an answer raises into CheckFailed, with the line of the answer that raised it."""
    try:
        yield
    except CheckFailed:
        raise
    except Exception as error:
        yours, known = described(error)
        raise CheckFailed(tried, yours, expected, known, _first_line(error) or type(error).__name__) from error


def described(error: BaseException) -> tuple[str, Hint]:
    """Return a description of the error and its place, and a hint."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not NOT_THEIRS & set(Path(frame.filename).resolve().parents)]
    message = _first_line(error)
    if isinstance(error, NotImplementedError) and theirs and not message:
        return f"raises NotImplementedError in {theirs[-1].name}", hint("no-code")
    lines = [frame.line for frame in theirs if frame.line]  # code compiled from a string has none
    where = f" in `{lines[-1]}`" if lines else ""
    if message == READY_MADE:
        return f"calls torch's ready-made attention{where}", READY_MADE
    yours = f"raises {type(error).__name__}{where}: {message}".rstrip(": ")
    if hasattr(error, "hint"):  # one of our errors, which knows the mistake
        return yours, error.hint
    if isinstance(error, NotImplementedError) and frames and PACKAGE in Path(frames[-1].filename).resolve().parents:
        return yours, hint("not-yours")  # in the students' package, this error replaces the answer
    # The rest goes by the messages of torch and Python, because nothing else tells these errors apart.
    if "inplace operation" in message:
        return yours, hint("changed-in-place")
    if "view size is not compatible" in message:
        return yours, hint("view-not-contiguous")
    if not theirs:
        is_about_def = isinstance(error, TypeError) and re.search("argument|callable", message)
        return yours, hint("not-reached" if is_about_def or '"forward" function' in message else "not-usable")
    if isinstance(error, TypeError | AttributeError) and "NoneType" in message:
        return yours, NONE
    if isinstance(error, RuntimeError | IndexError) and re.search("size|shape|dimension", message):
        return yours, hint("shapes-do-not-fit")
    return yours, hint("raises")


def _first_line(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an error whose text cannot be read
        return ""
    return lines[0] if lines else ""
