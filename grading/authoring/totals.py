"""Computes the points and the minutes of an assignment from its cells, and writes them wherever they are mentioned.

The points are those of the cells. The minutes are given in exercises and questions, as in `(2 points, 20 minutes)`.
Both appear in the assignment's first cell, in the first cell of the lesson, and in the table of the README.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from grading.nbgrader_steps.submission import marks

MINUTES = re.compile(r"\(\d+ points?, (\d+) (minutes|hours?)")
TITLE = re.compile(r"^\*\*Time\*\* about [^*]*\*\*Points\*\* \d+\.$", re.MULTILINE)
LESSON = re.compile(r"(the assignment `\w+` gives) \d+\.")
ROW = r"^(\| \[[^]]+\]\(notebooks/{topic}\.ipynb\) .* \| \d+ \+) \d+ \| \d+ \|$"


@dataclass(frozen=True)
class Totals:
    """The points and the minutes of an assignment; the minutes are rounded, to half an hour beyond two hours."""

    points: float
    minutes: int

    @classmethod
    def of(cls, assignment: NotebookNode) -> "Totals":
        """Return the totals of an assignment with solutions."""
        texts = [cell.source for cell in assignment.cells if cell.cell_type == "markdown"]
        named = [match for text in texts for match in MINUTES.findall(text)]
        minutes = sum(int(number) * (1 if unit == "minutes" else 60) for number, unit in named)
        step = 15 if minutes <= 120 else 30
        points = sum(marks(cell).get("points") or 0 for cell in assignment.cells)
        return cls(points, round(minutes / step) * step)

    @property
    def time(self) -> str:
        """The minutes in words."""
        return f"{self.minutes} minutes" if self.minutes <= 120 else f"{self.minutes / 60:g} hours"


def write_totals(root: Path) -> list[Path]:
    """Write the totals of every assignment of a course; return the files that have changed."""
    changed = []
    for path in sorted(root.glob("source/*/*.ipynb")):
        topic, assignment = path.stem, nbformat.read(path, as_version=4)
        totals = Totals.of(assignment)
        title = f"**Time** about {totals.time}. **Points** {totals.points:g}."
        row = re.compile(ROW.format(topic=re.escape(topic)), re.MULTILINE)
        changed += _edited(path, TITLE, title)
        changed += _edited(root / "notebooks" / path.name, LESSON, rf"\g<1> {totals.points:g}.")
        changed += _edited(root / "README.md", row, rf"\g<1> {totals.minutes} | {totals.points:g} |")
    return list(dict.fromkeys(changed))


def _edited(path: Path, old: re.Pattern, new: str) -> list[Path]:
    """Replace the only match of a pattern in a text, or in the first cell of a notebook; return the file if it changed.

    A course may have no lesson and no table; missing files are skipped.
    """
    if not path.is_file():
        return []
    notebook = nbformat.read(path, as_version=4) if path.suffix == ".ipynb" else None
    before = notebook.cells[0].source if notebook else path.read_text(encoding="utf-8")
    after = old.sub(new, before, count=1)
    if after == before:
        return []
    if notebook:
        notebook.cells[0].source = after
        nbformat.write(notebook, path)
    else:
        path.write_text(after, encoding="utf-8")
    return [path]
