"""Sampling from a language model, token by token.

A model sees at most the last max_len tokens. When its context window is full, we drop the oldest quarter and process
the rest again, so that the KV cache is always what the model would compute from these tokens alone.

Axes: b batch, n positions, v vocabulary.
"""

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transformer_lm.answers import sealed_while_open
from transformer_lm.lm import evaluating
from transformer_lm.shapes import match_axes

if TYPE_CHECKING:
    from transformer_lm import modeling_lm
    from transformer_lm.texts.tokenizers import Tokenizer

KEPT = 3  # quarters of a full context window


@sealed_while_open("next-probabilities")
def next_probabilities(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Return the probability of each token to be sampled next.

    Logits are divided by the temperature: below 1, likely tokens become likelier, and 0 leaves only the likeliest token
    (the first of several). Then only the top_k likeliest tokens are kept (ties with the last are kept too, and a top_k
    above the vocabulary size keeps all), and of those only the likeliest that together reach a probability of top_p
    (nucleus sampling: Holtzman et al., The Curious Case of Neural Text Degeneration, 2019, arXiv:1904.09751).

    Shapes:
        logits   (b, v)
        returns  (b, v), rows sum to 1

    Raises ValueError for a temperature below 0, top_k below 1, or top_p that is not above 0 and at most 1.
    """
    v = match_axes(logits=(logits, "b v"))["v"]
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be 0 (greedy) or more, and finite, got {temperature}.")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"top_k must be a whole number from 1 on, or None for all tokens, got {top_k}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, or None for all tokens, got {top_p}.")
    if temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
    temperature = max(temperature, torch.finfo(logits.dtype).tiny)  # a smaller one would be rounded to 0
    scores = (logits - logits.max(-1, keepdim=True).values) / temperature  # at most 0
    if top_k is not None and top_k < v:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], -math.inf)
    probabilities = scores.softmax(-1)
    if top_p is not None and top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        before = ordered.cumsum(-1) - ordered  # the total probability of all likelier tokens
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
        probabilities = probabilities.masked_fill(dropped, 0.0)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    return probabilities


@sealed_while_open("sampling")
def sampled_tokens(
    model: "modeling_lm.TransformerLM",
    prompt: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    cached: bool = True,
) -> Iterator[Tensor]:
    """Yield the next token of each sequence, (b,), without end; take as many as you want.

    The same seed gives the same tokens, with or without the cache. The model is in eval mode while it computes, and
    back in its previous mode at each yield.

    Shapes:
        prompt   (b, n)

    Raises ValueError for an empty prompt or tokens outside the vocabulary, and what `next_probabilities` raises.
    """
    config = model.config
    if prompt.numel() == 0:
        raise ValueError("prompt must have at least one token, got none: a line break is a good start.")
    match_axes(prompt=(prompt, "b n"))
    prompt = prompt.long().cpu()  # where tokens are sampled
    if prompt.min() < 0 or prompt.max() >= config.vocab_size:
        outside = prompt[(prompt < 0) | (prompt >= config.vocab_size)][0]
        raise ValueError(f"prompt must have tokens from 0 to {config.vocab_size - 1}, got {outside}.")
    choice = temperature, top_k, top_p
    next_probabilities(torch.zeros(1, config.vocab_size), *choice)  # refuse wrong options now, not at the first yield
    return _tokens(model, prompt[:, -config.max_len :], choice, seed, cached)


@sealed_while_open("sampling")
def _tokens(
    model: "modeling_lm.TransformerLM",
    context: Tensor,
    choice: tuple[float, int | None, float | None],
    seed: int | None,
    cached: bool,
) -> Iterator[Tensor]:
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    max_len = model.config.max_len
    cache: modeling_lm.Cache | None = None
    unread = context
    while True:
        with torch.inference_mode(), evaluating(model) as device:
            if cache is not None:
                logits = model.read_one(unread.to(device), cache)
            else:
                cache = model.new_cache(len(context)) if cached else None
                logits = model(context.to(device), cache)[:, -1]
            logits = logits.float().cpu()
        tokens = torch.multinomial(next_probabilities(logits, *choice), 1, generator=generator)  # (b, 1)
        yield tokens[:, 0]
        context = torch.cat((context, tokens), dim=1)
        unread = tokens
        if context.shape[1] > max_len:
            context = context[:, -max(1, KEPT * max_len // 4) :]
            cache = None


@sealed_while_open("sampling")
def continuation(model: "modeling_lm.TransformerLM", prompt: Tensor, num_tokens: int, **options: Any) -> Tensor:
    """Return num_tokens tokens that continue each prompt; the options are those of `sampled_tokens`.

    Shapes:
        prompt   (b, n)
        returns  (b, num_tokens)

    Raises ValueError for a negative num_tokens, and what `sampled_tokens` raises.
    """
    sampled = _first(num_tokens, sampled_tokens(model, prompt, **options))
    tokens = torch.empty(len(prompt), num_tokens, dtype=torch.long)
    for place, drawn in enumerate(sampled):
        tokens[:, place] = drawn
    return tokens.to(prompt.device)


@sealed_while_open("sampling")
def sampled_text(
    model: "modeling_lm.TransformerLM", tokenizer: "Tokenizer", prompt: str, num_tokens: int, **options: Any
) -> Iterator[str]:
    """Yield the text that continues a prompt, piece by piece as it is sampled; options as in `sampled_tokens`.

    A character of several tokens is yielded with the last of them; an incomplete one at the end is never yielded.

    Raises ValueError for a prompt with characters that the tokenizer does not know, and what `continuation` raises.
    """
    tokens = torch.tensor([tokenizer.encode(prompt)], dtype=torch.long)  # (1, n)
    sampled = _first(num_tokens, sampled_tokens(model, tokens, **options))
    decode = tokenizer.decoder()
    return (decode(int(drawn)) for drawn in sampled)


def _first(num_tokens: int, sampled: Iterator[Tensor]) -> Iterator[Tensor]:
    if num_tokens < 0:
        raise ValueError(f"num_tokens must be 0 or more, got {num_tokens}.")
    return itertools.islice(sampled, num_tokens)
