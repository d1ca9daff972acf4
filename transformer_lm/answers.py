"""Marks what the package holds of the answer to an exercise, where it stands, so that students get it in time.

The marks change nothing. Whoever writes the students' package reads them; see `grading/isolation/student_edition.py`.
"""

from collections.abc import Callable
from typing import TypeVar

Marked = TypeVar("Marked")


def hidden_while_open(*exercises: str) -> Callable[[Marked], Marked]:
    """Mark what answers these exercises: students get it without its body until the last of their topics is over."""
    return _unchanged


def sealed_while_open(*exercises: str) -> Callable[[Marked], Marked]:
    """Mark what answers these exercises and is needed to train models while they are open.

    It is hidden before their topic. While that is open, students can run it but cannot read it; where answers are
    judged, it is left out.
    """
    return _unchanged


def _unchanged(marked: Marked) -> Marked:
    return marked
