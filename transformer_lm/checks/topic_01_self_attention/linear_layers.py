"""A check shared by kqv and self-attention: whether a layer is linear and has the right sizes."""

from torch import nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.failure import CheckFailed, kind

Sizes = tuple[tuple[int, int], ...]  # pairs of input_size and hidden

CONSTANT = hint("constant-weights", "linear-layers")
TWO_SIZES = ((7, 11), (5, 3))  # a hard-coded size fits only one of them


def check_linear(tried: str, name: str, layer: object, size_in: int, size_out: int) -> None:
    """Raise CheckFailed unless a layer is linear, of these sizes, with a bias."""
    expected = f"Linear(in_features={size_in}, out_features={size_out}, bias=True)"
    if not isinstance(layer, nn.Linear):
        raise CheckFailed(tried, f"{name} is {kind(layer)}", expected, hint("not-a-linear-layer", "linear-layers"))
    sizes = (layer.in_features, layer.out_features)
    constant = bool((layer.weight == layer.weight.flatten()[0]).all())
    if sizes == (size_in, size_out) and layer.bias is not None and layer.weight.requires_grad and not constant:
        return
    if constant and layer.weight.numel() > 1:
        raise CheckFailed(tried, f"all weights of {name} are {layer.weight[0, 0]:g}", "weights that differ", CONSTANT)
    if not layer.weight.requires_grad:
        known = hint("frozen-layer", "linear-layers")
    elif layer.bias is None:
        known = hint("parameters-without-bias", "linear-layers")
    elif sizes == (size_out, size_in):
        known = hint("sizes-swapped", "linear-layers")
    elif sizes[0] == size_in and sizes[1] < size_out:
        known = hint("too-narrow", "linear-layers")
    else:
        known = hint("sizes-not-counted", "linear-layers")
    raise CheckFailed(tried, f"{name} is {layer!r}", expected, known)
