"""Shared by the exercises about experiments: their records, and the mistakes that a report can contain."""

from grading.judging.experiments import reproduced
from grading.judging.record import Part, Record, WrongAnswer, edited
from transformer_lm.checks.engine.experiments import ExperimentExercise


def mistakes(name: str, answer: str, synth: str, xor: str) -> tuple[WrongAnswer, ...]:
    """Return wrong reports, made from one with these accuracies on the two data sets."""

    def other_xor(accuracies: object) -> tuple[str, str]:
        return xor, str(accuracies)

    return (
        edited("percentages", answer, other_xor([75.0, 75.0, 75.0, 75.0, 50.0]), hint="accuracy-not-a-share"),
        edited("below-zero", answer, other_xor([0.75, 0.75, -0.75, 0.75, 0.5]), hint="accuracy-not-a-share"),
        edited("not-a-number", answer, (xor, '[float("nan")] * 5'), hint="accuracy-not-a-share"),
        edited("words", answer, other_xor(["good"] * 5), hint="accuracy-not-a-share"),
        edited("one-seed", answer, other_xor([0.75]), hint="accuracies-of-all-seeds"),
        edited("best-three-of-more", answer, other_xor([0.75] * 3), hint="accuracies-of-all-seeds"),
        edited("mean-only", answer, (xor, "0.75"), hint="accuracies-of-all-seeds"),
        edited("not-learned", answer, (synth, str([0.5] * 5)), hint="more-is-possible"),
        edited("learned-twice", answer, other_xor([0.75, 0.5, 0.5, 0.5, 0.75]), hint="more-is-possible"),
        edited("a-data-set-missing", answer, ('"xor"', '"or"'), hint="report-of-other-data"),
        edited("a-setting-missing", answer, ('        "batch_tokens": 192,\n', ""), hint="report-entries"),
        edited(
            "a-setting-too-many",
            answer,
            ('        "epochs": 3,\n', '        "epochs": 3,\n        "pool": "max",\n'),
            hint="report-entries",
        ),
        edited(
            "no-epoch", answer, ('"epochs": 15', '"epochs": 0'), hint="setting-out-of-limits", says="epochs must be"
        ),
        edited(
            "half-an-epoch",
            answer,
            ('"epochs": 15', '"epochs": 1.5'),
            hint="setting-out-of-limits",
            says="epochs must be",
        ),
        edited("wide", answer, _width(answer, 300), hint="setting-out-of-limits", says="hidden must be"),
        edited("endless", answer, ('"batch_tokens": 32', '"batch_tokens": 2'), hint="too-many-steps"),
        edited("learning-rate-too-small", answer, _rate(answer, "1e-5"), hint="not-reproduced"),
        WrongAnswer("only-accuracies", f"{name} = {{'synth': {synth}, 'xor': {xor}}}\n", hint="report-entries"),
        WrongAnswer("nothing", f"{name} = None\n", hint="report-not-a-dictionary"),
        WrongAnswer("a-list", f"{name} = [{synth}, {xor}]\n", hint="report-not-a-dictionary"),
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
