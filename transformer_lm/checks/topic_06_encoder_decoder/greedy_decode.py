"""Check of topic 06: greedy decoding, until every sentence has ended.

A small model replaces a trained one. Its predictions depend on the whole source, on every token so far and on their
positions. The length of a translation depends on its source: some are longer than the source, and one ends at once.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.shapes import describe

LONGEST = 100  # tokens that the model reads, so that an endless loop stops here
SURE = 64.0  # added to the score of END where it comes
CHANGED = hint("input-changed")
NOT_LONG = hint("tokens-not-whole", "greedy-decode")


class ReaderOfBoth(nn.Module):
    """A substitute for an encoder-decoder: a number from the source and all tokens so far selects a row of logits.

    Each position multiplies its token by a different number, which differs between source and target. The number of
    rows of the table is prime and larger than any token, so that another token at any position selects another row.
    """

    table: Tensor
    places: Tensor

    def __init__(self, table: Tensor, places: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table.detach().clone())  # (rows, v)
        self.register_buffer("places", places)  # (2, period)
        self.rows_read = 0

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of the next token at each position, (b, n, v), for source (b, m) and target (b, n).

        Raises ValueError if their numbers of rows differ, or if the target has more than 100 tokens.
        """
        (b, _), (rows, n) = source.shape, target.shape
        if b != rows:
            raise ValueError(f"source and target must have the same number of rows, got {b} and {rows}.")
        if n > LONGEST:
            raise ValueError(f"target must have at most {LONGEST} tokens, got {n}: does the search never stop?")
        self.rows_read += rows
        read = self._multiplied(source, 0).sum(dim=1, keepdim=True)  # (b, 1)
        numbers = read + self._multiplied(target, 1).cumsum(dim=1)  # (b, n)
        return self.table[numbers % len(self.table)]

    def _multiplied(self, tokens: Tensor, side: int) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device) % self.places.shape[1]
        return self.places[side, places] * (tokens + 1)


class ReaderThatEnds(ReaderOfBoth):
    """The same, with END once a sentence has 2 * m - 3 tokens, where m is the length of its source without padding."""

    def __init__(self, table: Tensor, places: Tensor, end: int, pad: int) -> None:
        super().__init__(table, places)
        self.end, self.pad = end, pad

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of the next token at each position, (b, n, v), for source (b, m) and target (b, n)."""
        scores = super().forward(source, target)
        _, n, v = scores.shape
        lengths = 2 * (source != self.pad).sum(dim=1, keepdim=True) - 3  # (b, 1)
        ends = torch.arange(1, n + 1, device=source.device) == lengths  # (b, n)
        is_end = torch.arange(v, device=source.device) == self.end
        return scores + SURE * (ends[:, :, None] & is_end)


def _asked(inputs: Inputs, output: str) -> tuple[Tensor, int]:
    """Return the source and max_len of an output: enough for all sentences, too few for some, or one alone."""
    enough, too_few = inputs["max_lens"].tolist()
    source = inputs["source"]
    if output == "cut_off":
        return source.mT.contiguous().mT, too_few  # non-contiguous
    return (source[-1:] if output == "of_one_sentence" else source), enough


def _tried(inputs: Inputs, output: str) -> str:
    source, max_len = _asked(inputs, output)
    start, end, pad = inputs["special"].tolist()
    words = describe("source", source, "b m")
    return f"greedy_decode(model, {words}, start={start}, end={end}, pad={pad}, max_len={max_len})"


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the tokens of three calls as floats, then the number of rows read per token, if it is above 1."""
    start, end, pad = inputs["special"].tolist()
    most = 1.0
    for output in ("decoded", "cut_off", "of_one_sentence"):
        source, max_len = _asked(inputs, output)
        model = ReaderThatEnds(inputs["table"], inputs["places"], end, pad)
        before = source.clone()
        decoded = answer(model, source, start, end, pad, max_len)
        if not torch.equal(source, before):
            raise CheckFailed(_tried(inputs, output), "source is changed by the call", "source as it was", CHANGED)
        if isinstance(decoded, Tensor):
            if decoded.dtype != torch.long:
                yours, expected = f"{output} of dtype {decoded.dtype}", f"{output} of dtype torch.int64"
                raise CheckFailed(_tried(inputs, output), yours, expected, NOT_LONG)
            most = max(most, model.rows_read / max(decoded.numel(), 1))
            decoded = decoded.to(torch.get_default_dtype())
        yield decoded
    yield torch.tensor([most], device=inputs["source"].device)


GREEDY_DECODE = PublicExercise(
    id="greedy-decode",
    axes={"decoded": "b k", "cut_off": "b k", "of_one_sentence": "b k", "calls_for_each_token": "number"},
    trains=(),
    reads=("source", "table", "places", "special", "max_lens"),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
    batched=False,
)


def greedy_decode(answer: Callable) -> None:
    """Check the student's `greedy_decode`, with a simple model: all sentences, too few tokens, one sentence alone."""
    require_own(answer)
    GREEDY_DECODE.check(answer)
