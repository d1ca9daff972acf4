"""Submissions as they come in: read in any state, and repaired to have the cells that were released."""

import json
import os
import re
import tracemalloc
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from checkout import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output, new_raw_cell
from nbgrader.nbgraderformat import MetadataValidator
from nbgrader.utils import is_locked

from grading.nbgrader_steps import repair as module
from grading.nbgrader_steps.repair import UnreadableSubmission, read_submission, repair

TOPIC = "01_self_attention"
RELEASED = nbformat.read(ROOT / "release" / TOPIC / f"{TOPIC}.ipynb", as_version=4)
SOURCE = {cell.id: cell for cell in nbformat.read(ROOT / "source" / TOPIC / f"{TOPIC}.ipynb", as_version=4).cells}
MARKED = {cell.id: cell for cell in RELEASED.cells if "nbgrader" in cell.metadata}  # here the ids are the grade_ids
ANSWERS = [name for name, cell in MARKED.items() if not is_locked(cell)]
LOCKED = [name for name in MARKED if name not in ANSWERS]

OUTPUTS = [
    new_output("stream", name="stdout", text="one\ntwo\n"),
    new_output("display_data", data={"text/plain": "figure", "image/png": "aGVsbG8="}, metadata={"image/png": {}}),
    new_output("execute_result", data={"application/json": {"a": [1.5, None]}}, execution_count=3),
    new_output("error", ename="ValueError", evalue="no", traceback=["line", "line"]),
]

quick = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


