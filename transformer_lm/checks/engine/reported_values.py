"""Values that an answer reports, as plain numbers and texts, and their descriptions in words."""

from collections.abc import Iterable, Mapping
from typing import TypeGuard

import numpy as np
from torch import Tensor

from transformer_lm.checks.engine.failure import kind

TEXT, ENTRIES = 200, 100  # the most that is read of a text, and of a list
MANY = 1e12  # larger numbers are not written out


def plain(value: object, depth: int = 3, texts: int = 0) -> object:
    """Return numbers of any library, in dictionaries and lists too, as plain ones; for anything else its kind.

    Texts of at most `texts` characters stay as they are, unless that is 0.
    """
    if isinstance(value, Mapping) and depth:
        return {str(key)[:TEXT]: plain(each, depth - 1, texts) for key, each in list(value.items())[:ENTRIES]}
    if isinstance(value, list | tuple) and depth:
        return [plain(each, depth - 1, texts) for each in value[:ENTRIES]]
    if isinstance(value, np.ndarray | np.generic | Tensor):
        return plain(value.tolist(), depth, texts)
    if isinstance(value, str) and texts and len(value) <= texts:
        return str(value)
    return value if isinstance(value, bool | int | float) else kind(value)[:TEXT]


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a plain value is a number; True and False do not count."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def told(value: object) -> str:
    """Describe a plain value in words; a text is already the description that `plain` gave."""
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, int | float) and abs(value) < MANY else kind(value)


def listed(names: Iterable[object]) -> str:
    """Return names in their order, shortened if there are many."""
    return ", ".join(sorted(str(name)[:40] for name in names))[:200] or "none"
