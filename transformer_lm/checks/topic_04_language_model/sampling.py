"""Check of topic 04: a continuation, sampled token by token from a model.

A small model replaces a trained one. Its predictions depend on every token of the context, on their positions and on
its mode, but the probabilities of the first, second, third most likely token are the same after every text. So the
rank of each sampled token shows whether the model was called correctly, and the counts of the ranks show whether the
probabilities are right.
"""

import functools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transformer_lm.checks.engine.calling import ONE_SEQUENCE
from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, passed
from transformer_lm.checks.engine.sampled import (
    SURPRISE,
    Ask,
    Case,
    asked_here,
    require_fresh,
    require_long,
    start_over,
    surprise,
    surprising,
    without_seed,
)
from transformer_lm.checks.topic_04_language_model.last_position_bits import returned_by

__all__ = ["sampling"]

sampling_hint = functools.partial(hint, exercise="sampling")

VOCABULARY = 7  # a prime number, so that the model below can distinguish all tokens at every position
ROWS, STEPS = 1500, 4  # the sampled tokens whose ranks are counted
LONG = 40  # tokens: by chance, two of 20 rows agree in all of them once in 10**13 times


class ReaderOfAll(nn.Module):
    """A substitute for a language model: a number computed from all tokens so far selects a row of logits.

    Each position multiplies its token by a different number. In train mode, another row is selected.
    """

    places: Tensor

    def __init__(self, table: Tensor, places: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table.clone())  # (v, v)
        self.register_buffer("places", places)  # (max_len,)
        self.made_graphs = False

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (b, n, v) for tokens (b, n).

        Raises ValueError if there are none or more than max_len of them.
        """
        _, n = tokens.shape
        if not 1 <= n <= len(self.places):
            error = ValueError(f"this model reads 1 to {len(self.places)} tokens, got {n}.")
            error.hint = sampling_hint("not-cropped")  # type: ignore[attr-defined]  # a common error, as with any model
            raise error
        sums = (self.places[:n] * (tokens + 1)).cumsum(dim=1)  # (b, n)
        logits = self.table[(sums + int(self.training)) % len(self.table)]
        self.made_graphs |= logits.requires_grad
        return logits


@dataclass(frozen=True)
class Choice:
    """How to sample: logits from the most likely token to the least, settings, and the resulting probabilities.

    `mistakes` holds pairs of a hint and the probabilities that result from that mistake.
    """

    logits: tuple[float, ...]
    temperature: float
    top_k: int
    chances: tuple[float, ...]
    mistakes: tuple[tuple[str, tuple[float, ...]], ...] = ()


def _shares(*weights: float) -> tuple[float, ...]:
    """Return weights normalised to sum to 1, one for each token; those that are not given are 0."""
    padded = [*weights, *[0] * (VOCABULARY - len(weights))]
    return tuple(weight / sum(weights) for weight in padded)


def _falling(ratio: float) -> tuple[float, ...]:
    """Return logits of tokens whose probabilities fall by a ratio, at temperature 1."""
    return tuple(-rank * math.log(ratio) for rank in range(VOCABULARY))


# Ratios whose probabilities are easy to compute by hand: each token is two thirds as likely as the one before it.
EXAMPLES = (
    Choice(
        logits=_falling(9 / 4),
        temperature=2.0,
        top_k=3,
        chances=_shares(9, 6, 4),
        mistakes=(
            (sampling_hint("temperature-ignored"), _shares(81, 36, 16)),
            (sampling_hint("temperature-multiplied"), _shares(6561, 1296, 256)),
            (sampling_hint("top-k-after-sampling"), _shares(15.420, 6, 4)),
            (sampling_hint("softmax-twice"), _shares(0.381, 0.326, 0.293)),
            (sampling_hint("softmax-twice"), _shares(0.369, 0.328, 0.303)),
            (sampling_hint("softmax-twice"), _shares(0.376, 0.323, 0.301)),
            (sampling_hint("equal-chances"), _shares(1, 1, 1)),
        ),
    ),
    Choice(
        logits=_falling(1.5**0.5),
        temperature=0.5,
        top_k=VOCABULARY,
        chances=_shares(729, 486, 324, 216, 144, 96, 64),
    ),
)


def _arguments(inputs: Mapping[str, Tensor | NDArray]) -> tuple[int, int, float, int]:
    return int(inputs["num_tokens"]), len(inputs["places"]), float(inputs["temperature"]), int(inputs["top_k"])


def _tried(inputs: Mapping[str, Tensor | NDArray], output: str) -> str:
    names = ("num_tokens", "max_len", "temperature", "top_k")
    options = ", ".join(f"{name}={value:g}" for name, value in zip(names, _arguments(inputs), strict=True))
    b, n = inputs["tokens"].shape
    mode = "train" if inputs["training"] else "eval"
    return f"better_sample_continuation(model in {mode} mode, tokens (b={b}, n={n}), {options})"


def _call(answer: Callable, inputs: Inputs) -> Iterator[object]:
    """Yield the continuation, after checking that the model is unchanged."""
    training = bool(inputs["training"])
    model = ReaderOfAll(inputs["table"], inputs["places"]).train(training)
    tried = _tried(inputs, "continuation")
    start_over(inputs)
    continuation = returned_by(answer, tried, model, inputs["tokens"], *_arguments(inputs))
    if model.training != training:
        mode, id = ("eval", "left-in-eval-mode") if training else ("train", "always-back-to-train-mode")
        yours = f"the model is in {mode} mode afterwards"
        raise CheckFailed(tried, yours, "the mode that it was in", sampling_hint(id))
    if model.made_graphs:
        raise CheckFailed(
            tried, "logits with a graph for gradients behind them", "logits alone", sampling_hint("with-gradients")
        )
    yield continuation


SAMPLING = PublicExercise(
    id="sampling",
    axes={"continuation": "b n"},
    trains=(),
    reads=("tokens",),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
    batched=False,
)


def sampling(answer: Callable) -> None:
    """Check the student's `better_sample_continuation`: what the model gets, and how often each token is drawn."""
    require_own(answer)
    with torch.random.fork_rng():
        examine_sampling(asked_here(SAMPLING, answer), random.Random(4), EXAMPLES)
    passed(SAMPLING.id, "the model gets the right context, and tokens are drawn with the right probabilities.")


