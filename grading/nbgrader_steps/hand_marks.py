"""Which answer a person's mark was given for: a mark stays, and is looked at again if the answer is another one.

nbgrader keeps the mark and forgets the answer. So for each graded notebook a small file notes a fingerprint of each
answer, what a person had given for it so far, and whether it waited for one.
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
    """What was known about a graded cell when its submission was graded."""

    answer: str
    judged: float | None
    by_hand: list[float | None]
    waited: bool


def read_seen(path: Path) -> dict[str, Seen]:
    """Return what a file says about each graded cell; nothing if there is no such file."""
    try:
        return {name: Seen(**known) for name, known in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError):
        return {}


def write_seen(path: Path, seen: dict[str, Seen]) -> None:
    """Write what is known about each graded cell."""
    write_whole(path, json.dumps({name: asdict(known) for name, known in seen.items()}))


def given(grade: Grade) -> list[float | None]:
    """Return what a person has given for a cell: a mark, and extra credit."""
    return [grade.manual_score, grade.extra_credit]


def fingerprint(notebook: NotebookNode, cell: NotebookNode) -> str:
    """Return what tells answers apart: for a written one, all cells since the question, with attached pictures; for a
    check, all of the student's code before it.
    """
    before = notebook.cells[: notebook.cells.index(cell)]
    if marks(cell).get("solution"):
        cells = [*reversed([*takewhile(lambda each: not marks(each).get("locked"), reversed(before))]), cell]
    elif is_check(cell):
        cells = [each for each in before if each.cell_type == "code" and not marks(each).get("locked")]
    else:  # a task, whose answer may stand anywhere
        cells = [each for each in notebook.cells if not marks(each).get("locked")]
    texts = [[each.source.strip(), each.get("attachments", {})] for each in cells]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def still_holds(grade: Grade, judged: float | None, answer: str, seen: Seen | None) -> bool:
    """Tell whether what a person gave before is for this very answer, judged as it is now.

    A person has looked at the answer that was seen if it did not wait then, does not wait any more, or has got another
    mark since. nbgrader's flag alone does not tell: it is set whenever something is handed in again.
    """
    if seen is None or (seen.answer, seen.judged) != (answer, judged):
        return False
    return not seen.waited or not grade.needs_manual_grade or seen.by_hand != given(grade)
