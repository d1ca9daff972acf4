"""Comparing outputs with the expected ones, and finding the known mistake that explains a difference."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from transformer_lm.checks.engine.catalogue import Hint, hint
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.shapes import in_words
from transformer_lm.test_values import Case

# How far an entry may be from the expected one, relative to 1 plus the largest entry. Right answers in float32 stay
# below a fifth of this, and known mistakes are over a hundred times as far away: tests/checks/test_frozen.py measures
# both.
TOLERANCE = 2e-5
GRADIENT = 1e-4  # relative to the largest gradient
SHOWN = 4  # entries of a wrong row; the first wrong one is among them


def compare(
    tried: str,
    name: str,
    axes: str,
    outputs: Mapping[str, object],
    case: Case,
    hints: dict[str, Hint],
    together: tuple[str, ...] = (),
) -> None:
    """Raise CheckFailed if the output `name` differs from the case's; name the known mistake that explains it, if any.

    The outputs `together` come from the same call.
    """
    yours, expected = outputs[name], case.outputs[name]
    words = in_words(expected.shape, axes)
    if not isinstance(yours, Tensor):
        known = hint("not-a-tensor", name=name)
        raise CheckFailed(tried, f"{name} is {kind(yours)}", f"{name} is a tensor {words}", known)
    if not close(yours, expected):
        known = known_mistake(outputs, name, case, hints, together) or general_hint(yours, expected)
        if yours.shape != expected.shape:
            raise CheckFailed(tried, f"{name} of shape {tuple(yours.shape)}", f"{name} of shape {words}", known)
        *row, entry = distant(yours, expected).nonzero()[0].tolist()
        start = entry if entry >= SHOWN else 0
        index = ", ".join([*map(str, row), *([f"{start}:"] if start else [])])
        where = f"{name}[{index}]" if index else name
        whole = _is_whole(expected)
        mine, right = (f"{where} = {_numbers(tensor[tuple(row)][start:], whole)}" for tensor in (yours, expected))
        raise CheckFailed(tried, mine, right, known)


def compare_gradients(tried: str, output: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise CheckFailed unless an output has these gradients; a missing gradient counts as 0."""
    largest = max(_largest(gradient) for gradient in expected.values())
    for name, gradient in expected.items():
        theirs = _plain(found[name]) if name in found else torch.zeros(gradient.shape)
        if theirs.shape == gradient.shape and _largest(theirs - _plain(gradient)) <= GRADIENT * largest:
            continue
        yours = f"{output} is right, but its gradient does not reach {name.replace('_', '.')} as it should"
        raise CheckFailed(tried, yours, "a gradient for everything that the output depends on", hint("graph-cut"))


def _largest(gradient: Tensor) -> float:
    return _plain(gradient).abs().max().item() if gradient.numel() else 0


def require_unchanged(tried: str, inputs: Mapping[str, ArrayLike], after: Mapping[str, ArrayLike]) -> None:
    """Raise CheckFailed unless the inputs are the same after the call."""
    for name, before in inputs.items():
        if name not in after or not np.array_equal(_array(after[name]), _array(before)):
            changed, expected = f"{name} is changed by the call", f"{name} as it was before"
            raise CheckFailed(tried, changed, expected, hint("input-changed"))


def _array(numbers: ArrayLike) -> np.ndarray:
    return numbers.detach().cpu().numpy() if isinstance(numbers, Tensor) else np.asarray(numbers)


def known_mistake(
    outputs: Mapping[str, object], wrong: str, case: Case, hints: dict[str, Hint], together: tuple[str, ...] = ()
) -> Hint | None:
    """Return the hint of the known mistake that explains the wrong output, all before it, and most after it.

    The outputs `together` come from the same call. That mistake must explain each of them, or else another known
    mistake must explain it, one that does not affect the wrong output.
    """
    names = list(outputs)
    needed = {*names[: names.index(wrong) + 1], *together} & outputs.keys()
    explained = {}
    for mistake in case.mistakes.get(wrong, {}):
        alike = {name for name in names if _explains(mistake, name, outputs[name], case)}
        if wrong in alike and all(_has_its_own(name, mistake, wrong, outputs, case) for name in needed - alike):
            explained[mistake] = len(alike)
    if not explained:
        return None
    return hints[max(explained, key=explained.__getitem__)]


def _has_its_own(name: str, mistake: str, wrong: str, outputs: Mapping[str, object], case: Case) -> bool:
    """Return whether a later output has a separate mistake, and each of the two mistakes changes only one output."""
    if list(outputs).index(name) < list(outputs).index(wrong) or mistake in case.mistakes.get(name, {}):
        return False
    return any(
        other not in case.mistakes[wrong] and _explains(other, name, outputs[name], case)
        for other in case.mistakes.get(name, {})
    )


def _explains(mistake: str, name: str, yours: object, case: Case) -> bool:
    expected = case.mistakes.get(name, {}).get(mistake, case.outputs[name])
    return isinstance(yours, Tensor) and close(yours, expected)


def close(yours: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors have the same shape and agree within float32 rounding; NaN equals NaN."""
    return yours.shape == expected.shape and not distant(yours, expected).any()


def distant(yours: Tensor, expected: Tensor) -> Tensor:
    """Return which entries differ by more than rounding explains."""
    yours, expected = _plain(yours), _plain(expected)
    return ~torch.isclose(yours, expected, rtol=0, atol=tolerance(expected), equal_nan=True)


def tolerance(expected: Tensor) -> float:
    """Return how far a right answer may be from these numbers."""
    finite = expected[expected.isfinite()].abs()
    return TOLERANCE * (1 + (finite.max().item() if len(finite) else 0))


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float64)


def _shape_hint(yours: torch.Size, expected: torch.Size) -> Hint:
    if sorted(yours) == sorted(expected):
        return hint("axes-swapped")
    if len(yours) != len(expected):
        return hint("axis-lost-or-added", yours=len(yours), expected=len(expected))
    wrong = [axis for axis, (mine, other) in enumerate(zip(yours, expected, strict=True)) if mine != other]
    return hint("axis-of-another-size", axis=wrong[0])


def general_hint(yours: Tensor, expected: Tensor) -> Hint:
    """Return a hint for an unknown mistake."""
    if yours.shape != expected.shape:
        return _shape_hint(yours.shape, expected.shape)
    if yours.isnan().any():
        return hint("nan")
    right = [row for row in range(len(yours)) if close(yours[row], expected[row])]
    if right:
        return hint("some-entries-right", entry=right[0])
    return hint("unknown-mistake")


def _is_whole(expected: Tensor) -> bool:
    expected = _plain(expected)
    return bool((expected == expected.round()).all() and expected.isfinite().all())


def _numbers(entries: Tensor, whole: bool) -> str:
    """Return the first entries in brackets, as whole numbers if only whole numbers are expected."""
    numbers = [
        f"{number:.0f}" if whole and number.is_integer() else f"{number:.4f}"
        for number in _plain(entries)[:SHOWN].tolist()
    ]
    return f"[{', '.join(numbers + ['…'] * (len(entries) > SHOWN))}]"