def examine_sampling(ask: Ask, rng: random.Random, choices: tuple[Choice, ...]) -> None:
    """Raise CheckFailed unless every token follows from the text before it, with the probabilities of each choice."""
    for choice in choices:
        _examine_text(ask, rng, choice)
    for choice in choices:
        _examine_chances(ask, rng, choice)


def _examine_text(ask: Ask, rng: random.Random, choice: Choice) -> None:
    """Raise CheckFailed unless the most likely token is drawn wherever no other one can be."""
    max_len = rng.randint(4, 6)
    for b, n, num_tokens, training in (
        (8, 2, max_len + 3, True),
        (16, max_len + 3, 5, False),
        (11, max_len, 1, True),
    ):
        case = _case(rng, choice, b, n, num_tokens, max_len) | {"training": np.array(int(training))}
        _require_most_likely(
            ask, case | {"top_k": np.array(1), "temperature": np.array(1.0)}, sampling_hint("still-random")
        )
        _require_most_likely(ask, case | {"temperature": np.array(0.0)}, sampling_hint("temperature-of-zero"))
    try:
        alone = case | {"tokens": case["tokens"][:1], "top_k": np.array(1)}
        _require_most_likely(ask, alone, sampling_hint("still-random"))
    except CheckFailed as failed:
        raise CheckFailed(failed.tried, failed.yours, failed.expected, ONE_SEQUENCE) from failed


def _case(rng: random.Random, choice: Choice, b: int, n: int, num_tokens: int, max_len: int) -> Case:
    """Return prompts and a model with the logits of a choice: different tokens get them after each text."""
    v = len(choice.logits)
    most_likely = rng.sample(range(v), v)  # in each row: they all differ, so that the first token identifies the row
    table = np.zeros((v, v), dtype=np.float32)
    for row, first in zip(table, most_likely, strict=True):
        others = [token for token in range(v) if token != first]
        row[[first, *rng.sample(others, v - 1)]] = choice.logits
    return {
        "tokens": np.array([[rng.randrange(v) for _ in range(n)] for _ in range(b)]),
        "table": table,
        "places": np.array([rng.randrange(1, v) for _ in range(max_len)]),
        "num_tokens": np.array(num_tokens),
        "temperature": np.array(choice.temperature),
        "top_k": np.array(choice.top_k),
        "training": np.array(0),
        "seed": np.array(rng.getrandbits(32)),
    }