def solve(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a copy of a released notebook with the answers of the source, run once."""
    solved = deepcopy(notebook)
    for cell in solved.cells:
        if cell.id in ANSWERS:
            cell.source = SOURCE[cell.id].source
        if cell.cell_type == "code":
            cell.update(outputs=deepcopy(OUTPUTS), execution_count=3)
    return solved


# Few cells, some of each sort: quick to check, and random changes often meet something that matters.
SMALL = deepcopy(RELEASED)
SMALL.cells = [
    cell
    for cell in SMALL.cells
    if cell.id in {"setup", "kqv", "kqv-check", "kqv-look", "kqv-look-code", "attention-scores", "q1-answer", "recap"}
]


@pytest.fixture
def solved() -> nbformat.NotebookNode:
    return solve(RELEASED)


@pytest.fixture
def small() -> nbformat.NotebookNode:
    return solve(SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("submitted")


def ids(notebook) -> list[str]:
    return [cell.id for cell in notebook.cells]


def position(notebook, cell_id: str) -> int:
    return ids(notebook).index(cell_id)


def cell_of(notebook, cell_id: str) -> nbformat.NotebookNode:
    return notebook.cells[position(notebook, cell_id)]


def sources(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells]


def mended(notebook, released=RELEASED) -> list[str]:
    """Repair a submission, check what must hold for any, and return the notes."""
    notes = repair(notebook, released)
    nbformat.validate(notebook)
    marked = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    originals = [cell for cell in released.cells if "nbgrader" in cell.metadata]
    assert [cell.id for cell in marked] == [cell.id for cell in originals]
    for cell, original in zip(marked, originals, strict=True):
        assert (cell.metadata.nbgrader, cell.cell_type) == (original.metadata.nbgrader, original.cell_type)
        assert not is_locked(original) or cell.source == original.source
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert not any(module.STOPPING_TAGS & set(cell.metadata.get("tags", [])) for cell in notebook.cells)
    again = deepcopy(notebook)
    assert repair(again, released) == []
    assert again == notebook
    assert len(notes) == len(set(notes)) <= len(module.SENTENCES)
    return notes


def written(folder: Path, content: object) -> Path:
    """Return a file that contains some bytes, or a value as JSON."""
    path = folder / "answer.ipynb"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def raw(solved) -> dict:
    """Return a notebook as plain JSON."""
    return json.loads(nbformat.writes(solved))


# Reading.


@pytest.mark.parametrize(
    "path", [*ROOT.glob("release/*/*.ipynb"), *ROOT.glob("notebooks/*.ipynb")], ids=lambda p: p.stem
)
def test_a_sound_notebook_is_read_as_it_is(path):
    assert read_submission(path) == nbformat.read(path, as_version=4)


def test_outputs_of_each_type_and_attachments_are_kept(folder, solved):
    cell_of(solved, "q1-answer")["attachments"] = {"a.png": {"image/png": "aGVsbG8="}}
    assert read_submission(written(folder, raw(solved))) == solved


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_a_byte_order_mark_and_wide_characters_are_read(folder, solved, encoding):
    text = json.dumps(raw(solved), ensure_ascii=False)
    assert read_submission(written(folder, text.encode(encoding))) == solved


def test_a_notebook_of_format_3_is_upgraded(folder, solved):
    old = nbformat.convert(deepcopy(solved), 3)
    path = written(folder, nbformat.writes(old, version=3).encode())
    notebook = read_submission(path)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert sources(notebook) == sources(solved)
    assert notebook == read_submission(path)
    assert mended(notebook) == []


def test_a_notebook_of_format_4_0_without_ids_is_upgraded(folder, solved):
    old = raw(solved) | {"nbformat_minor": 0}
    for cell in old["cells"]:
        del cell["id"]
    notebook = read_submission(written(folder, old))
    assert [cell.id for cell in notebook.cells[:3]] == ["cell", "cell-1", "cell-2"]
    assert mended(notebook) == []


def test_the_ids_that_colab_moves_into_the_metadata_are_used(folder, solved):
    colab = raw(solved) | {"nbformat_minor": 0}
    for cell in colab["cells"]:
        cell["metadata"] = {"id": cell.pop("id")}
    assert mended(read_submission(written(folder, colab))) == [
        f"All {len(MARKED)} marked cells had lost the nbgrader metadata: marked again as released."
    ]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("metadata", None, {}),
        ("metadata", [1], {}),
        ("metadata", {"tags": "skip", "collapsed": 3, "name": "mine", "transient": 1}, {"name": "mine"}),
        ("outputs", None, []),
        ("outputs", {"a": 1}, []),
        ("outputs", [3, None, {}, {"output_type": "pyout"}, {"output_type": []}], []),
        ("source", ["a\n", "b"], "a\nb"),
        ("source", ["a\n", 3, None, "b"], "a\nb"),
        ("source", None, ""),
        ("source", {"a": 1}, ""),
        ("execution_count", "3", None),
        ("execution_count", -1, None),
        ("execution_count", True, None),
        ("execution_count", 2.5, None),
        ("id", None, "cell"),
        ("id", "", "cell"),
        ("id", "two words", "cell"),
        ("id", ["kqv"], "cell"),
        ("attachments", {}, None),
        ("unknown", 3, None),
    ],
)
def test_an_invalid_field_is_mended(folder, small, field, value, expected):
    broken = raw(small)
    at = position(small, "kqv")
    broken["cells"][at][field] = value
    notebook = read_submission(written(folder, broken))
    nbformat.validate(notebook)
    assert notebook.cells[at].get(field) == expected
    assert notebook.cells[at + 1 :] == small.cells[at + 1 :]


@pytest.mark.parametrize("field", ["id", "metadata", "source", "outputs", "execution_count", "cell_type"])
def test_a_missing_field_is_added(folder, small, field):
    broken = raw(small)
    for cell in broken["cells"]:
        cell.pop(field, None)
    notebook = read_submission(written(folder, broken))
    nbformat.validate(notebook)
    assert len(notebook.cells) == len(small.cells)
    mended(notebook, SMALL)


@pytest.mark.parametrize("field", ["metadata", "nbformat", "nbformat_minor"])
@pytest.mark.parametrize("value", [None, [], "5", -1, True, 99, 4.5, {"kernelspec": 3, "authors": "me", "title": "x"}])
def test_invalid_fields_of_the_notebook_are_mended(folder, small, field, value):
    if (field, value) == ("nbformat", True):
        value = False
    notebook = read_submission(written(folder, raw(small) | {field: value, "more": 1}))
    nbformat.validate(notebook)
    assert notebook.cells == small.cells
    assert field != "metadata" or notebook.metadata == ({"title": "x"} if isinstance(value, dict) else {})


def test_what_is_no_cell_is_left_out_and_an_unknown_type_keeps_its_text(folder):
    cells = [3, None, "text", [], {}, {"cell_type": "heading", "source": "Title"}, {"cell_type": ["code"]}]
    notebook = read_submission(written(folder, {"cells": cells}))
    nbformat.validate(notebook)
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [("raw", ""), ("raw", "Title"), ("raw", "")]


def test_fields_that_an_output_lacks_or_has_too_many_are_mended(folder, solved):
    broken = raw(solved)
    at = position(solved, "kqv")
    broken["cells"][at]["outputs"] = [
        {"output_type": "stream", "metadata": {"tags": []}, "text": ["a\n", "b"], "name": "stdout"},  # from Colab
        {"output_type": "execute_result", "data": {"text/plain": ["1"]}},
        {"output_type": "error"},
        {"output_type": "display_data", "data": {"text/plain": 3}},
        {"output_type": "stream", "name": 3, "text": "a"},
    ]
    outputs = read_submission(written(folder, broken)).cells[at].outputs
    assert [output.output_type for output in outputs] == ["stream", "execute_result", "error"]
    assert outputs[0].text == "a\nb"
    assert outputs[1].data["text/plain"] == "1"


@pytest.mark.parametrize(
    "outputs",
    [
        [new_output("stream", text="x" * 1_500_000)],
        [new_output("stream", text=["x" * 79 + "\n"] * 20_000)],
        [new_output("display_data", data={"image/png": "x" * 1_500_000})],
        [new_output("error", evalue="x" * 1_500_000)],
        [new_output("stream", text="x" * 9_000) for _ in range(200)],
    ],
    ids=["one line", "many lines", "a picture", "an error", "many outputs"],
)
def test_huge_outputs_are_cut_with_a_line_that_says_so(folder, small, outputs):
    cell_of(small, "kqv").outputs = outputs
    path = written(folder, json.dumps(small).encode())
    for limit in (1_000_000, 5_000):
        cut = cell_of(read_submission(path, limit), "kqv").outputs
        assert cut[-1].text.endswith(f"\n[The outputs of this cell are cut here: {limit:,} characters.]\n")
        assert len(json.dumps(cut)) < 1.2 * limit + 1_000
        assert len(json.dumps(cut)) > 0.9 * limit or outputs[0].output_type != "stream"
    assert read_submission(path, 10_000_000).cells[position(small, "kqv")].outputs[-1].get("text", "")[-4:] != "s.]\n"


def test_the_outputs_before_the_cut_count_towards_the_limit(folder, small):
    cell_of(small, "kqv").outputs = [new_output("stream", text=letter * 600) for letter in "abc"]
    first, second = cell_of(read_submission(written(folder, raw(small)), 1_000), "kqv").outputs
    assert first.text == "a" * 600
    assert 300 < second.text.count("b") < 400
    assert "c" * 9 not in second.text


def test_ids_that_occur_twice_are_replaced_by_new_ones(folder):
    names = ["a", "a", "cell-1", "a", "cell-1", "cell-3"]
    notebook = read_submission(written(folder, {"cells": [{"cell_type": "code", "id": name} for name in names]}))
    assert ids(notebook) == ["a", "cell-2", "cell-1", "cell-4", "cell-5", "cell-3"]


def test_half_a_character_does_not_stop_the_notebook_from_being_written(folder, solved):
    halves = raw(solved)
    halves["cells"][0] |= {"source": "a\ud800b", "metadata": {"tags": ["\ud800", "\ud801"], "\ud800": "\udfff"}}
    notebook = read_submission(written(folder, halves))
    nbformat.validate(notebook)
    assert notebook.cells[0].source == "a?b"
    nbformat.write(notebook, folder / "again.ipynb")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b" \n", "an empty file"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "a file that is not text"),
        (b"<!DOCTYPE html><html></html>", "broken JSON (Expecting value: line 1 column 1 (char 0))"),
        (b'{"cells": [', "broken JSON"),
        (b'{"cells": [], "metadata": {"a": NaN}}', "broken JSON"),
        (b'{"cells": [], "metadata": {"a": 1e999}}', "broken JSON"),
        (b'{"cells": [], "metadata": {"a": ' + b"1" * 5_000 + b"}}", "broken JSON"),
        (b"3", "JSON without a list of cells"),
        (b"[]", "JSON without a list of cells"),
        (b"{}", "JSON without a list of cells"),
        (b'{"cells": {"a": 1}}', "JSON without a list of cells"),
        (b'{"cells": null, "nbformat": 4}', "JSON without a list of cells"),
        (b'{"nbformat": 3, "worksheets": 3}', "a notebook of format 3 that cannot be converted"),
        (b'{"nbformat": 1, "cells": [{}]}', "a notebook of format 1 that cannot be converted"),
        (b"[" * 100_000 + b"]" * 100_000, "JSON that is too large or too deeply nested"),
        (b'{"cells": [], "metadata": ' + b'{"a":' * 300 + b"3" + b"}" * 301, "JSON that is too large or too deeply"),
    ],
    ids=range(17),
)
def test_what_is_no_notebook_is_refused_in_one_sentence(folder, content, found):
    with pytest.raises(UnreadableSubmission) as caught:
        read_submission(written(folder, content))
    message = str(caught.value)
    assert message.startswith(f"answer.ipynb must be a Jupyter notebook, got {found}")
    assert message.endswith(".")
    assert "\n" not in message


def test_a_file_that_is_missing_a_folder_or_too_large_is_refused(folder, solved, monkeypatch):
    for path in (folder / "missing.ipynb", folder):
        with pytest.raises(UnreadableSubmission, match=r"must be a Jupyter notebook, got no file\.$"):
            read_submission(path)
    monkeypatch.setattr(module, "MAX_BYTES", 2_000_000)
    assert read_submission(written(folder, raw(solved) | {"more": "x" * 1_900_000}))
    with pytest.raises(UnreadableSubmission, match=r"got a file of more than 2 MB\.$"):
        read_submission(written(folder, raw(solved) | {"more": "x" * 2_000_000}))


def test_a_pipe_is_refused_and_never_waited_for(folder):
    os.mkfifo(folder / "pipe.ipynb")
    with pytest.raises(UnreadableSubmission, match=r"must be a Jupyter notebook, got no file\.$"):
        read_submission(folder / "pipe.ipynb")


def test_more_cells_than_anybody_writes_are_refused(folder):
    assert len(read_submission(written(folder, {"cells": [{}] * module.MAX_CELLS})).cells) == module.MAX_CELLS
    with pytest.raises(UnreadableSubmission, match=r"got a notebook of more than 2,000 cells\.$"):
        read_submission(written(folder, {"cells": [{}] * (module.MAX_CELLS + 1)}))


def test_a_large_notebook_in_an_old_format_is_refused_before_it_is_converted(folder):
    cells = [{"cell_type": "code", "input": "x" * 1_000}] * 2_000
    with pytest.raises(
        UnreadableSubmission, match=r"got a notebook of format 3 with more than 2,000,000 characters\.$"
    ):
        read_submission(written(folder, {"nbformat": 3, "worksheets": [{"cells": cells}]}))


@pytest.mark.parametrize("part", [b"{},", b"[],", b'{"a":[]},'])
def test_a_file_that_would_fill_the_memory_is_refused_before_it_is_parsed(folder, part):
    path = written(folder, b'{"cells":[' + part * (module.MAX_BYTES // len(part) - 10) + b"{}]}")
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableSubmission, match="JSON that is too large"):
            read_submission(path)
        assert tracemalloc.get_traced_memory()[1] < 2 * module.MAX_BYTES
    finally:
        tracemalloc.stop()
        path.unlink()


def test_outputs_are_limited_in_number_over_all_cells(folder, monkeypatch):
    monkeypatch.setattr(module, "MAX_OUTPUTS", 5)
    cells = [{"cell_type": "code", "outputs": [{"output_type": "error"}] * 3} for _ in range(3)]
    notebook = read_submission(written(folder, {"cells": cells}))
    kinds = [[output.output_type for output in cell.outputs] for cell in notebook.cells]
    assert kinds == [["error"] * 3, ["error"] * 2 + ["stream"], ["stream"]]
    assert notebook.cells[2].outputs[0].text == "\n[The outputs of this cell are cut here: 5 outputs of all cells.]\n"


def test_metadata_of_megabytes_are_left_out(folder, small):
    large = raw(small)
    large["metadata"]["title"] = large["cells"][0]["metadata"]["name"] = "x" * (module.MAX_METADATA + 1)
    notebook = read_submission(written(folder, large))
    assert "title" not in notebook.metadata
    assert "name" not in notebook.cells[0].metadata


def test_a_link_is_refused_even_if_it_leads_to_a_notebook(folder, small):
    link = folder / "link.ipynb"
    link.symlink_to(written(folder, raw(small)))
    with pytest.raises(
        UnreadableSubmission, match=r"^link.ipynb must be a Jupyter notebook, got a link to another file"
    ):
        read_submission(link)


def test_metadata_may_be_nested_as_deeply_as_can_be_repaired(folder, solved):
    for depth in (module.MAX_DEPTH - 4, module.MAX_DEPTH - 3):  # notebook, cells, cell and metadata are levels, too
        deep = raw(solved)
        deep["cells"][5]["metadata"]["deep"] = json.loads("[" * depth + "]" * depth)
        path = written(folder, deep)
        if depth + 4 <= module.MAX_DEPTH:
            assert mended(read_submission(path)) == []
        else:
            with pytest.raises(UnreadableSubmission, match="too deeply nested"):
                read_submission(path)


def assert_read_or_refused(path: Path) -> None:
    """Read a file: it is refused, or the notebook is valid, and once repaired can be written and read again."""
    try:
        notebook = read_submission(path)
    except UnreadableSubmission:
        return
    nbformat.validate(notebook)
    mended(notebook, SMALL)
    again = nbformat.reads(nbformat.writes(notebook).encode().decode(), as_version=4)
    assert [cell.source for cell in again.cells] == [cell.source for cell in notebook.cells]


ODD = st.sampled_from(
    [None, True, -1, 1.5, 10**30, "", "code", "a,b", "\ud800", [], {}, [None], [[]], ["a", "a"], {"": None}, {"a": {}}]
).map(deepcopy)
JSON = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner), max_leaves=4
)


def paths(value: object) -> list[tuple]:
    """Return the path to each part of a JSON value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(key,) for key, _ in parts] + [(key, *path) for key, part in list(parts) for path in paths(part)]


