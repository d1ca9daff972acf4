"""The zip for students: it is complete by itself, and nothing in it gives an open exercise away."""

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import nbformat
import numpy as np
import pytest
from checkout import ROOT
from sample_class import python
from sentences import opening
from test_release import solution_lines

from grading.authoring.bundle import write_bundle
from grading.authoring.demo import solved_notebook
from grading.authoring.prove import SEEDS
from grading.exercises import topics, value_records
from grading.nbgrader_steps.submission import marks
from transformer_lm.texts.downloads import CORPORA

TOPICS = list(topics())
THROUGH = "02_multi_head_attention"
LONG = 30  # characters of a line that gives something away
# Lines of solutions that also occur elsewhere: in checks, in a lesson, in blocks of earlier topics.
COMMON = {
    "scores = attention_scores(queries, keys)",
    "places = torch.arange(tokens.shape[1], device=tokens.device)",
    "x = self.embed(tokens)  # (b, n, hidden)",
    "return x + self.mlp(self.mlp_norm(x))",
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> dict[str, Path]:
    """The zip for each topic, unpacked."""
    folders = {}
    for topic in TOPICS:
        folder = tmp_path_factory.mktemp(topic)
        write_bundle(ROOT, topic, folder / "course.zip")
        with zipfile.ZipFile(folder / "course.zip") as archive:
            archive.extractall(folder)
        folders[topic] = folder / f"transformers-{topic}"
    return folders


def open_topics(topic: str) -> list[str]:
    return TOPICS[TOPICS.index(topic) :]


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the Python of each file, and of each code cell, and all other texts."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".ipynb":
            for cell in nbformat.read(path, as_version=4).cells:
                yield f"{path.name}: {cell.id}", cell.source
        elif path.is_file() and path.suffix not in (".safetensors", ".bin"):
            yield str(path.relative_to(folder)), path.read_text(encoding="utf-8")


def bodies(source: str) -> set[str]:
    """Return what the functions of a text do, whatever the comments, docstrings and line breaks.

    A function of one short statement is left out: it may be a coincidence.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            text = "\n".join(ast.unparse(statement) for statement in body)
            if len(body) > 1 or len(text) > 60:
                found.add(text)
    return {text for text in found if "NotImplementedError" not in text}


def answers(topic: str) -> Iterator[tuple[str, str]]:
    """Yield every text in grading and source that answers an exercise of a topic, right or wrong."""
    for record in topics()[topic]:
        yield f"{record.id}, ours", record.model_answer
        for wrong in (*record.wrong, *record.misbehaving):
            yield f"{record.id}, {wrong.name}", wrong.source
        for name, source in record.right.items():
            yield f"{record.id}, {name}", source
    source = nbformat.read(ROOT / "source" / topic / f"{topic}.ipynb", as_version=4)
    for cell in source.cells:
        if marks(cell).get("solution") and cell.cell_type == "code":
            yield f"source, {cell.id}", cell.source


@pytest.mark.parametrize("topic", TOPICS)
def test_no_answer_to_an_open_exercise_is_in_the_zip(bundles, topic):
    there = {body: name for name, text in texts(bundles[topic]) for body in bodies(text)}
    given = {body for cell in _released_cells(topic) for body in bodies(cell)}
    leaks = [
        (there[body], name)
        for later in open_topics(topic)
        for name, source in answers(later)
        for body in bodies(source)
        if body in there and body not in given
    ]
    assert leaks == []


def _released_cells(topic: str) -> list[str]:
    """Return what the releases up to a topic give to all students, such as an `__init__`."""
    paths = [ROOT / "release" / name / f"{name}.ipynb" for name in TOPICS[: TOPICS.index(topic) + 1]]
    return [cell.source for path in paths for cell in nbformat.read(path, as_version=4).cells]


@pytest.mark.parametrize("topic", TOPICS)
def test_no_long_line_of_a_solution_or_rubric_is_in_the_zip(bundles, topic):
    everything = "\n".join(text for _, text in texts(bundles[topic]))
    lines = {
        line
        for later in open_topics(topic)
        for line in solution_lines(ROOT / "source" / later / f"{later}.ipynb")
        if len(line) > LONG
    }
    assert len(lines) > 10
    assert sorted(line for line in lines - COMMON if line in everything) == []


def test_no_hidden_case_and_no_expected_value_of_one_is_in_the_zip(bundles):
    """Cases are drawn when a submission is graded. Here are those of the proof, in both precisions."""
    everything = b"".join(path.read_bytes() for path in bundles[THROUGH].rglob("*.safetensors"))
    for record in value_records().values():
        for seed in SEEDS:
            case = record.draw(random.Random(seed), record.first_sizes)
            drawn = [array for array in case.values() if is_telling(array)]
            # Where only sizes are drawn, as for sinusoids, the right output is the same for all students.
            outputs = [array for array in record.reference(case).values() if drawn and is_telling(array)]
            for array in drawn + outputs:
                assert array.astype(np.float64).tobytes() not in everything, record.id
                assert array.astype(np.float32).tobytes() not in everything, record.id


def is_telling(array: np.ndarray) -> bool:
    """Return whether an array can't be there by chance, unlike a mask or a few tokens."""
    return len(np.unique(array)) > 20


def test_the_zip_has_what_it_should_and_nothing_of_the_grading(bundles):
    files = {str(path.relative_to(bundles[THROUGH])) for path in bundles[THROUGH].rglob("*") if path.is_file()}
    so_far = TOPICS[:2]
    assert {file for file in files if file.startswith("release/")} == {
        f"release/{name}/{name}.ipynb" for name in so_far
    }
    assert {f"notebooks/{name}.ipynb" for name in so_far} == {
        file for file in files if file.endswith(".ipynb") and "notebooks" in file
    }
    assert {"README.md", "LICENSE", "environment.yml", "pyproject.toml", "requirements.lock", "data/README.md"} <= files
    assert not [file for file in files if re.search(r"grading|source/|test_(?!values)|\.pyc|checkpoint[^s]", file)]
    for name, text in texts(bundles[THROUGH]):
        assert not re.search(r"^\s*(import|from) grading", text, re.MULTILINE), name


def test_the_readme_names_the_index_and_the_pin_of_the_cpu_build(bundles):
    (command,) = re.findall(r"^.*--index-url.*$", (bundles[THROUGH] / "README.md").read_text(), re.MULTILINE)
    *_, index, pin = command.split()
    assert f"TORCH_INDEX ?= {index}\n" in (ROOT / "Makefile").read_text()
    assert pin in (bundles[THROUGH] / "requirements.lock").read_text().splitlines()


def test_earlier_answers_are_the_reference_and_later_ones_name_their_exercise(bundles):
    code = (
        "import torch; from transformer_lm import attention, SelfAttention, MultiHeadSelfAttention\n"
        "print(SelfAttention(3, 4)(torch.ones(1, 2, 3)).shape)\n"
        "try: MultiHeadSelfAttention(4, 4, 2)\n"
        "except NotImplementedError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=bundles[THROUGH], env={"PYTHONPATH": "."}, capture_output=True, text=True
    )
    first, second = done.stdout.splitlines()
    assert first == "torch.Size([1, 2, 4])"
    assert "would give away exercise full-attention: write your own in the notebook." in second


def test_files_that_a_lesson_shows_are_there(bundles):
    for lesson in bundles["06_encoder_decoder"].glob("notebooks/*.ipynb"):
        text = "\n".join(cell.source for cell in nbformat.read(lesson, as_version=4).cells)
        for name in re.findall(r"\]\((figures/[^)]+)\)", text) + re.findall(r"\w+_results\.json", text):
            assert (lesson.parent / name).is_file(), name


def test_the_same_course_gives_the_same_bytes(tmp_path):
    for name in ("a.zip", "b.zip"):
        write_bundle(ROOT, "01_self_attention", tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_people_who_learn_alone_get_the_answers_too(tmp_path):
    said = python(
        ROOT, "grading", "bundle", "--through", "01_self_attention", "--self-study", "--to", str(tmp_path / "own.zip")
    )
    assert re.search(r"own\.zip: \d+ files, \d+\.\d MB", said)
    with zipfile.ZipFile(tmp_path / "own.zip") as archive:
        sources = [name for name in archive.namelist() if "/source/" in name]
        top = "transformers-01_self_attention"
        assert sources == [f"{top}/source/01_self_attention/01_self_attention.ipynb"]
        assert 'hints.answer("kqv", globals())' in archive.read(f"{top}/README.md").decode()


def test_what_an_instructor_has_tried_in_the_release_is_left_out(tmp_path):
    topic = "04_language_model"
    for folder in ("release", "source"):
        shutil.copytree(ROOT / folder / topic, tmp_path / folder / topic)
        (tmp_path / folder / topic / "my_model.safetensors").write_bytes(b"worth points")
        (tmp_path / folder / topic / "runs").mkdir()
        (tmp_path / folder / topic / "runs" / "model.safetensors").write_bytes(b"worth points")
    write_bundle(tmp_path, topic, tmp_path / "course.zip", self_study=True)
    with zipfile.ZipFile(tmp_path / "course.zip") as archive:
        found = [name for name in archive.namelist() if f"/{topic}/" in name]
    assert found == [f"transformers-{topic}/{folder}/{topic}/{topic}.ipynb" for folder in ("release", "source")]


def test_what_cannot_be_bundled_is_refused(tmp_path):
    said = python(ROOT, "grading", "bundle", "--through", "07_unknown", fails=True)
    assert "--through must be one of 01_self_attention, " in said
    assert "Traceback" not in said
    shutil.copytree(ROOT / "source" / "01_self_attention", tmp_path / "release" / "01_self_attention")
    with pytest.raises(ValueError, match=r"release must hold no solution, got one in 01_self_attention\.ipynb"):
        write_bundle(tmp_path, "01_self_attention", tmp_path / "course.zip")
    assert not (tmp_path / "course.zip").exists()


WORK = """\
import json, sys
import nbformat
from nbclient import NotebookClient

path, solved = sys.argv[1:]
notebook, answers = nbformat.read(path, as_version=4), nbformat.read(solved, as_version=4)
resources = {"metadata": {"path": path.rpartition("/")[0]}}
client = NotebookClient(notebook, kernel_name="python3", allow_errors=True, resources=resources)
said = {}

def text(output):
    return output.get("text") or output.get("evalue") or output.data["text/markdown"]

def run(*wanted):
    for number, cell in enumerate(notebook.cells):
        name = cell.metadata.get("nbgrader", {}).get("grade_id", cell.source)
        if name in wanted:
            client.execute_cell(cell, number)
            said.setdefault(name, []).append("\\n".join(map(text, cell.outputs)))

def answer(change=lambda source: source):
    for cell, answered in zip(notebook.cells, answers.cells):
        cell.source = change(answered.source)

with client.setup_kernel():
    run("setup", "kqv", "kqv-check")
    answer(lambda source: source.replace(" / math.sqrt(dh)", ""))
    run("kqv", "kqv-check", "attention-scores", "attention-scores-check")
    answer()
    run("attention-scores", "attention-scores-check")
    nbformat.write(notebook, path)
    run('hand_in.check("01_self_attention")')
print(json.dumps(said))
"""


def link_pins(course: Path) -> None:
    """Do what the set-up of the zip does, in a second: link the pins of its lock from here, and nothing else."""
    venv.create(course / ".venv", symlinks=True)
    (packages,) = course.glob(".venv/lib/python*/site-packages")
    for pin in ["pip", *(course / "requirements.lock").read_text().splitlines()]:
        found = distribution(pin.partition("==")[0])
        for name in {file.parts[0] for file in found.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(found.locate_file(name)).resolve())
    (packages / "course.pth").write_text(f"{course}\n")
    (course / ".venv" / "share").symlink_to(Path(sys.prefix).resolve() / "share")


@pytest.mark.parametrize("really_installed", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_student_with_nothing_but_the_zip_and_python_gets_through_the_first_assignment(really_installed, tmp_path):
    """In a separate environment, set up by the commands of the zip's README, or in the same way."""
    write_bundle(ROOT, THROUGH, tmp_path / "course.zip")
    with zipfile.ZipFile(tmp_path / "course.zip") as archive:
        archive.extractall(tmp_path)
    course = tmp_path / f"transformers-{THROUGH}"
    commands = re.findall(r"```\n(.*?)```", (course / "README.md").read_text(), re.DOTALL)
    make_environment, install, fetch, open_lab = commands[0].splitlines()
    ours = ("PYTHON", "TRANSFORMER", "JUPYTER", "VIRTUAL")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}

    def shell(command: str) -> subprocess.CompletedProcess:
        return subprocess.run(command, shell=True, cwd=course, env=environment, capture_output=True, text=True)

    if really_installed:
        for command in (make_environment, f"{install} -qq"):
            done = shell(command)
            assert done.returncode == 0, done.stderr
    else:
        assert "-r requirements.lock -e ." in install
        link_pins(course)
    if here := [file.path for file in CORPORA["shakespeare"] if file.path.exists()]:
        (course / "data" / "cache").mkdir()
        shutil.copy(here[0], course / "data" / "cache")  # as if it had been downloaded
        done = shell(fetch)
        assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"4\.\d+\.\d+", shell(f"{open_lab} --version").stdout.strip())
    assert json.loads(shell(".venv/bin/python -m pip list --format json").stdout)
    assert shell(".venv/bin/python -c 'import nbgrader'").returncode  # students don't need it

    (tmp_path / "work.py").write_text(WORK)
    nbformat.write(solved_notebook(ROOT), tmp_path / "solved.ipynb")
    notebook = "release/01_self_attention/01_self_attention.ipynb"
    done = shell(f".venv/bin/python {tmp_path}/work.py {notebook} {tmp_path}/solved.ipynb")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert f"hint:     {opening('no-code')}" in said["kqv-check"][0]
    assert said["kqv-check"][1].startswith("✓ kqv: right")
    assert f"hint:     {opening('not-scaled')}" in said["attention-scores-check"][0]
    assert said["attention-scores-check"][1].startswith("✓ attention-scores: right")
    (report,) = said['hand_in.check("01_self_attention")']
    assert "The file is complete and will be accepted." in report
    assert "| 01_self_attention | 8 of 8 | 8 of 8 | 2 of 2 |" in report

    done = shell(commands[-1].strip())
    assert done.returncode == 0, done.stderr
    assert "Points so far: 8 of 8 by checks." in done.stdout
