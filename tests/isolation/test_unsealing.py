"""Sealed code in the students' package works but cannot be read, and is missing where answers are judged."""

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from checkout import ROOT, module_of

from grading.authoring.bundle import write_bundle
from grading.authoring.demo import solved_notebook
from grading.exercises import hidden_from, hidden_from_answers, sealed_in, topics
from grading.isolation import student_edition
from grading.isolation.student_edition import write_student_edition
from transformer_lm.course.unsealing import unseal

WITH_SEALS = [topic for topic in topics() if sealed_in(topic)]
TOY = '''\
"""A module with whatever can be sealed."""
import dataclasses, functools, pickle

CALLS = []

class Base:
    def value(self): return 1

@dataclasses.dataclass
class Sealed(Base):
    """A docstring."""
    number: int = 2

    def value(self):
        return super().value() + self.number

@functools.cache
def counted(x: int) -> int:
    """Another docstring."""
    return x + later()

def later():
    return 40

def hidden():
    return "SECRET"

class Built(Sealed):
    pass
'''
LOOK = """
import inspect, json, pickle
from toy import user, whole

def source(of):
    try:
        return inspect.getsource(of)
    except OSError:
        return None

def error(call):
    try:
        return call()
    except Exception as raised:
        return repr(raised)

copy = pickle.loads(pickle.dumps(whole.Built(5)))
print(json.dumps({
    "values": [whole.Sealed().value(), copy.value(), whole.counted(2), user.doubled(3), error(whole.hidden)],
    "sources": [source(whole.counted.__wrapped__), source(whole.Sealed.value), source(whole.Sealed)],
    "about": [whole.counted.__doc__, whole.Sealed.__doc__, str(inspect.signature(whole.counted))],
    "same": [user.Sealed is whole.Sealed, whole.Sealed.__module__, isinstance(copy, user.Sealed)],
}))
"""


def in_folder(folder: Path, *arguments: str, status: int = 0) -> str:
    """Run Python with the package of a folder, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(folder), "TRANSFORMER_LM_ANSWERS": str(folder / "none")}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def zips(tmp_path_factory) -> dict[str, Path]:
    """The zips of the topics in which something is sealed, unpacked."""
    found = {}
    for topic in WITH_SEALS:
        folder = tmp_path_factory.mktemp(topic)
        write_bundle(ROOT, topic, folder / "course.zip")
        with zipfile.ZipFile(folder / "course.zip") as archive:
            archive.extractall(folder)
        found[topic] = folder / f"transformers-{topic}"
    return found


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Path:
    """A package of which a module is partly sealed and partly hidden; another module uses it."""
    package = tmp_path / "toy"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "whole.py").write_text(TOY)
    (package / "user.py").write_text("from toy.whole import Sealed, later\n\ndef doubled(x): return x * later()\n")
    monkeypatch.setattr(student_edition, "PACKAGE", package)
    sealed = {"whole.Sealed": "a", "whole.counted": "b", "whole.later": "b"}
    return write_student_edition(tmp_path / "edition", {"whole.hidden": "c"}, sealed)


def test_a_sealed_module_works_and_its_text_cannot_be_read(toy):
    (toy / "course").mkdir()
    shutil.copy(ROOT / "transformer_lm" / "course" / "unsealing.py", toy / "course")
    module = toy / "whole.py"
    assert "SECRET" not in module.read_text()
    assert "return 40" not in module.read_text()
    assert "super()" not in module.read_text()
    module.write_text(module.read_text().replace("from transformer_lm.course.unsealing", "from toy.course.unsealing"))
    seen = json.loads(in_folder(toy.parent, "-c", LOOK))
    *values, refused = seen["values"]
    assert values == [3, 6, 42, 120]
    assert "hidden would give away exercise c" in refused
    function, method, whole = seen["sources"]
    assert (function, method) == (None, None)
    assert "number: int = 2" in whole
    assert "super()" not in whole
    assert seen["about"] == ["Another docstring.", "A docstring.", "(x: int) -> int"]
    assert seen["same"] == [True, "toy.whole", True]


def test_nothing_but_what_is_sealed_differs_from_the_edition_without_seals(tmp_path):
    topic = "06_encoder_decoder"
    plain = write_student_edition(tmp_path / "plain", hidden_from(topic))
    sealed = write_student_edition(tmp_path / "sealed", hidden_from(topic), sealed_in(topic))
    modules = {module_of(name) for name in sealed_in(topic)}
    files = {path.relative_to(sealed) for path in sealed.rglob("*") if path.is_file()}
    extra = files - {path.relative_to(plain) for path in plain.rglob("*") if path.is_file()}
    assert extra == {Path("sealed") / f"{module}.bin" for module in modules}
    changed = {file for file in files - extra if (plain / file).read_bytes() != (sealed / file).read_bytes()}
    assert changed == {Path(f"{module.replace('.', '/')}.py") for module in modules}


@pytest.mark.parametrize("topic", list(topics()))
def test_nothing_sealed_is_there_where_answers_are_judged(topic, tmp_path):
    edition = write_student_edition(tmp_path, hidden_from_answers(topic))
    assert not (edition / "sealed").exists()
    assert not [path for path in edition.rglob("*.py") if b"\nunseal(globals())" in path.read_bytes()]


def test_the_last_lines_of_a_module_unseal_nothing_in_a_notebook():
    with pytest.raises(FileNotFoundError):
        unseal({"__name__": "__main__"})


def test_people_who_learn_alone_can_read_everything(tmp_path):
    write_bundle(ROOT, "06_encoder_decoder", tmp_path / "own.zip", self_study=True)
    with zipfile.ZipFile(tmp_path / "own.zip") as archive:
        assert not [name for name in archive.namelist() if "/sealed/" in name]
        assert b"unseal(globals())" not in archive.read(
            "transformers-06_encoder_decoder/transformer_lm/translation/decoding.py"
        )


# Functions of a sealed module whose source can be read: they only raise an error.
STUBS = """
import importlib, inspect, pkgutil, sys
import transformer_lm

