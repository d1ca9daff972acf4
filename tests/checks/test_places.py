"""Exercises are found by their folder: a contract, and a record of the same name, in the folders of their topic."""

import sys
from inspect import isfunction
from types import ModuleType

import pytest
from checkout import ROOT

from grading import exercises
from grading.exercises import records, topic_of, topics
from transformer_lm import checks
from transformer_lm.checks.engine.places import modules_by_topic
from transformer_lm.course.outlines import load_outline

CHECKS, RECORDS = "transformer_lm/checks", "grading/exercises"


@pytest.mark.parametrize("exercise", records())
def test_an_exercise_has_two_files_with_its_name(exercise):
    place = f"topic_{topic_of(exercise)}/{exercise.replace('-', '_')}.py"
    assert (ROOT / CHECKS / place).is_file()
    assert (ROOT / RECORDS / place).is_file()
    module = sys.modules[f"{CHECKS}/{place}".removesuffix(".py").replace("/", ".")]
    assert checks.EXERCISES[exercise] in vars(module).values()
    assert checks.EXERCISES[exercise] is records()[exercise].public


def test_exercises_come_in_the_order_of_the_assignment_whatever_their_names():
    for topic, found in topics().items():
        cells = [cell.name for cell in load_outline(topic).cells]
        places = [cells.index(record.parts[0].name) for record in found]
        assert places == sorted(places)


def test_what_is_not_released_yet_comes_last(monkeypatch):
    monkeypatch.setattr(exercises, "assignments", list)
    found = topics.__wrapped__()
    assert {topic: {record.id for record in each} for topic, each in found.items()} == {
        topic: {record.id for record in each} for topic, each in topics().items()
    }


def test_every_check_that_students_call_is_listed_once():
    assert len(set(checks.__all__)) == len(checks.__all__) > 50
    assert set(checks.__all__) <= set(dir(checks))
    assert {name for name in checks.__all__ if not isfunction(getattr(checks, name))} == {"EXERCISES", "CheckFailed"}


def test_what_exercises_share_is_no_check():
    shared = {"check_linear", "check_table", "pool_exercise", "call_padded", "aggregate"}
    helpers = {"examine_slices", "check_halves", "returned_by", "measured"}
    defined = {
        name
        for modules in modules_by_topic("transformer_lm.checks").values()
        for each in modules
        for name in vars(each)
    }
    assert shared | helpers <= defined
    assert (shared | helpers).isdisjoint(checks.__all__)


def test_a_record_in_a_file_of_another_name_is_refused():
    module = ModuleType("grading.exercises.topic_01_self_attention.keys")
    module.KQV_RECORD = records()["kqv"]
    with pytest.raises(ValueError, match=r"keys must be named after its exercise, got a record of kqv\.$"):
        exercises._record_in(module)