RAW = raw(solve(SMALL))
RAW["cells"][1]["metadata"] |= {"tags": ["a"], "collapsed": True, "jupyter": {"source_hidden": True}}
RAW["cells"][-2]["attachments"] = {"a.png": {"image/png": "aGVsbG8="}}
BYTES = json.dumps(RAW).encode()


@quick
@given(changes=st.lists(st.tuples(st.sampled_from(paths(RAW)), st.none() | st.tuples(JSON)), min_size=1, max_size=4))
def test_any_change_of_the_json_is_read_or_refused(folder, changes):
    notebook = deepcopy(RAW)
    for path, new in changes:
        try:
            *way, key = path
            target = notebook
            for step in way:
                target = target[step]
            if new is None:
                del target[key]
            else:
                target[key] = new[0]
        except (KeyError, IndexError, TypeError):
            pass  # an earlier change took the target away
    assert_read_or_refused(written(folder, notebook))


@quick
@given(cells=JSON | st.lists(JSON), nbformat_=JSON | st.integers(0, 5), worksheets=JSON, metadata=JSON)
def test_any_json_in_the_place_of_cells_is_read_or_refused(folder, cells, nbformat_, worksheets, metadata):
    notebook = {"cells": cells, "nbformat": nbformat_, "worksheets": worksheets, "metadata": metadata}
    assert_read_or_refused(written(folder, notebook))


