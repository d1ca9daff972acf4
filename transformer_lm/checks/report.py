"""What a check says: one line when an answer is right, four lines when it is wrong."""

import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from transformer_lm.checks.ready_made import READY_MADE

# Folders whose lines a student did not write: this package, torch, Python's own modules and what is installed.
NOT_THEIRS = {
    Path(__file__).resolve().parents[1],
    Path(torch.__file__).resolve().parent,
    *(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
}
NOT_REACHED = "No line of yours was reached: compare the names and arguments of your `def` with the given ones."
NONE = "Something is None there: an argument that may be left out, such as `visible=None`, needs a case of its own."
NOT_USABLE = "No line of yours raised it, but what your code gives cannot be used: look at its type, shape and dtype."


class CheckFailed(AssertionError):
    """An answer is wrong: what was tried, what came out, what should have, and the likely mistake."""

    def __init__(self, tried: str, yours: str, expected: str, hint: str) -> None:
        self.tried, self.yours, self.expected, self.hint = tried, yours, expected, hint
        super().__init__(f"tried:    {tried}\nyours:    {yours}\nexpected: {expected}\nhint:     {hint}")

    def _render_traceback_(self) -> list[str]:
        """Tell IPython to show the four lines and leave out the traceback through the check's own code."""
        return str(self).splitlines()


def passed(exercise: str, what: str) -> None:
    """Print the one line of an answer that is right."""
    print(f"✓ {exercise}: {what}")


def kind(value: object) -> str:
    """Return in words what a value is: None, how many values, its shape, or its type."""
    if value is None:
        return "None: a function without `return` gives None"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} values"
    if isinstance(value, Tensor):
        return f"one tensor of shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"


@contextmanager
def described_errors(tried: str, expected: str) -> Iterator[None]:
    """Turn whatever an answer raises into CheckFailed, with the line of the answer that raised it."""
    try:
        yield
    except CheckFailed:
        raise
    except Exception as error:
        yours, hint = described(error)
        raise CheckFailed(tried, yours, expected, hint) from error


def described(error: Exception) -> tuple[str, str]:
    """Return what was raised and where, and a hint."""
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not NOT_THEIRS & set(Path(frame.filename).resolve().parents)
    ]
    message = _first_line(error)
    if isinstance(error, NotImplementedError) and theirs and not message:
        return f"raises NotImplementedError in {theirs[-1].name}", "Replace that line by your code."
    lines = [frame.line for frame in theirs if frame.line]  # code that was made from a text has none
    where = f" in `{lines[-1]}`" if lines else ""
    if message == READY_MADE:
        return f"calls torch's ready-made attention{where}", READY_MADE
    yours = f"raises {type(error).__name__}{where}: {message}".rstrip(": ")
    if hasattr(error, "hint"):  # one of ours, which knows the mistake
        return yours, error.hint
    if "inplace operation" in message:
        return (
            yours,
            "A tensor that the gradient needs was changed in place: make a new one instead of `+=` and the like.",
        )
    if "view size is not compatible" in message:
        hint = "The sizes fit, the order in memory does not: after `transpose`, `view` cannot cut and `reshape` can."
        return yours, hint
    if not theirs:
        is_about_def = isinstance(error, TypeError) and re.search("argument|callable", message)
        return yours, NOT_REACHED if is_about_def or '"forward" function' in message else NOT_USABLE
    if isinstance(error, TypeError | AttributeError) and "NoneType" in message:
        return yours, NONE
    if isinstance(error, RuntimeError | IndexError) and re.search("size|shape|dimension", message):
        return yours, "Two shapes do not fit together there. Print the shape of each tensor just before that line."
    return yours, "Read the error together with the line it names; print what stands in that line."


def _first_line(error: Exception) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an error whose own text cannot be had
        return ""
    return lines[0] if lines else ""
