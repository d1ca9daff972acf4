"""Checks of topic 03: attention that does not read padding, without parameters and with heads."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from transformer_lm.checks.exercise import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.report import CheckFailed
from transformer_lm.shapes import describe

NO_KEY = "A padded query is left with no key to read: a softmax over nothing is NaN, and spreads with the gradients."


def described_batch(inputs: Inputs, padded: bool) -> str:
    """Return in words what is given to a layer: x, and how many real tokens each sequence has."""
    x = describe("x", inputs["x"], "b n hidden")
    lengths = ", ".join(str(length) for length in inputs["visible"].sum(dim=1).tolist())
    return f"{x}, of which {lengths} positions are visible" if padded else f"{x}, all positions visible"


def at_real_tokens(output: object, visible: Tensor, tried: str) -> object:
    """Return what a layer gives back with 0 at padding: what it leaves there means nothing.

    Raises CheckFailed for NaN at padding alone: multiplied by 0 it is still NaN, in the next layer and in gradients.
    """
    if not isinstance(output, Tensor) or output.dim() != 3 or output.shape[:2] != visible.shape:
        return output  # whoever compares it says what is wrong
    if output[~visible].isnan().any() and output[visible].isfinite().all():
        raise CheckFailed(tried, "NaN at padded positions", "numbers there, whatever they are", NO_KEY)
    return torch.where(visible[..., None], output, 0)


def _call(layer: nn.Module, inputs: Inputs, tried: str) -> Iterator[Tensor]:
    x, visible = inputs["x"], inputs["visible"].clone()  # the layer might change its own
    yield layer(x, visible=torch.ones_like(visible))
    yield at_real_tokens(layer(x, visible=inputs["visible"]), visible, tried)


# --- simple-attention ---------------------------------------------------------------------------


def _tried_simple(inputs: Inputs, output: str) -> str:
    return f"SimpleSelfAttention() on {described_batch(inputs, output == 'padded')}"


def _build_simple(answer: Callable, inputs: Inputs) -> nn.Module:
    layer = answer()
    if not isinstance(layer, nn.Module):
        hint = "Derive your class from nn.Module, and give the check the class itself."
        raise CheckFailed(_tried_simple(inputs, "whole"), f"an object of type {type(layer).__name__}", "a module", hint)
    return layer


SIMPLE_ATTENTION = PublicExercise(
    id="simple-attention",
    axes={"whole": "b n hidden", "padded": "b n hidden"},
    trains=("whole", "padded"),
    reads=("x", "visible"),
    build=_build_simple,
    call=lambda layer, inputs: _call(layer, inputs, _tried_simple(inputs, "padded")),
    tried=_tried_simple,
    forbids_attention=True,
)

# --- full-attention -----------------------------------------------------------------------------


def _tried_full(inputs: Inputs, output: str) -> str:
    sizes = f"{len(inputs['q_weight'])}, {int(inputs['num_heads'])}"
    return f"FullSelfAttention({sizes}) with given weights on {described_batch(inputs, output == 'padded')}"


def _build_full(answer: Callable, inputs: Inputs) -> nn.Module:
    weights = {f"{layer}.{part}": inputs[f"{layer}_{part}"] for layer in "qkv" for part in ("weight", "bias")}
    weights |= {f"mix.{part}": inputs[f"mix_{part}"] for part in ("weight", "bias")}
    layer = answer(len(inputs["q_weight"]), int(inputs["num_heads"]))
    return load_parameters(layer, weights, _tried_full(inputs, "whole"))


FULL_ATTENTION = PublicExercise(
    id="full-attention",
    axes={"whole": "b n hidden", "padded": "b n hidden"},
    trains=("whole", "padded"),
    reads=("x", "visible"),
    build=_build_full,
    call=lambda layer, inputs: _call(layer, inputs, _tried_full(inputs, "padded")),
    tried=_tried_full,
    forbids_attention=True,
)

# --- the checks ---------------------------------------------------------------------------------


def simple_attention_whole(answer: Callable) -> None:
    """Check the student's `SimpleSelfAttention` on sequences without padding."""
    SIMPLE_ATTENTION.only("without padding it is", "whole").check(answer)


def simple_attention(answer: Callable) -> None:
    """Check all of the student's `SimpleSelfAttention`, without and with padding."""
    SIMPLE_ATTENTION.check(answer)


def full_attention_whole(answer: Callable) -> None:
    """Check the student's `FullSelfAttention` on sequences without padding."""
    FULL_ATTENTION.only("without padding it is", "whole").check(answer)


def full_attention(answer: Callable) -> None:
    """Check all of the student's `FullSelfAttention`, without and with padding."""
    FULL_ATTENTION.check(answer)
