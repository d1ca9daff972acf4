"""The search for settings: what it tries, what it returns, and how an interrupted search is resumed."""

import functools
import importlib
import math
import sys

import pytest

from transformer_lm.datasets import Dataset, load_xor
from transformer_lm.modeling_classifier import SequenceClassifier, make_classifier
from transformer_lm.training import search
from transformer_lm.training.classifiers import accuracies_over_seeds
from transformer_lm.training.search import search_settings

SPACE = {"learning_rate": (1e-4, 1e-1, "log"), "hidden": [2, 8], "batch_tokens": (16, 32), "epochs": 4}
OPTIONS = {"seeds": (0, 1), "progress": False}


@pytest.fixture(scope="module")
def xor() -> Dataset:
    """Return a tenth of XOR."""
    (x_train, y_train), (x_val, y_val), words, num_classes = load_xor()
    return (x_train[:40], y_train[:40]), (x_val[:40], y_val[:40]), words, num_classes


@pytest.fixture
def tried(monkeypatch) -> list[dict]:
    """Return a list to which each training adds its settings."""
    settings = []

    def noted(make_model, data, seeds, **training):
        settings.append({**make_model.keywords, **training})
        return accuracies_over_seeds(make_model, data, seeds, **training)

    monkeypatch.setattr(search, "accuracies_over_seeds", noted)
    return settings


def make_model(hidden: int) -> SequenceClassifier:
    return make_classifier("baseline", 6, 2, pad=0, hidden=hidden, pool="max")


def test_the_best_settings_are_found_and_measured_as_without_a_search(xor, tried):
    found = search_settings(make_model, xor, SPACE, trials=8, **OPTIONS)
    assert len(tried) == len(found.table.rows) == 8
    means = []
    for settings in tried:
        training = {name: value for name, value in settings.items() if name != "hidden"}
        make = functools.partial(make_model, settings["hidden"])
        accuracies = accuracies_over_seeds(make, xor, (0, 1), **training)
        means.append(sum(accuracies) / 2)
    assert found.accuracy == max(means) > min(means)
    assert found.settings == tried[means.index(max(means))]
    assert [found.table.mean(row, "validation") for row in found.table.rows] == sorted(means, reverse=True)


def test_only_settings_of_the_space_are_tried_and_not_always_the_same(xor, tried):
    search_settings(make_model, xor, SPACE | {"learning_rate": 0.01, "epochs": 1}, trials=6, **OPTIONS)
    assert {settings["learning_rate"] for settings in tried} == {0.01}
    assert {settings["hidden"] for settings in tried} == {2, 8}
    sizes = {settings["batch_tokens"] for settings in tried}
    assert sizes <= set(range(16, 33))
    assert len(sizes) > 1


def test_a_range_is_tried_in_orders_of_magnitude_and_more_and_more_where_it_is_good(xor, monkeypatch):
    rates = []

    def best_at_a_hundredth(make_model, data, seeds, learning_rate, **training):
        rates.append(learning_rate)
        return [1 - abs(math.log10(learning_rate) + 2) / 3]

    monkeypatch.setattr(search, "accuracies_over_seeds", best_at_a_hundredth)
    search_settings(make_model, xor, SPACE, trials=40, **OPTIONS)
    first, last = rates[:10], rates[-10:]
    assert sum(rate < 1e-3 for rate in first) >= 2  # evenly between 1e-4 and 1e-1 there would be hardly any
    far = [sum(abs(math.log10(rate) + 2) for rate in some) / 10 for some in (first, last)]
    assert far[1] < 0.75 * far[0]


def test_an_interrupted_search_goes_on_and_finds_what_it_would_have_found(xor, tried, tmp_path, monkeypatch):
    storage = tmp_path / "search.db"
    space = SPACE | {"epochs": 1}
    whole = search_settings(make_model, xor, space, trials=5, **OPTIONS)
    in_one_go = tried.copy()
    tried.clear()

    def interrupted(make_model, data, seeds, **training):
        if len(tried) == 3:
            raise KeyboardInterrupt
        tried.append({**make_model.keywords, **training})
        return accuracies_over_seeds(make_model, data, seeds, **training)

    with monkeypatch.context() as patch:
        patch.setattr(search, "accuracies_over_seeds", interrupted)
        with pytest.raises(KeyboardInterrupt):
            search_settings(make_model, xor, space, trials=5, storage=storage, **OPTIONS)
    assert len(tried) == 3
    found = search_settings(make_model, xor, space, trials=5, storage=storage, **OPTIONS)
    assert tried == in_one_go  # three before, two after
    assert repr(found) == repr(whole)
    assert search_settings(make_model, xor, space, trials=5, storage=storage, **OPTIONS).settings == whole.settings
    assert len(tried) == 5  # nothing was missing


def test_another_seed_tries_other_settings(xor, tried):
    for seed in (0, 1):
        search_settings(make_model, xor, SPACE | {"epochs": 1}, trials=1, seed=seed, **OPTIONS)
    assert tried[0] != tried[1]


def test_a_trial_whose_loss_is_not_finite_does_not_end_the_search(xor, tried):
    space = SPACE | {"learning_rate": [1e30, 0.01], "epochs": 2}
    found = search_settings(make_model, xor, space, trials=6, **OPTIONS)
    assert {settings["learning_rate"] for settings in tried} == {1e30, 0.01}
    assert found.settings["learning_rate"] == 0.01
    assert len(found.table.rows) < len(tried) == 6


def test_a_space_without_one_finite_loss_is_refused(xor):
    with pytest.raises(ValueError, match="space must have settings that keep the loss finite, got none in 2 trials"):
        search_settings(make_model, xor, SPACE | {"learning_rate": 1e30}, trials=2, **OPTIONS)


@pytest.mark.parametrize(
    "values", [(0.1, 0.01), (0.1, 0.1), (0.1,), (0.1, 0.2, "lgo"), (0.0, 0.1, "log"), (1, 2, 3, 4), ()]
)
def test_a_range_without_a_value_is_refused(xor, values):
    with pytest.raises(ValueError, match=r"learning_rate must be \(low, high\), with low < high, .*, got \("):
        search_settings(make_model, xor, SPACE | {"learning_rate": values}, trials=1, **OPTIONS)


def test_no_choice_is_refused(xor):
    with pytest.raises(ValueError, match=r"hidden must be .* or a list of choices, got \[\]"):
        search_settings(make_model, xor, SPACE | {"hidden": []}, trials=1, **OPTIONS)


def test_no_trial_and_no_seed_are_refused(xor):
    for options in ({"trials": 0}, {"trials": 1, "seeds": ()}):
        with pytest.raises(ValueError, match="trials and seeds must be at least one each, got trials="):
            search_settings(make_model, xor, SPACE, **options)


def test_a_file_of_another_search_is_refused(xor, tmp_path):
    storage = tmp_path / "search.db"
    search_settings(make_model, xor, SPACE | {"epochs": 1}, trials=1, storage=storage, **OPTIONS)
    with pytest.raises(ValueError, match=r"storage must be of a search for .*'epochs': 2.*, got one for .*'epochs': 1"):
        search_settings(make_model, xor, SPACE | {"epochs": 2}, trials=1, storage=storage, **OPTIONS)


def test_without_optuna_only_a_search_is_refused(xor, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)  # as if it were not installed
    importlib.reload(search)
    with pytest.raises(ImportError, match=r"optuna is not installed\. Install it with: pip install optuna"):
        search.search_settings(make_model, xor, SPACE, trials=1)
