"""Writes the zip for students: lessons and assignments so far, the package without answers, and the set-up files."""

import json
import re
import shutil
import tempfile
import tomllib
import zipfile
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from grading.authoring.outline import write_outlines
from grading.exercises import hidden_from, sealed_in
from grading.isolation.student_edition import write_student_edition
from transformer_lm.checks.topic_04_language_model.training_run import FILE as MODEL_FILE
from transformer_lm.files import replacing

CHECKOUT = Path(__file__).parents[2]
WHEN = (2020, 1, 1, 0, 0, 0)  # so that the same files give the same zip
FIRST_WITH_MODELS = "05_attention_heatmaps"  # its lesson uses pretrained models
README = Path(__file__).parent / "student_readme.md"
SELF_STUDY = """
You learn alone? `source/` holds the answers. To see one after an honest attempt, in its notebook:
`hints.answer("kqv", globals())`.
"""


def write_bundle(course: Path, through: str, path: Path, self_study: bool = False) -> int:
    """Write the zip with everything up to an assignment of the course in a folder; return the number of files in it.

    In the package, the answers to this and later assignments are replaced by an error that names the exercise. Answers
    to this assignment that the package itself needs are sealed. With `self_study`, nothing is sealed, and the notebooks
    with solutions are included.

    Raises ValueError if the assignment has not been released, or if its release contains a solution.
    """
    released = sorted(folder.name for folder in (course / "release").glob("*") if folder.is_dir())
    if through not in released:
        raise ValueError(f"--through must be one of {', '.join(released) or 'none so far'}, got {through}.")
    assignments = released[: released.index(through) + 1]
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch) / f"transformers-{through}"  # not the folder of an earlier zip, used by a student
        top.mkdir()
        for assignment in assignments:
            _copy_release(course, assignment, top)
            _copy_lesson(assignment, top)
            if self_study:
                shutil.copytree(course / "source" / assignment, top / "source" / assignment, ignore=_no_leftovers)
        _write_package(through, assignments, top, {} if self_study else sealed_in(through))
        _write_set_up(assignments, top, self_study)
        return _zipped(top, path)


def _no_leftovers(folder: str, names: list[str]) -> list[str]:
    """Return the names of files that working in a folder leaves behind; a trained model is worth points."""
    return [name for name in names if name.startswith(".") or name in (MODEL_FILE, "runs", "my_answers")]


def _copy_release(course: Path, assignment: str, top: Path) -> None:
    folder = course / "release" / assignment
    for notebook in folder.rglob("*.ipynb"):
        if re.search("BEGIN (SOLUTION|HIDDEN TESTS|MARK SCHEME)", notebook.read_text(encoding="utf-8")):
            raise ValueError(f"release must hold no solution, got one in {notebook.name}. Run `make release`.")
    shutil.copytree(folder, top / "release" / assignment, ignore=_no_leftovers)


def _copy_lesson(assignment: str, top: Path) -> None:
    """Copy the lesson of a topic, if it has one, with the files in its folder that it names."""
    lessons = CHECKOUT / "notebooks"
    lesson = lessons / f"{assignment}.ipynb"
    if not lesson.is_file():
        return
    text = "".join("".join(cell["source"]) for cell in json.loads(lesson.read_text(encoding="utf-8"))["cells"])
    beside = [file for file in lessons.rglob("*") if file.suffix in (".svg", ".png", ".json") and file.name in text]
    for file in (lesson, *beside):
        copy = top / file.relative_to(CHECKOUT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)


def _write_package(through: str, assignments: list[str], top: Path, sealed: dict[str, str]) -> None:
    """Write the student edition, with the outlines and hints of these releases."""
    edition = write_student_edition(top, hidden_from(through), sealed)
    write_outlines(top / "release", edition / "course" / "released")
    for hints in (edition / "course" / "hint_texts").glob("*.md"):
        if hints.stem not in assignments:
            hints.unlink()
    if FIRST_WITH_MODELS not in assignments:  # a trained model is worth points in the previous assignment
        for model in (edition / "pretrained").glob("*.safetensors"):
            model.unlink()


def _write_set_up(assignments: list[str], top: Path, self_study: bool) -> None:
    for name in ("LICENSE", "environment.yml", "data/README.md"):
        (top / name).parent.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / name, top / name)
    (top / "pyproject.toml").write_text(_student_project(), encoding="utf-8")
    pins = _student_pins()
    (top / "requirements.lock").write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
    rows = [
        line for line in (CHECKOUT / "README.md").read_text(encoding="utf-8").splitlines() if _is_row(line, assignments)
    ]
    text = README.read_text(encoding="utf-8").replace("{rows}", "\n".join(rows)).replace("{first}", assignments[0])
    text = text.replace("{self_study}", SELF_STUDY if self_study else "")
    text = text.replace("{torch}", next(pin for pin in pins if pin.startswith("torch==")))
    (top / "README.md").write_text(text.rstrip() + "\n", encoding="utf-8")


def _is_row(line: str, assignments: list[str]) -> bool:
    """Return whether a line of the README is the table row of one of the lessons."""
    return any(line.startswith("| [") and f"](notebooks/{assignment}.ipynb)" in line for assignment in assignments)


def _student_project() -> str:
    """Return pyproject.toml without what only instructors and contributors need."""
    text = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    sections = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    wanted = ("[build-system]", "[project]", "[tool.setuptools")
    return "".join(section for section in sections if section.startswith(wanted))


def _student_pins() -> list[str]:
    """Return the pins of the package's direct and indirect dependencies; the rest of the lock file is left out."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed: set[tuple[str, str]] = set()  # packages, each with a requested extra
    waiting = [Requirement(text) for text in project["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {extra for known, extra in needed if known == name}:
            needed.add((name, extra))
            found = [Requirement(text) for text in requires(name) or ()]
            waiting += [each for each in found if not each.marker or each.marker.evaluate({"extra": extra})]
    names = {name for name, _ in needed}
    lines = (CHECKOUT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if canonicalize_name(line.partition("==")[0]) in names]


def _zipped(top: Path, path: Path) -> int:
    """Write a folder as a zip; return the number of files in it."""
    files = sorted(file for file in top.rglob("*") if file.is_file())
    with replacing(path) as written, zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(str(file.relative_to(top.parent)), WHEN)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return len(files)
