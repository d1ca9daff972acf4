"""Recognising dropout with rate 0.5, which independently sets each number to 0 or doubles it."""

from torch import Tensor

CLOSE = 1e-3
EXPECTED = "0% and about 50%"


def dropped_shares(found: Tensor, whole: Tensor) -> tuple[float, float, float]:
    """Return the fraction of numbers neither 0 nor doubled, the fraction of zeros, and how mixed the two kinds are.

    `whole` holds the numbers without dropout. The third result is the fraction of lines of numbers that contain both
    kinds, along the axis where it is smallest.
    """
    dropped, doubled = found.abs() < CLOSE, (found - 2 * whole).abs() < CLOSE
    mixed = [(dropped.any(axis) & ~dropped.all(axis)).double().mean().item() for axis in range(dropped.ndim)]
    return 1 - (dropped | doubled).double().mean().item(), dropped.double().mean().item(), min(mixed)


def is_halved(wrong: float, dropped: float) -> bool:
    """Return whether these fractions are those of dropout with rate 0.5; for 200 numbers or more, chance gives a wrong
    result less than once in a hundred million times.
    """
    return not wrong and 0.3 < dropped < 0.7
