"""The guides, followed to the letter in a fresh copy: a second instructor changes a question, adds an exercise, grades.

A block of commands (`sh`) is run. A block of code is written into the file that the text before it names in its last
words; a `diff` is an edit of that file, or of the one cell of that notebook where it fits. A `text` is what the
commands before it print.
"""

import csv
import itertools
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from course_copy import ROOT, copied_course, run_in
from sample_class import FULL_SCORE, gradebook

from grading.authoring.demo import edited, solved_notebook
from grading.isolation.sandbox import missing_walls

GUIDES = ROOT / "docs" / "guides"
IN_ORDER = ("exercise", "teach")  # the second guide releases and grades what the first one adds
ASSIGNMENT = "01_self_attention"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED_LAST = re.compile(r"`([\w./]+)`:\s*$")
COMMAND = re.compile(r"`((?:make|python|nbgrader|source|cp) [^`]+|\.ci/run)`")
# Commands that guides mention and other files run, with the file that runs each.
RUN_ELSEWHERE = {
    "make lab": "tests/pages/test_lab.py",
    "make demo": "tests/runs/test_class_run.py",
    "make site": "tests/pages/test_site.py",
    "make help": "tests/course/test_setup.py",
    "make test": ".ci/run",
    "make test-all": ".ci/run",
    ".ci/run": ".ci/run",
    "python -m grading prove": "tests/judging/test_prove.py",
    "python -m grading mutate": "tests/judging/test_mutate.py",
    "nbgrader autograde 01_self_attention": "tests/nbgrader/test_pipeline.py",
    "nbgrader export": "tests/nbgrader/test_pipeline.py",
    "python -m transformer_lm train --no-residual --out runs/no-residual": "tests/package/test_main.py",
}


@dataclass
class Block:
    """A block of a guide: its kind, its text, and the file that it is about."""

    guide: str
    kind: str
    text: str
    file: str


def blocks(guide: str) -> list[Block]:
    """Return the blocks of a guide in order; an edit without words before it changes the same file as the last one."""
    page = (GUIDES / f"{guide}.md").read_text()
    found, end, file = [], 0, ""
    for match in BLOCK.finditer(page):
        before = page[end : match.start()]
        if before.strip():
            named = NAMED_LAST.search(before)
            file = named[1] if named else ""
        found.append(Block(guide, match[1], match[2], file if match[1] in ("python", "diff") else ""))
        end = match.end()
    return found


def commands(block: Block) -> list[str]:
    """Return the commands of a block; a backslash at the end of a line joins it to the next."""
    return [line for line in re.split(r"(?<!\\)\n", block.text) if line]


ALL = [block for guide in IN_ORDER for block in blocks(guide)]
COMMANDS = [(block.guide, command) for block in ALL if block.kind == "sh" for command in commands(block)]


def apply(course: Path, block: Block) -> None:
    """Make the edit of a `diff`: the lines that it removes, and those around them, must occur exactly once."""
    lines = block.text.splitlines()
    old = "\n".join(line[1:] for line in lines if line[:1] != "+")
    new = "\n".join(line[1:] for line in lines if line[:1] != "-")
    path = course / block.file
    if path.suffix == ".ipynb":
        notebook = nbformat.read(path, as_version=4)
        (cell,) = [cell for cell in notebook.cells if old in cell.source]
        cell.source = cell.source.replace(old, new)
        nbformat.write(notebook, path)
    else:
        assert path.read_text().count(old) == 1, f"{block.file} must hold this once: {old}"
        path.write_text(path.read_text().replace(old, new))


