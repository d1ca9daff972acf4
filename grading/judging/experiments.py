"""The judge of experiments, which trains its own model with the settings that a student reports.

Only the report comes from the answer process, as plain numbers. So points are earned by settings that work, not by
numbers that look good, and no student's code is trained.
"""

import functools
import random
from typing import Any

import torch

from grading.isolation.answers import Answer
from grading.judging.judge import failure_told
from grading.judging.record import Part, Record
from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.experiments import ExperimentExercise
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.datasets import Dataset, load_imdb_synth, load_xor
from transformer_lm.modeling_classifier import make_classifier
from transformer_lm.training.classifiers import train_classifier

# Settings that reach the goal with 3 of 5 seeds reach it with fewer than two of these once in 120 times.
TRIES, ENOUGH = 8, 2
# A model that always predicts 50 % has a loss of 0.693. Without training, one seed in ten gets 3 of 4 pairs of XOR
# right by chance, and one in twenty also has a loss below this.
LEARNED = 0.69


def reproduced(record: Record, part: Part, answer: Answer, rng: random.Random) -> str:
    """Judge a report: its accuracies must be possible, and its settings must reach the goal here too."""
    exercise = record.public
    assert isinstance(exercise, ExperimentExercise)
    reply, _ = answer.ask("report", name=record.defines)
    failed = failure_told(reply)
    if failed:
        raise failed
    runs = exercise.read(reply.get("report"))
    for data, run in runs.items():
        exercise.check_run(data, run)
    seeds = [rng.getrandbits(32) for _ in range(TRIES)]
    for data, run in runs.items():
        goal = exercise.goals[data]
        reached = 0
        for tried, seed in enumerate(seeds):
            if reached == ENOUGH or reached + TRIES - tried < ENOUGH:
                break
            reached += accuracy(exercise.id, data, tuple(run.settings.items()), seed) >= goal.reached
        if reached < ENOUGH:
            raise CheckFailed(
                f"to train with the settings for {data} in {exercise.name}, {TRIES} times with other seeds",
                f"{goal.reached} or more is reached {reached} times, with a loss that shows learning",
                f"{ENOUGH} times or more",
                hint("not-reproduced"),
            )
    return "The settings reach the goal here too, with seeds drawn for this submission."


@functools.lru_cache(maxsize=1024)
def accuracy(exercise: str, data: str, settings: tuple[tuple[str, float], ...], seed: int) -> float:
    """Return the accuracy of the exercise's model after training with these settings; 0 if it has learned nothing."""
    options: dict[str, Any] = dict(settings)
    model_options = {name: options.pop(name) for name in ("hidden", "num_heads") if name in options}
    (x_train, _), _, (i2w, w2i), num_classes = loaded = _loaded(data)
    kind = exercise.removesuffix("-experiment")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_classifier(
            kind, len(i2w), num_classes, pad=w2i[".pad"], pool="select", max_len=len(x_train[-1]), **model_options
        )
        try:
            history = train_classifier(model, loaded, seed=seed, progress=False, **options)
        except FloatingPointError:
            return 0.0
    return history.accuracy if min(history.val_loss) < LEARNED else 0.0


@functools.cache
def _loaded(data: str) -> Dataset:
    return {"synth": load_imdb_synth, "xor": load_xor}[data]()
