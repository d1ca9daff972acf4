"""Check of topic 03: self-attention without parameters that ignores padding."""

from collections.abc import Callable

from torch import nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.topic_03_classification.padded_layers import call_padded, described_batch


def _tried_simple(inputs: Inputs, output: str) -> str:
    return f"SimpleSelfAttention() on {described_batch(inputs, output == 'padded')}"


def _build_simple(answer: Callable, inputs: Inputs) -> nn.Module:
    layer = answer()
    if not isinstance(layer, nn.Module):
        known = hint("not-a-module")
        raise CheckFailed(
            _tried_simple(inputs, "whole"), f"an object of type {type(layer).__name__}", "a module", known
        )
    return layer


SIMPLE_ATTENTION = PublicExercise(
    id="simple-attention",
    axes={"whole": "b n hidden", "padded": "b n hidden"},
    trains=("whole", "padded"),
    reads=("x", "visible"),
    build=_build_simple,
    call=lambda layer, inputs: call_padded(layer, inputs, _tried_simple(inputs, "padded")),
    tried=_tried_simple,
    forbids_attention=True,
)


def simple_attention_whole(answer: Callable) -> None:
    """Check the student's `SimpleSelfAttention` on sequences without padding."""
    SIMPLE_ATTENTION.only("without padding it is", "whole").check(answer)


def simple_attention(answer: Callable) -> None:
    """Check all of the student's `SimpleSelfAttention`, without and with padding."""
    SIMPLE_ATTENTION.check(answer)
