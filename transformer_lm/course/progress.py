"""Your progress in the course: a table, and the file in `my_answers/` that it is made from."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from transformer_lm.course.outlines import assignments, load_outline
from transformer_lm.files import write_whole
from transformer_lm.mine import folder
from transformer_lm.text_tables import aligned

FILE = "progress.json"
HEAD = ("assignment", "checks passed", "points", "written", "hints", "last checked")


def load() -> dict:
    """Return the saved progress: results of assignments, attempts with hints given, answers that were shown."""
    known: dict[str, Any] = {"assignments": {}, "hints": {}, "shown": []}
    try:
        saved = json.loads((folder() / FILE).read_text(encoding="utf-8"))
        known |= {name: saved[name] for name in known if isinstance(saved.get(name), type(known[name]))}
    except (OSError, ValueError, AttributeError):
        pass
    known["assignments"] = {name: each for name, each in known["assignments"].items() if _is_result(each)}
    known["hints"] = {name: each for name, each in known["hints"].items() if isinstance(each, list)}
    return known


def _is_result(value: object) -> bool:
    kinds = {"passed": list, "written": list, "checked": str}
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in kinds.items())


def save(known: dict) -> None:
    """Save the progress, completely or not at all."""
    write_whole(folder() / FILE, json.dumps(known, indent=1))


def note_result(assignment: str, passed: list[str], written: list[str]) -> None:
    """Save which checks of an assignment pass, and which questions have an answer."""
    now = datetime.now().isoformat(timespec="minutes", sep=" ")
    known = load()
    known["assignments"][assignment] = {"passed": passed, "written": written, "checked": now}
    save(known)


@dataclass(frozen=True, repr=False)
class Progress:
    """A table with a row for each assignment; a notebook displays it as one."""

    rows: tuple[tuple[str, ...], ...]

    def __repr__(self) -> str:
        return aligned([HEAD, *self.rows])

    def _repr_markdown_(self) -> str:
        rows = [HEAD, ("---",) * len(HEAD), *self.rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def progress() -> Progress:
    """Return the table of all assignments that this copy of the course has."""
    known = load()
    return Progress(tuple(_row(assignment, known) for assignment in assignments()))


def _row(assignment: str, known: dict) -> tuple[str, ...]:
    outline = load_outline(assignment)
    checks, questions = outline.of_kind("check"), outline.of_kind("written")
    result = known["assignments"].get(assignment, {"passed": [], "written": [], "checked": "not yet"})
    passed = [check for check in checks if check.name in result["passed"]]
    hints = sum(len(known["hints"].get(answer.name, ())) for answer in outline.of_kind("answer"))
    return (
        assignment,
        f"{len(passed)} of {len(checks)}",
        f"{_sum(passed)} of {_sum(checks)}",
        f"{len(result['written'])} of {len(questions)}",
        str(hints),
        result["checked"],
    )


def _sum(cells: list) -> str:
    return f"{sum(cell.points for cell in cells):g}"
