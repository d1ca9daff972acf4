"""Exercises that ask for a test, which is run on a right function and on wrong ones.

A test is as good as the mistakes it finds.
"""

import contextlib
import dis
import io
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.failure import CheckFailed, described, passed

Function = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class TestExercise:
    """The public part of an exercise that asks for a test.

    `right` is the function that the test must accept; `wrong` maps a description of each mistake, in words that follow
    "one that", to the version with that mistake, which the test should refuse.
    """

    __test__ = False  # not itself a test

    id: str
    name: str
    right: Callable
    wrong: dict[str, Callable]

    def check(self, test: Callable) -> None:
        """Print one line if the test accepts the right function and refuses every wrong one, else raise CheckFailed."""
        first, *others = (outcome_of(test, function) for function in (self.right, *self.wrong.values()))
        missed = self.missed(others)
        if first["raised"] or missed:
            raise self.failure(first, missed)
        passed(self.id, self.praise())

    def missed(self, outcomes: list[dict]) -> list[str]:
        """Return the wrong versions that the test has missed, given the outcome of each.

        A test that crashes because shapes do not fit has caught a mistake too, provided that it contains an assert.
        """
        asserts = any(outcome["asserts"] for outcome in outcomes)
        return [
            words
            for words, outcome in zip(self.wrong, outcomes, strict=True)
            if outcome["raised"] is None or not asserts
        ]

    def praise(self) -> str:
        """Return the message for a test that misses nothing."""
        return f"your test accepts the right version and catches all {len(self.wrong)} wrong ones."

    def failure(self, first: dict, missed: list[str]) -> CheckFailed:
        """Return the failure to report, given the outcome for the right function and the versions that were missed."""
        tried = f"{self.name}, on {self.right.__name__} and on {len(self.wrong)} wrong versions of it"
        if first["raised"] is not None:
            by_hand = hint("test-refuses-the-right-version")
            known = by_hand if first["asserts"] else first["hint"]
            yours = f"it fails for the right version: {first['raised']}"
            return CheckFailed(tried, yours, "a test that the right version passes", known)
        caught = len(self.wrong) - len(missed)
        listed = "; ".join(f"one that {words}" for words in missed)
        yours = f"your test catches {caught} of {len(self.wrong)} wrong versions"
        yours += f"; it misses {listed}" if caught else ""
        return CheckFailed(tried, yours, f"a test that fails for all {len(self.wrong)}", self._advice(first, missed))

    def _advice(self, first: dict, missed: list[str]) -> str:
        if 0 < len(self.wrong) - len(missed) <= 2:
            return hint("test-of-shapes-alone")
        if len(missed) < len(self.wrong):
            return hint("test-of-sizes-alike")
        if not first["calls"]:
            return hint("test-never-calls", function=self.right.__name__)
        if first["prints"]:
            return hint("test-prints")
        if first["returns"]:
            return hint("test-returns")
        return hint("test-passes-always")


def _is_meant(error: BaseException) -> bool:
    """Return whether a test has failed on purpose, by its own `assert` or `raise`."""
    place = error.__traceback__
    assert place is not None
    while place.tb_next:
        place = place.tb_next
    is_raised = dis.opname[place.tb_frame.f_code.co_code[place.tb_lasti]] == "RAISE_VARARGS"
    return is_raised and not isinstance(error, NotImplementedError | SystemExit)


def outcome_of(test: Callable, function: Callable) -> dict:
    """Run a test on a function; return what it raised, if anything, and whether it asserts, calls, prints, returns."""
    calls = 0
    refused: list[Exception] = []  # errors that the function itself has raised, not an assert of the test

    def given(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        try:
            returned = function(*arguments, **options)
        except Exception as error:
            refused.append(error)
            raise
        return returned.detach() if isinstance(returned, Tensor) else returned  # a test is about numbers

    printed = io.StringIO()
    raised, known, asserts, returned = None, "", False, None
    with contextlib.redirect_stdout(printed):
        try:
            returned = test(given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a test that exits has failed too
            raised, known = described(error)
            asserts = _is_meant(error) and not any(error is each for each in refused)
    facts = {
        "asserts": asserts,
        "calls": calls > 0,
        "prints": bool(printed.getvalue()),
        "returns": returned is not None,
    }
    return {"raised": raised, "hint": known, "mistake": getattr(known, "id", None)} | facts
