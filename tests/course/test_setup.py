"""One list of dependencies, one set of exact pins, one Makefile: they agree, and this environment matches them."""

import ast
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import metadata, version
from pathlib import Path

import pytest
import yaml
from checkout import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

FOLDERS = ["bench", "data", "grading", "notebooks", "release", "source", "tests", "transformer_lm"]
FILES = ["Makefile", "environment.yml", "nbgrader_config.py", "pyproject.toml", "requirements.lock"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
RANGES = [*PROJECT["dependencies"], *(name for extra in PROJECT["optional-dependencies"].values() for name in extra)]
LOCK = (ROOT / "requirements.lock").read_text().splitlines()
PIN = re.compile(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*")


def _pins() -> dict[str, Version]:
    """Return the version of each package in requirements.lock."""
    return {canonicalize_name(name): Version(pin) for name, pin in (line.split("==") for line in LOCK)}


def _make(*arguments: str, folder: Path = ROOT, fails: bool = False, **variables: str) -> str:
    """Return what make prints, without the settings of a make that runs these tests."""
    ours = ("MFLAGS", "TORCH", "TORCH_INDEX")
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name and name not in ours}
    environment |= variables
    run = subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert bool(run.returncode) == fails, run.stdout
    return run.stdout


def test_every_line_of_the_lock_is_an_exact_pin():
    assert [line for line in LOCK if not PIN.fullmatch(line)] == []


def test_no_package_has_two_pins():
    assert len(_pins()) == len(LOCK)


@pytest.mark.parametrize("dependency", RANGES)
def test_every_dependency_is_pinned_within_its_range(dependency):
    requirement = Requirement(dependency)
    assert requirement.specifier, f"{dependency} must have a range in pyproject.toml."
    assert canonicalize_name(requirement.name) in _pins()
    assert _pins()[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_installed_versions_are_the_pins():
    # "2.13.0+cpu" is 2.13.0, built for machines without a GPU.
    installed = {name: Version(Version(version(name)).public) for name in _pins()}
    assert installed == _pins()


def test_every_pin_supports_the_oldest_python():
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    needs = {name: metadata(name).get("Requires-Python", "") for name in _pins()}
    assert {name: need for name, need in needs.items() if oldest not in SpecifierSet(need)} == {}


def test_conda_installs_the_pins_and_the_course():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert pip == {"pip": ["-r requirements.lock", "-e ."]}
    assert [re.split("[=<>]", dependency)[0] for dependency in conda] == ["python", "pip"]


def test_conda_brings_a_python_that_the_course_supports():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = environment["dependencies"][0].removeprefix("python=")
    assert Version(python) in SpecifierSet(PROJECT["requires-python"])


def _public_ci() -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["test"]


def test_the_public_ci_runs_what_must_pass():
    job = _public_ci()
    commands = [step.get("run") for step in job["steps"]]
    assert "${{ matrix.command }}" in commands
    assert commands.index("sudo make programs") < commands.index("${{ matrix.command }}")
    full = [each for each in job["strategy"]["matrix"]["include"] if each["command"] == "bash .ci/run"]
    assert [each["python"] for each in full] == [PROJECT["requires-python"].removeprefix(">=")]
    assert (ROOT / ".ci" / "run").is_file()


def test_the_public_ci_tries_every_python_from_the_oldest_on():
    matrix = _public_ci()["strategy"]["matrix"]
    pythons = [Version(python) for python in matrix["python"]]  # texts: the number 3.10 would be 3.1
    assert pythons[0] == Version(PROJECT["requires-python"].removeprefix(">="))
    assert [python.minor for python in pythons] == list(range(pythons[0].minor, max(14, pythons[-1].minor) + 1))
    languages = [line.removeprefix("Programming Language :: Python :: ") for line in PROJECT["classifiers"]]
    assert [language for language in languages if "." in language and ":" not in language] == matrix["python"]
    assert matrix["command"] == ["make lint test"]
    known = {*re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()}
    assert {"lint", "test", "programs"} <= known


@pytest.mark.parametrize(
    ("broken", "stages"), [("", [".venv/ready", "lint", "test-all"]), ("lint", [".venv/ready", "lint"])]
)
def test_what_must_pass_says_where_the_time_goes(tmp_path, broken, stages):
    """With a make that does nothing, or fails at one stage, after which no other is run."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    _write(tmp_path / "bin" / "make", f'#!/bin/sh\n[ "$1" != "{broken}" ] || exit 2\n')
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", tmp_path / ".ci" / "run"], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert run.returncode == (2 if broken else 0)
    assert re.findall(r"^\.ci/run: make (\S+) took \d+ s$", run.stdout, re.MULTILINE) == stages


def test_make_lint_checks_the_types():
    assert " -m mypy\n" in _make("-n", "lint")
    assert PYPROJECT["tool"]["mypy"]["files"] == ["transformer_lm", "grading"]


def test_every_module_whose_types_are_not_checked_exists():
    modules = [name for part in PYPROJECT["tool"]["mypy"].get("overrides", []) for name in part["module"]]
    paths = [ROOT / name.replace(".", "/") for name in modules]
    files = [path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths]
    assert [str(path) for path in files if not path.is_file()] == []
    assert modules == sorted(set(modules))


def test_the_folders_of_the_design_exist():
    assert [name for name in FOLDERS if not (ROOT / name).is_dir()] == []
    assert [name for name in FILES if not (ROOT / name).is_file()] == []


def test_the_package_never_imports_the_grading():
    importers = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "transformer_lm").rglob("*.py"))
        if "grading" in _imported_packages(path)
    ]
    assert importers == []


def _imported_packages(path: Path) -> set[str]:
    """Return the top-level names that a file imports, at its top or in a function."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {module.partition(".")[0] for module in modules}


def test_make_lab_opens_the_first_lesson():
    assert "/lab/tree/notebooks/01_self_attention.ipynb" in _make("-n", "lab")


def test_make_fetches_the_texts_that_are_read_first():
    assert "transformer_lm/texts/downloads.py" in _make("-n", "lab")
    assert "tests/needed_data.py" in _make("-n", "test")
    assert "tests/needed_data.py" in _make("-n", "data")


def test_make_alone_lists_every_command():
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    listed = re.findall(r"^make ([\w-]+) +\S", _make(), re.MULTILINE)
    assert sorted(listed) == sorted(phony)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Return a folder, with a space in its name, whose set-up is finished as far as make can see."""
    folder = tmp_path / "the course"
    _write(folder / ".venv" / "bin" / "python", "#!/bin/sh\n")
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    (folder / ".venv" / "pins").write_text(f"{folder.resolve()}\n")
    (folder / ".venv" / "ready").touch()
    for seconds, name in enumerate(["requirements.lock", "pyproject.toml", ".venv/pins", ".venv/ready"]):
        os.utime(folder / name, (seconds, seconds))
    return folder


def _write(script: Path, text: str) -> Path:
    """Return a new script that can be run."""
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text)
    script.chmod(0o755)
    return script


def test_a_finished_set_up_is_left_alone(checkout):
    assert "pip" not in _make("-n", "lab", folder=checkout)


def test_a_text_that_can_not_be_fetched_keeps_nobody_from_the_lessons(checkout):
    _write(
        checkout / ".venv" / "bin" / "python",
        '#!/bin/sh\ncase "$*" in *downloads.py*) echo no network; exit 1;; *jupyterlab*) echo lab;; esac\n',
    )
    assert _make("lab", folder=checkout) == "no network\nlab\n"


def test_a_set_up_cut_short_is_done_again(checkout):
    (checkout / "requirements.lock").touch()
    _write(checkout / ".venv" / "bin" / "python", "#!/bin/sh\nexit 1\n")  # pip gives up
    _make("lab", "PYTHON=true", folder=checkout, fails=True)
    assert "venv --clear" in _make("-n", "lab", folder=checkout)


def test_new_pins_are_installed(checkout):
    (checkout / "requirements.lock").touch()
    assert "-r requirements.lock" in _make("-n", "lab", folder=checkout)


def test_a_new_pyproject_is_installed_into_the_same_pins(checkout):
    (checkout / "pyproject.toml").touch()
    commands = _make("-n", "lab", folder=checkout)
    assert "--no-deps -e ." in commands
    assert "-r requirements.lock" not in commands


def test_a_moved_checkout_is_set_up_anew(checkout):
    moved = checkout.rename(checkout.with_name("elsewhere"))
    assert "venv --clear" in _make("-n", "lab", folder=moved)


def test_a_set_up_whose_python_is_gone_is_done_anew(checkout):
    (checkout / ".venv" / "bin" / "python").unlink()
    assert "venv --clear" in _make("-n", "lab", folder=checkout)


def test_an_old_python_is_refused_in_one_sentence(checkout):
    script = '#!/bin/sh\ncase "$*" in *version_info*) exit 1;; --version) echo Python 3.9.2;; esac\n'
    old = _write(checkout / "old", script)
    (checkout / ".venv" / "pins").unlink()
    message = _make("lab", f"PYTHON={old}", folder=checkout, fails=True)
    assert message.startswith("Python must be 3.11 or newer, got Python 3.9.2. Install one, or name one: ")


def test_a_python_without_venv_is_refused_in_one_sentence(checkout):
    bare = _write(checkout / "bare", '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\n')
    (checkout / ".venv" / "pins").unlink()
    message = _make("lab", f"PYTHON={bare}", folder=checkout, fails=True)
    assert message.startswith(f"Python must come with venv, got {bare} without. On Debian: ")


RECORDER = """\
#!/bin/sh
# Stands in for Python: runs code, makes environments of itself, and notes all else in commands.txt.
case "$*" in
*" -m venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
"-c "*|"-E -c "*) exec "{python}" "$@" ;;
*) echo "$*" >> commands.txt; case "$*" in *--index-url*) exit {code} ;; esac ;;
esac
"""
NO_GPU = "#!/bin/sh\necho No devices were found\nexit 6\n"
ONE_GPU = "#!/bin/sh\necho 'GPU 0: NVIDIA'\n"


def _machine(checkout: Path, gpu: str = NO_GPU, system: str = "Linux") -> dict[str, str]:
    """Return the environment of a machine with such a GPU and system."""
    programs = checkout / "programs"
    _write(programs / "nvidia-smi", gpu)
    _write(programs / "uname", f"#!/bin/sh\necho {system}\n")
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "CI": "true", "no_proxy": "*"}


def _set_up(checkout: Path, *arguments: str, code: int = 0, **machine: str) -> list[str]:
    """Return what pip is asked for by a new set-up, where the index of CPU builds lets pip end with this code."""
    (checkout / ".venv" / "pins").unlink()
    (checkout / "commands.txt").unlink(missing_ok=True)
    python = _write(checkout / "recorder", RECORDER.format(python=sys.executable, code=code))
    _make(".venv/pins", f"PYTHON={python}", *arguments, folder=checkout, **_machine(checkout, **machine))
    commands = (checkout / "commands.txt").read_text().splitlines()
    return [command.removeprefix("-m pip install -qq ") for command in commands if " pip " in command]


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    """Serve a folder as a package index, which is only lists of files, and yield its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def index(tmp_path) -> Iterator[str]:
    """Yield the address of an index that answers."""
    (tmp_path / "torch").mkdir()
    with _serving(tmp_path) as address:
        yield address