def hand_in(course: Path, downloads: Path) -> None:
    """Write Canvas's zip for three students: all right, without the case of a weight of 0, and blank."""
    right, wrong = solved_notebook(course), solved_notebook(course)
    edited("attention-entropy", "torch.special.entr(weights)", "-(weights * weights.log())")(wrong)
    blank = nbformat.read(course / "release" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", as_version=4)
    downloads.mkdir(parents=True)
    with zipfile.ZipFile(downloads / "submissions.zip", "w") as archive:
        for name, notebook in {"lovelaceada_101_1": right, "hopper_LATE_102_2": wrong, "turing_103_3": blank}.items():
            again = "-1" if notebook is right else ""  # submitted twice
            archive.writestr(f"{name}_{ASSIGNMENT}{again}.ipynb", nbformat.writes(notebook))
        archive.writestr("turing_103_4_my_model.safetensors", b"trained")


@dataclass
class Followed:
    """The copy in which the guides were followed, with the exit status and the output of each command."""

    course: Path
    ended: dict[tuple[str, str], int]
    printed: dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def followed(tmp_path_factory) -> Followed:
    folder = tmp_path_factory.mktemp("second")
    (folder / "course").mkdir()
    result = Followed(copied_course(folder / "course"), {}, {})
    for block in ALL:
        if block.kind == "diff":
            apply(result.course, block)
        elif block.kind == "python":
            (result.course / block.file).write_text(block.text)
        for command in commands(block) if block.kind == "sh" else ():
            if command.startswith("cp ~/Downloads"):
                hand_in(result.course, folder / "home" / "Downloads")
            reduced = " --reduced-isolation" if re.match(r"python -m grading (run|try|prove|mutate)", command) else ""
            done = run_in(result.course, command + (reduced if missing_walls() else ""), HOME=str(folder / "home"))
            result.ended[block.guide, command] = done.returncode
            result.printed[block.guide, command] = done.stdout
    return result


@pytest.mark.parametrize(("guide", "command"), COMMANDS)
def test_every_command_of_the_guides_works(followed, guide, command):
    assert followed.ended[guide, command] == 0, followed.printed[guide, command]


def test_commands_print_what_the_guides_say(followed):
    tried = [(before, block) for before, block in itertools.pairwise(ALL) if block.kind == "text"]
    assert len(tried) >= 2
    for before, block in tried:
        printed = "\n".join(followed.printed[before.guide, command] for command in commands(before))
        for line in block.text.splitlines():
            assert line in printed


def test_every_block_is_followed():
    assert {block.kind for block in ALL} == {"sh", "python", "diff", "text"}
    assert [block for block in ALL if block.kind in ("python", "diff") and not block.file] == []
    for page in GUIDES.glob("*.md"):
        included = page.read_text().count("```{include}")
        known = len(blocks(page.stem)) if page.stem in IN_ORDER else 0
        assert page.read_text().count("\n```") == 2 * (known + included), page.name


@pytest.mark.parametrize("guide", sorted(path.stem for path in GUIDES.glob("*.md")))
def test_no_guide_mentions_a_command_that_nobody_runs(guide):
    run = {command for _, command in COMMANDS}
    mentioned = COMMAND.findall(BLOCK.sub("", (GUIDES / f"{guide}.md").read_text()))
    assert [command for command in mentioned if command not in run | RUN_ELSEWHERE.keys()] == []
    assert [home for home in RUN_ELSEWHERE.values() if not (ROOT / home).is_file()] == []


def test_the_changed_question_and_the_new_exercise_are_released_without_answers(followed):
    released = (followed.course / "release" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").read_text()
    assert "Show it by algebra and by an experiment" in released
    assert "attention_entropy(weights: Tensor)" in released
    assert "special.entr" not in released


def test_files_beside_a_notebook_are_collected_with_it(followed):
    assert (followed.course / "submitted" / "103" / ASSIGNMENT / "my_model.safetensors").read_bytes() == b"trained"


def test_the_new_exercise_gives_points_to_the_right_answer_only(followed):
    marks = gradebook(followed.course)
    check = "attention-entropy-check"
    assert {student: known["grades"][check][0] for student, known in marks.items()} == {
        "101": 2,
        "102": 0,
        "103": 0,
    }
    assert marks["101"]["score"] == FULL_SCORE + 2
    assert marks["102"]["score"] == FULL_SCORE


def test_the_wrong_answer_to_the_new_exercise_hears_its_hint(followed):
    page = followed.course / "feedback" / "102" / ASSIGNMENT / f"{ASSIGNMENT}.html"
    assert "There are NaN in it: a weight of 0 adds nothing" in page.read_text()


def test_canvas_can_find_its_students_by_their_numbers(followed):
    with (followed.course / "canvas.csv").open(newline="") as file:
        assert [row["ID"] for row in csv.DictReader(file)][-3:] == ["101", "102", "103"]


def test_the_second_course_leaves_the_first_alone(followed):
    assert not (ROOT / "transformer_lm" / "frozen" / "attention-entropy.safetensors").exists()
    assert (followed.course / "transformer_lm" / "frozen" / "attention-entropy.safetensors").exists()
