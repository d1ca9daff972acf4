"""Random text that repeats itself, to test for induction heads and to train them.

Within a repeat no token occurs twice, so an earlier token has exactly one successor.
"""

from dataclasses import replace

import torch
from torch import Tensor

from transformer_lm.texts.corpora import Corpus


def repeated_tokens(vocab_size: int, b: int, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Return sequences that repeat a random string of distinct tokens of varying length, (b, n).

    The lengths differ, because otherwise a head that attends a fixed distance back would pass for an induction head.

    Raises ValueError if no string of three tokens fits twice.
    """
    longest = min(vocab_size, n // 2)
    if longest < 3:
        raise ValueError(f"vocab_size and n // 2 must be 3 or more, got {vocab_size} and {n // 2}.")
    lengths = torch.randint(max(3, longest // 2), longest + 1, (b, 1), generator=generator)
    orders = torch.rand(b, vocab_size, generator=generator).argsort(dim=1)  # each row is a random order of all tokens
    return orders.gather(1, torch.arange(n) % lengths)


def with_repeats(corpus: Corpus, share: float, n: int, seed: int = 0) -> Corpus:
    """Return a corpus in which a fraction of the training passages of n tokens is repeated random text.

    Validation and test text are unchanged. Raises ValueError unless the fraction is between 0 and 1.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1, got {share}.")
    generator = torch.Generator().manual_seed(seed)
    passages = corpus.train[: len(corpus.train) // n * n].view(-1, n)
    added = round(len(passages) * share / (1 - share))
    repeats = repeated_tokens(corpus.tokenizer.vocab_size, added, n, generator).to(passages.dtype)
    mixed = torch.cat([passages, repeats])
    return replace(corpus, train=mixed[torch.randperm(len(mixed), generator=generator)].flatten())
