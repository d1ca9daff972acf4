"""The exercise of topic 03 about a report on full self-attention, with honest reports and others."""

from grading.exercises.topic_03_classification.experiments import experiment_record, mistakes
from grading.judging.record import edited
from transformer_lm.checks.topic_03_classification.full_experiment import FULL_EXPERIMENT

FULL = """\
full_experiment = {
    "synth": {
        "hidden": 16,
        "num_heads": 4,
        "learning_rate": 0.01,
        "batch_tokens": 192,
        "epochs": 3,
        "accuracies": [1.0, 1.0, 1.0, 1.0, 1.0],
    },
    "xor": {
        "hidden": 32,
        "num_heads": 8,
        "learning_rate": 0.01,
        "batch_tokens": 32,
        "epochs": 15,
        "accuracies": [1.0, 1.0, 0.75, 1.0, 1.0],
    },
}
"""


FULL_EXPERIMENT_RECORD = experiment_record(
    FULL_EXPERIMENT,
    "What full self-attention adds",
    FULL,
    (
        *mistakes("full_experiment", FULL, "[1.0, 1.0, 1.0, 1.0, 1.0]", "[1.0, 1.0, 0.75, 1.0, 1.0]"),
        edited("one-head", FULL, ('"num_heads": 8', '"num_heads": 1'), hint="not-reproduced"),
        edited("heads-that-do-not-fit", FULL, ('"num_heads": 8', '"num_heads": 7'), hint="heads-do-not-divide"),
        edited("no-heads", FULL, ('        "num_heads": 8,\n', ""), hint="report-entries"),
    ),
    {
        "two-heads": FULL.replace('"num_heads": 4', '"num_heads": 2'),
        "narrower": FULL.replace('"hidden": 32', '"hidden": 16')
        .replace('"num_heads": 8', '"num_heads": 4')
        .replace("15", "20"),
        "tuples": FULL.replace("[", "(").replace("]", ")"),
        "almost": FULL.replace("[1.0, 1.0, 1.0, 1.0, 1.0]", "[0.9975, 0.99, 1, 0.5, 1]"),
    },
)
