"""Check of topic 03: sequences of several lengths as one padded batch."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise
from transformer_lm.checks.engine.failure import CheckFailed


def _arguments(inputs: Inputs, output: str) -> tuple[list[list[int]], int, int]:
    """Return the arguments for an output: all sequences, truncated or not, or one of them alone."""
    sequences = [tokens.tolist() for tokens in inputs["tokens"].split(inputs["lengths"].tolist())]
    max_len = int(inputs["max_len"]) if output == "cut" else 2 * int(inputs["lengths"].max())
    return sequences[:1] if output == "alone" else sequences, int(inputs["pad"]), max_len


def _tried(inputs: Inputs, output: str) -> str:
    sequences, pad, max_len = _arguments(inputs, output)
    lengths = ", ".join(str(len(sequence)) for sequence in sequences)
    return f"pad_batch(sequences, pad={pad}, max_len={max_len}) with {len(sequences)} of length {lengths}"


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the batches as floats, after checking that they hold integers and that the lists are unchanged."""
    for output in PAD_BATCH.axes:
        sequences, pad, max_len = _arguments(inputs, output)
        tokens = answer(sequences, pad, max_len)
        tried = _tried(inputs, output)
        if sequences != _arguments(inputs, output)[0]:
            known = hint("appends-to-the-lists", "pad-batch")
            raise CheckFailed(tried, "the lists are changed by the call", "the lists as they were before", known)
        if isinstance(tokens, Tensor):
            if tokens.dtype != torch.long:
                known = hint("tokens-not-long")
                raise CheckFailed(tried, f"{output} of dtype {tokens.dtype}", f"{output} of dtype torch.int64", known)
            tokens = tokens.to(torch.get_default_dtype())
        yield tokens


PAD_BATCH = PublicExercise(
    id="pad-batch",
    axes={"whole": "b n", "cut": "b n", "alone": "b n"},
    trains=(),
    reads=("tokens", "lengths"),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
    batched=False,
    keeps_device=False,
)


def pad_batch(answer: Callable) -> None:
    """Check the student's `pad_batch`: with a max_len that cuts nothing, one that truncates, and a single sequence."""
    PAD_BATCH.check(answer)
