"""Train sequence classifiers, and measure their accuracy over several seeds.

`data` is the return value of the loaders in datasets.py: `(x_train, y_train), (x_val, y_val), (i2w, w2i), numcls`.
"""

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from transformer_lm.datasets import Dataset, Part
from transformer_lm.device import best_device
from transformer_lm.texts.batching import batches_by_length, padded_batches
from transformer_lm.training.stacking import NotStackable, Stack, stacked_cross_entropy


@dataclass
class History:
    """The history of training, epoch by epoch."""

    train_loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_accuracy: list[float] = field(default_factory=list)

    @property
    def best(self) -> int:
        """The epoch with the smallest validation loss, counted from 0, whose weights are kept."""
        return self.val_loss.index(min(self.val_loss))

    @property
    def accuracy(self) -> float:
        """The validation accuracy of the kept weights."""
        return self.val_accuracy[self.best]


def train_classifier(
    model: nn.Module,
    data: Dataset,
    *,
    learning_rate: float,
    epochs: int,
    batch_tokens: int,
    max_len: int = 256,
    patience: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> History:
    """Train a model with Adam, and leave it with the weights of its best epoch.

    Sequences are truncated to `max_len` tokens, and a batch has up to `batch_tokens` tokens, including padding. With
    `patience`, training stops after that many epochs in a row without improvement. The same seed gives the same
    batches.

    Raises ValueError for a label out of range or fewer than one epoch, FloatingPointError if the loss is no longer
    finite.
    """
    _check_settings(data, epochs=epochs, patience=patience)
    train, validation, (_, w2i), _ = data
    pad, device = w2i[".pad"], next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
    run = _Run(model)
    with tqdm(total=epochs, unit="epoch", disable=not progress, leave=False) as bar:
        for epoch in range(epochs):
            batches = padded_batches(*train, pad, batch_tokens, max_len, f"{seed} {epoch}", device)
            loss, accuracy = _over_batches(model.train(), batches, optimizer)
            run.end_epoch(loss, accuracy, *evaluate(model, validation, pad, max_len))
            bar.update()
            bar.set_postfix(train_loss=f"{loss:.3f}", val_accuracy=f"{run.history.val_accuracy[-1]:.3f}")
            if patience is not None and epoch - run.history.best >= patience:
                break
    model.load_state_dict(run.best)
    return run.history


def train_together(
    models: Sequence[nn.Module],
    data: Dataset,
    seeds: Sequence[int],
    *,
    learning_rate: float,
    epochs: int,
    batch_tokens: int,
    max_len: int = 256,
) -> list[History]:
    """Train models that differ only in their weights together, each as `train_classifier` would with its seed.

    Each is trained on the batches of its seed, and ends with the weights that it would have alone, up to rounding.
    For tiny models this takes a fraction of the time, because one operation on stacked parameters serves them all.

    Raises NotStackable, before any training, if the models cannot run as one or their batches differ in shape.
    """
    _check_settings(data, epochs=epochs)
    (x_train, y_train), validation, (_, w2i), _ = data
    pad = w2i[".pad"]
    shapes = {tuple(tokens.shape) for tokens, _ in padded_batches(x_train, y_train, pad, batch_tokens, max_len)}
    if len(shapes) > 1:  # each seed would have the batches in another order
        raise NotStackable(f"batches must all have the same shape, got {sorted(shapes)}.")
    stack = Stack(models)
    device = next(iter(stack.parameters.values())).device
    tokens = torch.tensor([sequence[:max_len] for sequence in x_train], device=device)
    labels = torch.tensor(y_train, device=device)
    lengths = [tokens.shape[1]] * len(tokens)

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one batch of each seed at a time: (s, b, n) the tokens, and (s, b) the labels."""
        places = [batches_by_length(lengths, batch_tokens, f"{seed} {epoch}") for seed in seeds]
        for batch in torch.tensor(places, device=device).unbind(dim=1):  # (s, b)
            yield tokens[batch], labels[batch]

    stack.train().check(*next(batches(epoch=0)))
    optimizer = torch.optim.Adam(stack.parameters.values(), lr=learning_rate, fused=True)
    runs = [_Run(model) for model in models]
    for epoch in range(epochs):
        trained = _over_batches(stack.train(), batches(epoch), optimizer, stacked_cross_entropy)
        for run, loss, accuracy in zip(runs, *trained, strict=True):
            run.end_epoch(loss, accuracy, *evaluate(run.model, validation, pad, max_len))
    stack.release()
    for run in runs:
        run.model.load_state_dict(run.best)
    return [run.history for run in runs]


def evaluate(model: nn.Module, part: Part, pad: int, max_len: int = 256) -> tuple[float, float]:
    """Return a model's mean loss over a part of the data, and its accuracy; it stays in eval mode."""
    batches = padded_batches(*part, pad, 2**14, max_len, device=next(model.parameters()).device)
    with torch.no_grad():
        return _over_batches(model.eval(), batches)


def accuracies_over_seeds(
    make_model: Callable[[], nn.Module], data: Dataset, seeds: Iterable[int], **settings: Any
) -> list[float]:
    """Return the validation accuracy of a model for each seed, which decides its initial weights and its batches.

    `settings` are those of `train_classifier`. Models are trained together where that gives the same result, otherwise
    one by one. Torch's random state is restored afterwards.
    """
    seeds = list(seeds)

    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make_model().to(best_device())

    with torch.random.fork_rng():
        if settings.get("patience") is None:  # otherwise they may stop at different times
            options = {name: value for name, value in settings.items() if name != "patience"}
            with contextlib.suppress(NotStackable):
                histories = train_together([made(seed) for seed in seeds], data, seeds, **options)
                return [history.accuracy for history in histories]
        return [train_classifier(made(seed), data, seed=seed, progress=False, **settings).accuracy for seed in seeds]


@dataclass
class _Run:
    """A model in training, its history so far, and the weights of its best epoch."""

    model: nn.Module
    history: History = field(default_factory=History)
    best: dict[str, Any] = field(default_factory=dict)

    def end_epoch(self, train_loss: float, train_accuracy: float, val_loss: float, val_accuracy: float) -> None:
        """Record the results of an epoch, and keep the weights if no other was better."""
        self.history.train_loss.append(train_loss)
        self.history.train_accuracy.append(train_accuracy)
        self.history.val_loss.append(val_loss)
        self.history.val_accuracy.append(val_accuracy)
        if self.history.best == len(self.history.val_loss) - 1:
            self.best = copy.deepcopy(self.model.state_dict())


def _over_batches(
    model: nn.Module | Stack,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer | None = None,
    cross_entropy: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> tuple[Any, Any]:
    """Return the mean loss and the fraction of right answers over batches; with an optimizer, train on each.

    For a stack of models, with `stacked_cross_entropy`, both are lists with one number for each model.
    """
    total: Tensor | float = 0.0
    right: Tensor | float = 0.0
    count = 0
    for tokens, labels in batches:
        logits = model(tokens)
        loss = cross_entropy(logits, labels)  # () or (s,)
        if not loss.isfinite().all():
            raise FloatingPointError(
                f"the loss must be a finite number, got {loss[~loss.isfinite()][0].item()} after {count} sequences. A "
                "smaller learning_rate often helps. Also look for a softmax over nothing but -inf."
            )
        if optimizer is not None:
            optimizer.zero_grad()
            loss.sum().backward()
            optimizer.step()
        total += loss.detach().cpu().double() * labels.shape[-1]  # on the CPU, because not every device has doubles
        right += (logits.argmax(dim=-1) == labels).sum(dim=-1).cpu().double()
        count += labels.shape[-1]
    assert isinstance(total, Tensor)
    assert isinstance(right, Tensor)
    return (total / count).tolist(), (right / count).tolist()


def _check_settings(data: Dataset, **counts: int | None) -> None:
    """Raise ValueError for a count of epochs below 1, or a label that is not one of the classes."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")
    (_, y_train), (_, y_val), _, num_classes = data
    for labels in (y_train, y_val):
        for place, label in enumerate(labels):
            if label not in range(num_classes):
                raise ValueError(f"every label must be from 0 to {num_classes - 1}, got {label} at index {place}.")
