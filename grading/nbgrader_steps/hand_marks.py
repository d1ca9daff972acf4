"""Records which answer a manual mark was given for: a mark is kept, and flagged for review if the answer has changed.

nbgrader keeps the mark and forgets the answer. So for each graded notebook, a small file records a fingerprint of each
answer, the manual marks for it so far, and whether it needed manual grading.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.api import Grade

from grading.nbgrader_steps.submission import is_check, marks
from transformer_lm.files import write_whole


@dataclass(frozen=True)
class Seen:
    """The state of a graded cell when its submission was graded."""

    answer: str
    judged: float | None
    by_hand: list[float | None]
    waited: bool


def read_seen(path: Path) -> dict[str, Seen]:
    """Return the recorded state of each graded cell; empty if there is no file."""
    try:
        return {name: Seen(**known) for name, known in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError):
        return {}


def write_seen(path: Path, seen: dict[str, Seen]) -> None:
    """Write the state of each graded cell."""
    write_whole(path, json.dumps({name: asdict(known) for name, known in seen.items()}))


def given(grade: Grade) -> list[float | None]:
    """Return the manual score and the extra credit of a cell."""
    return [grade.manual_score, grade.extra_credit]


def fingerprint(notebook: NotebookNode, cell: NotebookNode) -> str:
    """Return a fingerprint of a written answer, with attached pictures, or of all student code before a check."""
    before = notebook.cells[: notebook.cells.index(cell)]
    if marks(cell).get("solution"):
        cells = [*reversed([*takewhile(lambda each: not marks(each).get("locked"), reversed(before))]), cell]
    elif is_check(cell):
        cells = [each for each in before if each.cell_type == "code" and not marks(each).get("locked")]
    else:  # a task, whose answer may be in any cell
        cells = [each for each in notebook.cells if not marks(each).get("locked")]
    texts = [[each.source.strip(), each.get("attachments", {})] for each in cells]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def still_holds(grade: Grade, judged: float | None, answer: str, seen: Seen | None) -> bool:
    """Return whether an earlier manual mark was given for this very answer, with the same verdict of the judge.

    The recorded answer has been graded manually if it did not need that at the time, no longer needs it, or has got
    another mark since. nbgrader's flag alone is not enough, because it is set whenever a student submits again.
    """
    if seen is None or (seen.answer, seen.judged) != (answer, judged):
        return False
    return not seen.waited or not grade.needs_manual_grade or seen.by_hand != given(grade)