@quick
@given(
    changes=st.lists(st.tuples(st.integers(0, len(BYTES)), st.integers(0, 40), st.binary(max_size=4)), max_size=3),
    end=st.none() | st.integers(0, len(BYTES)),
)
def test_any_change_of_the_bytes_is_read_or_refused(folder, changes, end):
    content = BYTES
    for start, length, new in changes:
        content = content[:start] + new + content[start + length :]
    assert_read_or_refused(written(folder, content[:end]))


@quick
@given(st.binary() | st.text(alphabet='{}[]",:0aeE-.\\u ').map(str.encode))
def test_any_bytes_are_read_or_refused(folder, content):
    assert_read_or_refused(written(folder, content))


# Repairing.


def added(text: str) -> nbformat.NotebookNode:
    return new_code_cell(text, id=re.sub(r"\W+", "-", text)[:60])


def test_an_untouched_submission_needs_no_repair(solved):
    for notebook in (solved, deepcopy(RELEASED)):
        before = deepcopy(notebook)
        assert mended(notebook) == []
        assert notebook == before


def test_every_released_notebook_needs_no_repair():
    for path in ROOT.glob("release/*/*.ipynb"):
        assert repair(read_submission(path), nbformat.read(path, as_version=4)) == []


def test_the_release_is_not_changed(solved):
    before = deepcopy(RELEASED)
    for notebook in (solved, nbformat.v4.new_notebook()):
        mended(notebook)
        notebook.metadata.kernelspec["name"] = "mine"
        for cell in notebook.cells:
            cell.metadata["mine"] = True
            cell.metadata.get("nbgrader", {})["points"] = 99
        assert before == RELEASED


def test_demonstrations_may_be_edited_moved_and_deleted(solved):
    cell_of(solved, "scores-look-code").source = "print('mine')"
    del solved.cells[position(solved, "kqv-look-code")]
    solved.cells.append(solved.cells.pop(position(solved, "self-attention-look-code")))
    before = deepcopy(solved)
    assert mended(solved) == []
    assert solved == before


