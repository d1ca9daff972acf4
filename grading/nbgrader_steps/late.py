"""Penalties for late submissions, by a policy set in nbgrader_config.py."""

import math
from datetime import timedelta
from pathlib import Path

from nbgrader.api import Gradebook, SubmittedAssignment
from nbgrader.plugins import BasePlugin
from nbgrader.preprocessors import AssignLatePenalties
from traitlets import Dict, Enum, Float, Instance, TraitError, validate
from traitlets.config import Config

from grading.nbgrader_steps.gradebook import nbgrader_of, opened

PERIODS = {"day": timedelta(days=1), "hour": timedelta(hours=1)}


class LatePolicy(BasePlugin):
    """Takes off a percentage for each day or hour that has begun since the due date; nothing by default.

    A submission is late after the grace period and the student's extra time.
    """

    grace = Instance(timedelta, (0,), help="How late a submission may be without a penalty.").tag(config=True)
    percent = Float(0, help="The percentage taken off for each day or hour that has begun.").tag(config=True)
    each = Enum(tuple(PERIODS), "day", help="The unit that is counted: day or hour.").tag(config=True)
    of = Enum(("maximum", "score"), "maximum", help="Percent of what: the maximum, or the points earned.").tag(
        config=True
    )
    at_most = Float(100, help="The most that is taken off, in percent.").tag(config=True)
    zero_after = Instance(
        timedelta, allow_none=True, help="How late a submission gets no points at all; None for never."
    ).tag(config=True)
    extra_time = Dict(help="How much longer some students have, by their id, in every assignment.").tag(config=True)

    @validate("percent", "at_most")
    def _check_percentage(self, proposal: dict) -> float:
        value = proposal["value"]
        if not 0 <= value <= 100:
            raise TraitError(f"LatePolicy.{proposal['trait'].name} must be between 0 and 100 percent, got {value:g}.")
        return value

    @validate("grace", "zero_after")
    def _check_time(self, proposal: dict) -> timedelta | None:
        value = proposal["value"]
        if value is not None and value < timedelta(0):
            raise TraitError(f"LatePolicy.{proposal['trait'].name} must not be negative, got {value}.")
        return value

    @validate("extra_time")
    def _check_extra_time(self, proposal: dict) -> dict[str, timedelta]:
        for student, time in proposal["value"].items():
            if not isinstance(student, str) or not isinstance(time, timedelta) or time < timedelta(0):
                raise TraitError(
                    f"LatePolicy.extra_time must give students a timedelta that is not negative, got {time!r} for "
                    f'{student!r}. Write {{"their-id": timedelta(days=2)}}.'
                )
        return proposal["value"]

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float) -> float:
        """Return the points that a notebook loses; nbgrader calls this while grading."""
        step = self.parent
        most = step.gradebook.find_notebook(step.notebook_id, step.assignment_id).max_score
        return self.penalty(student_id, score, most, timedelta(seconds=total_seconds_late))

    def penalty(self, student: str, score: float, most: float, late: timedelta) -> float:
        """Return the late penalty for a score out of `most` points, which never exceeds the score."""
        late -= self.grace + self.extra_time.get(student, timedelta(0))
        if late <= timedelta(0) or score <= 0:
            return 0.0
        if self.zero_after is not None and late > self.zero_after:
            return score
        percent = min(self.at_most, self.percent * math.ceil(late / PERIODS[self.each]))
        return min(score, round(percent / 100 * (most if self.of == "maximum" else score), 2))


def late_policy(config: Config) -> LatePolicy | None:
    """Return the policy of a course, or None if it uses another plugin. Raises TraitError if a setting is wrong."""
    plugin = AssignLatePenalties(config=config).plugin_class
    return plugin(config=config) if issubclass(plugin, LatePolicy) else None


def renew_penalties(gradebook: Gradebook, assignment: str, config: Config) -> None:
    """Save the penalties of all submissions of an assignment by the current policy."""
    policy = late_policy(config)
    if policy:
        for submission in gradebook.assignment_submissions(assignment):
            _renew(submission, policy)
    gradebook.db.commit()


def renew_penalties_of_course(root: Path, assignment: str) -> None:
    """Do the same for the course in a folder. Raises TraitError if a setting of its policy is wrong."""
    app = nbgrader_of(root)
    with opened(app.coursedir) as gradebook:
        renew_penalties(gradebook, assignment, app.config)


def why_no_penalty(root: Path, assignment: str) -> list[str]:
    """Return sentences on why the policy of the course in a folder takes nothing off."""
    app = nbgrader_of(root)
    policy = late_policy(app.config)
    if policy is None or (not policy.percent and policy.zero_after is None):
        return []
    with opened(app.coursedir) as gradebook:
        known = gradebook.find_assignment(assignment)
        if known.duedate is None:
            return [f"LatePolicy takes nothing off: {assignment} has no due date. Set one in the Formgrader."]
        timeless = gradebook.db.query(SubmittedAssignment).filter_by(assignment_id=known.id, timestamp=None).count()
    if timeless:
        return [f"Submissions without timestamp.txt, from which LatePolicy takes nothing off: {timeless}."]
    return []


def renew_penalty(gradebook: Gradebook, submission: SubmittedAssignment, config: Config) -> None:
    """Save the penalty of one submission by the current policy, for its current score.

    nbgrader sets a penalty when it grades, before manual grading, and keeps it even if the policy or the due date
    changes.
    """
    policy = late_policy(config)
    if policy:
        _renew(submission, policy)
        gradebook.db.commit()


def _renew(submission: SubmittedAssignment, policy: LatePolicy) -> None:
    late = timedelta(seconds=submission.total_seconds_late)
    for notebook in submission.notebooks:
        if not late and not notebook.late_submission_penalty:  # most submissions; the score need not be computed
            continue
        penalty = policy.penalty(submission.student_id, notebook.score, notebook.max_score, late)
        if penalty != (notebook.late_submission_penalty or 0):
            notebook.late_submission_penalty = penalty


def in_words(time: timedelta) -> str:
    """Return a time as its largest two units, such as `2 days 3 hours`."""
    minutes = max(1, math.ceil(time.total_seconds() / 60))
    counts = {"day": minutes // 1440, "hour": minutes // 60 % 24, "minute": minutes % 60}
    told = [f"{count} {unit}{'' if count == 1 else 's'}" for unit, count in counts.items() if count]
    return " ".join(told[:2])
