"""The judge of random answers, which sees only the sampled tokens and counts them itself."""

import random
from collections.abc import Callable

from numpy.typing import NDArray

from grading.isolation.answers import Answer
from grading.judging.judge import TEXT, failure_told, inputs_after, tensors
from grading.judging.record import Part, Record
from transformer_lm.checks.engine.contract import PublicExercise
from transformer_lm.checks.engine.diagnosis import require_unchanged
from transformer_lm.checks.engine.sampled import Ask, Case, not_a_tensor


def drawn(examine: Callable[[Ask, random.Random], None]) -> Callable[[Record, Part, Answer, random.Random], str]:
    """Return the judge that examines an answer like the student's check, on inputs drawn for this submission."""

    def judged(record: Record, part: Part, answer: Answer, rng: random.Random) -> str:
        exercise = record.public
        assert isinstance(exercise, PublicExercise)
        (name,) = exercise.axes
        calls = 0

        def ask(case: Case) -> NDArray:
            nonlocal calls
            calls += 1
            reply, found = answer.ask("call", case, name=record.defines, build=True)
            failed = failure_told(reply)
            if failed:
                raise failed
            tried = exercise.tried(tensors(case), name)
            output = found.get(f"outputs/{name}")
            if output is None:
                raise not_a_tensor(tried, name, _kind(reply, name))
            require_unchanged(tried, case, inputs_after(found))
            return output

        examine(ask, rng)
        return f"Right for {calls} calls on inputs drawn for this submission, with the right chances."

    return judged


def _kind(reply: dict, name: str) -> str:
    kinds = reply.get("kinds")
    return str(kinds.get(name))[:TEXT] if isinstance(kinds, dict) else "missing"