def _words(case: Case) -> str:
    return _tried(case, "continuation")


def _asked(ask: Ask, case: Case) -> NDArray:
    """Return the tokens that an answer adds, after checking that they are tokens that follow the prompt."""
    try:
        continuation = ask(case)
    except CheckFailed as failed:
        # We go by the messages of torch and Python, because nothing else tells these errors apart.
        if not case["temperature"] and re.search(r"\b(inf|nan)\b|invalid values|by zero", failed.failure.error):
            raise failed.with_hint(sampling_hint("temperature-of-zero")) from failed
        raise
    tried, prompt = _words(case), case["tokens"]
    require_long(tried, "continuation", continuation)
    (b, n), num_tokens = prompt.shape, int(case["num_tokens"])
    shape = (b, n + num_tokens)
    if continuation.shape != shape:
        max_len = len(case["places"])
        mistakes = {
            (b, max_len + num_tokens): "prompt-cut",
            (b, max_len + 1): "prompt-cut",
            (b, num_tokens): "prompt-missing",
            (b, n + num_tokens - 1): "one-too-few",
            (b, n + num_tokens + 1): "one-too-many",
        }
        if n < num_tokens and continuation.shape == (b, num_tokens) and np.array_equal(continuation[:, :n], prompt):
            mistakes[b, num_tokens] = "num-tokens-in-all"
        yours, expected = f"continuation of shape {continuation.shape}", f"continuation of shape {shape}"
        raise CheckFailed(tried, yours, expected, sampling_hint(mistakes.get(continuation.shape, "other-shape")))
    if not np.array_equal(continuation[:, :n], prompt):
        is_on_the_left = np.array_equal(continuation[:, num_tokens:], prompt)
        known = sampling_hint("on-the-left" if is_on_the_left else "prompt-changed")
        raise CheckFailed(tried, "a result that does not begin with the prompt", "the prompt, then new tokens", known)
    added = continuation[:, n:]
    if added.min() < 0 or added.max() >= len(case["table"]):
        yours, expected = f"numbers from {added.min()} to {added.max()}", f"tokens from 0 to {len(case['table']) - 1}"
        raise CheckFailed(tried, yours, expected, sampling_hint("numbers-that-are-no-tokens"))
    return added


# The parts of a text with t tokens and a prompt of n that a model may get by mistake: first position and last.
WRONG_TEXTS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    sampling_hint("last-token-only"): lambda t, n, max_len: (t - 1, t),
    sampling_hint("last-position-but-one"): lambda t, n, max_len: (max(0, t - max_len), t - 1),
    sampling_hint("first-position"): lambda t, n, max_len: (max(0, t - max_len), max(0, t - max_len) + 1),
    sampling_hint("cropped-to-the-first"): lambda t, n, max_len: (0, min(t, max_len)),
    sampling_hint("cropped-too-short"): lambda t, n, max_len: (max(0, t + 1 - max_len), t),
    sampling_hint("prompt-only"): lambda t, n, max_len: (max(0, n - max_len), n),
}


def _right_text(t: int, n: int, max_len: int) -> tuple[int, int]:
    return max(0, t - max_len), t


def _ranks(case: Case, added: NDArray, read: Callable = _right_text, training: int = 0) -> NDArray:
    """Return the rank of each added token, 0 for the most likely, if the model got this part of the text."""
    text = np.concatenate([case["tokens"], added], axis=1)
    n, places, table = case["tokens"].shape[1], case["places"], case["table"]
    ranks = []
    for t in range(n, text.shape[1]):
        start, end = read(t, n, len(places))
        sums = (text[:, start:end] + 1) @ places[: end - start]
        logits = table[(sums + training) % len(table)]  # (b, v)
        ranks.append((logits > np.take_along_axis(logits, text[:, t : t + 1], axis=1)).sum(axis=1))
    return np.stack(ranks, axis=1)  # (b, num_tokens)


