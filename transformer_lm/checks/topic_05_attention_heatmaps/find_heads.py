"""Check of topic 05: which head does what, found from attention weights and the masks of patterns.

Axes: b batch, h heads, i position of the query, j of the key, p patterns.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO

import torch
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, described_errors, passed
from transformer_lm.heads.character_classes import Alphabet
from transformer_lm.heads.patterns import PATTERNS
from transformer_lm.heads.planted import NOTHING, planted_model, planted_text, planted_tokenizer
from transformer_lm.heads.recording import record_attention
from transformer_lm.heads.scores import BY_PLACE, INDUCTION
from transformer_lm.shapes import describe

NO_PATTERN = "no pattern"
NUMBERS = hint("not-whole-numbers", "find-heads")


def _tried(inputs: Inputs, output: str) -> str:
    weights, patterns = (
        describe("weights", inputs["weights"], "b h i j"),
        describe("patterns", inputs["patterns"], "p b i j"),
    )
    return f"find_heads({weights}, {patterns}, {describe('by_place', inputs['by_place'], 'p')})"


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the pattern numbers as floats, after checking that they are integers."""
    heads = answer(inputs["weights"].detach(), inputs["patterns"], inputs["by_place"])
    if isinstance(heads, Tensor):
        if heads.dtype != torch.long:
            yours = f"heads of dtype {heads.dtype}"
            raise CheckFailed(_tried(inputs, "heads"), yours, "heads of dtype torch.int64", NUMBERS)
        heads = heads.to(torch.get_default_dtype())
    yield heads


FIND_HEADS = PublicExercise(
    id="find-heads",
    axes={"heads": "h"},
    trains=(),
    reads=("weights", "patterns", "by_place"),
    build=lambda answer, inputs: answer,
    call=_call,
    tried=_tried,
    batched=False,  # a head is judged on the whole batch
)


# Three of the planted heads do nothing that has a name.
PLAN = [["previous", "uniform", "previous_space", "random"], ["random", "duplicate", "first", "consonant_to_vowel"]]
B, N = 24, 40


def planted_heads(answer: Callable) -> None:
    """Check the student's `find_heads` on a model in which heads were planted: all are found, and no other."""
    with redirect_stdout(StringIO()):
        find_heads(answer)  # a few planted heads reveal less
    tokenizer, rng = planted_tokenizer(), random.Random(5)
    tokens = torch.tensor([tokenizer.encode(planted_text(rng, N)) for _ in range(B)])
    names = [name for name in PATTERNS if name != INDUCTION]
    patterns = torch.stack([PATTERNS[name](tokens, Alphabet.of(tokenizer)) for name in names])
    inputs = {"patterns": patterns, "by_place": torch.tensor([name in BY_PLACE for name in names])}
    recording = record_attention(planted_model(PLAN, tokenizer, N), tokens)
    for layer, (kinds, weights) in enumerate(zip(PLAN, recording.values(), strict=True)):
        given = inputs | {"weights": weights}
        with described_errors(_tried(given, "heads"), "a number for each head"):
            (found,) = _call(answer, given)
            numbers = [int(number) for number in found]
        for head, (kind, number) in enumerate(zip(kinds, numbers, strict=True)):
            expected = NO_PATTERN if kind in NOTHING else kind
            yours = names[number] if 0 <= number < len(names) else NO_PATTERN
            if yours != expected:
                raise CheckFailed(
                    f"find_heads on planted heads, head {head} of layer {layer}",
                    yours,
                    expected,
                    _hint(yours, expected),
                )
    passed(FIND_HEADS.id, "all planted heads are found, and no other.")


def _hint(yours: str, expected: str) -> str:
    if expected == NO_PATTERN:
        return hint("head-invented", "find-heads")
    if yours == NO_PATTERN:
        return hint("head-overlooked", "find-heads")
    return hint("patterns-mixed-up", "find-heads")


def find_heads(answer: Callable) -> None:
    """Check the student's `find_heads`: heads that do something get its number, all others -1."""
    require_own(answer)
    FIND_HEADS.check(answer)
