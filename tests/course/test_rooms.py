"""Rooms: every module has one, none imports in a circle, and lessons find what they import."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

EXPORTING = ("texts", "heads", "translation", "training", "plots")


@pytest.fixture(scope="module")
def rooms():
    """The script that writes the page."""
    specification = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_page_is_fresh(rooms):
    assert rooms.PAGE.read_text(encoding="utf-8") == rooms.page(), "docs/rooms.md is stale: run `make rooms`"


@pytest.mark.parametrize("package", ["transformer_lm", "grading"])
def test_the_page_has_every_module_with_what_it_is_for(rooms, package):
    lines = rooms.PAGE.read_text(encoding="utf-8").partition(f"\n## {package}\n")[2].partition("\n## ")[0].splitlines()
    rows = dict(row for line in lines for row in re.findall(r"^\| `(.+)` \| (.+) \|$", line))
    paths = {path.relative_to(ROOT / package) for path in (ROOT / package).rglob("*.py")}
    rooms_themselves = {path for path in paths if path.name == "__init__.py" and path != Path("__init__.py")}
    assert set(map(Path, rows)) == paths - rooms_themselves
    purposes = [line for line in lines if line and not line.startswith(("|", "#"))]
    assert len(purposes) == sum(line.startswith("### ") for line in lines)


def test_what_newcomers_look_for_is_where_the_page_says(rooms):
    for what, path, name in rooms.PLACES:
        text = (ROOT / path).read_text(encoding="utf-8")
        defined = rf"^ *(?:def|class) {re.escape(name)}\b|^{re.escape(name)}(?!\w)"
        assert re.search(defined, text, re.MULTILINE), what


@pytest.mark.parametrize("package", ["transformer_lm", "grading"])
def test_each_room_imports_only_from_those_before_it(rooms, package):
    order = list(rooms.rooms(package))
    upwards = {
        (room, other)
        for room, others in rooms.needs(package).items()
        for other in others
        if order.index(other) >= order.index(room)
    }
    assert upwards == set()


def test_no_module_imports_in_a_circle(rooms):
    order = rooms.module_layers()
    assert len(order) == len({*rooms.modules("transformer_lm"), *rooms.modules("grading")})


def test_a_circle_is_named(rooms):
    with pytest.raises(ValueError, match=r"^imports must not run in a circle, got "):
        rooms.layers({"one": {"other"}, "other": {"one"}})


def test_a_module_that_nobody_has_placed_is_named(rooms):
    with pytest.raises(KeyError, match=r"must place transformer_lm\.attic in a room"):
        rooms.room_of("transformer_lm.attic")


def test_no_module_has_the_name_of_a_folder_beside_it():
    for package in ("transformer_lm", "grading"):
        assert [path for path in (ROOT / package).rglob("*.py") if path.with_suffix("").is_dir()] == []


def test_no_module_imports_a_private_name(rooms):
    found = {}
    for package in ("transformer_lm", "grading"):
        for module, path in rooms.modules(package).items():
            text = re.sub(r"\\\n", "", path.read_text())
            names = re.findall(r"^ *from (?:transformer_lm|grading)\S* import ((?:\([^)]*\))|.+)$", text, re.MULTILINE)
            if private := re.findall(r"\b_[a-z]\w*", " ".join(names)):
                found[module] = private
    assert found == {}


@pytest.mark.parametrize("room", EXPORTING)
def test_a_room_exports_what_its_modules_define(room):
    module = importlib.import_module(f"transformer_lm.{room}")
    folder = ROOT / "transformer_lm" / room
    assert module.__all__
    assert not {path.stem for path in folder.glob("*.py")} & {*module.__all__}  # the module would hide the name
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=rf"module 'transformer_lm\.{room}' has no attribute 'gone'"):
        _ = module.gone


def test_a_room_loads_nothing_that_nobody_asks_for():
    code = "import sys, transformer_lm.plots, transformer_lm.heads; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
