"""Tests that students write, judged by what they catch: what they see, what is reported to them, what they may cost."""

import pytest
import torch

from grading.exercises import records
from grading.exercises.topic_02_multi_head_attention.student_test import MODEL_ANSWER
from grading.isolation import answers
from grading.isolation.answers import Cell
from grading.isolation.sandbox import missing_walls
from grading.judging import written_tests
from grading.judging.judge import judge
from grading.judging.record import SETUP
from grading.processes.workers import answer_server
from transformer_lm import checks
from transformer_lm.checks.topic_02_multi_head_attention.student_test import STUDENT_TEST

REDUCED = bool(missing_walls())  # these answers are our own, so they may be judged everywhere
RECORD = records()["student-test"]
TOPIC = "02_multi_head_attention"
ALL = [("right", name, source) for name, source in {"model answer": MODEL_ANSWER, **RECORD.right}.items()]
ALL += [("wrong", wrong.name, wrong) for wrong in RECORD.misbehaving]


def judged(*sources: str):
    cells = [Cell(number, source) for number, source in enumerate([SETUP, *sources])]
    (part,) = judge(RECORD, cells, answer_server(TOPIC, REDUCED), solution=len(sources)).parts
    return part


@pytest.mark.parametrize(("kind", "name", "answer"), ALL, ids=[name for _, name, _ in ALL])
def test_the_students_own_check_says_what_grading_says(kind, name, answer, capsys):
    if kind == "right":
        checks.student_test(RECORD.answer(answer))
        assert "✓ student-test: your test accepts the right version and catches all 10" in capsys.readouterr().out
        return
    with pytest.raises(checks.CheckFailed) as caught:
        checks.student_test(RECORD.answer(answer.source))
    assert caught.value.mistake == answer.hint
    assert answer.says in str(caught.value)


def test_a_missed_version_is_named():
    one_sequence = next(wrong for wrong in RECORD.misbehaving if wrong.name == "one-sequence")
    part = judged(one_sequence.source)
    assert part.points == 1.8
    assert (
        "catches 9 of 10 wrong versions; it misses one that gives every sequence the scores of the first"
        in part.message
    )


def test_every_wrong_version_differs_from_the_right_one_and_from_the_others():
    queries, keys = torch.randn(2, 3, 5), torch.randn(2, 4, 5)
    made = [STUDENT_TEST.right(queries, keys)] + [wrong(queries, keys) for wrong in STUDENT_TEST.wrong.values()]
    for number, first in enumerate(made):
        for second in made[number + 1 :]:
            assert first.shape != second.shape or not torch.allclose(first, second, atol=1e-2)


@pytest.mark.parametrize(
    "peeks",
    [
        "assert 'right' in repr(attention_scores) or attention_scores.__closure__ is None",
        "assert attention_scores.__code__.co_name == 'attention_scores'",
        "import inspect; assert 'sqrt' in inspect.getsource(attention_scores)",
        "calls.append(1); assert len(calls) == 1",
        "import gc; assert len([f for f in gc.get_objects() if getattr(f, '__name__', '') == 'never']) == 0",
    ],
)
def test_nothing_but_numbers_can_be_seen_of_a_version(peeks):
    """A test that checks something else treats all versions alike, or wrongly: it earns nothing."""
    source = f"calls = []\n\n\ndef test_attention_scores(attention_scores):\n    {peeks}\n"
    assert judged(source).points == 0


def test_a_test_cannot_say_that_it_has_failed():
    lies = "import sys\nsys.modules['answering'].outcome_of = lambda test, function: {reply}\n" + MODEL_ANSWER
    assert judged(lies.format(reply="{'raised': None, 'asserts': True, 'calls': 1}")).points == 0
    assert judged(lies.format(reply="{'raised': 'yes', 'asserts': True, 'calls': 1}")).points == 0
    assert judged(lies.format(reply="{'raised': 7, 'calls': []}")).points == 0
    assert judged(lies.format(reply="[]")).points == 0


def test_a_test_that_fails_now_and_then_is_worth_nothing():
    flaky = "import random\n" + MODEL_ANSWER.replace("    scores =", "    assert random.random() < 0.01\n    scores =")
    part = judged(flaky)
    assert part.points == 0
    assert "it fails for the right version" in part.message


def test_a_test_that_hangs_or_calls_for_ever_costs_its_own_points_only(monkeypatch):
    monkeypatch.setattr(answers, "CALL_SECONDS", 2)
    assert "runs for more than" in judged("def test_attention_scores(f):\n    while True: pass\n").message
    monkeypatch.setattr(answers, "CALLS", 20)
    forever = "def test_attention_scores(f):\n    while True: f(torch.ones(1, 1, 1), torch.ones(1, 1, 1))\n"
    assert "calls what it is given more than 20 times" in judged(forever).message


@pytest.mark.parametrize(
    "arguments",
    ["torch.ones(2000, 2000, 1), torch.ones(2000, 2000, 1)", "torch.ones(1, 2000, 1), torch.ones(1, 2000, 1)"],
)
def test_what_would_take_long_to_compute_is_refused(arguments):
    part = judged(f"def test_attention_scores(f):\n    f({arguments})\n")
    assert part.points == 0
    assert f"a test must take at most {written_tests.NUMBERS} numbers" in part.message


@pytest.mark.parametrize(
    "arguments", ["", "1, 2", "torch.ones(2, 3)", "torch.ones(1), x=torch.ones(1)", "*[torch.ones(1)] * 9"]
)
def test_a_call_that_cannot_work_fails_as_it_would_in_the_notebook(arguments):
    part = judged(f"def test_attention_scores(f):\n    f({arguments})\n")
    assert part.points == 0
    assert "it fails for the right version: raises" in part.message


def test_a_test_that_is_still_empty_is_told_so():
    part = judged("def test_attention_scores(attention_scores):\n    raise NotImplementedError()\n")
    assert part.mark.failure.mistake == "no-code"


WRONG_SHAPES = """\
def test_attention_scores(attention_scores):
    attention_scores(torch.ones(2, 3, 4), torch.ones(2, 5, 6))
"""
UNEQUAL_COUNTS = """\
def test_attention_scores(attention_scores):
    scores = attention_scores(torch.ones(2, 3, 4), torch.ones(2, 5, 4))
    attention_scores(scores, torch.ones(2, 7, 5))
"""


def test_an_error_of_the_given_function_is_not_taken_for_an_assert_of_the_test():
    part = judged(WRONG_SHAPES)
    assert "it fails for the right version: raises ShapeError" in part.message
    assert part.mark.failure.mistake == "raises"
    with pytest.raises(checks.CheckFailed) as caught:
        checks.student_test(RECORD.answer(WRONG_SHAPES))
    assert caught.value.mistake == part.mark.failure.mistake


def test_a_test_without_an_assert_earns_nothing_where_a_wrong_version_raises():
    assert judged(UNEQUAL_COUNTS).points == 0


SLOW_TO_READ = """\
def test_attention_scores(attention_scores):
    import sys, time
    inside = sys.modules["answering"]
    real = inside.receive
    inside.receive = lambda connection: (time.sleep(1), real(connection))[1]
    queries = torch.zeros(1, 1000, 1)
    for _ in range(9000):
        attention_scores(queries, queries)
"""


def test_a_test_that_is_slow_to_read_what_it_is_sent_ends_in_time():
    cells = [Cell(0, SETUP), Cell(1, SLOW_TO_READ)]
    server = answer_server(TOPIC, REDUCED)
    used = server.used
    (part,) = judge(RECORD, cells, server, solution=1, seconds=4).parts
    assert part.points == 0
    assert server.used - used < 10
