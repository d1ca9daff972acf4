"""`nbgrader zip_collect` with our settings: the platform says whose a file is, never a student."""

import io
import os
import zipfile
from pathlib import Path

import pytest
from sample_class import ASSIGNMENT, new_course, python

NOTEBOOK = f"{ASSIGNMENT}.ipynb"


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


FILES = {
    f"lovelaceada_101_5001_{NOTEBOOK}": b"first",
    f"lovelaceada_101_5003_{ASSIGNMENT}-2.ipynb": b"third",
    f"lovelaceada_101_5002_{ASSIGNMENT}-1.ipynb": b"second",
    f"mallory_LATE_202_5004_{NOTEBOOK}": b"own",
    "mallory_202_5005_more.zip": zipped(
        {f"x_101_9999_{NOTEBOOK}": b"stolen", f"submissions/x_101_9999_{NOTEBOOK}": b"stolen"}
    ),
    f"mallory_202_5006_x_101_9999_{NOTEBOOK}": b"odd name",
    "mallory_202_5007_jedi.py": b"code",
    f"../x_101_9999_{NOTEBOOK}": b"above",
    f"/x_101_9999_{NOTEBOOK}": b"absolute",
    f"folder/x_101_9999_{NOTEBOOK}": b"below",
    "mallory_202_5008_\x1b[2K.ipynb\x1b": b"codes",
    "turing_303_5009_my_model.safetensors": b"model",
    f"turing_303_5010_{NOTEBOOK}": b"turing",
}


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course in which the zip of a platform was collected, with what it printed."""
    course = new_course(tmp_path_factory.mktemp("course"))
    archive = course / "downloaded" / ASSIGNMENT / "archive"
    archive.mkdir(parents=True)
    (archive / "submissions.zip").write_bytes(zipped(FILES))
    with zipfile.ZipFile(archive / "large.zip", "w", zipfile.ZIP_DEFLATED) as large:
        large.writestr(f"hopper_404_6000_{NOTEBOOK}", bytes(50_000_001))
    (archive / f"noether_505_7000_{NOTEBOOK}").write_bytes(b"loose")
    (course / "printed.log").write_text(python(course, "nbgrader", "zip_collect", ASSIGNMENT))
    return course


def test_everybody_s_own_and_newest_file_is_collected(course):
    found = {
        path.relative_to(course / "submitted"): path for path in (course / "submitted").rglob("*") if path.is_file()
    }
    assert {str(name): path.read_bytes() for name, path in found.items()} == {
        f"101/{ASSIGNMENT}/{NOTEBOOK}": b"third",
        f"202/{ASSIGNMENT}/{NOTEBOOK}": b"own",
        f"202/{ASSIGNMENT}/x_101_9999_{NOTEBOOK}": b"odd name",
        f"303/{ASSIGNMENT}/my_model.safetensors": b"model",
        f"303/{ASSIGNMENT}/{NOTEBOOK}": b"turing",
        f"505/{ASSIGNMENT}/{NOTEBOOK}": b"loose",
    }


def test_nothing_is_written_elsewhere(course):
    assert [
        path for path in course.rglob("*9999*") if "submitted/202" not in str(path) and "extracted" not in str(path)
    ] == []
    assert sorted(os.listdir(course / "downloaded" / ASSIGNMENT)) == ["archive", "extracted"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (f"lovelaceada_101_5001_{NOTEBOOK}", "there is a newer one"),
        (f"lovelaceada_101_5002_{ASSIGNMENT}-1.ipynb", "there is a newer one"),
        ("mallory_202_5005_more.zip", "its name is not that of a submission"),
        ("mallory_202_5007_jedi.py", "its name is not that of a submission"),
        (f"../x_101_9999_{NOTEBOOK}", "its name is not that of a submission"),
        (f"hopper_404_6000_{NOTEBOOK}", "it is too large"),
        ("mallory_202_5008_\\x1b[2K.ipynb\\x1b", "its name is not that of a submission"),
    ],
)
def test_a_note_says_what_is_left_out_and_why(course, name, reason):
    said = (course / "printed.log").read_text()
    assert f"{name} is left out: {reason}." in said
    assert "Traceback" not in said


def test_a_notebook_that_may_be_read_as_a_zip_is_a_notebook(tmp_path):
    course = new_course(tmp_path / "course")
    archive = course / "downloaded" / ASSIGNMENT / "archive"
    archive.mkdir(parents=True)
    (archive / f"ada_101_5001_{NOTEBOOK}").write_bytes(b"honest")
    hidden = zipped({f"x_101_9999_{NOTEBOOK}": b"stolen"})
    (archive / f"eve_202_5002_{NOTEBOOK}").write_bytes(b"own\n" + hidden)
    python(course, "nbgrader", "zip_collect", ASSIGNMENT)
    assert (course / "submitted" / "101" / ASSIGNMENT / NOTEBOOK).read_bytes() == b"honest"
    assert (course / "submitted" / "202" / ASSIGNMENT / NOTEBOOK).read_bytes() == b"own\n" + hidden
