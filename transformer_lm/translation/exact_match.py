"""Exact match and alignment on toy languages, whose right translations and alignments are known.

Axes: b batch, m positions of the source, n positions of the target.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transformer_lm.heads.recording import record_attention
from transformer_lm.lm import evaluating
from transformer_lm.texts.pairs import Pair, padded_pairs
from transformer_lm.texts.toy_languages import toy_translation
from transformer_lm.texts.word_tokenizers import END, PAD, START, PairTokenizer
from transformer_lm.translation.decoding import greedy_decode
from transformer_lm.translation.targets import shift_target

AT_ONCE = 250  # pairs


def exact_translations(model: nn.Module, pairs: Sequence[Pair]) -> list[bool]:
    """Return for each pair whether greedy decoding gives the target exactly, END included."""
    longest = max(len(target) for _, target in pairs) + 1
    order = sorted(range(len(pairs)), key=lambda place: len(pairs[place][0]))
    exact = [False] * len(pairs)
    for start in range(0, len(order), AT_ONCE):
        places = order[start : start + AT_ONCE]
        source, _ = padded_pairs([pairs[place] for place in places])
        for place, found in zip(places, greedy_decode(model, source, max_len=longest).tolist(), strict=True):
            words = [*pairs[place][1], END]
            exact[place] = found[: len(words)] == words
    return exact


@torch.no_grad()
def cross_attention_map(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Return the cross-attention at each position of the target, averaged over the heads of the last layer.

    Shapes:
        source   (b, m)
        target   (b, n)  begins with START
        returns  (b, n, m)
    """
    look = getattr(model, "attention_map", None)
    if look is not None:  # a recurrent network, which has one head
        with evaluating(model) as device:
            return look(source.to(device), target.to(device))
    maps = record_attention(model, source, target)
    *_, last = (weights for name, weights in maps.items() if name.endswith("cross_attention.weights"))
    return last.mean(dim=1)


def aligned_share(model: nn.Module, tokenizer: PairTokenizer, pairs: Sequence[Pair]) -> float:
    """Return the fraction of target words whose attention is strongest at the source word that they come from.

    The model gets the right words so far; END has no source word, and is left out.
    """
    found = count = 0
    for start in range(0, len(pairs), AT_ONCE):
        some = pairs[start : start + AT_ONCE]
        source, target = padded_pairs(some)
        inputs, _ = shift_target(target, START, END, PAD)
        looked = cross_attention_map(model, source, inputs).argmax(dim=-1).cpu()  # (b, n)
        for (words, _), row in zip(some, looked, strict=True):
            right = torch.tensor(toy_translation(tokenizer.source.decode(words)).alignment)
            found += int((row[: len(right)] == right).sum())
            count += len(right)
    return found / count
