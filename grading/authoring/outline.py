"""Writes the outlines that students' own checks need, which describe each assignment as it was released."""

import json
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from grading.nbgrader_steps.submission import is_check, marks
from transformer_lm.course.outlines import fingerprint


def write_outlines(release: Path, folder: Path) -> list[Path]:
    """Write the outline of each assignment in a release folder and return the files; other files there are removed."""
    outlines = {path.parent.name: nbformat.read(path, as_version=4) for path in sorted(release.glob("*/*.ipynb"))}
    folder.mkdir(parents=True, exist_ok=True)
    for stale in set(folder.glob("*.json")) - {folder / f"{assignment}.json" for assignment in outlines}:
        stale.unlink()
    return [_written(folder / f"{assignment}.json", notebook) for assignment, notebook in outlines.items()]


def _written(path: Path, released: NotebookNode) -> Path:
    cells = [_outlined(cell) for cell in released.cells]
    path.write_text(json.dumps(cells, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _outlined(cell: NotebookNode) -> dict[str, object]:
    """Return what a student's check must know about a cell; cells that students may change get a fingerprint only."""
    known, kind = marks(cell), _kind(cell)
    source = {"text": "", "free": fingerprint(cell.source)}.get(kind, cell.source)
    return {"name": known.get("grade_id", ""), "kind": kind, "points": known.get("points", 0), "source": source}


def _kind(cell: NotebookNode) -> str:
    known = marks(cell)
    if not known.get("grade_id"):
        return "free"
    if known.get("solution"):
        return "written" if known.get("grade") else "answer"
    if is_check(cell):
        return "check"
    return "setup" if cell.cell_type == "code" else "text"