ALL_PINS = "-r requirements.lock"


def _cpu_build(index: str) -> str:
    return f"--no-deps --index-url {index} torch=={_pins()['torch']}"


def test_without_a_gpu_torch_comes_from_the_index_of_cpu_builds(checkout, index):
    assert _set_up(checkout, f"TORCH_INDEX={index}") == [_cpu_build(index), ALL_PINS]


@pytest.mark.parametrize("machine", [{"gpu": ONE_GPU}, {"system": "Darwin"}])
def test_with_a_gpu_or_on_another_system_torch_comes_from_the_usual_index(checkout, index, machine):
    assert _set_up(checkout, f"TORCH_INDEX={index}", **machine) == [ALL_PINS]


def test_you_can_ask_for_either_build(checkout, index):
    assert _set_up(checkout, f"TORCH_INDEX={index}", "TORCH=cuda") == [ALL_PINS]
    assert _set_up(checkout, f"TORCH_INDEX={index}", "TORCH=cpu", gpu=ONE_GPU) == [_cpu_build(index), ALL_PINS]


def test_an_index_that_refuses_costs_no_time(checkout):
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert _set_up(checkout, f"TORCH_INDEX={closed}") == [ALL_PINS]


def test_an_index_that_never_answers_costs_a_few_seconds(checkout):
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert _set_up(checkout, f"TORCH_INDEX={address}") == [ALL_PINS]
    assert 4 < time.monotonic() - began < 20


