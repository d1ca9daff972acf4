"""Check of topic 02: a decoder block around two given parts."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.shapes import describe


class RunningMean(nn.Module):
    """A substitute for attention: the mean of a position and those before it, followed by a linear layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.attention = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for each position, (b, n, hidden) like x itself."""
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)
        return self.attention(x.cumsum(dim=1) / counts[:, None])


def _sizes(inputs: Inputs) -> tuple[int, int]:
    width, hidden = inputs["up_weight"].shape
    return hidden, width


def _tried(inputs: Inputs, output: str) -> str:
    hidden, _ = _sizes(inputs)
    x = describe("x", inputs["x"], "b n hidden")
    return f"TransformerDecoderBlock({hidden}, attention, mlp) with given weights on {x}"


def _weights(inputs: Inputs, *layers: str) -> Inputs:
    return {f"{layer}.{part}": inputs[f"{layer}_{part}"] for layer in layers for part in ("weight", "bias")}


def _build(answer: Callable, inputs: Inputs) -> nn.Module:
    """Return the student's block around substitutes for attention and the MLP."""
    hidden, width = _sizes(inputs)
    tried = _tried(inputs, "output")
    layers = OrderedDict(up=nn.Linear(hidden, width), relu=nn.ReLU(), down=nn.Linear(width, hidden))
    attention = load_parameters(RunningMean(hidden), _weights(inputs, "attention"), tried)
    mlp = load_parameters(nn.Sequential(layers), _weights(inputs, "up", "down"), tried)
    block = answer(hidden, attention, mlp)
    norms = ("attention_norm", "mlp_norm")
    if isinstance(block, nn.Module):
        for name in norms:
            _check_norm(tried, name, getattr(block, name, None), hidden)
    return load_parameters(block, _weights(inputs, *norms), tried)


def _check_norm(tried: str, name: str, norm: object, hidden: int) -> None:
    """Raise CheckFailed unless a layer is the LayerNorm that the notebook provides."""
    if isinstance(norm, nn.LayerNorm) and norm.normalized_shape == (hidden,) and norm.bias is not None:
        return
    yours = repr(norm) if isinstance(norm, nn.Module) else kind(norm)
    known = hint("not-the-given-norm", "decoder-block")
    raise CheckFailed(tried, f"self.{name} is {yours}", f"self.{name} is nn.LayerNorm({hidden})", known)


def _call(block: nn.Module, inputs: Inputs) -> Iterator[Tensor]:
    yield block(inputs["x"])


DECODER_BLOCK = PublicExercise(
    id="decoder-block",
    axes={"output": "b n hidden"},
    trains=("output",),
    reads=("x",),
    build=_build,
    call=_call,
    tried=_tried,
)


def decoder_block(answer: Callable) -> None:
    """Check the student's `TransformerDecoderBlock`, with simple substitutes for attention and MLP."""
    DECODER_BLOCK.check(answer)
