"""Check of topic 06: the best translation that a beam search finds, and its score.

A small model replaces a trained one, as for the greedy search. The more tokens it has read, the surer it is, so that
long translations can win over short ones, and it matters how scores are compared. Each search gets a different source.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.checks.topic_06_encoder_decoder.greedy_decode import CHANGED, NOT_LONG, ReaderOfBoth
from transformer_lm.shapes import describe

NOTHING = -1  # fills up a translation that is shorter than max_len
TWO_VALUES = hint("not-two-values", "beam-search")
NOT_A_NUMBER = hint("score-not-a-number", "beam-search")

# Each search, by name: which beams, alpha and max_len it gets from the size of the vocabulary and the largest max_len.
SEARCHES: dict[str, Callable[[int, int], tuple[int, float, int]]] = {
    "three_beams": lambda v, max_len: (3, 0.7, max_len),
    "one_beam": lambda v, max_len: (1, 1.0, max_len),
    "two_beams": lambda v, max_len: (2, 1.0, max_len),
    "sums": lambda v, max_len: (5, 0.0, max_len - 1),
    "short": lambda v, max_len: (4, 0.5, 3),
    "again_three": lambda v, max_len: (3, 1.0, max_len + 2),
    "wide": lambda v, max_len: (2 * v, 1.0, max_len + 2),
}
SURENESS = (1.0, 2.0, 4.0, 8.0)  # factors of the scores, token by token; the last one is kept


class SurerReader(ReaderOfBoth):
    """The same model, but its scores are further apart the more tokens it has read."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of the next token at each position, (k, n, v), for source (k, m) and target (k, n)."""
        scores = super().forward(source, target)
        places = torch.arange(target.shape[1], device=source.device).clamp(max=len(SURENESS) - 1)
        return scores * torch.tensor(SURENESS, device=source.device)[places, None]


def _settings(inputs: Inputs, search: str) -> tuple[int, float, int]:
    """Return beams, alpha and max_len of a search."""
    return SEARCHES[search](inputs["table"].shape[1], int(inputs["given"][2]))


def _source(inputs: Inputs, search: str) -> Tensor:
    """Return the source of a search, (1, m)."""
    place = list(SEARCHES).index(search)
    return inputs["sources"][place : place + 1]


def _tried(inputs: Inputs, output: str) -> str:
    search = output.rpartition("_")[0]
    beams, alpha, max_len = _settings(inputs, search)
    start, end, _ = inputs["given"].tolist()
    words = describe("source", _source(inputs, search), "b m")
    options = f"start={start}, end={end}, beams={beams}, max_len={max_len}, alpha={alpha}"
    filled = f"; its tokens, then {NOTHING} up to max_len" if output.endswith("_tokens") else ""
    return f"beam_search(model, {words}, {options}){filled}"


def _call(answer: Callable, inputs: Inputs) -> Iterator[object]:
    """Yield the tokens and the score of each search, the tokens as floats, padded to max_len."""
    start, end, _ = inputs["given"].tolist()
    for search in SEARCHES:
        beams, alpha, max_len = _settings(inputs, search)
        source, tried = _source(inputs, search), _tried(inputs, f"{search}_tokens")
        before = source.clone()
        returned = answer(SurerReader(inputs["table"], inputs["places"]), source, start, end, beams, max_len, alpha)
        if not torch.equal(source, before):
            raise CheckFailed(tried, "source is changed by the call", "source as it was before", CHANGED)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise CheckFailed(tried, f"the return value is {kind(returned)}", "tokens and score", TWO_VALUES)
        tokens, score = returned
        yield _filled(tried, tokens, max_len)
        yield _as_number(tried, score)


def _filled(tried: str, tokens: object, max_len: int) -> object:
    """Return tokens as floats, padded to max_len; anything but a sequence of tokens is returned as it is."""
    if not isinstance(tokens, Tensor):
        return tokens
    if tokens.dtype != torch.long:
        raise CheckFailed(tried, f"tokens of dtype {tokens.dtype}", "tokens of dtype torch.int64", NOT_LONG)
    missing = max_len - len(tokens) if tokens.dim() == 1 and (tokens >= 0).all() else 0
    return F.pad(tokens, (0, max(missing, 0)), value=NOTHING).to(torch.get_default_dtype())


def _as_number(tried: str, score: object) -> Tensor:
    """Return a score as a tensor with one entry."""
    if isinstance(score, Tensor) and score.numel() == 1 and score.dim() < 2:
        return score.reshape(1)
    if isinstance(score, float | int | np.floating):
        return torch.tensor([float(score)])
    raise CheckFailed(tried, f"the score is {kind(score)}", "the score is one number", NOT_A_NUMBER)


BEAM_SEARCH = PublicExercise(
    id="beam-search",
    axes={
        f"{search}_{output}": axes
        for search in SEARCHES
        for output, axes in (("tokens", "length"), ("score", "number"))
    },
    trains=(),
    reads=("sources", "table", "places", "given"),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
    batched=False,
    returned_together=tuple((f"{search}_tokens", f"{search}_score") for search in SEARCHES),
    keeps_device=False,
)


def beam_search(answer: Callable) -> None:
    """Check the student's `beam_search`, with a simple model: several numbers of beams, lengths and alphas."""
    require_own(answer)
    BEAM_SEARCH.check(answer)
