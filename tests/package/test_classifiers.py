"""Training of classifiers: the numbers it reports, the weights it keeps, and what a seed determines."""

import copy
import functools
import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_lm.datasets import Dataset, load_imdb_synth, load_xor
from transformer_lm.modeling_classifier import SequenceClassifier, make_classifier
from transformer_lm.training.classifiers import (
    History,
    accuracies_over_seeds,
    evaluate,
    train_classifier,
    train_together,
)
from transformer_lm.training.stacking import NotStackable

PAD = 0
SETTINGS = {"learning_rate": 0.03, "epochs": 4, "batch_tokens": 32}


@pytest.fixture(scope="module")
def xor() -> Dataset:
    """Return a smaller XOR: the same 40 pairs for training and for validation, all four equally often."""
    _, _, words, num_classes = load_xor()
    pairs = [[4, 4], [4, 5], [5, 4], [5, 5]]
    part = (pairs * 10, [1, 0, 0, 1] * 10)
    return part, part, words, num_classes


def model_of(kind: str = "baseline", pool: str = "max", seed: int = 0, **options) -> SequenceClassifier:
    """Return a new model for XOR."""
    torch.manual_seed(seed)
    return make_classifier(kind, 6, 2, **({"pad": PAD, "hidden": 8, "pool": pool, "max_len": 2} | options))


def maker_of(pool: str) -> Callable[[], SequenceClassifier]:
    """Return a function that makes baselines whose weights depend on the seed that was set before."""
    return lambda: make_classifier("baseline", 6, 2, pad=PAD, hidden=8, pool=pool)


def contradicted(data: Dataset) -> Dataset:
    """Return data whose validation part has all labels swapped: what helps in training hurts there."""
    train, (x_val, y_val), words, num_classes = data
    return train, (x_val, [1 - label for label in y_val]), words, num_classes


class Constant(nn.Module):
    """A model that returns the same scores for every sequence."""

    def __init__(self, *scores: float) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(scores))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores.expand(len(tokens), -1)


class Attentive(nn.Module):
    """A classifier as students write them: simple attention or PyTorch's own, and dropout."""

    def __init__(self, kind: str = "full", vocab_size: int = 6, hidden: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden)
        self.full = nn.MultiheadAttention(hidden, 4, batch_first=True) if kind == "full" else None
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(hidden, 2)
        self.kind = kind

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.kind == "simple":
            x = F.scaled_dot_product_attention(x, x, x, scale=1.0)
        elif self.kind == "full":
            x = self.full(x, x, x, need_weights=False)[0]
        return self.classify(self.dropout(x).amax(dim=1))


def made_apart(make: Callable[[], nn.Module], seeds: Iterable[int]) -> list[nn.Module]:
    """Return a new model for each seed."""
    models = []
    for seed in seeds:
        torch.manual_seed(seed)
        models.append(make())
    return models


def trained_apart(make: Callable[[], nn.Module], data: Dataset, seeds: Iterable[int], **settings) -> list[float]:
    """Return the accuracies of models that are trained one by one."""
    accuracies = []
    for seed in seeds:
        (model,) = made_apart(make, [seed])  # training draws its random numbers after initialisation has drawn its own
        accuracies.append(train_classifier(model, data, seed=seed, progress=False, **settings).accuracy)
    return accuracies


# ------------------------------------------------------------------ equals an independent reference


def test_loss_and_accuracy_are_those_of_numpy_over_single_sequences():
    torch.manual_seed(0)
    model = make_classifier("baseline", 50, 3, pad=PAD, hidden=5).double()
    choose = random.Random(0)
    x = [[choose.randrange(1, 50) for _ in range(choose.randrange(1, 300))] for _ in range(150)]  # several batches
    y = [choose.randrange(3) for _ in x]
    embeddings, weights, bias = (parameter.detach().numpy() for parameter in model.parameters())
    logits = np.array([embeddings[tokens[:256]].mean(axis=0) @ weights.T + bias for tokens in x])
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(150), y]
    loss, accuracy = evaluate(model, (x, y), PAD)
    assert loss == pytest.approx(losses.mean(), rel=1e-12)
    assert accuracy == (logits.argmax(axis=1) == y).mean()


