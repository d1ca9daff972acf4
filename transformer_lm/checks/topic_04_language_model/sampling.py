"""Check of topic 04: a continuation, sampled token by token from a model.

A small model replaces a trained one. Its predictions depend on every token of the context, on their positions and on
its mode, but the probabilities of the first, second, third most likely token are the same after every text. So the
rank of each sampled token shows whether the model was called correctly, and the counts of the ranks show whether the
probabilities are right.
"""

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
from transformer_lm.checks.topic_04_language_model import sampling_hints as hints
from transformer_lm.checks.topic_04_language_model.last_position_bits import returned_by

__all__ = ["sampling"]

VOCABULARY = 7  # a prime number, so that the model below can distinguish all tokens at every position
ROWS, STEPS = 1500, 4  # the sampled tokens whose ranks are counted
LONG = 40  # tokens: by chance, two of 20 rows agree in all of them once in 10**13 times


class ReaderOfAll(nn.Module):
    """A stand-in for a language model: a number computed from all tokens so far selects a row of logits.

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
            error.hint = hints.NOT_CROPPED  # type: ignore[attr-defined]  # a common error, as of any model
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
            (hints.TEMPERATURE_IGNORED, _shares(81, 36, 16)),
            (hints.TEMPERATURE_MULTIPLIED, _shares(6561, 1296, 256)),
            (hints.TOP_K_AFTER, _shares(15.420, 6, 4)),
            (hints.SOFTMAX_TWICE, _shares(0.381, 0.326, 0.293)),
            (hints.SOFTMAX_TWICE, _shares(0.369, 0.328, 0.303)),
            (hints.SOFTMAX_TWICE, _shares(0.376, 0.323, 0.301)),
            (hints.EQUAL_CHANCES, _shares(1, 1, 1)),
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
        mode, hint = ("eval", hints.LEFT_IN_EVAL) if training else ("train", hints.LEFT_IN_TRAINING)
        raise CheckFailed(tried, f"the model is in {mode} mode afterwards", "the mode that it was in", hint)
    if model.made_graphs:
        raise CheckFailed(tried, "logits with a graph for gradients behind them", "logits alone", hints.GRADIENTS)
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
    """Check the student's `better_sample_continuation`: what the model reads, and how often each token is drawn."""
    require_own(answer)
    with torch.random.fork_rng():
        examine_sampling(asked_here(SAMPLING, answer), random.Random(4), EXAMPLES)
    passed(SAMPLING.id, "the model reads what it should, and the tokens come with the right chances.")


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
        _require_most_likely(ask, case | {"top_k": np.array(1), "temperature": np.array(1.0)}, hints.STILL_RANDOM)
        _require_most_likely(ask, case | {"temperature": np.array(0.0)}, hints.ZERO)
    try:
        alone = case | {"tokens": case["tokens"][:1], "top_k": np.array(1)}
        _require_most_likely(ask, alone, hints.STILL_RANDOM)
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
            raise failed.with_hint(hints.ZERO) from failed
        raise
    tried, prompt = _words(case), case["tokens"]
    require_long(tried, "continuation", continuation)
    (b, n), num_tokens = prompt.shape, int(case["num_tokens"])
    shape = (b, n + num_tokens)
    if continuation.shape != shape:
        max_len = len(case["places"])
        known = {
            (b, max_len + num_tokens): hints.PROMPT_CUT,
            (b, max_len + 1): hints.PROMPT_CUT,
            (b, num_tokens): hints.NO_PROMPT,
            (b, n + num_tokens - 1): hints.ONE_TOO_FEW,
            (b, n + num_tokens + 1): hints.ONE_TOO_MANY,
        }
        if n < num_tokens and continuation.shape == (b, num_tokens) and np.array_equal(continuation[:, :n], prompt):
            known[b, num_tokens] = hints.NUM_TOKENS_IN_ALL
        yours, expected = f"continuation of shape {continuation.shape}", f"continuation of shape {shape}"
        raise CheckFailed(tried, yours, expected, known.get(continuation.shape, hints.OTHER_SHAPE))
    if not np.array_equal(continuation[:, :n], prompt):
        hint = hints.ON_THE_LEFT if np.array_equal(continuation[:, num_tokens:], prompt) else hints.PROMPT_CHANGED
        raise CheckFailed(tried, "a result that does not begin with the prompt", "the prompt, then new tokens", hint)
    added = continuation[:, n:]
    if added.min() < 0 or added.max() >= len(case["table"]):
        yours, expected = f"numbers from {added.min()} to {added.max()}", f"tokens from 0 to {len(case['table']) - 1}"
        raise CheckFailed(tried, yours, expected, hints.NO_TOKENS)
    return added


