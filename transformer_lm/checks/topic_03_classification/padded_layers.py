"""Shared code of the exercises about attention that ignores padding."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.shapes import describe

NO_KEY = hint("no-key-left", "padded-layers")


def described_batch(inputs: Inputs, padded: bool) -> str:
    """Describe the input of a layer in words: x, and how many real tokens each sequence has."""
    x = describe("x", inputs["x"], "b n hidden")
    lengths = ", ".join(str(length) for length in inputs["visible"].sum(dim=1).tolist())
    return f"{x}, of which {lengths} positions are visible" if padded else f"{x}, all positions visible"


def at_real_tokens(output: object, visible: Tensor, tried: str) -> object:
    """Return the output of a layer with 0 at padding, where its values have no meaning.

    Raises CheckFailed for NaN only at padding: multiplied by 0 it is still NaN, in the next layer and in gradients.
    """
    if not isinstance(output, Tensor) or output.dim() != 3 or output.shape[:2] != visible.shape:
        return output  # the comparison will report what is wrong
    if output[~visible].isnan().any() and output[visible].isfinite().all():
        raise CheckFailed(tried, "NaN at padded positions", "numbers there, whatever they are", NO_KEY)
    return torch.where(visible[..., None], output, 0)


def call_padded(layer: nn.Module, inputs: Inputs, tried: str) -> Iterator[object]:
    """Yield the output of a layer for whole sequences, then for padded ones."""
    x, visible = inputs["x"], inputs["visible"].clone()  # the layer might change its copy
    yield layer(x, visible=torch.ones_like(visible))
    yield at_real_tokens(layer(x, visible=inputs["visible"]), visible, tried)
