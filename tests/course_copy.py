"""A fresh copy of this checkout, to be changed at will, whose set-up is finished as far as make can see."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("bench", "data", "docs", "grading", "notebooks", "release", "source", "tests", "transformer_lm")
COPIED += ("LICENSE", "Makefile", "README.md", "environment.yml", "nbgrader_config.py", "pyproject.toml")
COPIED += ("requirements.lock",)
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "cache")


def copied_course(folder: Path) -> Path:
    """Copy the checkout as it is now, committed or not, into a new folder; its .venv consists of links to this one."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=LEFT_OUT)
        else:
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg", "share", "etc"):
        (folder / ".venv" / name).symlink_to(Path(sys.prefix).resolve() / name)
    (folder / ".venv" / "pins").write_text(f"{folder.resolve()}\n")
    (folder / ".venv" / "ready").touch()
    return folder


def run_in(folder: Path, command: str, **variables: str) -> subprocess.CompletedProcess:
    """Run a command in a shell where the copy's environment is active, as in the guides; stderr goes to stdout."""
    # Neither the make that runs these tests nor the checkout that they are in.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"}
    # The set-up is finished: nothing may be installed into the folders that the links of .venv lead to.
    environment |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1", **variables}
    return subprocess.run(
        ["bash", "-ec", f"source .venv/bin/activate\n{command}"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