def test_scores_become_probabilities_once(xor):
    train, _, _, _ = xor
    loss, accuracy = evaluate(Constant(3.0, 0.0), train, PAD)  # half of the labels are 0
    assert loss == pytest.approx((np.log1p(np.exp(-3)) + np.log1p(np.exp(3))) / 2, rel=1e-6)
    assert accuracy == 0.5


def test_training_in_one_batch_is_the_plain_loop_with_adam(xor):
    (x, y), _, _, _ = xor
    model = model_of("full").double()
    by_hand = copy.deepcopy(model)
    history = train_classifier(model, xor, learning_rate=0.01, epochs=5, batch_tokens=80, progress=False)
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=0.01)
    tokens, labels, losses = torch.tensor(x), torch.tensor(y), []
    for _ in range(5):
        loss = F.cross_entropy(by_hand(tokens), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(history.train_loss, losses, rtol=1e-9)
    # Here the validation data are the training data, measured at the end of an epoch.
    np.testing.assert_allclose(history.val_loss[:-1], losses[1:], rtol=1e-9)
    assert history.best == 4
    for ours, theirs in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["baseline", "simple", "full"])
def test_training_together_is_training_one_after_the_other(kind):
    (x, y), (x_val, y_val), words, _ = load_imdb_synth()
    data = ((x[:320], y[:320]), (x_val[:80], y_val[:80]), words, 2)
    settings = {"learning_rate": 0.03, "epochs": 3, "batch_tokens": 192}
    seeds = (5, 2, 7)

    def make() -> nn.Module:
        return Attentive(kind, len(words[0])).double()

    together, apart = made_apart(make, seeds), made_apart(make, seeds)
    histories = train_together(together, data, seeds, **settings)
    for model, history, alone, seed in zip(together, histories, apart, seeds, strict=True):
        before = copy.deepcopy(alone.state_dict())
        expected = train_classifier(alone, data, **settings, seed=seed, progress=False)
        for name, numbers in vars(expected).items():
            np.testing.assert_allclose(getattr(history, name), numbers, rtol=1e-7, err_msg=name)
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(model.get_parameter(name), parameter, rtol=1e-5, atol=1e-8)
            assert not torch.equal(parameter, before[name])
        assert not model.training
    assert accuracies_over_seeds(make, data, seeds, **settings) == [history.accuracy for history in histories]


def test_models_that_cannot_be_stacked_are_trained_one_after_the_other(xor):
    settings = SETTINGS | {"epochs": 2}
    ragged = ([[4, 5, 4], [5, 4]] * 6, [0, 1] * 6)
    cases = {
        "dropout": (functools.partial(Attentive, dropout=0.5), xor, settings | {"batch_tokens": 16}),
        "a batch that is smaller": (Attentive, xor, settings),
        "different lengths": (Attentive, (ragged, ragged, *xor[2:]), settings | {"batch_tokens": 6}),
        "patience": (Attentive, xor, {"learning_rate": 0.3, "epochs": 6, "batch_tokens": 16, "patience": 1}),
        "one seed": (Attentive, xor, settings | {"batch_tokens": 16}),
    }
    for name, (make, data, options) in cases.items():
        seeds = (3,) if name == "one seed" else (3, 1, 2)
        found = accuracies_over_seeds(make, data, seeds, **options)
        assert found == trained_apart(make, data, seeds, **options), name


# ------------------------------------------------------------------ keeps a property


