"""The exercise of topic 03 about a report on simple self-attention, with honest reports and others."""

from grading.exercises.topic_03_classification.experiments import experiment_record, mistakes
from grading.judging.record import edited
from transformer_lm.checks.topic_03_classification.simple_experiment import SIMPLE_EXPERIMENT

SIMPLE = """\
simple_experiment = {
    "synth": {
        "hidden": 8,
        "learning_rate": 0.03,
        "batch_tokens": 192,
        "epochs": 3,
        "accuracies": [0.75, 0.75, 0.75, 0.75, 0.75],
    },
    "xor": {
        "hidden": 4,
        "learning_rate": 0.03,
        "batch_tokens": 32,
        "epochs": 15,
        "accuracies": [0.75, 0.75, 0.75, 0.75, 0.5],
    },
}
"""


SIMPLE_EXPERIMENT_RECORD = experiment_record(
    SIMPLE_EXPERIMENT,
    "How far simple self-attention gets",
    SIMPLE,
    (
        *mistakes("simple_experiment", SIMPLE, "[0.75, 0.75, 0.75, 0.75, 0.75]", "[0.75, 0.75, 0.75, 0.75, 0.5]"),
        edited(
            "synth-solved",
            SIMPLE,
            ("[0.75, 0.75, 0.75, 0.75, 0.75]", "[1.0, 1.0, 1.0, 1.0, 1.0]"),
            hint="accuracies-too-high",
        ),
        edited(
            "xor-solved",
            SIMPLE,
            ("[0.75, 0.75, 0.75, 0.75, 0.5]", "[0.75, 0.75, 0.75, 0.75, 1.0]"),
            hint="accuracies-too-high",
        ),
    ),
    {
        "wider": SIMPLE.replace('"hidden": 8', '"hidden": 12'),
        "by-steps": SIMPLE.replace('"hidden": 4', '"hidden": 3').replace("0.75, 0.5]", "0.5, 0.5]"),
        "tuples": SIMPLE.replace("[", "(").replace("]", ")"),
        "arrays": "import numpy as np\n" + SIMPLE.replace("[", "np.array([").replace("]", "])"),
        "slow": SIMPLE.replace(
            '"hidden": 4,\n        "learning_rate": 0.03', '"hidden": 2,\n        "learning_rate": 0.003'
        ),
        "numbers-of-numpy": "import numpy as np\n"
        + SIMPLE.replace("[0.75, 0.75, 0.75, 0.75, 0.75]", "list(np.full(5, 0.75))"),
        "numbers-of-torch": SIMPLE.replace("0.5]", "torch.tensor(0.5)]").replace(
            '"hidden": 8', '"hidden": torch.tensor(8)'
        ),
        "built-up": SIMPLE
        + "simple_experiment = dict(simple_experiment, xor={**simple_experiment['xor'], 'epochs': 20})\n",
    },
)
