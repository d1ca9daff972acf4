"""Tests of the catalogue of hints: every mistake has a sentence, and every sentence a mistake."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import ROOT

from grading.authoring.freeze import freeze, frozen_bytes
from grading.exercises import records
from grading.judging.record import ValueRecord
from transformer_lm.checks.engine import catalogue
from transformer_lm.checks.engine.catalogue import Hint, hint, hints_of

FILES = sorted(ROOT.glob("transformer_lm/checks/*/hints.toml"))


def _sentences(file: Path) -> list[tuple[str, str, str]]:
    """Return the exercise, the id and the sentence of each hint in a file; what exercises share has no exercise."""
    tables = {exercise: table for exercise, table in hints_of(file).items() if isinstance(table, dict)}
    shared = {id: sentence for id, sentence in hints_of(file).items() if isinstance(sentence, str)}
    return [(exercise, *entry) for exercise, table in {"": shared, **tables}.items() for entry in table.items()]


def _ids_of_records() -> set[tuple[str, str]]:
    """Return the pairs of an exercise and the id of a hint that a wrong answer or a property of it names."""
    wrong = {(record.id, each.hint) for record in records().values() for each in (*record.wrong, *record.misbehaving)}
    values = [record for record in records().values() if isinstance(record, ValueRecord)]
    return wrong | {(record.id, rule.hint) for record in values for rule in record.properties}


def test_every_mistake_of_a_record_has_a_hint():
    for exercise, id in _ids_of_records():
        told = hint(id, exercise)
        assert isinstance(told, Hint)
        assert told.id == id


def test_every_hint_is_named_by_a_record_or_in_the_code():
    told = {str(hint(id, exercise)) for exercise, id in _ids_of_records()}
    code = [file.read_text(encoding="utf-8") for file in ROOT.glob("transformer_lm/checks/*/*.py")]
    code += [file.read_text(encoding="utf-8") for file in ROOT.glob("grading/judging/*.py")]
    named = {id for text in code for id in re.findall(r'"([a-z0-9-]+)"', text)}
    hints = [(file.parent.name, *entry) for file in FILES for entry in _sentences(file)]
    assert [(*place, id) for *place, id, sentence in hints if sentence not in told and id not in named] == []


def test_no_sentence_stands_twice():
    counts = Counter(sentence for file in FILES for *_, sentence in _sentences(file))
    assert [sentence for sentence, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_hints_are_short_sentences_under_plain_ids_of_known_exercises(file):
    for exercise, id, sentence in _sentences(file):
        assert not exercise or (file.parent / f"{exercise.replace('-', '_')}.py").is_file(), exercise
        assert re.fullmatch(r"[a-z0-9-]+", id), id
        assert 16 <= len(sentence) <= 190, sentence
        assert sentence[0].isupper() or sentence.startswith(("torch", "{")), sentence
        assert sentence[-1] in ".?}", sentence


def test_an_exercise_has_its_own_hints_first_then_those_of_its_topic_then_shared_ones(tmp_path, monkeypatch):
    topic = tmp_path / "topic_90_counting"
    topic.mkdir()
    (topic / "count_up.py").touch()
    (topic / "count_down.py").touch()
    (topic / "hints.toml").write_text(
        'off-by-one = "Of the topic."\n\n[count-up]\noff-by-one = "Its own, by {steps}."\n'
    )
    monkeypatch.setattr(catalogue, "CHECKS", tmp_path)
    catalogue._known_to.cache_clear()
    assert hint("off-by-one", "count-up", steps=2) == "Its own, by 2."
    assert hint("off-by-one", "count-down") == "Of the topic."
    assert hint("raises", "count-up") == hint("raises")
    with pytest.raises(ValueError, match=r"must be that of a hint in hints\.toml, got 'off-by-two' for count-up\."):
        hint("off-by-two", "count-up")
    catalogue._known_to.cache_clear()


def test_a_better_sentence_changes_no_frozen_file(monkeypatch):
    record = records()["attention-scores"]
    assert isinstance(record, ValueRecord)
    before = frozen_bytes(record)
    monkeypatch.setattr(catalogue, "hints_of", lambda file: {})
    assert frozen_bytes(record) == before
    size = int.from_bytes(before[:8], "little")
    stored = json.loads(json.loads(before[8 : 8 + size])["__metadata__"]["hints"])
    assert stored == {wrong.name: wrong.hint for wrong in record.wrong}


def test_nothing_is_frozen_for_a_mistake_without_a_hint(tmp_path):
    record = records()["attention-scores"]
    assert isinstance(record, ValueRecord)
    without = replace(record, wrong=(replace(record.wrong[0], hint="forgotten"), *record.wrong[1:]))
    with pytest.raises(ValueError, match=r"got 'forgotten' for attention-scores\."):
        freeze(without, tmp_path)
    assert list(tmp_path.iterdir()) == []
