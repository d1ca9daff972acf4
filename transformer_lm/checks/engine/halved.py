"""What dropout does to numbers of which it should drop half, each by itself: it drops some and doubles the others."""

from torch import Tensor

CLOSE = 1e-3
EXPECTED = "0% and about 50%"


def dropped_shares(found: Tensor, whole: Tensor) -> tuple[float, float, float]:
    """Return which share of numbers is neither 0 nor doubled, which share is 0, and how mixed the two kinds are.

    `whole` holds the numbers without dropout. The third is the share of the lines of numbers with both kinds in them,
    along the axis where it is smallest.
    """
    dropped, doubled = found.abs() < CLOSE, (found - 2 * whole).abs() < CLOSE
    mixed = [(dropped.any(axis) & ~dropped.all(axis)).double().mean().item() for axis in range(dropped.ndim)]
    return 1 - (dropped | doubled).double().mean().item(), dropped.double().mean().item(), min(mixed)


def is_halved(wrong: float, dropped: float) -> bool:
    """Return whether these shares are those of numbers of which half are dropped; luck spoils it less than once in
    a hundred million times, for 200 numbers or more.
    """
    return not wrong and 0.3 < dropped < 0.7
