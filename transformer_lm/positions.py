"""Positional encodings: sinusoids that are added, and angles by which RoPE rotates queries and keys."""

import torch
from torch import Tensor

from transformer_lm.answers import sealed_while_open

ROTARY_BASE = 100  # slow enough for a few hundred positions; models for longer texts use 10,000


@sealed_while_open("sinusoids")
def sinusoids(max_len: int, hidden: int) -> Tensor:
    """Return the sinusoidal positional encodings, sines (even columns) and cosines (odd columns), (max_len, hidden).

    Vaswani et al., Attention Is All You Need, 2017, arXiv:1706.03762.
    """
    rates = 10_000.0 ** (-torch.arange(0, hidden, 2) / hidden)
    angles = torch.arange(max_len)[:, None] * rates  # (max_len, hidden / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def turns(max_len: int, dh: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the angle by which each position rotates each pair, (max_len, dh / 2) each."""
    rates = ROTARY_BASE ** (-torch.arange(0, dh, 2) / dh)
    angles = torch.arange(max_len)[:, None] * rates
    return angles.cos(), angles.sin()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return (..., n, dh) with each pair of numbers, one from each half, rotated by the angle of its position."""
    first, second = x.chunk(2, dim=-1)  # (..., n, dh / 2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
