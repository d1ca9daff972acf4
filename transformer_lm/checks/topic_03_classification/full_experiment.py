"""Check of topic 03: a report on full self-attention."""

from transformer_lm.checks.engine.experiments import HEADS, LIMITS, ExperimentExercise, Goal

FULL_EXPERIMENT = ExperimentExercise(
    id="full-experiment",
    name="full_experiment",
    goals={"synth": Goal(0.95, 1, tokens=3200 * 6), "xor": Goal(0.95, 1, tokens=400 * 2)},
    limits=LIMITS | HEADS,
    advice="If every seed stops at 0.75, it is not the learning rate: which setting is new here?",
)


def full_experiment(report: object) -> None:
    """Check the student's report on full self-attention with the select pool."""
    FULL_EXPERIMENT.check(report)
