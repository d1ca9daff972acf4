"""Decoding translations: greedy search, sampling and beam search.

Each function takes an encoder-decoder. A model with `begin` and `next_scores` (see modeling_encoder_decoder.py) keeps a
cache; any other is called as `model(source, target)` on all tokens at each step.

Axes: b batch, m positions of the source, n of the target, k beams, v vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transformer_lm.answers import sealed_while_open
from transformer_lm.lm import evaluating
from transformer_lm.sampling import next_probabilities
from transformer_lm.shapes import match_axes
from transformer_lm.texts.batching import padded
from transformer_lm.texts.word_tokenizers import END, PAD, START, PairTokenizer

MAX_LEN = 100


class _Anew:
    """The state of a model without a cache: all tokens so far."""

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self.source, self.target = source, target

    def selected(self, rows: Tensor) -> "_Anew":
        """Return the state with these rows."""
        return _Anew(self.source[rows], self.target[rows])


class _Reader:
    """A uniform interface for models with and without a cache."""

    def __init__(self, model: Any, cached: bool) -> None:
        self.model, self.remembers = model, cached and hasattr(model, "next_scores")

    def begin(self, source: Tensor) -> Any:
        """Return the state after reading the source."""
        return self.model.begin(source) if self.remembers else _Anew(source, source[:, :0])

    def next_scores(self, tokens: Tensor, state: Any) -> Tensor:
        """Return the logits after one more token of each target, (b, v)."""
        if self.remembers:
            return self.model.next_scores(tokens, state)
        state.target = torch.cat((state.target, tokens[:, None]), dim=1)
        return self.model(state.source, state.target)[:, -1]


@sealed_while_open("greedy-decode")
def greedy_decode(
    model: nn.Module,
    source: Tensor,
    start: int = START,
    end: int = END,
    pad: int = PAD,
    max_len: int = MAX_LEN,
    cached: bool = True,
) -> Tensor:
    """Return greedy translations: add the likeliest token until every sentence has ended or has max_len tokens.

    Shapes:
        source   (b, m)
        returns  (b, n), n <= max_len: the tokens after START, with END, then padding
    """
    return _decoded(model, source, lambda scores: scores.argmax(dim=-1), start, end, pad, max_len, cached)


@sealed_while_open("greedy-decode")
def sample_decode(
    model: nn.Module,
    source: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    max_len: int = MAX_LEN,
    cached: bool = True,
) -> Tensor:
    """Return translations sampled token by token from `next_probabilities` of sampling.py, reproducible by seed.

    Shapes:
        source   (b, m)
        returns  (b, n), n <= max_len: the tokens after START, with END, then padding
    """
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)

    def drawn(scores: Tensor) -> Tensor:
        probabilities = next_probabilities(scores.float().cpu(), temperature, top_k, top_p)
        return torch.multinomial(probabilities, 1, generator=generator)[:, 0].to(scores.device)

    return _decoded(model, source, drawn, START, END, PAD, max_len, cached)


@sealed_while_open("greedy-decode")
@torch.no_grad()
def _decoded(
    model: nn.Module,
    source: Tensor,
    choose: Callable[[Tensor], Tensor],
    start: int,
    end: int,
    pad: int,
    max_len: int,
    cached: bool,
) -> Tensor:
    b = match_axes(source=(source, "b m"))["b"]
    max_len = _limit(model, max_len)
    with evaluating(model) as device:
        source = source.to(device)
        reader = _Reader(model, cached)
        state, tokens = reader.begin(source), torch.full((b,), start, device=device)
        ended = torch.zeros(b, dtype=torch.bool, device=device)
        found: list[Tensor] = []
        while len(found) < max_len and not ended.all():
            scores = reader.next_scores(tokens, state).clone()
            scores[:, pad] = -math.inf  # padding is not a word
            tokens = choose(scores).masked_fill(ended, pad)
            found.append(tokens)
            ended = ended | (tokens == end)
    return torch.stack(found, dim=1)


@sealed_while_open("beam-search")
@torch.no_grad()
def beam_search(
    model: nn.Module,
    source: Tensor,
    start: int = START,
    end: int = END,
    beams: int = 4,
    max_len: int = MAX_LEN,
    alpha: float = 0.7,
    pad: int = PAD,
    cached: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the best translation of each source that a beam search finds, and its score.

    The score of a hypothesis is the sum of its tokens' log-probabilities, END included, divided by their number to the
    power of alpha; alpha = 0 favours short ones. In each step every unfinished hypothesis is extended by every token,
    finished ones stay unchanged, and the best `beams` of all these are kept, until all are finished or have max_len
    tokens. One beam is greedy search; as many beams as possible hypotheses is exhaustive search.

    Shapes:
        source   (b, m)
        returns  (b, n), n <= max_len: the tokens after START, with END, then padding; and (b,) the scores
    """
    b = match_axes(source=(source, "b m"))["b"]
    max_len = _limit(model, max_len)
    if beams < 1:
        raise ValueError(f"beams must be 1 or more, got {beams}.")
    with evaluating(model) as device:
        reader, k = _Reader(model, cached), beams
        state = reader.begin(source.to(device)).selected(torch.arange(b, device=device).repeat_interleave(k))
        first_rows = torch.arange(b, device=device)[:, None] * k  # (b, 1): where the hypotheses of each source begin
        found = torch.empty(b, k, 0, dtype=torch.long, device=device)
        tokens = torch.full((b * k,), start, device=device)
        totals = torch.full((b, k), -math.inf, device=device)  # sums of log-probabilities
        totals[:, 0] = 0.0  # one empty hypothesis at the start; the others cannot be extended
        lengths, ended = torch.zeros_like(totals), torch.zeros_like(totals, dtype=torch.bool)
        while found.shape[2] < max_len and not ended.all():
            steps = reader.next_scores(tokens, state).log_softmax(dim=-1).unflatten(0, (b, k))  # (b, k, v)
            steps[:, :, pad] = -math.inf  # padding is not a word
            stays = torch.full_like(steps, -math.inf)
            stays[:, :, pad] = 0.0  # a finished hypothesis continues in only one way, at no cost
            sums = totals[:, :, None] + torch.where(ended[:, :, None], stays, steps)
            counts = lengths + ~ended  # (b, k)
            ranked = (sums / counts[:, :, None] ** alpha).flatten(1)  # (b, k * v)
            best = ranked.topk(k).indices  # (b, k), the best first
            rows, chosen = best // steps.shape[2], best % steps.shape[2]
            found = torch.cat((found.gather(1, rows[:, :, None].expand_as(found)), chosen[:, :, None]), dim=2)
            totals, lengths = sums.flatten(1).gather(1, best), counts.gather(1, rows)
            ended = ended.gather(1, rows) | (chosen == end)
            ended |= totals.isinf()  # fewer than k hypotheses so far: this one is empty
            state, tokens = state.selected((first_rows + rows).flatten()), chosen.flatten()
    n = int(lengths[:, 0].max())
    return found[:, 0, :n], totals[:, 0] / lengths[:, 0] ** alpha