def test_added_cells_stay_where_they_are_with_their_outputs(solved):
    for name in ("title", "kqv", "kqv-check", "recap"):
        extra = new_code_cell(f"# after {name}", id=f"after-{name}", outputs=deepcopy(OUTPUTS), execution_count=7)
        solved.cells.insert(position(solved, name) + 1, extra)
    before = deepcopy(solved)
    assert mended(solved) == []
    assert solved == before


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_submission_without_any_nbgrader_metadata_is_repaired_whole(solved, with_ids):
    solved.cells.insert(position(solved, "kqv") + 1, added("mine"))
    before = deepcopy(solved)
    for number, cell in enumerate(solved.cells):
        cell.metadata.pop("nbgrader", None)
        cell.id = cell.id if with_ids or "nbgrader" not in before.cells[number].metadata else f"new-{number}"
    reason = "the nbgrader metadata: marked again as released"
    if not with_ids:
        reason = "the id and the nbgrader metadata: recognised by text, names or position"
    assert mended(solved) == [f"All {len(MARKED)} marked cells had lost {reason}."]
    assert [cell.source for cell in solved.cells] == [cell.source for cell in before.cells]
    assert [cell.metadata for cell in solved.cells] == [cell.metadata for cell in before.cells]
    assert [cell.id for cell in solved.cells] == [cell.id for cell in before.cells]


@pytest.mark.parametrize(
    "answer",
    [
        "def kqv(x, p):\n    return p(x).chunk(3, -1",  # a syntax error
        "%%time\ndef kqv(x, p):\n    pass",
        "def create_kqv_parameters(a, b):\n    pass",
        "async def other(): pass\nlimit = 3\ndef kqv(): pass",
    ],
)
def test_an_answer_in_a_new_cell_is_found_by_one_of_its_names(solved, answer):
    solved.cells[position(solved, "kqv")] = added("other = 3\n\n" + answer)
    solved.cells[-1:] = [new_markdown_cell(answer), solved.cells[-1]]
    assert mended(solved) == [
        "The cell `kqv` had lost the id and the nbgrader metadata: recognised by text, names or position."
    ]
    assert cell_of(solved, "kqv").source.endswith(answer)


def test_of_several_unmarked_cells_with_the_names_the_last_counts(solved):
    at = position(solved, "kqv")
    stub = MARKED["kqv"].source
    solved.cells[at : at + 1] = [added("def create_kqv_parameters(): 1"), added("def kqv(): 2"), added(stub)]
    assert "The cell `kqv` occurred more than once" in " ".join(mended(solved))
    assert sources(solved)[at : at + 3] == [
        "def create_kqv_parameters(): 1",
        "def kqv(): 2",
        MARKED["kqv-check-parameters"].source,
    ]
    assert solved.cells[at + 1].id == "kqv"


@pytest.mark.parametrize(
    "text", ["print(kqv)", "    def kqv(): pass", "kqv = 3", "kqv == 3", "# def kqv():", "def kqv2(): pass"]
)
def test_a_cell_that_only_uses_a_name_is_not_taken_for_its_answer(solved, text):
    solved.cells[position(solved, "kqv")] = added(text)
    assert mended(solved) == ["The cell `kqv` had been deleted: put back as released."]
    assert text in sources(solved)


def test_a_cell_of_the_student_that_repeats_a_check_is_kept(solved):
    check = new_code_cell(MARKED["kqv-check"].source, id="mine")
    solved.cells.append(check)
    assert mended(solved) == []
    assert solved.cells[-1].id == "mine"
    for cell in solved.cells:
        cell.metadata.pop("nbgrader", None)
        cell.id = f"new-{cell.id}"
    assert len(mended(solved)) == 1
    assert solved.cells[-1].id == "new-mine"


def test_a_written_answer_without_id_is_found_by_its_place(solved):
    at = position(solved, "q1-answer")
    solved.cells[at : at + 1] = [new_markdown_cell("First thoughts."), new_markdown_cell("They harden.")]
    assert len(mended(solved)) == 1
    assert cell_of(solved, "q1-answer").source == "They harden."
    assert "First thoughts." in sources(solved)
    solved.cells[at : at + 2] = [new_markdown_cell("They harden."), new_markdown_cell("YOUR ANSWER HERE")]
    assert len(mended(solved)) == 1
    assert cell_of(solved, "q1-answer").source == "They harden."


@pytest.mark.parametrize("after", ["title", "kqv", "self-attention-look-code", "q2-question", "recap"])
def test_a_text_elsewhere_is_not_taken_for_a_written_answer(solved, after):
    solved.cells.insert(position(solved, after) + 1, new_markdown_cell("My notes."))
    del solved.cells[position(solved, "q1-answer")]
    assert mended(solved) == ["The cell `q1-answer` had been deleted: put back as released."]


def test_a_text_in_the_place_of_a_locked_one_is_kept_beside_it(solved):
    solved.cells[position(solved, "kqv-task")] = new_markdown_cell("My notes.", id="mine")
    assert mended(solved) == ["The cell `kqv-task` had been deleted: put back as released."]
    assert ids(solved)[3:5] == ["kqv-task", "mine"]


def test_an_answer_may_be_a_number_with_a_name(solved):
    released = deepcopy(RELEASED)
    cell_of(released, "kqv").source = "width = ...  # YOUR CODE HERE"
    solved.cells[position(solved, "kqv")] = added("width = 7")
    repair(solved, released)
    assert cell_of(solved, "kqv").source == "width = 7"


