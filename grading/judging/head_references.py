"""Reference values for heads, in float64 NumPy, for the exercises that compute them and those compared with them."""

import numpy as np
from numpy.typing import NDArray


def reference_profile(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean weight at each distance, (h, n), for weights (b, h, i, j), summed query by query."""
    b, h, n, _ = weights.shape
    sums = np.zeros((h, n))
    for query in range(n):
        sums[:, : query + 1] += weights[:, :, query, query::-1].sum(axis=0)  # the nearest key first
    return sums / (b * np.arange(n, 0, -1))


def reference_score(weights: NDArray[np.float64], pattern: NDArray[np.bool_]) -> tuple[NDArray[np.float64], float]:
    """Return the scores (h) and the chance for weights (b, h, i, j) and a pattern (b, i, j).

    Both are nan if no query has a key in the pattern.
    """
    counts = pattern.sum(axis=2)  # (b, i)
    if not counts.any():
        return np.full(weights.shape[1], np.nan), np.nan
    given = np.where(pattern[:, None], weights, 0).sum(axis=3)  # (b, h, i)
    by_chance = counts / np.arange(1, counts.shape[1] + 1)
    return given.swapaxes(1, 2)[counts > 0].mean(axis=0), float(by_chance[counts > 0].mean())


def reference_null(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the position-only baseline of each head, (h, i, j), for weights (b, h, i, j), query by query."""
    profile = reference_profile(weights)  # (h, n)
    null = np.zeros_like(weights[0])
    for query in range(null.shape[1]):
        given = profile[:, query::-1]  # the first key is the furthest away
        null[:, query, : query + 1] = given / given.sum(axis=1, keepdims=True)
    return null