def _limit(model: nn.Module, max_len: int) -> int:
    """Return the largest number of tokens to generate, which the model may limit too. Raises ValueError if below 1."""
    if max_len < 1:
        raise ValueError(f"max_len must be 1 or more, got {max_len}.")
    return min(max_len, getattr(getattr(model, "config", None), "max_len", max_len))


@sealed_while_open("greedy-decode")
def translated(
    model: nn.Module, tokenizer: PairTokenizer, sentences: Sequence[str], beams: int = 1, **options: Any
) -> list[str]:
    """Return translations of sentences, by greedy search for one beam, else by beam search, with the options of either.

    Raises ValueError if `sentences` is empty, or a sentence has no words.
    """
    if isinstance(sentences, str) or not sentences:
        raise ValueError(f"sentences must be a list of at least one, got {sentences!r}.")
    tokens = [tokenizer.source.encode(sentence) for sentence in sentences]
    if empty := [number for number, words in enumerate(tokens) if not words]:
        raise ValueError(f"every sentence must have a word, got none in number {empty[0]}.")
    source = padded(tokens, PAD)
    found = (
        greedy_decode(model, source, **options) if beams == 1 else beam_search(model, source, beams=beams, **options)[0]
    )
    return [tokenizer.target.decode(words) for words in found]
