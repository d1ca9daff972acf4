"""The causal test of a head: ablate it, setting its output to zero or to its mean, and measure the loss.

A heatmap shows what a head attends to, not whether the model uses it. Axes: l layers, h heads, b batch, n positions.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from transformer_lm.heads.recording import attention_layers
from transformer_lm.lm import batch_to_labeled_samples, evaluating

WAYS = ("zero", "mean")


@dataclass(frozen=True)
class LossChange:
    """The loss of a model in nats per token, and by how much it rises without a head.

    `served` is the same for only those predictions that the head is claimed to serve; nan if none are named.
    """

    loss: float
    change: float
    served_loss: float
    served_change: float


@torch.no_grad()
def ablate_heads(
    model: nn.Module,
    batches: Sequence[Tensor],
    heads: Iterable[tuple[int, int]] | None = None,
    how: str = "mean",
    serves: Callable[[Tensor], Tensor] | None = None,
    progress: bool = True,
) -> dict[tuple[int, int], LossChange]:
    """Return for each head, (layer, head), how the loss of a language model changes without it.

    `how` is "zero" (the head adds nothing) or "mean" (it adds its average output over these batches), which is the
    fairer test, because later layers are adapted to that average. `heads` defaults to all heads. `serves` takes tokens
    (b, n) and returns (b, n), True at the positions whose prediction the head is claimed to serve.

    Shapes:
        batches  (b, n + 1) each

    Raises ValueError for another `how`, a head that does not exist, or if `batches` is empty.
    """
    if how not in WAYS:
        raise ValueError(f"how must be one of {', '.join(WAYS)}, got {how!r}.")
    if not len(batches):
        raise ValueError("batches must hold a text, got none.")
    layers: list[Any] = [attention for _, attention in attention_layers(model)]
    every = [(layer, head) for layer, attention in enumerate(layers) for head in range(attention.num_heads)]
    heads = every if heads is None else list(heads)
    if missing := [head for head in heads if tuple(head) not in every]:
        raise ValueError(f"heads must be (layer, head) among {every}, got {missing[0]}.")
    with evaluating(model):
        means = mean_outputs(model, batches) if how == "mean" else [None] * len(layers)
        loss, served_loss = _losses(model, batches, serves)
        changes = {}
        for layer, head in tqdm(heads, desc="Ablating", disable=None if progress else True, leave=False):
            with without_head(layers[layer], head, means[layer]):
                overall, served = _losses(model, batches, serves)
            changes[layer, head] = LossChange(loss, overall - loss, served_loss, served - served_loss)
    return changes


@contextmanager
def without_head(attention: Any, head: int, instead: Tensor | None = None) -> Iterator[None]:
    """Replace the output of a head by 0, or by its part of `instead`, (hidden), inside the `with`.

    It applies to whole sequences, but not to sampling with a cache, which takes another path.
    """
    width = attention.mix.in_features // attention.num_heads
    part = slice(head * width, (head + 1) * width)

    def replace(mix: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        found = arguments[0].clone()  # (b, n, h * dh)
        found[..., part] = 0 if instead is None else instead[part]
        return (found,)

    with attention.mix.register_forward_pre_hook(replace):
        yield


@torch.no_grad()
def mean_outputs(model: nn.Module, batches: Sequence[Tensor]) -> list[Tensor]:
    """Return the mean output of each layer's heads, concatenated as the input of `mix`, for `without_head`.

    Shapes:
        batches  (b, n + 1) each: the last token is only a label
        returns  (hidden) for each layer
    """
    layers = [attention for _, attention in attention_layers(model)]
    sums: list[Any] = [0.0] * len(layers)
    count = 0
    with evaluating(model):
        for batch in batches:
            inputs, _ = batch_to_labeled_samples(batch.long())
            count += inputs.numel()
            for layer, found in enumerate(_inputs_of_mix(model, layers, inputs)):
                sums[layer] = sums[layer] + found.sum(dim=(0, 1))
    return [total / count for total in sums]


def _inputs_of_mix(model: nn.Module, layers: list[Any], tokens: Tensor) -> list[Tensor]:
    """Return the outputs of each layer's heads, (b, n, hidden) each."""
    found: list[Tensor] = []
    hooks = [layer.mix.register_forward_pre_hook(lambda mix, given: found.append(given[0])) for layer in layers]
    try:
        model(tokens.to(_device(model)))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _losses(model: nn.Module, batches: Sequence[Tensor], serves: Callable | None) -> tuple[float, float]:
    """Return the mean loss of all predictions, and of those that the head serves."""
    total, count, served_total, served_count = 0.0, 0, 0.0, 0
    for batch in batches:
        inputs, labels = batch_to_labeled_samples(batch.long().to(_device(model)))
        losses = F.cross_entropy(model(inputs).transpose(1, 2), labels, reduction="none")  # (b, n)
        total, count = total + losses.sum().item(), count + losses.numel()
        if serves is not None:
            served = losses[serves(inputs)]
            served_total, served_count = served_total + served.sum().item(), served_count + len(served)
    return total / count, served_total / served_count if served_count else math.nan


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