def test_the_last_changed_copy_of_an_answer_counts_and_others_become_ordinary(solved):
    at = position(solved, "kqv")
    first, second, stub = (deepcopy(solved.cells[at]) for _ in range(3))
    first.source, second.source, stub.source = "# first", "# second", MARKED["kqv"].source
    for number, copy in enumerate((first, added("between"), second, stub)):
        copy.id = f"copy-{number}"
        solved.cells.insert(at + 1 + number, copy)
    (note,) = mended(solved)
    assert note.startswith("The cell `kqv` occurred more than once: the last one that was changed counts, others")
    assert sources(solved)[at : at + 4] == [SOURCE["kqv"].source, "# first", "between", "# second"]
    assert [cell.id for cell in solved.cells[at : at + 5]][3:] == ["kqv", "kqv-check-parameters"]
    assert MARKED["kqv"].source not in sources(solved)


def test_an_untouched_copy_does_not_undo_the_answer(solved):
    for place in (0, position(solved, "kqv") + 1, len(solved.cells)):
        notebook = deepcopy(solved)
        stub = deepcopy(MARKED["kqv"])
        stub.id = "copy"
        notebook.cells.insert(place, stub)
        assert mended(notebook) == ["The cell `kqv` occurred more than once: the copies are dropped."]
        assert notebook == solved


def test_a_copy_that_was_turned_into_text_does_not_count(solved):
    backup = new_raw_cell("# an old attempt", metadata=deepcopy(MARKED["kqv"].metadata))
    solved.cells.insert(position(solved, "kqv") + 1, backup)
    assert len(mended(solved)) == 1
    assert cell_of(solved, "kqv").source == SOURCE["kqv"].source
    assert solved.cells[position(solved, "kqv") + 1].cell_type == "raw"


def test_an_answer_that_was_turned_into_text_counts_more_than_an_untouched_copy(solved):
    at = position(solved, "kqv")
    answer = new_raw_cell("# the answer", metadata=solved.cells[at].metadata)
    solved.cells[at : at + 1] = [answer, deepcopy(MARKED["kqv"])]
    assert len(mended(solved)) == 2
    assert cell_of(solved, "kqv").source == "# the answer"


def test_an_older_answer_never_ends_up_behind_the_one_that_counts(solved):
    at = position(solved, "kqv")
    check = solved.cells.pop(position(solved, "kqv-check-parameters"))
    newer = deepcopy(solved.cells[at])
    newer.update(source="# newer", id="copy")
    solved.cells[at : at + 1] = [check, solved.cells[at], newer]
    assert mended(solved)[0].startswith("The cell `kqv` occurred more than once")
    assert sources(solved)[at : at + 2] == [SOURCE["kqv"].source, "# newer"]


@pytest.mark.parametrize("name", ["title", "setup", "kqv-check"])
@pytest.mark.parametrize("place", [0, 9, 99])
def test_copies_of_locked_cells_are_dropped(solved, name, place):
    before = deepcopy(solved)
    copy = deepcopy(MARKED[name])
    copy.update(id="copy", source=copy.source + " edited")
    solved.cells.insert(place, copy)
    assert mended(solved) == [f"The cell `{name}` occurred more than once: the copies are dropped."]
    assert solved == before


@pytest.mark.parametrize("name", list(MARKED))
def test_a_deleted_cell_is_put_back_in_its_place_as_released(solved, name):
    before = [cell.id for cell in solved.cells]
    del solved.cells[position(solved, name)]
    assert mended(solved) == [f"The cell `{name}` had been deleted: put back as released."]
    assert [cell.id for cell in solved.cells] == before
    assert cell_of(solved, name) == MARKED[name]


def test_a_deleted_cell_comes_back_before_the_cells_that_followed_it(solved):
    at = position(solved, "kqv")
    solved.cells[at] = added("mine")
    del solved.cells[at - 1]
    assert mended(solved) == ["The cells `kqv-task`, `kqv` had been deleted: put back as released."]
    assert [cell.id for cell in solved.cells[at - 2 : at + 2]] == ["setup", "kqv-task", "kqv", "mine"]


def test_a_deleted_cell_does_not_follow_a_demonstration_that_was_moved(solved):
    solved.cells.append(solved.cells.pop(position(solved, "kqv-look-code")))
    del solved.cells[position(solved, "scores-task")]
    mended(solved)
    assert position(solved, "scores-task") == position(solved, "kqv-look") + 1


def test_an_empty_submission_becomes_the_release_without_its_demonstrations(solved):
    solved.cells = []
    assert mended(solved) == [f"All {len(MARKED)} marked cells had been deleted: put back as released."]
    assert solved.cells == list(MARKED.values())


def test_many_troubles_of_one_kind_give_one_sentence(solved):
    for name in list(MARKED)[:5]:
        del solved.cells[position(solved, name)]
    (note,) = mended(solved)
    assert (
        note == f"5 of {len(MARKED)} marked cells (`title`, `how`, `setup`, …) had been deleted: put back as released."
    )


@pytest.mark.parametrize("new", [new_markdown_cell, new_raw_cell, new_code_cell])
@pytest.mark.parametrize("name", ["title", "kqv", "kqv-check", "q1-answer"])
def test_a_retyped_cell_gets_its_type_back(solved, name, new):
    at = position(solved, name)
    cell = solved.cells[at]
    solved.cells[at] = new(cell.source, metadata=cell.metadata | {"collapsed": False}, id=name)
    same = solved.cells[at].cell_type == MARKED[name].cell_type
    assert mended(solved) == [f"The cell `{name}` had another cell type: set back as released."] * (not same)
    assert solved.cells[at].source == (cell.source)
    assert ("outputs" in solved.cells[at]) == (MARKED[name].cell_type == "code")


