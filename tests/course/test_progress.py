"""The table of progress, and the file that it is made from."""

import pytest

from transformer_lm.course import progress
from transformer_lm.course.outlines import assignments


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_LM_ANSWERS", str(tmp_path / "my_answers"))
    return tmp_path / "my_answers"


def test_nothing_is_done_at_the_beginning(folder):
    first, *_ = progress.progress().rows
    assert first == ("01_self_attention", "0 of 8", "0 of 8", "0 of 2", "0", "not yet")
    assert not folder.exists()


def test_what_was_noted_is_in_the_table():
    progress.note_result("01_self_attention", ["kqv-check", "attention-scores-check"], ["q1-answer"])
    progress.note_result("02_multi_head_attention", ["causal-mask-check"], [])
    known = progress.load()
    progress.save(known | {"hints": {"kqv": ["one", "two"]}})
    first, second, *others = progress.progress().rows
    assert first[:5] == ("01_self_attention", "2 of 8", "3 of 8", "1 of 2", "2")
    assert second[:5] == ("02_multi_head_attention", "1 of 10", "1 of 15", "0 of 3", "0")
    assert {row[-1] for row in others} == {"not yet"}
    assert len(others) == len(assignments()) - 2


def test_what_is_broken_in_the_file_counts_as_not_there(folder):
    progress.note_result("01_self_attention", ["kqv-check"], [])
    known = progress.load()
    known["assignments"] |= {"02_multi_head_attention": None, "03_classification": {"passed": []}}
    known["hints"] = {"kqv": None, "causal-mask": ["one"]}
    progress.save(known)
    first, second, third, *_ = progress.progress().rows
    assert first[:5] == ("01_self_attention", "1 of 8", "1 of 8", "0 of 2", "0")
    assert (second[-2:], third[-2:]) == (("1", "not yet"), ("0", "not yet"))


def test_a_notebook_shows_a_table_and_a_terminal_aligned_columns():
    table = progress.progress()
    lines = table._repr_markdown_().splitlines()
    assert lines[0] == "| assignment | checks passed | points | written | hints | last checked |"
    assert {line.count("|") for line in lines} == {7}
    assert len({line.index("not yet") for line in str(table).splitlines()[1:]}) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"assignments": [], "hints": 3, "shown": null}'])
def test_a_broken_file_counts_as_nothing_done(folder, text):
    folder.mkdir()
    (folder / "progress.json").write_text(text)
    assert progress.load() == {"assignments": {}, "hints": {}, "shown": []}
    progress.note_result("01_self_attention", ["kqv-check"], [])
    assert progress.progress().rows[0][1] == "1 of 8"