names = [module.name for module in pkgutil.walk_packages(transformer_lm.__path__, "transformer_lm.")]
modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
values = [value for module in (transformer_lm, *modules) for value in vars(module).values()]
values += [method for value in values if isinstance(value, type) for method in vars(value).values()]
functions = [inspect.unwrap(value) for value in values if callable(value)]
ours = [each for each in functions if inspect.isfunction(each) and each.__module__ in sys.argv[1:]]
print(len(ours), [each.__qualname__ for each in ours if each.__code__.co_filename.endswith(".py")])
"""


@pytest.mark.parametrize("topic", WITH_SEALS)
def test_no_module_of_the_zip_holds_what_is_only_shown(zips, topic):
    sealed = {f"transformer_lm.{module_of(name)}" for name in sealed_in(topic)}
    number, _, stubs = in_folder(zips[topic], "-c", STUBS, *sealed).strip().partition(" ")
    assert int(number) > 10
    assert stubs == "[]"


@pytest.mark.parametrize("topic", WITH_SEALS)
def test_what_lessons_and_assignments_import_is_there(zips, topic):
    imports = []
    for notebook in zips[topic].rglob("*.ipynb"):
        for cell in nbformat.read(notebook, as_version=4).cells:
            if cell.cell_type == "code":
                code = "\n".join(line for line in cell.source.splitlines() if not line.startswith(("%", "!")))
                imports += [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = sorted({ast.unparse(node) for node in imports})
    assert len(lines) > 20
    in_folder(zips[topic], "-c", "\n".join(lines))


TEXT_MODEL = """
import torch
from transformer_lm.texts.corpora import Corpus
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.texts.tokenizers import CharTokenizer
from transformer_lm.training.loop import Recipe, train

torch.manual_seed(0)
tokenizer = CharTokenizer("abcdefg")
tokens = torch.tensor(tokenizer.encode("abcdefg" * 30))
corpus = Corpus("rounds", tokens, tokens[:70], tokens[:70], tokenizer)
model = TransformerLM(LMConfig(7, max_len=14, hidden=16, num_layers=1, num_heads=2))
history = train(model, corpus, Recipe(60, 8, learning_rate=0.01), progress=False)
"""
TRAINING = {
    "04_language_model": TEXT_MODEL
    + """
from transformer_lm.sampling import sampled_text

print("".join(sampled_text(model, tokenizer, "abc", 4, top_k=1)))
""",
    "05_attention_heatmaps": TEXT_MODEL
    + """
from transformer_lm.heads.scores import measure_heads

measure_heads(model, [tokens[:56].view(4, 14)], tokenizer, progress=False)
print("measured")
""",
    "06_encoder_decoder": """
import torch
from transformer_lm.translation.decoding import translated
from transformer_lm.modeling_encoder_decoder import EncoderDecoderConfig, TransformerEncoderDecoder
from transformer_lm.texts.pairs import load_toy_pairs
from transformer_lm.training.loop import Recipe, train

corpus = load_toy_pairs(200)
sizes = corpus.source_tokenizer.vocab_size, corpus.target_tokenizer.vocab_size
model = TransformerEncoderDecoder(EncoderDecoderConfig(*sizes, max_len=64, hidden=8, num_layers=1, num_heads=2))
history = train(model, corpus, Recipe(30, 8, learning_rate=0.01), progress=False)
assert history.loss[-1] < history.loss[0]
print("learned")
""",
}


@pytest.mark.parametrize(("topic", "said"), [*zip(TRAINING, ["defg", "measured", "learned"], strict=True)])
def test_a_model_can_be_trained_with_the_zip(zips, topic, said):
    assert in_folder(zips[topic], "-c", TRAINING[topic]).strip() == said


def test_what_is_sealed_is_installed_with_the_package(zips, tmp_path):
    top = zips["04_language_model"]
    script = "import sys; from setuptools import setup; sys.argv[1:] = ['-q', 'build_py', '-d', sys.argv[1]]; setup()"
    in_folder(top, "-c", script, str(tmp_path))
    sealed = {path.relative_to(top) for path in top.rglob("*.bin")}
    assert sealed
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.bin")} == sealed


@pytest.mark.parametrize("topic", WITH_SEALS)
def test_a_solved_assignment_passes_the_checks_of_the_zip(zips, topic):
    path = zips[topic] / "release" / topic / f"{topic}.ipynb"
    nbformat.write(solved_notebook(ROOT, topic), path)
    missing = {"training-run-check"} if topic == "04_language_model" else set()  # a file, not a cell
    command = ("-m", "transformer_lm", "check", str(path), "--json")
    report = json.loads(in_folder(zips[topic], *command, status=int(bool(missing))))
    assert {check["name"] for check in report["checks"] if check["problem"]} == missing
    assert len(report["checks"]) >= 7
