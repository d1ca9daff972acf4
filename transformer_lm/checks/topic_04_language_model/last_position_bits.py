"""Check of topic 04: a model's loss at the last position, in bits."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, kind

__all__ = ["last_position_bits"]

GRAPH = hint("graph-built", "last-position-bits")
MODE = hint("left-in-eval-mode", "last-position-bits")
FROZEN = hint("model-frozen", "last-position-bits")
SWITCHED_OFF = hint("gradients-left-switched-off", "last-position-bits")
NOT_A_NUMBER = hint("not-a-number", "last-position-bits")


def returned_by(answer: Callable, tried: str, model: nn.Module, *arguments: object) -> object:
    """Return an answer's result for a model, after checking that gradients and modes are as before."""
    with torch.enable_grad():  # restores the gradient mode, whatever the answer leaves behind
        returned = answer(model, *arguments)
        switched_off = not torch.is_grad_enabled()
    if switched_off:
        raise CheckFailed(tried, "gradients are switched off afterwards", "gradients as they were", SWITCHED_OFF)
    if not all(parameter.requires_grad for parameter in model.parameters()):
        raise CheckFailed(tried, "parameters that no longer get a gradient", "the model as it was", FROZEN)
    return returned


class InTraining(nn.Module):
    """A substitute for dropout: adds something in train mode, and nothing in eval mode."""

    added: Tensor

    def __init__(self, added: Tensor) -> None:
        super().__init__()
        self.register_buffer("added", added)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, with something added in train mode."""
        return x + self.added if self.training else x


class MeanOfRows(nn.Module):
    """A substitute for a language model: the logits are the mean of the table rows of all tokens so far.

    `has_built_graph` says whether it was ever called with gradients enabled.
    """

    def __init__(self, table: Tensor, added: Tensor, max_len: int) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(table.detach(), freeze=False)
        self.in_training = InTraining(added.detach())
        self.max_len = max_len
        self.has_built_graph = False

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token, (b, n, v).

        Raises ValueError if there are more than max_len tokens.
        """
        n = tokens.shape[1]
        if n > self.max_len:
            raise ValueError(f"tokens must have at most max_len={self.max_len} positions, got {n}.")
        counts = torch.arange(1, n + 1, device=tokens.device)
        logits = self.in_training(self.table(tokens).cumsum(dim=1) / counts[:, None])
        self.has_built_graph |= logits.requires_grad
        return logits


def _measured(inputs: Inputs, output: str) -> tuple[MeanOfRows, list[Tensor]]:
    """Return a model in train mode and three batches, the last of one sequence; or one in eval mode and one batch."""
    tokens = inputs["tokens"]
    model = MeanOfRows(inputs["table"], inputs["added"], max_len=tokens.shape[1] - 1)
    batches = list(tokens.split(len(tokens) // 2))
    return (model, batches) if output == "bits" else (model.eval(), batches[:1])


def _tried_bits(inputs: Inputs, output: str) -> str:
    model, batches = _measured(inputs, output)
    sizes = ", ".join(str(len(batch)) for batch in batches)
    given = f"with batches of {sizes} sequences of {model.max_len + 1} tokens"
    return f"last_position_bits(model, batches), the model in {_mode(model)} mode, {given}"


def _mode(model: nn.Module) -> str:
    return "train" if model.training else "eval"


def _call_bits(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the bits, after checking that no graph was built and that the model is back in its mode."""
    for output in LAST_POSITION_BITS.axes:
        model, batches = _measured(inputs, output)
        mode, tried = _mode(model), _tried_bits(inputs, output)
        bits = returned_by(answer, tried, model, iter(batches))
        if model.has_built_graph:
            raise CheckFailed(tried, "a graph is built", "no graph", GRAPH)
        if any(_mode(module) != mode for module in model.modules()):
            raise CheckFailed(tried, f"the model is not in {mode} mode afterwards", f"a model in {mode} mode", MODE)
        if isinstance(bits, float | int | np.floating):
            bits = torch.tensor(float(bits))
        if not isinstance(bits, Tensor):
            raise CheckFailed(tried, f"{output} is {kind(bits)}", f"{output}, one number", NOT_A_NUMBER)
        yield bits.reshape(1) if bits.dim() == 0 else bits


LAST_POSITION_BITS = PublicExercise(
    id="last-position-bits",
    axes={"bits": "number", "bits_of_one_batch": "number"},
    trains=(),
    reads=("tokens",),
    build=lambda answer, inputs: answer,
    call=_call_bits,
    tried=_tried_bits,
    batched=False,
    keeps_device=False,
)


def last_position_bits(answer: Callable) -> None:
    """Check the student's `last_position_bits`, with a simple model, in train mode and in eval mode."""
    require_own(answer)
    LAST_POSITION_BITS.check(answer)
