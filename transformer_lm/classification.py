"""Train classifiers of sequences, and measure how often they are right, over several seeds.

`data` is what the loaders of datasets.py return: `(x_train, y_train), (x_val, y_val), (i2w, w2i), numcls`.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from transformer_lm.batching import padded_batches
from transformer_lm.datasets import Dataset, Part
from transformer_lm.device import best_device


@dataclass
class History:
    """What happened in training, epoch by epoch."""

    train_loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_accuracy: list[float] = field(default_factory=list)

    @property
    def best(self) -> int:
        """The epoch with the smallest loss on validation, counted from 0; its weights are the ones that are kept."""
        return self.val_loss.index(min(self.val_loss))

    @property
    def accuracy(self) -> float:
        """The share of validation that the kept weights get right."""
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
    """Train a model with Adam, and leave the weights of its best epoch in it.

    Sequences are cut after `max_len` tokens, and a batch has up to `batch_tokens` of them, padding included. With
    `patience`, training stops once that many epochs in a row were no better. The same seed gives the same batches.

    Raises ValueError for a label out of range or no epoch, FloatingPointError if the loss is no longer finite.
    """
    (x_train, y_train), validation, (_, w2i), num_classes = data
    for name, value in {"epochs": epochs, "patience": patience}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    for labels in (y_train, validation[1]):
        _check_labels(labels, num_classes)
    pad, device = w2i[".pad"], next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
    history, best = History(), {}
    with tqdm(total=epochs, unit="epoch", disable=not progress, leave=False) as bar:
        for epoch in range(epochs):
            batches = padded_batches(x_train, y_train, pad, batch_tokens, max_len, f"{seed} {epoch}", device)
            loss, accuracy = _over_batches(model.train(), batches, optimizer)
            history.train_loss.append(loss)
            history.train_accuracy.append(accuracy)
            loss, accuracy = evaluate(model, validation, pad, max_len)
            history.val_loss.append(loss)
            history.val_accuracy.append(accuracy)
            bar.update()
            bar.set_postfix(train_loss=f"{history.train_loss[-1]:.3f}", val_accuracy=f"{accuracy:.3f}")
            if history.best == epoch:
                best = copy.deepcopy(model.state_dict())
            elif patience is not None and epoch - history.best >= patience:
                break
    model.load_state_dict(best)
    return history


def evaluate(model: nn.Module, part: Part, pad: int, max_len: int = 256) -> tuple[float, float]:
    """Return a model's mean loss over a part of the data, and the share that it gets right; it stays in eval mode."""
    batches = padded_batches(*part, pad, 2**14, max_len, device=next(model.parameters()).device)
    with torch.no_grad():
        return _over_batches(model.eval(), batches)


def accuracies_over_seeds(
    make_model: Callable[[], nn.Module], data: Dataset, seeds: Iterable[int], **settings: float
) -> list[float]:
    """Return the accuracy on validation of one model for each seed, which decides its first weights and its batches.

    `settings` are those of `train_classifier`. What was random before goes on as if nothing had been drawn here.
    """
    found = []
    for seed in seeds:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = make_model().to(best_device())
            found.append(train_classifier(model, data, seed=seed, progress=False, **settings).accuracy)
    return found


def _over_batches(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer | None = None
) -> tuple[float, float]:
    """Return the mean loss and the share of right answers over batches; with an optimizer, learn from each."""
    total, right, count = 0.0, 0, 0
    for tokens, labels in batches:
        logits = model(tokens)
        loss = F.cross_entropy(logits, labels)
        if not loss.isfinite():
            raise FloatingPointError(
                f"the loss must be a finite number, got {loss.item()} after {count} sequences. A smaller learning_rate "
                "often helps; so does looking for a softmax over -inf alone."
            )
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(labels)
        right += int((logits.argmax(dim=1) == labels).sum())
        count += len(labels)
    return total / count, right / count


def _check_labels(labels: Sequence[int], num_classes: int) -> None:
    for place, label in enumerate(labels):
        if label not in range(num_classes):
            raise ValueError(f"every label must be from 0 to {num_classes - 1}, got {label} at place {place}.")