def test_a_retyped_cell_keeps_its_attachments_and_has_the_released_metadata(solved):
    for name in ("kqv", "q1-answer"):
        cell = cell_of(solved, name)
        bare = new_raw_cell(cell.source, metadata=cell.metadata | {"collapsed": "yes", "mine": 1}, id=name)
        bare.attachments = {"a.png": {"image/png": "aGVsbG8="}}
        solved.cells[position(solved, name)] = bare
    mended(solved)
    assert cell_of(solved, "kqv").metadata == MARKED["kqv"].metadata
    assert "attachments" in cell_of(solved, "q1-answer")


@pytest.mark.parametrize("name", LOCKED)
def test_an_edited_locked_cell_is_set_back(solved, name):
    cell_of(solved, name).source += "\nprint('passed')"
    before = deepcopy(cell_of(solved, name).get("outputs"))
    assert mended(solved) == [f"The cell `{name}` had been edited, though locked: set back as released."]
    assert cell_of(solved, name).get("outputs") == before


def test_blanks_that_an_editor_adds_or_removes_are_not_worth_a_note(solved):
    for cell in solved.cells:
        cell.source = "\r\n".join(line + "  " for line in cell.source.rstrip().split("\n")) + "\n\n"
    assert mended(solved) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("points", 99),
        ("grade", False),
        ("solution", True),
        ("locked", False),
        ("task", True),
        ("schema_version", 1),
        ("checksum", "0"),
        ("grade_id", "invented"),
        ("grade_id", "kqv"),
        ("grade_id", None),
        ("grade_id", ["a"]),
        ("mine", 1),
    ],
)
def test_edited_metadata_are_put_back_whole(solved, field, value):
    before = deepcopy(solved)
    cell_of(solved, "kqv-check").metadata.nbgrader[field] = value
    assert mended(solved) == ["The cell `kqv-check` had other nbgrader metadata: set back as released."]
    assert solved == before


def test_swapped_grade_ids_are_put_back(solved):
    before = deepcopy(solved)
    one, other = cell_of(solved, "kqv").metadata, cell_of(solved, "attention-scores").metadata
    one.nbgrader, other.nbgrader = other.nbgrader, one.nbgrader
    assert mended(solved) == ["The cells `kqv`, `attention-scores` had other nbgrader metadata: set back as released."]
    assert solved == before


@pytest.mark.parametrize("tag", ["skip-execution", "raises-exception", "remove_cell", "remove-cell", "remove_input"])
def test_tags_that_stop_a_cell_are_removed_from_all_cells(solved, tag):
    solved.cells.append(added("mine"))
    for cell in solved.cells:
        cell.metadata["tags"] = ["mine", tag]
    assert mended(solved) == ["Some cells had tags that stop or hide them: these tags are removed."]
    tags = {cell.id: cell.metadata.get("tags") for cell in solved.cells}
    assert tags == {name: None if name in MARKED else ["mine"] for name in tags}


@pytest.mark.parametrize(
    "entry",
    [
        {"transient": {"remove_source": True}},
        {"transient": 3},
        {"raw_mimetype": "text/latex"},
        {"raw_mimetype": 3},
        {"magics_language": ["r"]},
        {"jupyter": {"source_hidden": True}},
        {"collapsed": True, "hide_input": True, "slideshow": {"slide_type": "skip"}},
    ],
    ids=lambda entry: next(iter(entry)),
)
def test_no_metadata_of_a_student_hides_a_cell_or_stops_a_page(solved, entry):
    solved.cells += [added("mine"), new_raw_cell("mine")]
    for part in (solved, *solved.cells):
        part.metadata.update(deepcopy(entry))
    assert mended(solved) == []
    released = {cell.id: cell.metadata for cell in RELEASED.cells}
    assert [cell.metadata for cell in solved.cells] == [released.get(cell.id, {}) for cell in solved.cells]
    assert solved.metadata == RELEASED.metadata


def test_tags_that_were_released_may_stay(solved):
    released = deepcopy(RELEASED)
    for notebook in (solved, released):
        cell_of(notebook, "kqv-look-code").metadata["tags"] = ["raises-exception"]
    assert repair(solved, released) == []
    assert cell_of(solved, "kqv-look-code").metadata.tags == ["raises-exception"]


@pytest.mark.parametrize("marks", [{"grade_id": "bonus", "grade": True, "points": 99}, {}, None, "text", {"points": 3}])
def test_an_added_cell_cannot_be_graded(solved, marks):
    solved.cells.insert(3, new_code_cell("x = 1", metadata={"nbgrader": marks, "mine": 1}))
    notes = mended(solved)
    assert solved.cells[3].metadata == {}
    assert [note.split(":")[0] for note in notes] == ["Added cells had nbgrader metadata"] * (
        isinstance(marks, dict) and "grade_id" in marks
    )


@pytest.mark.parametrize(
    ("moved", "place"), [("kqv", 0), ("kqv", 99), ("kqv-check-parameters", 4), ("title", 9), ("recap", 1)]
)
def test_a_moved_cell_comes_back_with_the_cells_that_followed_it(solved, moved, place):
    at = position(solved, moved) + 1
    solved.cells[at:at] = [added("one"), added("two")]
    before = deepcopy(solved)
    taken = solved.cells[at - 1 : at + 2]
    del solved.cells[at - 1 : at + 2]
    solved.cells[place:place] = taken
    assert mended(solved) == [
        f"The cell `{moved}` had been moved: put back in the released order, with the added cells that followed."
    ]
    assert [name for name in ids(solved) if name in MARKED] == list(MARKED)
    assert ids(solved)[at - 1 : at + 2] == ids(before)[at - 1 : at + 2]


