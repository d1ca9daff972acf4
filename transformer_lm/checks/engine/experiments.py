"""Checks of topic 03: the report of an experiment, with tuned settings and their accuracies over five seeds.

Students tune and report; grading trains a new model with the reported settings. This file defines what a report must
look like and which accuracies are possible, as measured over seeds in tests/judging/test_experiments.py.
"""

import math
from dataclasses import dataclass

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.failure import CheckFailed, passed
from transformer_lm.checks.engine.reported_values import is_number, listed, plain, told

SEEDS = 5
ENOUGH = 3  # of the seeds must reach the goal
MOST_STEPS, MOST_TOKENS = 1000, 200_000  # grading trains up to 15 times
Limits = dict[str, tuple[float, float]]
LIMITS: Limits = {
    "hidden": (1, 64),
    "learning_rate": (1e-6, 1),
    "batch_tokens": (2, 4096),
    "epochs": (1, 100),
}
HEADS: Limits = {"num_heads": (1, 16)}
WHOLE = ("hidden", "batch_tokens", "epochs", "num_heads")


@dataclass(frozen=True)
class Goal:
    """The attainable results on a data set: accuracies from `reached` to `possible`; an epoch has `tokens` tokens."""

    reached: float
    possible: float
    tokens: int


@dataclass(frozen=True)
class Run:
    """The part of a report about one data set."""

    settings: dict[str, float]
    accuracies: list[float]


@dataclass(frozen=True)
class ExperimentExercise:
    """The public part of an exercise that asks for an experiment: `goals` by the name of the data set."""

    id: str
    name: str
    goals: dict[str, Goal]
    limits: Limits
    advice: str

    def check(self, report: object) -> None:
        """Print one line if a report is complete and its accuracies are possible, else raise CheckFailed."""
        for data, run in self.read(plain(report)).items():
            self.check_run(data, run)
        passed(self.id, f"complete, and {ENOUGH} of {SEEDS} seeds or more reach the goal on each data set.")

    def read(self, report: object) -> dict[str, Run]:
        """Return what a plain report says about each data set, or raise CheckFailed if anything is missing."""
        if not isinstance(report, dict):
            raise self._failed("the report", told(report), "a dictionary", hint("report-not-a-dictionary"))
        if set(report) != set(self.goals):
            known = hint("report-of-other-data")
            raise self._failed("the report", f"entries {listed(report)}", f"entries {listed(self.goals)}", known)
        return {data: self._run(data, report[data]) for data in self.goals}

    def check_run(self, data: str, run: Run) -> None:
        """Raise CheckFailed unless enough seeds reach the goal, and none exceeds what is possible."""
        goal = self.goals[data]
        yours = ", ".join(f"{accuracy:.2f}" for accuracy in run.accuracies)
        if max(run.accuracies) > goal.possible:
            known = hint("accuracies-too-high")
            raise self._failed(f"the accuracies on {data}", yours, f"at most {goal.possible}", known)
        if sum(accuracy >= goal.reached for accuracy in run.accuracies) < ENOUGH:
            known = hint("more-is-possible", advice=self.advice)
            raise self._failed(
                f"the accuracies on {data}", yours, f"{goal.reached} or more for {ENOUGH} of {SEEDS} seeds", known
            )

    def _run(self, data: str, entry: object) -> Run:
        """Return the entry for one data set, checked to hold plain numbers within the limits."""
        what = f"the entry for {data}"
        wanted = {*self.limits, "accuracies"}
        if not isinstance(entry, dict) or set(entry) != wanted:
            yours = f"entries {listed(entry)}" if isinstance(entry, dict) else told(entry)
            known = hint("report-entries")
            raise self._failed(what, yours, f"entries {listed(wanted)}", known)
        settings = {setting: self._setting(setting, entry[setting]) for setting in self.limits}
        accuracies = entry["accuracies"]
        if not isinstance(accuracies, list) or len(accuracies) != SEEDS:
            known = hint("accuracies-of-all-seeds", seeds=SEEDS)
            raise self._failed(f"the accuracies on {data}", told(accuracies), f"a list of {SEEDS} numbers", known)
        for accuracy in accuracies:
            if not is_number(accuracy) or not 0 <= accuracy <= 1:
                known = hint("accuracy-not-a-share")
                raise self._failed(f"the accuracies on {data}", told(accuracy), "numbers between 0 and 1", known)
        if "num_heads" in settings and settings["hidden"] % settings["num_heads"]:
            yours = f"num_heads={settings['num_heads']} and hidden={settings['hidden']}"
            raise self._failed(what, yours, "num_heads that divides hidden", hint("heads-do-not-divide"))
        steps = settings["epochs"] * math.ceil(self.goals[data].tokens / settings["batch_tokens"])
        if steps > MOST_STEPS:
            known = hint("too-many-steps")
            raise self._failed(what, f"{steps} steps of training", f"at most {MOST_STEPS}", known)
        tokens = settings["epochs"] * self.goals[data].tokens
        if tokens > MOST_TOKENS:
            known = hint("too-many-tokens")
            raise self._failed(what, f"training on {tokens} tokens", f"at most {MOST_TOKENS}", known)
        return Run(settings, [float(accuracy) for accuracy in accuracies])

    def _setting(self, setting: str, value: object) -> float:
        """Return the value of a setting if it is a number within its limits, and whole where it must be."""
        low, high = self.limits[setting]
        whole = setting in WHOLE
        if not is_number(value) or not low <= value <= high or (whole and value != int(value)):
            kind = "whole number" if whole else "number"
            known = hint("setting-out-of-limits", setting=setting, kind=kind, low=low, high=high)
            raise self._failed(f"the setting {setting}", told(value), "a number within its limits", known)
        return int(value) if whole else float(value)

    def _failed(self, what: str, yours: str, expected: str, known: str) -> CheckFailed:
        return CheckFailed(f"{what} in {self.name}", yours, expected, known)