# The parts that are read by mistake of a text with t tokens and a prompt of n: the first position and the last.
WRONG_TEXTS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    hints.LAST_TOKEN_ONLY: lambda t, n, max_len: (t - 1, t),
    hints.ONE_POSITION_EARLY: lambda t, n, max_len: (max(0, t - max_len), t - 1),
    hints.FIRST_POSITION: lambda t, n, max_len: (max(0, t - max_len), max(0, t - max_len) + 1),
    hints.CROPPED_TO_FIRST: lambda t, n, max_len: (0, min(t, max_len)),
    hints.CROPPED_TOO_SHORT: lambda t, n, max_len: (max(0, t + 1 - max_len), t),
    hints.PROMPT_ONLY: lambda t, n, max_len: (max(0, n - max_len), n),
}


def _right_text(t: int, n: int, max_len: int) -> tuple[int, int]:
    return max(0, t - max_len), t


def _ranks(case: Case, added: NDArray, read: Callable = _right_text, training: int = 0) -> NDArray:
    """Return the rank of each added token, 0 for the most likely, if the model read this part of the text."""
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
    hint = random_hint if not np.array_equal(again, added) else _text_hint(case, added, ranks)
    yours = f"{(ranks > 0).sum()} of {ranks.size} tokens are not the most likely after the text before them"
    raise CheckFailed(_words(case), yours, "the most likely token at each step", hint)


def _text_hint(case: Case, added: NDArray, ranks: NDArray) -> str:
    if case["training"] and not _ranks(case, added, training=1).any():
        return hints.TRAINING
    if not added.any():
        return hints.PLACES
    if (ranks == len(case["table"]) - 1).all():
        return hints.SMALLEST
    told = (hint for hint, read in WRONG_TEXTS.items() if not _ranks(case, added, read).any())
    return next(told, hints.OTHER_TEXT)


def _examine_chances(ask: Ask, rng: random.Random, choice: Choice) -> None:
    """Raise CheckFailed unless each rank is as frequent as it should be among many tokens."""
    case = _case(rng, choice, ROWS, 1, STEPS, max_len=3)
    case["tokens"][:] = case["tokens"][0]
    few = case | {"tokens": case["tokens"][:20], "num_tokens": np.array(LONG)}
    added = [_asked(ask, each) for each in (few, without_seed(few), few)]
    if (added[0] == added[0][0]).all():
        hint = hints.SAME_FOR_ALL if _ranks(few, added[0]).any() else hints.ALWAYS_FIRST
        raise CheckFailed(_words(few), "the same tokens in all rows", "tokens that are sampled", hint)
    require_fresh(_words(few), *added)
    ranks = _ranks(case, _asked(ask, case))
    _require_chances(case, choice, ranks)
    _require_independence(case, choice, ranks)
    alike = len(few["tokens"]) - len(np.unique(added[0], axis=0))
    if alike:
        yours, expected = f"{alike} rows are the same as another, to the last token", "no two rows alike"
        raise CheckFailed(_words(few), yours, expected, hints.ROWS_TOGETHER)


def _require_chances(case: Case, choice: Choice, ranks: NDArray) -> None:
    counts = np.bincount(ranks.flatten(), minlength=len(choice.chances))
    if max(_surprises(choice.chances, counts)) > SURPRISE:
        share, chance = counts / ranks.size, choice.chances
        worst = int(np.argmax(np.abs(share - chance)))
        which = f"token {worst + 1} of the most likely ones"
        yours, expected = f"{which} comes {share[worst]:.0%} of the time", f"about {chance[worst]:.0%}"
        raise CheckFailed(_words(case), yours, expected, _chance_hint(choice, counts))


def _surprises(chances: tuple[float, ...], counts: NDArray) -> list[float]:
    return [surprise(count, counts.sum(), chance) for count, chance in zip(counts, chances, strict=True)]


def _chance_hint(choice: Choice, counts: NDArray) -> str:
    told = [(hint, _surprises(chances, counts)) for hint, chances in choice.mistakes]
    for hint, surprises in sorted(told, key=lambda pair: sum(pair[1])):
        if max(surprises) <= SURPRISE:
            return hint
    if counts[choice.top_k :].any():
        return hints.TOO_MANY
    return hints.TOO_FEW if counts[choice.top_k - 1] == 0 else hints.OTHER_CHANCES


def _require_independence(case: Case, choice: Choice, ranks: NDArray) -> None:
    """Raise CheckFailed unless two rows, and two steps of a row, agree as often as they should by chance."""
    agreeing = sum(chance**2 for chance in choice.chances)
    for hint, same, what in (
        (hints.ROWS_TOGETHER, ranks[1::2, 0] == ranks[::2, 0], "rows have the same first token"),
        (hints.STEPS_TOGETHER, ranks[:, 0] == ranks[:, 1], "times, the second token is as likely as the first"),
    ):
        if surprising(same.sum(), same.size, agreeing):
            yours = f"{same.sum()} of {same.size} {what}"
            raise CheckFailed(_words(case), yours, f"about {agreeing * same.size:.0f}", hint)
