"""Shared by the exercises about experiments: their records, and the mistakes that a report can contain."""

from grading.judging.experiments import reproduced
from grading.judging.record import Part, Record, WrongAnswer, edited
from transformer_lm.checks.engine.experiments import ExperimentExercise

IMPOSSIBLE = "That is more than this model can reach here."
TUNE = "More is possible: tune the settings."
NOT_REPRODUCED = "These settings do not give what the report says"
SHARE = "An accuracy is the share that is right, a number between 0 and 1, not a percentage."
FIVE = "One run tells little: report 5 runs with 5 seeds, all of them."
SETTINGS = "It has every setting that you have tuned, and the accuracies, one for each seed."


def mistakes(name: str, answer: str, synth: str, xor: str) -> tuple[WrongAnswer, ...]:
    """Return wrong reports, made from one with these accuracies on the two data sets."""

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
    """Return the edit that changes the width of the model for synth."""
    line = next(line for line in answer.splitlines() if '"hidden"' in line)
    return f'"synth": {{\n{line}', f'"synth": {{\n        "hidden": {width},'


def _rate(answer: str, rate: str) -> tuple[str, str]:
    """Return the edit that changes the learning rate of the model for XOR and nothing else."""
    start = answer.index('"learning_rate"', answer.index('"xor"'))
    line = answer[start : answer.index("\n", start)]
    rest = answer[answer.index("\n", start) : answer.index('"epochs": 15')]
    return line + rest, f'"learning_rate": {rate},{rest}'


def experiment_record(
    public: ExperimentExercise, title: str, answer: str, wrong: tuple, right: dict[str, str]
) -> Record:
    """Return the record of an exercise about an experiment."""
    return Record(
        public=public,
        title=title,
        defines=public.name,
        parts=(Part(f"{public.id}-check", 1, reproduced),),
        model_answer=answer,
        misbehaving=wrong,
        right=right,
    )
