"""Check of topic 03: multi-head attention that ignores padding."""

from collections.abc import Callable

from torch import nn

from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.topic_03_classification.padded_layers import call_padded, described_batch


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
    call=lambda layer, inputs: call_padded(layer, inputs, _tried_full(inputs, "padded")),
    tried=_tried_full,
    forbids_attention=True,
)


def full_attention_whole(answer: Callable) -> None:
    """Check the student's `FullSelfAttention` on sequences without padding."""
    FULL_ATTENTION.only("without padding it is", "whole").check(answer)


def full_attention(answer: Callable) -> None:
    """Check all of the student's `FullSelfAttention`, without and with padding."""
    FULL_ATTENTION.check(answer)
