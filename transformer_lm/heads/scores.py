"""How well each head follows a pattern, compared with a uniform head and a position-only baseline (null model).

    measured = measure_heads(model, batches, tokenizer)
    measured.patterns["word_start"].score  # (l, h)
    measured.names()  # what each head does, or None

A score is the mean weight that a head puts on the keys of a pattern, over the queries that have such a key. `chance` is
the score of a head that attends uniformly to everything before it. `null` is the score of a head that gives each
distance i - j the weight that this head gives it on average: what position alone explains. We average scores, not maps,
because the mean map of a head that attends to content does not show that content.

Axes: l layers, h heads, b batch, n positions, i of the query, j of the key, v vocabulary, c classes of characters.
Sums are updated batch by batch, so memory does not grow with the number of batches.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from transformer_lm.answers import sealed_while_open
from transformer_lm.heads.character_classes import CLASSES, Alphabet
from transformer_lm.heads.patterns import PATTERNS, Pattern
from transformer_lm.heads.recording import record_attention
from transformer_lm.heads.repeats import repeated_tokens
from transformer_lm.shapes import ShapeError, match_axes
from transformer_lm.texts.tokenizers import Tokenizer

INDUCTION = "induction"  # measured on repeated random text: in real text, other behaviour looks too similar
BY_PLACE = ("current", "previous", "first")  # patterns of position, which need not exceed the null
# A head is named after a pattern if its score is at least this large, and this far above its baseline.
SCORE, EXCESS = 0.35, 0.2
REPEATED = 64  # sequences of repeated random text


@dataclass(frozen=True)
class PatternScore:
    """The scores of all heads for one pattern; nan if no query has such a key.

    Shapes:
        score  (l, h)
        null   (l, h)
    """

    score: Tensor
    chance: float
    null: Tensor
    queries: int

    def baseline(self, by_place: bool) -> Tensor:
        """Return what a score has to exceed, (l, h): chance and, unless the pattern is about position, the null."""
        chance = torch.full_like(self.null, self.chance)
        return chance if by_place else torch.maximum(chance, self.null)


@sealed_while_open("class-mass")
@dataclass(frozen=True)
class Measured:
    """The measurements of every head.

    Shapes:
        profile   (l, h, n)     mean weight by the distance i - j
        mean_map  (l, h, i, j)  mean weight by position
        pairs     (l, h, v, v)  mean weight from queries with one token to all keys with another; nan if
                                there is no such query
        expected  (v, v)        the same for a uniform head
        counts    (v)           number of queries with each token
        entropy   (l, h)        mean entropy of the rows, as a fraction of a uniform head's
        distance  (l, h)        mean of i - j, weighted by attention
        largest   (l, h)        mean of the largest weight in each row
    """

    patterns: dict[str, PatternScore]
    profile: Tensor
    mean_map: Tensor
    pairs: Tensor
    expected: Tensor
    counts: Tensor
    entropy: Tensor
    distance: Tensor
    largest: Tensor
    alphabet: Alphabet

    def lift(self) -> Tensor:
        """Return the weight from each token to each other, divided by that of a uniform head, (l, h, v, v)."""
        return self.pairs / self.expected

    def class_mass(self) -> Tensor:
        """Return the mean weight from queries of a class to keys of a class, (l, h, c, c); rows sum to 1 or are nan."""
        member = F.one_hot(self.alphabet.classes, len(CLASSES)).to(self.pairs)  # (v, c)
        given = member.T @ (self.pairs.nan_to_num() * self.counts[:, None]) @ member
        return given / (member.T @ self.counts)[:, None]  # 0 / 0 where a class has no query

    def key_mass(self) -> Tensor:
        """Return the mean weight that keys of each class receive from all queries, (l, h, c); it sums to 1."""
        member = F.one_hot(self.alphabet.classes, len(CLASSES)).to(self.pairs)
        return (self.pairs.nan_to_num() * self.counts[:, None]).sum(dim=2) @ member / self.counts.sum()

    def offset_scores(self) -> dict[str, PatternScore]:
        """Return the scores of the distances that at least half of all queries can look back: "offset 2" and on."""
        n = self.profile.shape[-1]
        b = int(self.counts.sum()) // n
        found = {}
        for offset in range(2, n // 2 + 1):
            chance = sum(1 / (i + 1) for i in range(offset, n)) / (n - offset)
            score = self.profile[..., offset]
            found[f"offset {offset}"] = PatternScore(score, chance, score, b * (n - offset))
        return found

    def names(self) -> list[list[str | None]]:
        """Return what each head does, layer by layer: the pattern that stands out most, or None if none does.

        A pattern stands out if its score is at least 0.35 and exceeds its baseline by at least 0.2. The baseline is
        chance and, unless the pattern is about position, the null. The pattern with the largest excess gives the name.
        """
        candidates = self.patterns | self.offset_scores()
        excesses = torch.stack([self._excess(name, found) for name, found in candidates.items()], dim=-1)
        best, names = excesses.max(dim=-1), list(candidates)
        return [
            [names[place] if excess >= EXCESS else None for excess, place in zip(*row, strict=True)]
            for row in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def _excess(self, name: str, found: PatternScore) -> Tensor:
        """Return by how much the score of each head exceeds its baseline, or 0 if the score is too small, (l, h)."""
        baseline = found.baseline(is_about_place(name))
        return torch.where(found.score >= SCORE, found.score - baseline, 0.0)


def is_about_place(name: str) -> bool:
    """Return whether a pattern is a position or a distance, which need not exceed the null."""
    return name in BY_PLACE or name.startswith("offset")


@sealed_while_open("offset-profile")
def measure_heads(
    model: nn.Module, batches: Iterable[Tensor], tokenizer: Tokenizer, seed: int = 0, progress: bool = True
) -> Measured:
    """Measure what every head of a language model does on batches of text, all of the same length n.

    Induction is measured on repeated random text of the same length.

    Shapes:
        batches  (b, n) each

    Raises ValueError if `batches` is empty, ShapeError if the lengths differ.
    """
    alphabet = Alphabet.of(tokenizer)
    text = HeadSums(alphabet, {name: pattern for name, pattern in PATTERNS.items() if name != INDUCTION})
    for tokens in tqdm(batches, desc="Reading", disable=None if progress else True, leave=False):
        text.add(record_attention(model, tokens), tokens)
    measured = text.measured()
    n = measured.profile.shape[-1]
    if min(tokenizer.vocab_size, n // 2) < 3:  # too short to repeat
        return measured
    repeats = HeadSums(alphabet, {INDUCTION: PATTERNS[INDUCTION]})
    generator = torch.Generator().manual_seed(seed)
    for tokens in repeated_tokens(tokenizer.vocab_size, REPEATED, n, generator).split(16):
        repeats.add(record_attention(model, tokens), tokens)
    measured.patterns.update(repeats.measured().patterns)
    return measured


@sealed_while_open("offset-profile")
class HeadSums:
    """Sums over the attention on many texts of one length, which `measured` turns into means."""

    def __init__(self, alphabet: Alphabet, patterns: Mapping[str, Pattern]) -> None:
        self.alphabet = alphabet
        self._patterns = {name: _PatternSums(pattern) for name, pattern in patterns.items()}
        self._sequences = 0
        self._sums: dict[str, Tensor] = {}

    def add(self, recording: Mapping[str, Tensor], tokens: Tensor) -> None:
        """Add the attention of every layer on a batch of texts.

        Shapes:
            recording  (b, h, i, j) each
            tokens     (b, n)
        """
        weights = torch.stack([layer.detach().cpu().double() for layer in recording.values()])  # (l, b, h, i, j)
        tokens = tokens.cpu().long()
        n = match_axes(weights=(weights, "l b h n n"), tokens=(tokens, "b n"))["n"]
        before = self._sums.get("map")
        if before is not None and before.shape[-1] != n:
            raise ShapeError(f"batches must all have one length, got n={before.shape[-1]} and n={n}.")
        self._sequences += len(tokens)

        places = torch.arange(n)
        back = (places[:, None] - places).clamp(min=0)  # (i, j)
        uniform = torch.ones(n, n).double().tril() / (places[:, None] + 1)
        total = weights.sum(dim=1)  # (l, h, i, j)
        # The mean entropy of the rows, each divided by its maximum ln(i + 1); the first row has only one key.
        entropy = torch.special.entr(weights).sum(dim=-1)[..., 1:] / (places[1:] + 1).log()  # (l, b, h, n - 1)
        has_token = F.one_hot(tokens, len(self.alphabet.characters)).double()  # (b, n, v)
        self._add("map", total)
        self._add("entropy", entropy.sum(dim=(1, 3)))
        self._add("distance", (total * back).sum(dim=(-2, -1)))
        self._add("largest", weights.amax(dim=-1).sum(dim=(1, 3)))
        self._add("pairs", torch.einsum("biv,lbhiw->lhvw", has_token, weights @ has_token[None, :, None]))
        self._add("expected", torch.einsum("biv,biw->vw", has_token, uniform @ has_token))
        self._add("counts", has_token.sum(dim=(0, 1)))
        for sums in self._patterns.values():
            sums.add(weights, sums.pattern(tokens, self.alphabet), uniform)

    def measured(self) -> Measured:
        """Return the means. Raises ValueError if nothing was added."""
        if not self._sequences:
            raise ValueError("batches must hold a text, got none.")
        sums, n = self._sums, self._sums["map"].shape[-1]
        mean_map = sums["map"] / self._sequences
        profile = torch.stack([mean_map.diagonal(-offset, -2, -1).mean(dim=-1) for offset in range(n)], dim=-1)
        rows = self._sequences * n
        return Measured(
            patterns={name: pattern.scored(profile) for name, pattern in self._patterns.items()},
            profile=profile,
            mean_map=mean_map,
            pairs=sums["pairs"] / sums["counts"][:, None],
            expected=sums["expected"] / sums["counts"][:, None],
            counts=sums["counts"],
            entropy=sums["entropy"] / (rows - self._sequences),
            distance=sums["distance"] / rows,
            largest=sums["largest"] / rows,
            alphabet=self.alphabet,
        )

    def _add(self, name: str, more: Tensor) -> None:
        self._sums[name] = self._sums.get(name, 0) + more


@sealed_while_open("pattern-score")
class _PatternSums:
    """Sums for one pattern: the weight that every head gives it, and where its keys are."""

    def __init__(self, pattern: Callable) -> None:
        self.pattern = pattern
        self._mass: Tensor | float = 0.0  # (l, h)
        self._chance = 0.0
        self._keys: Tensor | int = 0  # (i, j): how often j is a key of i
        self._queries = 0

    def add(self, weights: Tensor, mask: Tensor, uniform: Tensor) -> None:
        """Add a batch: weights (l, b, h, i, j), the pattern's mask (b, i, j), the weights of a uniform head (i, j)."""
        wanted = mask.double()
        self._mass = self._mass + torch.einsum("lbhij,bij->lh", weights, wanted)
        self._keys = self._keys + mask.sum(dim=0)
        self._chance += (wanted * uniform).sum().item()
        self._queries += int(mask.any(dim=-1).sum())

    def scored(self, profile: Tensor) -> PatternScore:
        """Return the scores, given the mean weight of each head at each distance, (l, h, n)."""
        if not self._queries:
            nothing = torch.full(profile.shape[:2], math.nan, dtype=torch.double)
            return PatternScore(nothing, math.nan, nothing, 0)
        assert isinstance(self._mass, Tensor)
        null = (by_distance(profile) * self._keys).sum(dim=(-2, -1))  # (l, h)
        return PatternScore(
            self._mass / self._queries, self._chance / self._queries, null / self._queries, self._queries
        )


@sealed_while_open("position-null")
def by_distance(profile: Tensor) -> Tensor:
    """Return the weights of a head that follows a profile by distance, with rows normalised to sum to 1.

    Shapes:
        profile  (..., n)
        returns  (..., i, j)
    """
    n = profile.shape[-1]
    places = torch.arange(n)
    back = places[:, None] - places  # (i, j)
    weights = profile[..., back.clamp(min=0)].tril()
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def rollout(recording: Mapping[str, Tensor]) -> Tensor:
    """Return how much of each position reaches each other one through all layers, averaging heads, (b, i, j).

    In each layer, half comes from the residual connection and half from the average of the heads. Abnar and Zuidema,
    Quantifying Attention Flow in Transformers, 2020, arXiv:2005.00928.
    """
    flow = None
    for weights in recording.values():
        kept = torch.eye(weights.shape[-1], device=weights.device)
        layer = (weights.mean(dim=1) + kept) / 2  # (b, i, j)
        flow = layer if flow is None else layer @ flow
    assert flow is not None
    return flow
