"""Markers for code that answers an exercise, so that students get it only once the exercise is over.

The markers change nothing themselves. `grading/isolation/student_edition.py`, which writes the students' package, reads
them.
"""

from collections.abc import Callable
from typing import TypeVar

Marked = TypeVar("Marked")


def hidden_while_open(*exercises: str) -> Callable[[Marked], Marked]:
    """Mark code that answers these exercises: students get it without its body until their last topic is over."""
    return _unchanged


def sealed_while_open(*exercises: str) -> Callable[[Marked], Marked]:
    """Mark code that answers these exercises and is needed to train models while they are open.

    It is hidden before their topic. While that is open, students can run it but cannot read it; where answers are
    graded, it is left out.
    """
    return _unchanged


def _unchanged(marked: Marked) -> Marked:
    return marked
