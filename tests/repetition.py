"""Tests repeated for certainty: `make test` runs the first few, `make test-all` the others."""

from collections.abc import Iterable

import pytest


def first_of(values: Iterable, number: int) -> list:
    """Return the values as parameters of a test; those after the first few are marked as thorough."""
    return [
        pytest.param(value, marks=() if place < number else pytest.mark.thorough) for place, value in enumerate(values)
    ]