def test_an_index_without_the_pinned_version_is_not_the_end(checkout, index):
    assert _set_up(checkout, f"TORCH_INDEX={index}", code=1) == [_cpu_build(index), ALL_PINS]
    assert (checkout / ".venv" / "torch").read_text() == "cuda\n"


def test_asking_for_the_other_build_sets_up_again(checkout, index):
    _set_up(checkout, f"TORCH_INDEX={index}")
    os.utime(checkout / ".venv" / "ready")
    assert "venv --clear" not in _make("-n", "lab", "TORCH=cpu", folder=checkout)
    assert "venv --clear" in _make("-n", "lab", "TORCH=cuda", folder=checkout)


def test_an_unknown_build_is_refused_in_one_sentence(checkout):
    message = _make("lab", "TORCH=gpu", folder=checkout, fails=True)
    assert message.startswith("TORCH must be cpu or cuda, got gpu.\n")


def _write_wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    """Write a package of empty modules where an index would have it."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / name / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{name}/labextensions.py", "")  # which set-up runs
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(("answers", "build"), [(True, "torch-2.13.0+cpu"), (False, "torch-2.13.0")])
def test_pip_takes_torch_from_one_index_and_the_rest_from_the_other(checkout, tmp_path, answers, build):
    """With pip itself. The index of CPU builds also has a build of another package, which must not be installed."""
    for index, local in (("cpu", "+cpu"), ("usual", "")):
        _write_wheel(tmp_path / index, "torch", f"2.13.0{local}", "Requires-Dist: fsspec\n")
        _write_wheel(tmp_path / index, "fsspec", f"1.0{local}")
    _write_wheel(tmp_path / "usual", "jupyterlab", "4.0")
    (checkout / "requirements.lock").write_text("fsspec==1.0\njupyterlab==4.0\ntorch==2.13.0\n")
    with _serving(tmp_path) as address:
        settings = {"INDEX_URL": f"{address}/usual", "EXTRA_INDEX_URL": "", "FIND_LINKS": "", "CONFIG_FILE": os.devnull}
        settings = {f"PIP_{name}": value for name, value in settings.items()}
        index = f"{address}/cpu" if answers else "http://127.0.0.1:9"
        _make(
            ".venv/pins",
            f"PYTHON={sys.executable}",
            f"TORCH_INDEX={index}",
            folder=checkout,
            **_machine(checkout),
            **settings,
        )
    (packages,) = (checkout / ".venv" / "lib").glob("python*/site-packages")
    assert {build, "fsspec-1.0", "jupyterlab-4.0"} <= {path.stem for path in packages.glob("*.dist-info")}


@pytest.mark.parametrize(("in_ci", "outcome"), [("true", "1 failed, 1 error"), ("", "2 skipped")])
def test_a_skip_is_a_failure_in_ci_only(tmp_path, in_ci, outcome):
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text("import pytest\ndef test_one():\n    pytest.skip('no browser')\n")
    (tmp_path / "test_file.py").write_text("import pytest\npytest.skip('no browser', allow_module_level=True)\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=os.environ | {"CI": in_ci},
        capture_output=True,
        text=True,
    )
    assert outcome in run.stdout