def _require_most_likely(ask: Ask, case: Case, random_hint: str) -> None:
    """Raise CheckFailed unless every added token is the most likely one; a random one gets its own hint."""
    added = _asked(ask, case)
    ranks = _ranks(case, added)
    if not ranks.any():
        return
    again = _asked(ask, without_seed(case))
    known = random_hint if not np.array_equal(again, added) else _text_hint(case, added, ranks)
    yours = f"{(ranks > 0).sum()} of {ranks.size} tokens are not the most likely after the text before them"
    raise CheckFailed(_words(case), yours, "the most likely token at each step", known)


def _text_hint(case: Case, added: NDArray, ranks: NDArray) -> str:
    if case["training"] and not _ranks(case, added, training=1).any():
        return sampling_hint("in-train-mode")
    if not added.any():
        return sampling_hint("ranks-for-tokens")
    if (ranks == len(case["table"]) - 1).all():
        return sampling_hint("top-k-smallest")
    told = (known for known, read in WRONG_TEXTS.items() if not _ranks(case, added, read).any())
    return next(told, sampling_hint("another-text"))


def _examine_chances(ask: Ask, rng: random.Random, choice: Choice) -> None:
    """Raise CheckFailed unless each rank is as frequent as it should be among many tokens."""
    case = _case(rng, choice, ROWS, 1, STEPS, max_len=3)
    case["tokens"][:] = case["tokens"][0]
    few = case | {"tokens": case["tokens"][:20], "num_tokens": np.array(LONG)}
    added = [_asked(ask, each) for each in (few, without_seed(few), few)]
    if (added[0] == added[0][0]).all():
        known = sampling_hint("one-token-for-all" if _ranks(few, added[0]).any() else "always-the-most-likely")
        raise CheckFailed(_words(few), "the same tokens in all rows", "tokens that are sampled", known)
    require_fresh(_words(few), *added)
    ranks = _ranks(case, _asked(ask, case))
    _require_chances(case, choice, ranks)
    _require_independence(case, choice, ranks)
    alike = len(few["tokens"]) - len(np.unique(added[0], axis=0))
    if alike:
        yours, expected = f"{alike} rows are the same as another, to the last token", "no two rows alike"
        raise CheckFailed(_words(few), yours, expected, sampling_hint("rows-in-pairs"))


def _require_chances(case: Case, choice: Choice, ranks: NDArray) -> None:
    counts = np.bincount(ranks.flatten(), minlength=len(choice.chances))
    if max(_surprises(choice.chances, counts)) > SURPRISE:
        share, chance = counts / ranks.size, choice.chances
        worst = int(np.argmax(np.abs(share - chance)))
        which = f"the token ranked {worst + 1} by probability"
        yours, expected = f"{which} is drawn {share[worst]:.0%} of the time", f"about {chance[worst]:.0%}"
        raise CheckFailed(_words(case), yours, expected, _chance_hint(choice, counts))


def _surprises(chances: tuple[float, ...], counts: NDArray) -> list[float]:
    return [surprise(count, counts.sum(), chance) for count, chance in zip(counts, chances, strict=True)]


def _chance_hint(choice: Choice, counts: NDArray) -> str:
    told = [(known, _surprises(chances, counts)) for known, chances in choice.mistakes]
    for known, surprises in sorted(told, key=lambda pair: sum(pair[1])):
        if max(surprises) <= SURPRISE:
            return known
    if counts[choice.top_k :].any():
        return sampling_hint("top-k-too-many")
    return sampling_hint("top-k-too-few") if counts[choice.top_k - 1] == 0 else sampling_hint("other-chances")


def _require_independence(case: Case, choice: Choice, ranks: NDArray) -> None:
    """Raise CheckFailed unless two rows, and two steps of a row, agree as often as they should by chance."""
    agreeing = sum(chance**2 for chance in choice.chances)
    for known, same, what in (
        (sampling_hint("rows-in-pairs"), ranks[1::2, 0] == ranks[::2, 0], "rows have the same first token"),
        (
            sampling_hint("one-random-number-for-all-steps"),
            ranks[:, 0] == ranks[:, 1],
            "times, the second token is as likely as the first",
        ),
    ):
        if surprising(same.sum(), same.size, agreeing):
            yours = f"{same.sum()} of {same.size} {what}"
            raise CheckFailed(_words(case), yours, f"about {agreeing * same.size:.0f}", known)
