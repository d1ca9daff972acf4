"""Refuses torch's ready-made attention where students must write attention themselves."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from torch import nn
from torch.overrides import TorchFunctionMode

from transformer_lm.checks.engine.catalogue import hint

READY_MADE = hint("ready-made-attention")
LAYERS = (
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
# The common part of the names of torch's attention functions.
OPERATORS = ("scaled_dot_product", "flash_attention", "efficient_attention", "multi_head_attention", "transformer_enc")


@contextmanager
def refused_attention() -> Iterator[None]:
    """Make torch's ready-made attention raise RuntimeError inside the `with`, under any of its names."""
    with ExitStack() as refusals:
        for layer in LAYERS:
            for method in ("__init__", "forward"):
                refusals.enter_context(patch.object(layer, method, _refuse))
        refusals.enter_context(_Refusing())
        yield


class _Refusing(TorchFunctionMode):
    """Intercepts every call of a torch function."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if any(part in str(getattr(function, "__name__", function)) for part in OPERATORS):
            _refuse()
        return function(*args, **(kwargs or {}))


def _refuse(*arguments: object, **options: object) -> None:
    raise RuntimeError(READY_MADE)
