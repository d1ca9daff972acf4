"""Check of topic 05: a claim about one head of a trained model, with the numbers that support it.

Students measure and claim; the check measures the same on validation text, grading on text drawn for each submission.
This file defines what a claim must look like, how it is measured, and how far it may be from the measured numbers.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.failure import CheckFailed, passed
from transformer_lm.checks.engine.reported_values import MANY, is_number, listed, plain, told
from transformer_lm.heads.ablation import LossChange, ablate_heads
from transformer_lm.heads.character_classes import Alphabet
from transformer_lm.heads.patterns import PATTERNS
from transformer_lm.heads.recording import record_attention
from transformer_lm.heads.repeats import repeated_tokens
from transformer_lm.heads.scores import BY_PLACE, EXCESS, INDUCTION, SCORE, HeadSums, PatternScore
from transformer_lm.lm import random_slices
from transformer_lm.modeling_lm import TransformerLM
from transformer_lm.texts.corpora import load_toy
from transformer_lm.texts.tokenizers import Tokenizer
from transformer_lm.training.pretrained import load_trained

__all__ = ["head_claim_ablation", "head_claim_numbers", "head_claim_pattern"]

TEXTS = 128  # sequences to measure on
AT_ONCE = 32
SEED = 5  # of the check's slices
TEXT = 40  # characters of the name of a pattern

# How far a number may be from the measured one, since texts differ; for a change of the loss, a fraction of it is
# added. In grading, the limits are wider, so that a claim that only just passes the check is not refused.
# tests/judging/test_head_claim.py measures that honest claims hold on every text.
NEAR = {"score": 0.03, "chance": 0.015, "null": 0.02}
NEAR_CHANGE, NEAR_SHARE = 0.02, 0.1
LENIENT, LOWERED = 1.3, 0.02  # the factor for these limits, and by how much a score and its excess may be too small
ALIKE = 0.02
NEEDED = 0.01  # nats; below this, nothing depends on the head

NUMBERS = ("score", "chance", "null", "loss_change")
ENTRIES = ("layer", "head", "pattern", *NUMBERS)
MEASURE = hint("not-as-measured", "head-claim")
MEASURE_REPEATS = hint("not-as-measured-on-repeats", "head-claim")
ABLATE = hint("not-as-ablated", "head-claim")


@dataclass(frozen=True)
class Claim:
    """The content of a claim: what a head does, and the numbers that were measured."""

    layer: int
    head: int
    pattern: str
    score: float
    chance: float
    null: float
    loss_change: float


@dataclass(frozen=True)
class Found:
    """The scores of the pattern for all heads, and the loss without the claimed head."""

    scores: PatternScore
    losses: LossChange


@dataclass(frozen=True)
class ClaimExercise:
    """The public part of an exercise that asks for a claim about a head of a trained model."""

    id: str
    name: str
    trained: str

    def check(self, claim: object, part: Callable[[Claim, Found], None], right: str) -> None:
        """Print the line `right` if a part of a claim holds on validation text, else raise CheckFailed."""
        read = self.read(plain(claim, texts=TEXT))
        part(read, _found_in_validation(self, read))
        passed(self.id, right)

    def model(self) -> tuple[TransformerLM, Tokenizer]:
        """Return the model that claims are about, and its tokenizer."""
        return _loaded(self.trained)

    def read(self, claim: object) -> Claim:
        """Return the content of a plain claim, or raise CheckFailed if anything in it is impossible."""
        if not isinstance(claim, Mapping):
            raise self._failed(self.name, told(claim), "a dictionary", hint("claim-not-a-dictionary", "head-claim"))
        if set(claim) != set(ENTRIES):
            known = hint("entries-of-a-claim", "head-claim")
            raise self._failed(self.name, f"entries {listed(claim)}", f"entries {listed(ENTRIES)}", known)
        model, _ = self.model()
        sizes = {"layer": model.config.num_layers, "head": model.config.num_heads}
        places = {name: self._place(name, claim[name], size) for name, size in sizes.items()}
        self._check_name(claim["pattern"])
        numbers: dict[str, Any] = {name: self._number(name, claim[name]) for name in NUMBERS}
        return Claim(**places, pattern=claim["pattern"], **numbers)

    def check_numbers(self, claim: Claim, found: Found, lenient: bool = False) -> None:
        """Raise CheckFailed unless score, chance and null (position-only baseline) agree with the measurement."""
        scores, place = found.scores, (claim.layer, claim.head)
        measured = {"score": scores.score[place].item(), "chance": scores.chance, "null": scores.null[place].item()}
        limits = {name: limit * (LENIENT if lenient else 1) for name, limit in NEAR.items()}
        off = [name for name, number in measured.items() if not abs(getattr(claim, name) - number) <= limits[name]]
        if not off:
            return
        known = MEASURE_REPEATS if claim.pattern == INDUCTION else MEASURE
        alike = ((scores.score - claim.score).abs() < ALIKE) & ((scores.null - claim.null).abs() < ALIKE)
        if alike.any() and not alike[place]:
            known = hint("numbers-of-another-head", "head-claim")
        excess = measured["score"] - scores.baseline(claim.pattern in BY_PLACE)[place].item()
        if off == ["score"] and abs(claim.score - excess) < ALIKE:
            known = hint("the-excess-for-the-score", "head-claim")
        exchanged = abs(claim.chance - measured["null"]) < ALIKE and abs(claim.null - scores.chance) < ALIKE
        if exchanged and "score" not in off:
            known = hint("chance-and-null-exchanged", "head-claim")
        yours = ", ".join(f"{name} {getattr(claim, name):.6g}" for name in off)
        expected = ", ".join(f"{name} within {limits[name]:.2g}" for name in off)
        raise self._failed("the numbers", yours, f"{expected} of the measured value", known)

    def check_pattern(self, claim: Claim, found: Found, lenient: bool = False) -> None:
        """Raise CheckFailed unless the head does what is claimed, with a large score far above its baseline."""
        scores, place, slack = found.scores, (claim.layer, claim.head), LOWERED if lenient else 0
        score, baseline = scores.score[place].item(), scores.baseline(claim.pattern in BY_PLACE)[place].item()
        if score >= SCORE - slack and score - baseline >= EXCESS - slack:
            return
        if not score >= SCORE - slack:
            known = hint("little-weight", "head-claim")
        elif not score - scores.chance >= EXCESS - slack:
            known = hint("no-more-than-chance", "head-claim")
        else:
            known = hint("no-more-than-the-null", "head-claim")
        expected = f"a score of {SCORE} or more, and {EXCESS} or more above its baseline"
        yours = f"head {claim.head} of layer {claim.layer} does not stand out by this pattern"
        raise self._failed(f"the pattern {claim.pattern}", yours, expected, known)

    def check_ablation(self, claim: Claim, found: Found, lenient: bool = False) -> None:
        """Raise CheckFailed unless ablating the head raises the loss as claimed, where the pattern has a key."""
        change, losses, scale = claim.loss_change, found.losses, LENIENT if lenient else 1

        def near(measured: float) -> bool:
            return abs(change - measured) <= scale * (NEAR_CHANGE + NEAR_SHARE * abs(measured))

        if near(losses.served_change) and min(change, losses.served_change) >= NEEDED:
            return
        known = ABLATE
        if losses.served_change < NEEDED:
            known = hint("nothing-depends-on-it", "head-claim")
        elif near(-losses.served_change) and change < 0:
            known = hint("wrong-sign", "head-claim")
        elif abs(change - losses.change) < min(abs(losses.change), abs(change - losses.served_change)) / 2:
            known = hint("over-all-predictions", "head-claim")
        elif near(losses.served_loss) or near(losses.served_loss + losses.served_change):
            known = hint("the-loss", "head-claim")
        near_by = f"within {scale * NEAR_CHANGE:.2g} plus {scale * NEAR_SHARE:.0%} of it"
        expected = f"the measured change, {near_by}, and at least {NEEDED}"
        raise self._failed("loss_change", f"{change:.6g}", expected, known)

    def _place(self, name: str, value: object, size: int) -> int:
        """Return the number of a layer or head if there is one."""
        if not is_number(value) or not 0 <= value < size or value != int(value):
            known = hint("places-from-zero", "head-claim")
            raise self._failed(name, told(value), f"a whole number from 0 to {size - 1}", known)
        return int(value)

    def _check_name(self, pattern: object) -> None:
        if not isinstance(pattern, str) or pattern not in PATTERNS:
            known = hint("unknown-pattern", "head-claim", patterns=", ".join(PATTERNS))
            raise self._failed("pattern", told(pattern) or "an empty text", "the name of a pattern", known)

    def _number(self, name: str, value: object) -> float:
        """Return the value if it is a number; all but the change of the loss must be between 0 and 1."""
        share = name != "loss_change"
        if not is_number(value) or not (0 <= value <= 1 if share else abs(value) < MANY):
            known = hint("score-not-a-share" if share else "change-not-a-number", "head-claim")
            raise self._failed(name, told(value), "a number between 0 and 1" if share else "a number", known)
        return float(value)

    def _failed(self, what: str, yours: str, expected: str, known: str) -> CheckFailed:
        return CheckFailed(f"{what} in {self.name}" if what != self.name else what, yours, expected, known)


def measured(model: nn.Module, tokenizer: Tokenizer, claim: Claim, text: Tensor, generator: torch.Generator) -> Found:
    """Measure the claimed pattern on a text; for induction, on repeated random text of the same size.

    Shapes:
        text  (b, n + 1)
    """
    if claim.pattern == INDUCTION:
        b, n = text.shape
        text = repeated_tokens(tokenizer.vocab_size, b, n, generator)
    alphabet, pattern = Alphabet.of(tokenizer), PATTERNS[claim.pattern]
    sums = HeadSums(alphabet, {claim.pattern: pattern})
    for tokens in text[:, :-1].split(AT_ONCE):
        sums.add(record_attention(model, tokens), tokens)
    losses = ablate_heads(
        model,
        text.split(AT_ONCE),
        heads=[(claim.layer, claim.head)],
        serves=lambda tokens: pattern(tokens, alphabet).any(dim=-1),
        progress=False,
    )
    return Found(sums.measured().patterns[claim.pattern], losses[claim.layer, claim.head])


@functools.cache
def _loaded(name: str) -> tuple[TransformerLM, Tokenizer]:
    model, tokenizer = load_trained(name)
    assert isinstance(model, TransformerLM)
    assert isinstance(tokenizer, Tokenizer)
    return model, tokenizer


@functools.lru_cache(maxsize=8)
def _found_in_validation(exercise: ClaimExercise, claim: Claim) -> Found:
    """Measure a claim on validation text, only once for all of its parts."""
    model, tokenizer = exercise.model()
    generator = torch.Generator().manual_seed(SEED)
    text = random_slices(_validation(), TEXTS, model.config.max_len + 1, generator)
    return measured(model, tokenizer, claim, text, generator)


@functools.cache
def _validation() -> Tensor:
    return load_toy().validation


HEAD_CLAIM = ClaimExercise("head-claim", "claim", trained="toy")


def head_claim_numbers(claim: object) -> None:
    """Check score, chance and null (position-only baseline) in the student's claim, on validation text."""
    HEAD_CLAIM.check(claim, HEAD_CLAIM.check_numbers, "score, chance and null are as measured.")


def head_claim_pattern(claim: object) -> None:
    """Check that the head does what the student's claim says, on validation text."""
    HEAD_CLAIM.check(claim, HEAD_CLAIM.check_pattern, "the head follows the pattern.")


def head_claim_ablation(claim: object) -> None:
    """Check the change of the loss in the student's claim about a head, on validation text."""
    HEAD_CLAIM.check(claim, HEAD_CLAIM.check_ablation, "without the head, the loss rises as claimed.")
