"""Language modelling: turning text into training examples (labels, slices) and logits into a loss, and evaluation.

Axes: b batch, n positions, v vocabulary.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_lm.answers import sealed_while_open
from transformer_lm.shapes import match_axes


@sealed_while_open("labels")
def batch_to_labeled_samples(batch: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs of a model and, for each position, the label: the token that comes next.

    Shapes:
        batch    (b, n + 1)
        returns  (b, n) inputs and (b, n) labels

    Raises ValueError for sequences of one token, where there is nothing to predict.
    """
    if match_axes(batch=(batch, "b n"))["n"] < 2:
        raise ValueError(f"batch must hold two tokens or more of each sequence, got {batch.shape[1]}.")
    return batch[:, :-1], batch[:, 1:]


batch_to_labeld_samples = batch_to_labeled_samples  # the name in a well-known homework


@sealed_while_open("loss")
def compute_loss(logits: Tensor, labels: Tensor, pad: int | None = None) -> Tensor:
    """Return the cross-entropy -ln p(label), averaged over all labels, or over those that are not `pad`.

    Shapes:
        logits   (b, n, v)
        labels   (b, n)
        returns  ()
    """
    match_axes(logits=(logits, "b n v"), labels=(labels, "b n"))
    ignored: dict[str, Any] = {} if pad is None else {"ignore_index": pad}
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **ignored)


@sealed_while_open("slices")
def random_slices(tokens: Tensor, b: int, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Return b slices of n tokens each, from random positions in a text.

    Shapes:
        tokens   (length of the text)
        returns  (b, n)

    Raises ValueError if the text is shorter than a slice.
    """
    _require_length(tokens, n)
    starts = torch.randint(len(tokens) - n + 1, (b, 1), generator=generator)
    return tokens[starts + torch.arange(n)].long()


@sealed_while_open("slices")
def all_slices(tokens: Tensor, n: int, b: int = 256) -> Iterator[Tensor]:
    """Yield every slice of n tokens of a text, in batches of up to b; neighbours overlap in all but one token.

    Raises ValueError if the text is shorter than a slice.
    """
    _require_length(tokens, n)
    for batch in tokens.unfold(0, n, 1).split(b):  # (b, n), a view
        yield batch.long()


@sealed_while_open("last-position-bits")
@torch.no_grad()
def loss_per_token(model: nn.Module, tokens: Tensor, n: int, b: int = 64) -> float:
    """Return the mean loss over a text in nats per token, measured on non-overlapping windows of n tokens.

    Each window begins with no context, as in training; an incomplete window at the end is left out. The model is in
    eval mode meanwhile.

    Raises ValueError if the text is shorter than a window and one more token.
    """
    _require_length(tokens, n + 1)
    windows = (len(tokens) - 1) // n
    inputs = tokens[: windows * n].view(windows, n)
    labels = tokens[1 : windows * n + 1].view(windows, n)
    total = 0.0
    with evaluating(model) as device:
        for some, following in zip(inputs.split(b), labels.split(b), strict=True):
            loss = compute_loss(model(some.long().to(device)), following.long().to(device))
            total += loss.item() * len(some)
    return total / windows


@sealed_while_open("last-position-bits")
@torch.no_grad()
def last_position_bits(model: nn.Module, batches: Iterable[Tensor]) -> float:
    """Return the mean -log2 p of the last token of each slice, where the model has the most context.

    `random_slices` give an estimate; `all_slices` give the exact value for a window that slides over the text. The
    model is in eval mode meanwhile.

    Shapes:
        batches  (b, n + 1) each

    Raises ValueError if `batches` is empty.
    """
    bits, count = 0.0, 0
    with evaluating(model) as device:
        for batch in batches:
            inputs, labels = batch_to_labeled_samples(batch.long().to(device))
            bits += F.cross_entropy(model(inputs)[:, -1], labels[:, -1], reduction="sum").item() / math.log(2)
            count += len(batch)
    if not count:
        raise ValueError("batches must hold a slice, got none.")
    return bits / count


@sealed_while_open("last-position-bits")
@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Put a model into eval mode, then back into its previous mode; yields the device of its weights."""
    training = model.training
    if training:
        model.eval()
    try:
        yield next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    finally:
        if training:
            model.train()


def _require_length(tokens: Tensor, n: int) -> None:
    if len(tokens) < n:
        raise ValueError(
            f"the text must have {n} tokens or more, got {len(tokens)}: take a longer text or a smaller n."
        )
