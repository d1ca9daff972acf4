"""The judge of tests written by students, which runs each on the right function and on wrong versions.

The test runs in the answer process, and the function that it gets is a connection to this process. It sees only what a
version computes, so it can tell right from wrong only by testing.
"""

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from grading.isolation.answers import Answer
from grading.judging.judge import failure_told
from grading.judging.record import Part, Record
from transformer_lm.checks.engine.catalogue import Hint
from transformer_lm.checks.engine.verdict import Mark
from transformer_lm.checks.engine.written_tests import TestExercise

NUMBERS = 10**6  # in the arguments of a version, and in its result
TEXT = 2000  # characters of a text that an answer reports
RUNS = 3  # of the right version, because a test must not fail occasionally


def mutations(record: Record, part: Part, answer: Answer, rng: random.Random) -> str | Mark:
    """Judge a test by the fraction of wrong versions that it catches, if it accepts the right one."""
    exercise = record.public
    assert isinstance(exercise, TestExercise)
    versions = [exercise.right, *exercise.wrong.values()]
    order = list(range(len(versions))) + [0] * (RUNS - 1)
    rng.shuffle(order)
    outcomes: dict[int, dict] = {}
    for version in order:
        found = _outcome(record, answer, versions[version])
        if version not in outcomes or found["raised"]:
            outcomes[version] = found
    first = outcomes.pop(0)
    missed = exercise.missed([outcomes[version] for version in sorted(outcomes)])
    if not missed and not first["raised"]:
        return exercise.praise()
    caught = 0 if first["raised"] else len(exercise.wrong) - len(missed)
    points = round(part.points * caught / len(exercise.wrong), 2)
    return Mark(points, failure=exercise.failure(first, missed).failure)


def _outcome(record: Record, answer: Answer, version: Callable[..., Tensor]) -> dict:
    """Return the outcome of running the test on a version."""
    answer.keep_running()
    reply = answer.converse("test", lambda request, arrays: _computed(version, request, arrays), name=record.defines)
    failed = failure_told(reply)
    if failed:
        raise failed
    raised = reply.get("raised")
    known = Hint(str(reply.get("hint"))[:TEXT], str(reply.get("mistake"))[:TEXT])
    told = {"raised": None if raised is None else str(raised)[:TEXT], "hint": known}
    return told | {fact: bool(reply.get(fact)) for fact in ("asserts", "calls", "prints", "returns")}


def _computed(
    version: Callable[..., Tensor], request: dict, arrays: dict[str, np.ndarray]
) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the result of a version for the arguments that a test has passed, or the error that it raises."""
    try:
        names = [str(name) for name in request["wants"]]
        given = {name: torch.from_numpy(arrays[name].copy()) for name in names}
        rows = [max(1, tensor[..., 0].numel()) for tensor in given.values() if tensor.dim()]
        if sum(tensor.numel() for tensor in given.values()) > NUMBERS or np.prod(rows) > NUMBERS:
            raise ValueError(f"a test must take at most {NUMBERS} numbers, got more.")
        places = [given[name] for name in names if name.isdigit()]
        result = version(*places, **{name: tensor for name, tensor in given.items() if not name.isdigit()})
        return {"error": None}, {"result": result.detach().numpy()}
    except Exception as error:  # the test may expect it
        return {"error": [type(error).__name__, str(error)[:TEXT]]}, {}
