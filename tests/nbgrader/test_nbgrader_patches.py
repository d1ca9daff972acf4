"""One module changes nbgrader itself, for one version, which has these signatures."""

import inspect
import re
from importlib.metadata import version

from checkout import ROOT
from nbgrader.api import Gradebook, SubmittedAssignment
from sqlalchemy import event

from grading.nbgrader_steps import nbgrader_patches


def test_nbgrader_is_the_version_that_the_patches_were_tested_with():
    assert version("nbgrader") == nbgrader_patches.TESTED_WITH
    assert f"nbgrader=={nbgrader_patches.TESTED_WITH}" in (ROOT / "requirements.lock").read_text().splitlines()


def test_what_is_replaced_takes_the_same_arguments():
    opens, closes = Gradebook.__init__, Gradebook.close
    with nbgrader_patches.kept_open("sqlite://"):
        assert Gradebook.__init__ is not opens
        for before, after in ((opens, Gradebook.__init__), (closes, Gradebook.close)):
            assert list(inspect.signature(before).parameters) == list(inspect.signature(after).parameters)
    assert (Gradebook.__init__, Gradebook.close) == (opens, closes)


def test_a_second_install_changes_nothing():
    nbgrader_patches.install()
    nbgrader_patches.install()
    assert event.contains(SubmittedAssignment.timestamp, "set", nbgrader_patches._forget_scores)


def test_no_other_module_changes_nbgrader():
    for path in (ROOT / "grading").glob("*.py"):
        changes = re.search(
            r"^\s*Gradebook\.\w+.* = |listens_for|event\.listen", path.read_text(encoding="utf-8"), re.M
        )
        assert path.name == "nbgrader_patches.py" or changes is None, path
