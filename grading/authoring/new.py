"""Writes the files and cells of a new exercise. They already run and pass `prove`, and are ready to be edited."""

import re
from pathlib import Path
from string import Template

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from grading import exercises
from grading.nbgrader_steps.submission import is_check
from transformer_lm import checks
from transformer_lm.checks.engine.catalogue import FILE
from transformer_lm.checks.engine.places import PREFIX
from transformer_lm.hints import FOLDER as HINTS

TEMPLATES = Path(__file__).with_name("new_exercise")
POINTS = 2
ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def write_exercise(exercise: str, topic: str, root: Path) -> list[Path]:
    """Write the check, the record, three cells and the hints of a new exercise and its mistakes; return the files.

    Nothing is written if one of the files can't be. Raises ValueError for an id or a topic that can't be used.
    """
    assignment = root / "source" / topic / f"{topic}.ipynb"
    if not ID.fullmatch(exercise):
        raise ValueError(f"EXERCISE must be lower-case words joined by hyphens, such as causal-mask, got {exercise!r}.")
    if exercise in exercises.records():
        raise ValueError(f"EXERCISE must be a new id, got {exercise!r}, which is an exercise already.")
    if not assignment.is_file():
        topics = sorted(path.parent.name for path in root.glob("source/*/*.ipynb"))
        raise ValueError(f"--topic must be one of {', '.join(topics)}, got {topic!r}.")

    notebook = nbformat.read(assignment, as_version=4)
    name, package = exercise.replace("-", "_"), f"{PREFIX}{topic}"
    words = {
        "id": exercise,
        "name": name,
        "constant": name.upper(),
        "record": f"{name.upper()}_RECORD",
        "title": exercise.replace("-", " ").capitalize(),
        "number": topic.partition("_")[0],
        "topic_package": package,
        "points": str(POINTS),
        "place": str(sum(cell.source.startswith("## Exercise ") for cell in notebook.cells) + 1),
    }
    texts = {path.name: Template(path.read_text(encoding="utf-8")).substitute(words) for path in TEMPLATES.iterdir()}
    modules = {
        Path(checks.__file__).parent / package / f"{name}.py": texts["check.py.txt"],
        Path(exercises.__file__).parent / package / f"{name}.py": texts["record.py.txt"],
    }
    taken = next((path for path in modules if path.exists()), None)
    if taken:
        raise ValueError(f"EXERCISE must name new files, got {exercise!r}, but {taken.name} exists.")
    place = _end_of_exercises(notebook)
    notebook.cells[place:place] = _cells(exercise, name, texts)

    for path, text in modules.items():
        path.parent.mkdir(exist_ok=True)
        if not (path.parent / "__init__.py").exists():
            (path.parent / "__init__.py").write_text(f'"""Topic {topic}."""\n', encoding="utf-8")
        path.write_text(text, encoding="utf-8")
    nbformat.write(notebook, assignment)
    steps, mistakes = HINTS / f"{topic}.md", Path(checks.__file__).parent / package / FILE
    for hints, template in ((steps, "hints.md"), (mistakes, "hints.toml.txt")):
        with hints.open("a", encoding="utf-8") as file:
            file.write(texts[template])
    return [*modules, assignment, steps, mistakes]


def _end_of_exercises(notebook: NotebookNode) -> int:
    """Return the index after the last check of an assignment, or the end if there is no check."""
    checks = [number for number, cell in enumerate(notebook.cells) if is_check(cell)]
    return checks[-1] + 1 if checks else len(notebook.cells)


def _cells(exercise: str, name: str, texts: dict[str, str]) -> list[NotebookNode]:
    """Return the task, the answer with its solution, and the check."""
    task, check = f"{exercise}-task", f"{exercise}-check"
    call = f"checks.{name}({name})"
    return [
        new_markdown_cell(texts["task.md"].rstrip(), id=_cell_id(task), metadata=_marks(task)),
        new_code_cell(
            texts["answer.py.txt"].rstrip(),
            id=_cell_id(exercise),
            metadata=_marks(exercise, solution=True, locked=False),
        ),
        new_code_cell(call, id=_cell_id(check), metadata=_marks(check, grade=True, points=POINTS)),
    ]


def _cell_id(name: str) -> str:
    """Return a name that nbformat accepts as a cell's id, with at most 64 characters."""
    return name[:64]


def _marks(grade_id: str, **differing: object) -> dict[str, dict]:
    """Return the nbgrader metadata of a cell."""
    usual = {"grade": False, "locked": True, "schema_version": 3, "solution": False, "task": False}
    return {"nbgrader": usual | {"grade_id": grade_id} | differing}