def test_a_notebook_in_reverse_order_is_put_in_order(solved):
    solved.cells.reverse()
    demonstrations = [cell.id for cell in solved.cells if cell.id not in MARKED]
    (note,) = mended(solved)
    assert "had been moved" in note
    assert sorted(ids(solved)) == sorted([*MARKED, *demonstrations])


@pytest.mark.parametrize(
    ("kernelspec", "language_info", "noted"),
    [
        (None, None, False),
        ({"name": "conda", "display_name": "Mine", "language": "python"}, {"name": "python", "version": "3.9"}, False),
        ({"name": "colab", "display_name": "Python 3"}, {"name": "ipython"}, False),
        ({"name": "ir", "display_name": "R", "language": "R"}, None, True),
        (None, {"name": "julia"}, True),
        ({"name": "x", "display_name": "x", "language": ["R"]}, None, True),
    ],
)
def test_the_kernel_is_the_released_one(solved, kernelspec, language_info, noted):
    solved.metadata = nbformat.from_dict({"mine": 1})
    solved.metadata.update({"kernelspec": kernelspec} if kernelspec else {})
    solved.metadata.update({"language_info": language_info} if language_info else {})
    notes = mended(solved)
    assert solved.metadata == RELEASED.metadata
    assert notes == ["The notebook was set to a language other than Python: it has the released kernel again."] * noted


def test_a_release_that_names_no_kernel_leaves_none(solved):
    released = deepcopy(RELEASED)
    del released.metadata["kernelspec"]
    assert repair(solved, released) == []
    assert solved.metadata == released.metadata


def test_an_added_cell_with_the_id_of_a_marked_one_gets_another(solved):
    copy = deepcopy(cell_of(solved, "kqv"))
    copy.source = "# newer"
    solved.cells.insert(position(solved, "kqv") + 1, copy)
    mended(solved)
    assert sources(solved)[4:6] == [SOURCE["kqv"].source, "# newer"]
    assert ids(solved)[4:6] == ["cell-1", "kqv"]


# Any sequence of troubles. Each operation takes a notebook, the index of a cell and another number.


def delete(cells, at, number):
    del cells[at]


def duplicate(cells, at, number):
    copy = deepcopy(cells[at])
    copy.id = copy.id if number % 4 == 0 else f"copy-{at}-{number}-{len(cells)}"
    cells.insert(number % (len(cells) + 1), copy)


def move(cells, at, number):
    cells.insert(number % len(cells), cells.pop(at))


def retype(cells, at, number):
    new = (new_code_cell, new_markdown_cell, new_raw_cell)[number % 3]
    cells[at] = new(cells[at].source, metadata=cells[at].metadata, id=cells[at].id)


def edit(cells, at, number):
    cells[at].source = (f"# {number}\n{cells[at].source}", f"{cells[at].source}\n# {number}")[number % 2]


def edit_metadata(cells, at, number):
    field, value = (("points", 9), ("locked", number % 2), ("grade_id", "bonus"), ("solution", True))[number % 4]
    cells[at].metadata.setdefault("nbgrader", nbformat.from_dict({}))[field] = value


def exchange_grade_id(cells, at, number):
    if cells[at].id in ANSWERS and "nbgrader" in cells[at].metadata:
        cells[at].metadata.nbgrader["grade_id"] = ANSWERS[number % len(ANSWERS)]


def strip_metadata(cells, at, number):
    for cell in cells if number % 4 == 0 else [cells[at]]:
        cell.metadata = nbformat.from_dict({})


def change_id(cells, at, number):
    for index, cell in enumerate(cells):
        if "grade_id" in cell.metadata.get("nbgrader", {"grade_id": 1}) and (index == at or number % 4 == 0):
            cell.id = f"new-{index}-{number}"


def tag(cells, at, number):
    cells[at].metadata["tags"] = sorted(module.STOPPING_TAGS)[number % 3 :]


def insert(cells, at, number):
    text = (f"added_{number} = 1", "def kqv():\n    return 1", MARKED["kqv"].source, "checks.kqv(kqv)", "")[number % 5]
    cells.insert(at, (new_code_cell, new_markdown_cell)[number % 2](text, id=f"added-{len(cells)}-{at}-{number}"))


OPERATIONS = [
    delete, duplicate, move, retype, edit, edit_metadata, exchange_grade_id, strip_metadata, change_id, tag, insert,
]  # fmt: skip


@quick
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 60), st.integers(0, 60)), max_size=12))
def test_after_any_troubles_the_notebook_is_sound_and_no_answer_is_lost(operations):
    notebook = solve(SMALL)
    for operation, at, number in operations:
        if notebook.cells:
            operation(notebook.cells, at % len(notebook.cells), number)
    answers = [cell.source for cell in notebook.cells if is_answer(cell)]
    mended(notebook, SMALL)
    MetadataValidator().validate_nb(notebook)
    assert set(answers) <= set(sources(notebook))


def is_answer(cell) -> bool:
    """Return whether a cell was made from an answer, or by the student, and is not an untouched stub."""
    words = [SOURCE[name].source.split("\n")[-1] for name in ANSWERS] + ["added_"]
    return any(word in cell.source for word in words)
