"""Check of topic 04: the cross-entropy of a model's logits and the next tokens."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.shapes import describe

LARGE = 1024  # exact in every float type; exp of such large logits overflows
NO_TOKEN = -1  # the padding index of a call without padding


def _given_loss(inputs: Inputs, output: str) -> tuple[Tensor, Tensor, int]:
    """Return the arguments of a call.

    They are the arguments as drawn; or large logits, with labels that are a slice of a longer batch; or a pad that is
    not a token, so that all labels are real.
    """
    logits, labels, pad = inputs["logits"], inputs["labels"], int(inputs["pad"])
    if output == "loss":
        return logits, labels, pad
    if output == "loss_without_padding":
        return logits.clone(), labels.clone(), NO_TOKEN
    return LARGE * logits, torch.cat([labels[:, :1], labels], dim=1)[:, 1:], pad


def _tried_loss(inputs: Inputs, output: str) -> str:
    logits, labels, pad = _given_loss(inputs, output)
    name = f"{LARGE} * logits" if output == "loss_large" else "logits"
    return f"compute_loss({describe(name, logits, 'b n v')}, {describe('labels', labels, 'b n')}, pad={pad})"


def _call_loss(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield each loss with an axis of size 1, after checking that it has no axes."""
    given = {output: _given_loss(inputs, output) for output in LOSS.axes}  # before a call can change them
    for output, arguments in given.items():
        loss = answer(*arguments)
        if not isinstance(loss, Tensor) or loss.dim():
            known = hint("not-one-number", "loss")
            expected = f"{output} is one tensor of shape ()"
            raise CheckFailed(_tried_loss(inputs, output), f"{output} is {kind(loss)}", expected, known)
        yield loss[None]


LOSS = PublicExercise(
    id="loss",
    axes={"loss": "numbers", "loss_large": "numbers", "loss_without_padding": "numbers"},
    trains=("loss",),
    reads=("logits", "labels", "pad"),
    build=lambda answer, inputs: answer,
    call=_call_loss,
    tried=_tried_loss,
    batched=False,
)


def loss(answer: Callable) -> None:
    """Check the student's `compute_loss`: with padding and without, with small logits and with large ones."""
    require_own(answer)
    LOSS.check(answer)
