"""The package as others install it: its wheel and source distribution are complete, and work without the checkout."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from checkout import ROOT
from sentences import opening

import transformer_lm

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = transformer_lm.__version__
# Files that may be in a checkout and must not be distributed.
LEFTOVERS = ["my_model.safetensors", "runs/toy/model.safetensors", "__pycache__/lm.json", "frozen/notes.txt"]
USE = '''\
"""Use the installed package from a folder that holds nothing else."""
from pathlib import Path

import transformer_lm
from transformer_lm import checks
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.hints import hint_texts
from transformer_lm.course.outlines import assignments, load_outline
from transformer_lm.test_values import load_frozen
from transformer_lm.training.pretrained import load_trained
from transformer_lm.plots.viewer import SCRIPT

assert Path(transformer_lm.__file__).is_relative_to(Path.cwd() / "installed"), transformer_lm.__file__

def attention_scores(query, key):
    return query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5

def not_scaled(query, key):
    return query @ key.transpose(-2, -1)

checks.attention_scores(attention_scores)
try:
    checks.attention_scores(not_scaled)
except CheckFailed as failed:
    print(failed.hint)
for assignment in assignments():
    outline = load_outline(assignment)
    print(assignment, len(outline.of_kind("answer")), len(hint_texts(assignment)))
print(*load_frozen("self-attention").cases[0].outputs)
print(type(load_trained("toy")[0]).__name__)
print(SCRIPT.stat().st_size)
'''


def _tracked_files() -> set[str]:
    """Return the files of the package that are committed, or would be by `git add`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "transformer_lm"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """Return a folder with the source distribution of this checkout and the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("distributions")
    checkout = folder / "checkout"
    ours = (
        "pyproject.toml",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "grading/judging/judge.py",
        "tests/course/test_wheel.py",
    )
    for name in (*_tracked_files(), *ours):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    for name in LEFTOVERS:
        (checkout / "transformer_lm" / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / "transformer_lm" / name).touch()
    (folder / "no_torch").mkdir()
    (folder / "no_torch" / "torch.py").write_text("raise ImportError('torch must not be needed')\n")
    build = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(checkout)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "no_torch")},
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(distributions) -> Path:
    """Return the wheel."""
    (path,) = distributions.glob("*.whl")
    return path


def test_the_version_is_written_in_one_place():
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    for name in ("pyproject.toml", "CITATION.cff", "environment.yml", "docs/conf.py"):
        assert f'"{VERSION}"' not in (ROOT / name).read_text(encoding="utf-8"), name


def test_the_version_can_be_read_without_torch():
    tree = ast.parse((ROOT / "transformer_lm" / "__init__.py").read_text(encoding="utf-8"))
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert [ast.literal_eval(value) for value in values] == [VERSION]


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == _tracked_files()


def test_the_wheel_has_the_version_and_the_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        information = f"transformer_lm-{VERSION}.dist-info"
        metadata = message_from_bytes(archive.read(f"{information}/METADATA"))
        assert f"{information}/licenses/LICENSE" in archive.namelist()
    assert metadata["Version"] == VERSION
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata.get_payload().startswith("# Transformers, built by you")


def test_the_source_distribution_holds_the_package_and_no_grading(distributions):
    top = f"transformer_lm-{VERSION}"
    with tarfile.open(distributions / f"{top}.tar.gz") as archive:
        names = {name.removeprefix(f"{top}/") for name in archive.getnames() if not archive.getmember(name).isdir()}
    assert {name for name in names if name.startswith("transformer_lm/")} == _tracked_files()
    assert {name for name in names if name.startswith(("grading", "source", "tests"))} == set()
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names


def test_the_installed_wheel_works_without_the_checkout(wheel, tmp_path):
    installed = tmp_path / "installed"
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(installed)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True, capture_output=True)
    (tmp_path / "use.py").write_text(USE, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "use.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed), "TRANSFORMER_LM_DEVICE": "cpu"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    right, hint, *counts, outputs, model, script = run.stdout.splitlines()
    assert right.startswith("✓ attention-scores: right for every size tried")
    assert hint.startswith(opening("not-scaled"))
    assert [line.split()[0] for line in counts] == sorted(path.stem for path in (ROOT / "release").iterdir())
    assert all(0 < int(hints) <= int(answers) for _, answers, hints in map(str.split, counts))
    assert (outputs, model) == ("output", "TransformerLM")
    assert int(script) == (ROOT / "transformer_lm" / "plots" / "viewer.js").stat().st_size