def test_the_same_seed_gives_exactly_the_same_history_and_another_seed_another(xor):
    def history(seed):
        model = model_of("transformer", num_layers=1, dropout=0.2)
        return train_classifier(model, xor, **SETTINGS, seed=seed, progress=False)

    assert history(1) == history(1)
    assert history(1).train_loss != history(2).train_loss


def test_a_longer_training_begins_like_a_shorter_one(xor):
    short, long = (
        train_classifier(model_of(), xor, learning_rate=0.1, epochs=epochs, batch_tokens=8, seed=3, progress=False)
        for epochs in (2, 5)
    )
    assert long.train_loss[:2] == short.train_loss


def test_the_largest_number_of_each_feature_tells_xor_apart(xor):
    settings = {"learning_rate": 0.1, "epochs": 30, "batch_tokens": 32}
    assert accuracies_over_seeds(maker_of("max"), xor, range(5), **settings) == [1] * 5


def test_the_mean_gets_three_of_the_four_pairs_at_most(xor):
    settings = {"learning_rate": 0.1, "epochs": 10, "batch_tokens": 32}
    assert max(accuracies_over_seeds(maker_of("mean"), xor, range(3), **settings)) <= 0.75


def test_training_stops_when_it_has_been_no_better_for_some_epochs(xor):
    settings = SETTINGS | {"epochs": 20}
    history = train_classifier(model_of(), contradicted(xor), **settings, patience=3, progress=False)
    assert len(history.train_loss) == len(history.val_accuracy) == history.best + 1 + 3 < 20


def test_without_patience_every_epoch_is_trained(xor):
    history = train_classifier(model_of(), contradicted(xor), **SETTINGS, progress=False)
    assert [len(numbers) for numbers in vars(history).values()] == [4] * 4


@pytest.mark.parametrize("patience", [None, 1])
def test_the_weights_of_the_best_epoch_are_kept(xor, patience):
    _, validation, _, _ = data = contradicted(xor)
    model = model_of()
    before = evaluate(model, validation, PAD)
    history = train_classifier(model, data, **SETTINGS, patience=patience, progress=False)
    assert history.best == 0
    assert history.val_loss[-1] > history.val_loss[0]
    assert evaluate(model, validation, PAD) == (history.val_loss[0], history.accuracy) != before


def test_each_of_several_models_keeps_the_weights_of_its_own_best_epoch(xor):
    _, validation, _, _ = data = contradicted(xor)
    seeds = range(4)
    models = made_apart(functools.partial(Attentive, hidden=4), seeds)
    settings = SETTINGS | {"learning_rate": 0.01, "batch_tokens": 16}
    histories = train_together(models, data, seeds, **settings)
    for model, history in zip(models, histories, strict=True):
        assert evaluate(model, validation, PAD) == (min(history.val_loss), history.accuracy)
    assert len({history.best for history in histories}) > 1


def test_the_best_epoch_has_the_smallest_loss_and_is_the_first_of_these():
    history = History(val_loss=[0.5, 0.2, 0.2, 0.3], val_accuracy=[0.9, 0.6, 0.7, 0.8])
    assert (history.best, history.accuracy) == (1, 0.6)


def test_measuring_leaves_no_gradient_and_no_dropout(xor):
    model = model_of("transformer", dropout=0.5).train()
    before = copy.deepcopy(model.state_dict())
    assert evaluate(model, xor[1], PAD) == evaluate(model, xor[1], PAD)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_training_leaves_a_model_that_can_be_used(xor):
    model = model_of("transformer", dropout=0.5)
    train_classifier(model, xor, **SETTINGS, progress=False)
    assert not model.training


def test_a_seed_decides_everything_and_what_was_random_before_goes_on(xor):
    make = maker_of("max")
    settings = SETTINGS | {"epochs": 2}
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    accuracies = accuracies_over_seeds(make, xor, [0, 1, 2, 3], **settings)
    assert torch.equal(torch.rand(3), expected)
    assert accuracies_over_seeds(make, xor, [3, 2, 1, 0], **settings) == accuracies[::-1]
    assert len(set(accuracies)) > 1


