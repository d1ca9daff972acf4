"""Batches of sequences that differ in length: padded to the longest, with no more padding than needed.

Axes: b batch, n positions.
"""

import itertools
import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def batches_by_length(lengths: Sequence[int], batch_tokens: int, seed: int | str | None = None) -> list[list[int]]:
    """Return the indices of all sequences, in batches of similar length with up to `batch_tokens` tokens and padding.

    So a batch holds many short sequences, or a few long ones. A sequence that is longer than `batch_tokens` gets a
    separate batch. Each seed gives another order of the batches, and of sequences of equal length; without a seed,
    batches are ordered from short to long.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}.")
    places = list(range(len(lengths)))
    shuffle = random.Random(seed).shuffle
    if seed is not None:
        shuffle(places)
    places.sort(key=lambda place: lengths[place])  # keeps the order of sequences of equal length
    batches: list[list[int]] = []
    for place in places:  # each sequence is the longest so far
        if not batches or lengths[place] * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(place)
    if seed is not None:
        shuffle(batches)
    return batches


def padded_batches(
    x: Sequence[Sequence[int]],
    y: Sequence[int],
    pad: int,
    batch_tokens: int,
    max_len: int = 256,
    seed: int | str | None = None,
    device: torch.device | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all sequences with their labels, in padded batches of at most `batch_tokens` tokens.

    Shapes:
        yields  (b, n) the tokens, and (b,) the labels

    Raises ValueError for a sequence without a token, or if x and y differ in length.
    """
    if len(x) != len(y):
        raise ValueError(f"x and y must have the same length, got {len(x)} sequences and {len(y)} labels.")
    if max_len < 1:
        raise ValueError(f"max_len must be at least 1, got {max_len}.")
    lengths = [min(len(sequence), max_len) for sequence in x]
    if not lengths:
        raise ValueError("x must hold at least one sequence, got none.")
    if 0 in lengths:
        raise ValueError(
            f"every sequence must have a token, got none in number {lengths.index(0)}. Encode a text without words as "
            "`.unk`."
        )
    for places in batches_by_length(lengths, batch_tokens, seed):
        tokens = padded([x[place][:max_len] for place in places], pad, device)
        yield tokens, torch.tensor([y[place] for place in places], device=device)


def padded(sequences: Sequence[Sequence[int]], pad: int, device: torch.device | None = None) -> Tensor:
    """Return sequences of tokens as rows, with `pad` after those shorter than the longest.

    Shapes:
        returns  (b, n)
    """
    columns = itertools.zip_longest(*sequences, fillvalue=pad)
    return torch.tensor(list(columns), dtype=torch.long).T.to(device)  # (n, b) -> (b, n)


def padding_share(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """Return the fraction of tokens in these batches that is padding."""
    longest = [max(lengths[place] for place in places) for places in batches]
    tokens = sum(n * len(places) for n, places in zip(longest, batches, strict=True))
    return 1 - sum(lengths[place] for places in batches for place in places) / tokens
