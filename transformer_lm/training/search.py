"""Hyperparameter search for a classifier with optuna, which only the extra `search` installs."""

import functools
import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from tqdm import tqdm

from transformer_lm.datasets import Dataset
from transformer_lm.training.classifiers import accuracies_over_seeds, train_classifier
from transformer_lm.training.result_tables import ResultsTable


@dataclass(frozen=True)
class Search:
    """The result of a search: the best settings, their mean validation accuracy, and all trials, best first."""

    settings: dict[str, Any]
    accuracy: float
    table: ResultsTable


def search_settings(
    make_model: Callable[..., nn.Module],
    data: Dataset,
    space: dict[str, Any],
    *,
    trials: int,
    seeds: Sequence[int] = (0, 1, 2),
    seed: int = 0,
    storage: str | Path | None = None,
    progress: bool = True,
) -> Search:
    """Try settings, and return those with the best mean validation accuracy over `seeds`; `seed` selects the trials.

    `space` gives for each setting a range as a tuple, `(low, high)` or `(low, high, "log")`, choices as a list, or one
    value: `{"learning_rate": (1e-4, 1e-1, "log"), "hidden": [4, 8], "batch_tokens": 64, "epochs": 20}`. Settings of
    `train_classifier` are passed to it, all others to `make_model(hidden=...)`. A trial whose loss is not finite is
    abandoned.

    With `storage`, the name of an SQLite file, trials are saved, and the same call continues where the last was
    interrupted, with the same result as without an interruption. The best accuracy is the best of many, and therefore
    slightly optimistic.

    Raises ValueError for an invalid space, fewer than one trial or a file of another search, ImportError without
    optuna.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ImportError("optuna is not installed. Install it with: pip install optuna") from error
    if trials < 1 or not len(seeds):
        raise ValueError(f"trials and seeds must be at least one each, got trials={trials} and seeds={seeds}.")
    ranges = {name: _range(name, values, optuna) for name, values in space.items() if isinstance(values, list | tuple)}
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # the progress bar and the table say enough about each trial
    url = None if storage is None else f"sqlite:///{Path(storage).absolute()}"
    study = optuna.create_study(storage=url, study_name="settings", direction="maximize", load_if_exists=True)
    asked = repr((space, list(seeds), seed))
    if study.user_attrs.get("asked", asked) != asked:
        raise ValueError(f"storage must be of a search for {asked}, got one for {study.user_attrs['asked']}.")
    study.set_user_attr("asked", asked)

    complete, diverged = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED
    done = len(study.get_trials(states=(complete, diverged)))  # without interrupted trials
    for number in tqdm(range(done, trials), initial=done, total=trials, unit="trial", disable=not progress):
        # Each trial has a different seed: with a single seed, a resumed search would try the same settings again.
        study.sampler = optuna.samplers.TPESampler(seed=random.Random(f"{seed} {number}").getrandbits(32))
        trial = study.ask(ranges)
        chosen = space | trial.params
        training = {name: chosen.pop(name) for name in inspect.signature(train_classifier).parameters if name in chosen}
        try:
            accuracies = accuracies_over_seeds(functools.partial(make_model, **chosen), data, seeds, **training)
        except FloatingPointError:
            study.tell(trial, state=diverged)
        else:
            trial.set_user_attr("accuracies", accuracies)
            study.tell(trial, sum(accuracies) / len(accuracies))

    found = sorted(study.get_trials(states=[complete]), key=lambda trial: -_value(trial))
    if not found:
        raise ValueError(f"space must have settings that keep the loss finite, got none in {trials} trials.")
    table = ResultsTable("settings", rows="settings", columns="split")
    for rank, each in enumerate(found, start=1):
        settings = [f"{name}={v:.3g}" if isinstance(v, float) else f"{name}={v}" for name, v in each.params.items()]
        table.add(f"{rank}. {', '.join(settings)}", "validation", each.user_attrs["accuracies"])
    return Search(space | found[0].params, _value(found[0]), table)


def _value(trial: Any) -> float:
    """Return the mean accuracy of a complete trial."""
    return trial.value


def _range(name: str, values: list | tuple, optuna: Any) -> Any:
    """Return the values that optuna may choose from; refuse an empty range."""
    if isinstance(values, list) and values:
        return optuna.distributions.CategoricalDistribution(values)
    low, high, *log = values if len(values) in (2, 3) else (0, 0)
    if not (low < high and log in ([], ["log"]) and (low > 0 or not log)):
        rule = '(low, high), with low < high, (low, high, "log"), with 0 < low, or a list of choices'
        raise ValueError(f"{name} must be {rule}, got {values}.")
    kind = "IntDistribution" if isinstance(low, int) and isinstance(high, int) else "FloatDistribution"
    return getattr(optuna.distributions, kind)(low, high, log=bool(log))