def test_each_seed_is_also_that_of_the_batches(xor, monkeypatch):
    seeds = []

    def noted(model, data, seed, **settings):
        seeds.append(seed)
        return History(val_loss=[0.5], val_accuracy=[0.5])

    monkeypatch.setattr("transformer_lm.training.classifiers.train_classifier", noted)
    accuracies_over_seeds(maker_of("max"), xor, [4, 2], **SETTINGS)
    assert seeds == [4, 2]


def test_long_sequences_are_cut_in_training_and_in_validation():
    part = ([[4, 5, 4, 5, 4], [5]] * 4, [0, 1] * 4)
    data = (part, part, load_xor()[2], 2)
    model = model_of("full", positions=True, max_len=3)
    history = train_classifier(model, data, **SETTINGS, max_len=3, progress=False)
    assert evaluate(model, part, PAD, max_len=3)[0] == min(history.val_loss)


def test_a_bar_shows_progress_unless_it_is_switched_off(xor, capsys):
    train_classifier(model_of(), xor, **SETTINGS)
    shown = capsys.readouterr().err
    assert "4/4" in shown
    assert "val_accuracy=" in shown
    train_classifier(model_of(), xor, **SETTINGS, progress=False)
    assert capsys.readouterr().err == ""


# ------------------------------------------------------------------ refuses bad input with the right words


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("label", [2, -1])
def test_a_label_out_of_range_is_refused_before_training(xor, part, label):
    data = list(xor)
    x, y = data[part]
    data[part] = (x, [*y[:7], label, *y[8:]])
    model = model_of()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=f"every label must be from 0 to 1, got {label} at index 7"):
        train_classifier(model, data, **SETTINGS, progress=False)
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"patience": 0}])
def test_no_epoch_and_no_patience_are_refused(xor, wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        train_classifier(model_of(), xor, **{"learning_rate": 0.1, "epochs": 1, "batch_tokens": 8} | wrong)


def test_a_loss_that_is_no_number_is_refused_in_training_and_in_measuring(xor):
    message = "the loss must be a finite number, got nan after 0 sequences"
    with pytest.raises(FloatingPointError, match=message):
        train_classifier(Constant(float("nan"), 0.0), xor, **SETTINGS, progress=False)
    with pytest.raises(FloatingPointError, match=message):
        evaluate(Constant(float("nan"), 0.0), xor[1], PAD)


def test_a_learning_rate_that_is_far_too_large_is_named(xor):
    settings = SETTINGS | {"learning_rate": 1e30}
    with pytest.raises(FloatingPointError, match="A smaller learning_rate often helps"):
        train_classifier(model_of("full"), xor, **settings, progress=False)


def test_a_loss_that_is_no_number_is_refused_for_several_models_too(xor):
    settings = SETTINGS | {"learning_rate": 1e30, "batch_tokens": 16}
    with pytest.raises(FloatingPointError, match="the loss must be a finite number, got nan after"):
        train_together(made_apart(Attentive, (0, 1)), xor, (0, 1), **settings)


def test_batches_of_different_shapes_are_refused_before_training_together(xor):
    models = made_apart(Attentive, (0, 1))
    before = copy.deepcopy(models[1].state_dict())
    with pytest.raises(NotStackable, match=r"batches must all have the same shape, got \[\(8, 2\), \(16, 2\)\]"):
        train_together(models, xor, (0, 1), **SETTINGS)
    assert all(torch.equal(before[name], now) for name, now in models[1].state_dict().items())


def test_an_empty_sequence_is_refused(xor):
    (x, y), validation, words, num_classes = xor
    with pytest.raises(ValueError, match="every sequence must have a token, got none in number 40"):
        train_classifier(model_of(), (([*x, []], [*y, 0]), validation, words, num_classes), **SETTINGS, progress=False)
