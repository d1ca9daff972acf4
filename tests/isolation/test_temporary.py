"""Temporary folders: removed at the end, or by the next process if their owner was killed before that."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from checkout import ROOT

from grading.isolation.temporary import temporary_folder

OWNER = """
import sys, tempfile
from grading.isolation.temporary import temporary_folder
tempfile.tempdir = sys.argv[1]
with temporary_folder("answers-") as folder:
    (folder / "content").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_removed_in_the_end(place):
    with temporary_folder("answers-") as folder:
        assert folder.is_dir()
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_and_no_other(place):
    (place / "answers-of-nobody").mkdir()
    (place / "other-folder").mkdir()
    (place / "answers-link").symlink_to(place / "other-folder")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as owner:
        theirs = Path(owner.stdout.readline().strip())
        with temporary_folder("answers-"):
            assert (theirs / "content").exists()
        owner.kill()
        owner.wait()
        assert theirs.exists()
    with temporary_folder("answers-") as ours, temporary_folder("answers-") as another:
        assert not theirs.exists()
        assert ours.is_dir()
        assert another.is_dir()
    assert sorted(path.name for path in place.iterdir()) == ["answers-link", "answers-of-nobody", "other-folder"]
