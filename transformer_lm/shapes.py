"""Shapes with named axes: public functions state the axes that they expect, and name those that do not fit."""

from collections.abc import Sequence

from torch import Tensor


class ShapeError(ValueError):
    """Two tensors disagree about an axis, or a tensor has the wrong number of axes."""


def match_axes(**tensors: tuple[Tensor, str]) -> dict[str, int]:
    """Return the size of each named axis, after checking that all tensors agree on it.

    `match_axes(queries=(q, "b i dh"), keys=(k, "b j dh"))` gives `{"b": 2, "i": 5, "dh": 4, "j": 6}`.

    Raises a ShapeError that names the axis, the tensors and their sizes.
    """
    sizes: dict[str, int] = {}
    first_seen: dict[str, str] = {}
    for name, (tensor, axes) in tensors.items():
        letters = axes.split()
        if tensor.dim() != len(letters):
            raise ShapeError(
                f"{name} must have the {len(letters)} axes ({', '.join(letters)}), "
                f"got {tensor.dim()} of sizes {tuple(tensor.shape)}."
            )
        for letter, size in zip(letters, tensor.shape, strict=True):
            if letter not in sizes:
                sizes[letter] = size
                first_seen[letter] = describe(name, tensor, axes)
            elif sizes[letter] != size:
                raise ShapeError(
                    f"axis {letter} must have one size, got {sizes[letter]} in {first_seen[letter]} "
                    f"and {size} in {describe(name, tensor, axes)}."
                )
    empty = [letter for letter, size in sizes.items() if size == 0]
    if empty:
        raise ShapeError(f"axis {empty[0]} must not be empty, got size 0 in {first_seen[empty[0]]}.")
    return sizes


def describe(name: str, tensor: Tensor, axes: str) -> str:
    """Describe a tensor's shape in words: `keys (b=2, j=5, dh=4)`."""
    return f"{name} {in_words(tensor.shape, axes)}"


def in_words(shape: Sequence[int], axes: str) -> str:
    """Return a shape with the name of each axis: `(b=2, j=5, dh=4)`."""
    return f"({', '.join(f'{letter}={size}' for letter, size in zip(axes.split(), shape, strict=True))})"
