"""Exercises of topic 03: reports of experiments, honest ones and others."""

from grading.experiments import reproduced
from grading.record import Part, Record, WrongAnswer, edited
from transformer_lm.checks.experiment import ExperimentExercise
from transformer_lm.checks.topic_03_classification.full_experiment import FULL_EXPERIMENT
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

IMPOSSIBLE = "That is more than this model can reach here."
TUNE = "More is possible: tune the settings."
NOT_REPRODUCED = "These settings do not give what the report says"
SHARE = "An accuracy is the share that is right, a number between 0 and 1, not a percentage."
FIVE = "One run tells little: report 5 runs with 5 seeds, all of them."
SETTINGS = "It has every setting that you have tuned, and the accuracies, one for each seed."


def mistakes(name: str, answer: str, synth: str, xor: str) -> tuple[WrongAnswer, ...]:
    """Return reports that are wrong, for one with these accuracies on the two data sets."""

    def other_xor(accuracies: object) -> tuple[str, str]:
        return xor, str(accuracies)

    return (
        edited("percentages", SHARE, answer, other_xor([75.0, 75.0, 75.0, 75.0, 50.0])),
        edited("below-zero", SHARE, answer, other_xor([0.75, 0.75, -0.75, 0.75, 0.5])),
        edited("not-a-number", SHARE, answer, (xor, '[float("nan")] * 5')),
        edited("words", SHARE, answer, other_xor(["good"] * 5)),
        edited("one-seed", FIVE, answer, other_xor([0.75])),
        edited("best-three-of-more", FIVE, answer, other_xor([0.75] * 3)),
        edited("mean-only", FIVE, answer, (xor, "0.75")),
        edited("not-learned", TUNE, answer, (synth, str([0.5] * 5))),
        edited("learned-twice", TUNE, answer, other_xor([0.75, 0.5, 0.5, 0.5, 0.75])),
        edited("a-data-set-missing", "one entry for each data set", answer, ('"xor"', '"or"')),
        edited("a-setting-missing", SETTINGS, answer, ('        "batch_tokens": 192,\n', "")),
        edited(
            "a-setting-too-many",
            SETTINGS,
            answer,
            ('        "epochs": 3,\n', '        "epochs": 3,\n        "pool": "max",\n'),
        ),
        edited("no-epoch", "epochs must be a whole number from 1 to 100.", answer, ('"epochs": 15', '"epochs": 0')),
        edited(
            "half-an-epoch", "epochs must be a whole number from 1 to 100.", answer, ('"epochs": 15', '"epochs": 1.5')
        ),
        edited("wide", "hidden must be a whole number from 1 to 64.", answer, _width(answer, 300)),
        edited("endless", "Less is enough here", answer, ('"batch_tokens": 32', '"batch_tokens": 2')),
        edited("learning-rate-too-small", NOT_REPRODUCED, answer, _rate(answer, "1e-5")),
        WrongAnswer("only-accuracies", SETTINGS, f"{name} = {{'synth': {synth}, 'xor': {xor}}}\n"),
        WrongAnswer("nothing", "Paste the dictionary that was printed.", f"{name} = None\n"),
        WrongAnswer("a-list", "Paste the dictionary that was printed.", f"{name} = [{synth}, {xor}]\n"),
    )


def _width(answer: str, width: int) -> tuple[str, str]:
    """Return the edit that gives the model for synth another width."""
    line = next(line for line in answer.splitlines() if '"hidden"' in line)
    return f'"synth": {{\n{line}', f'"synth": {{\n        "hidden": {width},'


def _rate(answer: str, rate: str) -> tuple[str, str]:
    """Return the edit that gives the model for XOR another learning rate; the settings around it stay."""
    start = answer.index('"learning_rate"', answer.index('"xor"'))
    line = answer[start : answer.index("\n", start)]
    rest = answer[answer.index("\n", start) : answer.index('"epochs": 15')]
    return line + rest, f'"learning_rate": {rate},{rest}'


def _record(public: ExperimentExercise, title: str, answer: str, wrong: tuple, right: dict[str, str]) -> Record:
    return Record(
        public=public,
        title=title,
        defines=public.name,
        parts=(Part(f"{public.id}-check", 1, reproduced),),
        model_answer=answer,
        misbehaving=wrong,
        right=right,
    )


SIMPLE_EXPERIMENT_RECORD = _record(
    SIMPLE_EXPERIMENT,
    "How far simple self-attention gets",
    SIMPLE,
    (
        *mistakes("simple_experiment", SIMPLE, "[0.75, 0.75, 0.75, 0.75, 0.75]", "[0.75, 0.75, 0.75, 0.75, 0.5]"),
        edited("synth-solved", IMPOSSIBLE, SIMPLE, ("[0.75, 0.75, 0.75, 0.75, 0.75]", "[1.0, 1.0, 1.0, 1.0, 1.0]")),
        edited("xor-solved", IMPOSSIBLE, SIMPLE, ("[0.75, 0.75, 0.75, 0.75, 0.5]", "[0.75, 0.75, 0.75, 0.75, 1.0]")),
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

FULL_EXPERIMENT_RECORD = _record(
    FULL_EXPERIMENT,
    "What full self-attention adds",
    FULL,
    (
        *mistakes("full_experiment", FULL, "[1.0, 1.0, 1.0, 1.0, 1.0]", "[1.0, 1.0, 0.75, 1.0, 1.0]"),
        edited("one-head", NOT_REPRODUCED, FULL, ('"num_heads": 8', '"num_heads": 1')),
        edited(
            "heads-that-do-not-fit",
            "Each head is hidden // num_heads wide.",
            FULL,
            ('"num_heads": 8', '"num_heads": 7'),
        ),
        edited("no-heads", SETTINGS, FULL, ('        "num_heads": 8,\n', "")),
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
