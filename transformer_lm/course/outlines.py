"""The cells of each released assignment, kept with the package because students change the notebook itself.

An outline is written from `release/` by `make release`. It has no solutions, because its sources are those of the
release.
"""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from transformer_lm.checks.engine.source import used_names

FOLDER = Path(__file__).parent / "released"


@dataclass(frozen=True)
class OutlineCell:
    """A cell of the release: `kind` is text, setup, answer, check, written (graded manually) or free.

    A free cell has no name: a student may change or delete it. Text cells have no source here.
    """

    name: str
    kind: str
    points: float
    source: str


@dataclass(frozen=True)
class Outline:
    """An assignment as it was released, cell by cell."""

    assignment: str
    cells: tuple[OutlineCell, ...]

    def of_kind(self, *kinds: str) -> list[OutlineCell]:
        """Return the cells of some kinds, in order."""
        return [cell for cell in self.cells if cell.kind in kinds]

    def checks_of(self, answer: str) -> list[OutlineCell]:
        """Return the checks between an answer and the next one."""
        place = next(number for number, cell in enumerate(self.cells) if cell.name == answer)
        found = []
        for cell in self.cells[place + 1 :]:
            if cell.kind == "answer":
                break
            found += [cell] if cell.kind == "check" else []
        return found

    def names_of(self, answer: str) -> frozenset[str]:
        """Return the names that an answer must define: those that its checks are given."""
        return frozenset().union(*(used_names(check.source) for check in self.checks_of(answer))) - {"checks"}


def assignments() -> list[str]:
    """Return the assignments that this copy of the course has, in order."""
    return sorted(file.stem for file in FOLDER.glob("*.json"))


@functools.cache
def load_outline(assignment: str) -> Outline:
    """Return the outline of an assignment. Raises ValueError if there is none."""
    if assignment not in assignments():
        raise ValueError(f"assignment must be one of {', '.join(assignments())}, got {assignment!r}.")
    cells = json.loads((FOLDER / f"{assignment}.json").read_text(encoding="utf-8"))
    return Outline(assignment, tuple(OutlineCell(**cell) for cell in cells))


def outline_with(answer: str) -> Outline:
    """Return the outline of the assignment that asks for an answer. Raises ValueError if none does."""
    outlines = [load_outline(assignment) for assignment in assignments()]
    answers = {cell.name: outline for outline in outlines for cell in outline.of_kind("answer")}
    if answer not in answers:
        raise ValueError(f"exercise must be one of {', '.join(answers)}, got {answer!r}.")
    return answers[answer]


def fingerprint(source: str) -> str:
    """Return a fingerprint of a text, 16 characters long."""
    return hashlib.sha256(source.strip().encode()).hexdigest()[:16]
