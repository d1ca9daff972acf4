"""A check that kqv and self-attention share: is a layer linear, with the right sizes?"""

from torch import nn

from transformer_lm.checks.engine.failure import CheckFailed, kind

Sizes = tuple[tuple[int, int], ...]  # pairs of input_size and hidden

CONSTANT = (
    "All weights start with one value, so every output gets the same gradient and stays the same as the others: "
    "leave the random start of nn.Linear as it is."
)
TWO_SIZES = ((7, 11), (5, 3))  # a hard-coded size fits only one of them


def check_linear(tried: str, name: str, layer: object, size_in: int, size_out: int) -> None:
    """Raise CheckFailed unless a layer is linear, of these sizes, with a bias."""
    expected = f"Linear(in_features={size_in}, out_features={size_out}, bias=True)"
    if not isinstance(layer, nn.Linear):
        raise CheckFailed(tried, f"{name} is {kind(layer)}", expected, "It must be an nn.Linear itself.")
    sizes = (layer.in_features, layer.out_features)
    constant = bool((layer.weight == layer.weight.flatten()[0]).all())
    if sizes == (size_in, size_out) and layer.bias is not None and layer.weight.requires_grad and not constant:
        return
    if constant and layer.weight.numel() > 1:
        raise CheckFailed(tried, f"all weights of {name} are {layer.weight[0, 0]:g}", "weights that differ", CONSTANT)
    if not layer.weight.requires_grad:
        hint = "The layer is frozen, so it cannot learn: leave its requires_grad as it is."
    elif layer.bias is None:
        hint = "The layer has no bias; nn.Linear has one unless you switch it off."
    elif sizes == (size_out, size_in):
        hint = "The two sizes are swapped: nn.Linear takes the size in, then the size out."
    elif sizes[0] == size_in and sizes[1] < size_out:
        hint = "The layer is too narrow for all that must come out of it."
    else:
        hint = "A position of input_size numbers goes in; count the numbers that must come out of it."
    raise CheckFailed(tried, f"{name} is {layer!r}", expected, hint)
