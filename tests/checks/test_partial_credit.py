"""Points of the parts of an exercise: each part is judged by itself, whatever else is wrong."""

import pytest
from test_true_messages import changed, judged

from grading.exercises import value_records

MULTI_HEAD = "multi-head-attention"
UNSCALED = (" / self.head_size**0.5", "")
UNMIXED = ("self.mix(att)", "att")
UNMASKED = ("if self.causal:", "if False:")
FOUR_AXES = ("(att, probs) if", "(att, probs.view(b, self.num_heads, n, n)) if")
AVERAGED = ("(att, probs) if", "(att, probs.view(b, self.num_heads, n, n).mean(1)) if")
UNSCALED_UNLESS_CAUSAL = ("self.head_size**0.5", "(self.head_size**0.5 if self.causal else 1)")


@pytest.mark.parametrize(
    ("edits", "points"),
    [
        ((UNSCALED,), [2, 1, 2]),
        ((UNSCALED, UNMIXED), [2, 1, 0]),
        ((UNSCALED, UNMASKED), [2, 0, 2]),
        ((UNSCALED, FOUR_AXES), [2, 1, 0]),
        ((UNSCALED_UNLESS_CAUSAL,), [2, 1, 2]),
        ((FOUR_AXES, UNMIXED, UNMASKED), [3, 0, 0]),
        ((AVERAGED, UNMIXED), [0, 0, 0]),
        ((AVERAGED,), [3, 1, 0]),
    ],
)
def test_two_mistakes_cost_the_parts_that_they_are_about(edits, points):
    result = judged(MULTI_HEAD, changed(MULTI_HEAD, *edits))
    assert [part.points for part in result.parts if part.max_points] == points


def test_a_part_that_fails_hears_of_its_own_mistake():
    result = judged(MULTI_HEAD, changed(MULTI_HEAD, UNMIXED, UNMASKED))
    mistakes = [part.mark.failure.mistake for part in result.parts if part.points < part.max_points]
    assert mistakes == ["no-mask", "no-mixing"]


RAISES = """

complete = {function}


def incomplete(self, *given, **options):
    calls.append(1)
    if len(calls) % {every} == {number}:
        raise ValueError("no more")
    return complete(self, *given, **options)


calls = []
{function} = incomplete
"""
CALLS = {"multi-head-attention": 6, "simple-attention": 2, "full-attention": 2, "encoder-block": 3}


@pytest.mark.parametrize(
    ("exercise", "number"), [(exercise, number) for exercise, every in CALLS.items() for number in range(every)]
)
def test_an_error_in_any_call_costs_something(exercise, number):
    """A mistake that no part covers would cost nothing."""
    record = value_records()[exercise]
    every = CALLS[exercise]
    source = record.model_answer + RAISES.format(function=f"{record.defines}.forward", every=every, number=number)
    assert judged(exercise, source).points < record.points
