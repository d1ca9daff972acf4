"""Check of topic 03: a report on simple self-attention."""

from transformer_lm.checks.engine.experiments import LIMITS, ExperimentExercise, Goal

SIMPLE_EXPERIMENT = ExperimentExercise(
    id="simple-experiment",
    name="simple_experiment",
    goals={"synth": Goal(0.74, 0.76, tokens=3200 * 6), "xor": Goal(0.74, 0.76, tokens=400 * 2)},
    limits=LIMITS,
    advice="Wide vectors have large dot products: begin with a narrow model, then try other learning rates.",
)


def simple_experiment(report: object) -> None:
    """Check the student's report on simple self-attention with the select pool."""
    SIMPLE_EXPERIMENT.check(report)
