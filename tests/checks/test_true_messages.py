"""The messages of check and judge are true of the wrong answer, even if it makes several mistakes."""

import pytest

from grading.exercises import records, topic_of
from grading.isolation.answers import Cell
from grading.isolation.sandbox import missing_walls
from grading.judging.judge import ExerciseResult, judge
from grading.judging.record import SETUP
from grading.processes.workers import answer_server
from transformer_lm import checks
from transformer_lm.checks.engine.verdict import Failure

REDUCED = bool(missing_walls())  # these answers are our own, so they may be judged everywhere


def judged(exercise: str, source: str, seed: int = 1) -> ExerciseResult:
    cells = [Cell(0, SETUP), Cell(1, source)]
    return judge(records()[exercise], cells, answer_server(topic_of(exercise), REDUCED), seed, solution=1)


def told(exercise: str, source: str) -> list[Failure]:
    """Return what the judge finds in an answer that loses points, and what the student's own check finds."""
    record = records()[exercise]
    said = [part.mark.failure for part in judged(exercise, source).parts if part.points < part.max_points]
    with pytest.raises(checks.CheckFailed) as caught:
        record.public.check(record.answer(source))
    return [*said, caught.value.failure]


def changed(exercise: str, *edits: tuple[str, str]) -> str:
    """Return the model answer with these edits, (old, new) each."""
    source = records()[exercise].model_answer
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


# --- a known mistake is named if it fits all that a call returns ----------------------------------

LENGTH = "total / len(tokens) ** alpha"


@pytest.mark.parametrize(
    ("exercise", "source", "false"),
    [
        ("labels", "def batch_to_labeled_samples(batch):\n    return batch, batch\n", "wraps-around"),
        ("labels", "def batch_to_labeled_samples(batch):\n    return batch, batch\n", "inputs-not-cut"),
        ("labels", "def batch_to_labeled_samples(batch):\n    return batch[:, 1:], batch\n", "not-shifted"),
        (
            "beam-search",
            changed("beam-search", (LENGTH, "total / (5 + len(tokens)) ** alpha")),
            "alpha-ignored",
        ),
        (
            "beam-search",
            changed("beam-search", (LENGTH, "total - alpha * len(tokens)")),
            "alpha-ignored",
        ),
        ("kqv", changed("kqv", ("return keys, queries", "return queries, queries")), "queries-first"),
    ],
)
def test_no_mistake_is_named_that_another_output_of_the_same_call_contradicts(exercise, source, false):
    assert false not in [failure.mistake for failure in told(exercise, source)]


@pytest.mark.parametrize(
    ("inputs", "labels", "named"),
    [
        ("batch", "batch[:, :-1]", "inputs-not-cut"),
        ("batch[:, 1:]", "batch[:, 2:]", "both-without-the-first"),
        ("batch", "batch.roll(-1, dims=1)", "wraps-around"),
    ],
)
def test_a_mistake_is_named_beside_another_known_one_in_the_other_output(inputs, labels, named):
    source = f"def batch_to_labeled_samples(batch):\n    return {inputs}, {labels}\n"
    assert {failure.mistake for failure in told("labels", source)} == {named}


def test_a_mistake_is_named_whatever_goes_wrong_in_another_call():
    twice = changed(
        "multi-head-attention", ("scores.softmax(dim=-1)", "scores.softmax(dim=1)"), ("if self.causal:", "if False:")
    )
    assert {failure.mistake for failure in told("multi-head-attention", twice)} == {"softmax-over-queries"}


# --- what a hint speaks of was tried ---------------------------------------------------------------


def test_a_hint_about_the_mask_is_not_given_for_a_call_without_one():
    """Wrong without a mask by two mistakes together; the mask does nothing either."""
    source = changed(
        "multi-head-attention",
        ("self.head_size**0.5", "self.mix.in_features**0.5"),
        ("self.mix(att)", "att"),
        ("if self.causal:", "if False:"),
    )
    for failure in told("multi-head-attention", source):
        assert "causal=True" not in failure.hint or "causal=True)" in failure.tried


def test_a_hint_about_padding_is_not_given_for_a_batch_without_any():
    exercise = "full-attention"
    source = changed(exercise, ("scores.softmax(dim=-1)", "scores.sigmoid()"))
    source = source.replace("scores.masked_fill(unreadable, -math.inf)", "scores")
    for failure in told(exercise, source):
        assert "padding" not in failure.hint or "all positions visible" not in failure.tried


@pytest.mark.parametrize("spoiled", ["att * 2", "att.reshape(7)", "att.oops"])
def test_the_weights_of_a_call_have_one_name_whether_it_raises_or_not(spoiled):
    source = changed("multi-head-attention", ("self.mix(att)", f"self.mix({spoiled})"))
    for failure in told("multi-head-attention", source):
        assert " with given weights on x" in failure.tried


def test_an_answer_that_is_right_for_some_numbers_is_not_said_to_be_wrong_for_a_length():
    source = """\
first = []


def attention_scores(queries, keys):
    first.append(keys[0, 0, 0].item())
    scores = queries @ keys.mT / keys.shape[-1] ** 0.5
    return scores if first[-1] == first[0] else torch.zeros_like(scores)
"""
    assert {failure.mistake for failure in told("attention-scores", source)} == {"other-length"}


# --- errors: whose line it was ---------------------------------------------------------------------

USES_FUNCTION = changed("self-attention", ("weights @ v", "F.scaled_dot_product_attention(q, k, v)"))
RETURNS_COMPLEX = "def attention_scores(queries, keys):\n    return (queries @ keys.mT).to(torch.complex64)\n"
FAILS_IN_A_MODULE = """\
import statistics


def attention_scores(queries, keys):
    return queries * statistics.mean([])
"""


def first_told(exercise: str, source: str) -> Failure:
    return next(part.mark.failure for part in judged(exercise, source).parts if part.points < part.max_points)


def test_a_refusal_names_the_line_that_asked_for_it():
    failure = first_told("self-attention", USES_FUNCTION)
    assert "in `return F.scaled_dot_product_attention(q, k, v)" in failure.yours
    assert failure.mistake == "ready-made-attention"


def test_a_line_of_another_module_is_not_said_to_be_the_student_s(tmp_path):
    assert "in `return queries * statistics.mean([])`" in first_told("attention-scores", FAILS_IN_A_MODULE).yours
    path = tmp_path / "answer.py"
    path.write_text(FAILS_IN_A_MODULE)
    namespace: dict = {}
    exec(compile(FAILS_IN_A_MODULE, path, "exec"), namespace)
    with pytest.raises(checks.CheckFailed, match=r"in `return queries \* statistics.mean\(\[\]\)`"):
        checks.attention_scores(namespace["attention_scores"])


@pytest.mark.parametrize(
    ("exercise", "source", "reached"),
    [
        ("attention-scores", "def attention_scores(queries):\n    return queries\n", False),
        ("attention-scores", "attention_scores = 3\n", False),
        ("self-attention", changed("self-attention", ("def forward", "def foward")), False),
        ("attention-scores", RETURNS_COMPLEX, True),
        ("attention-scores", RETURNS_COMPLEX.replace(".to(torch.complex64)", ".to_sparse()"), True),
    ],
)
def test_lines_that_ran_are_not_said_to_be_out_of_reach(exercise, source, reached):
    for failure in told(exercise, source):
        assert (failure.mistake == "not-reached") != reached


def test_a_tensor_of_complex_numbers_is_told_by_its_dtype():
    failure = first_told("attention-scores", RETURNS_COMPLEX)
    assert "dtype torch.complex64" in failure.yours
    assert failure.mistake == "not-real-numbers"
