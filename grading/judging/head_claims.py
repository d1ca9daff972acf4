"""Judges of topic 05: a claim about a head is measured again, and a detector is tested on unseen heads.

All models run here, in the trusted process. A claim consists of plain numbers and a name; a detector gets arrays.
"""

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grading.isolation.answers import Answer
from grading.judging.head_references import reference_null, reference_score
from grading.judging.judge import failure_told, inputs_after, tensors
from grading.judging.record import Part, Record, ValueRecord
from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.diagnosis import require_unchanged
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.engine.verdict import Mark
from transformer_lm.checks.topic_05_attention_heatmaps.head_claim import (
    TEXT,
    TEXTS,
    Claim,
    ClaimExercise,
    Found,
    measured,
)
from transformer_lm.heads.character_classes import Alphabet
from transformer_lm.heads.patterns import PATTERNS
from transformer_lm.heads.planted import KINDS, NOTHING, planted_model, planted_text, planted_tokenizer
from transformer_lm.heads.recording import record_attention
from transformer_lm.heads.repeats import repeated_tokens
from transformer_lm.heads.scores import BY_PLACE, INDUCTION
from transformer_lm.lm import random_slices
from transformer_lm.modeling_lm import TransformerLM
from transformer_lm.texts.tokenizers import Tokenizer
from transformer_lm.texts.toy_grammar import sentences
from transformer_lm.training.checkpoints import load_model

LENGTH = 20_000  # characters of a text

# The rule of `find_heads`: what a pattern needs to count, and how clear a decision must be. In models, the margin is
# large; in made-up heads, whose weights are exact, it only exceeds rounding errors.
SCORE, EXCESS, CLEAR, EXACT = 0.35, 0.2, 0.05, 0.004
NO_PATTERN = -1

TRAINED = Path(__file__).parent / "trained_heads"
MADE_UP = {"b": 3, "h": 41, "n": 17, "p": 15}
TIMES, PLANTED = 2, 2  # rounds of made-up heads, and models
B, N = 6, 40  # number of texts, and characters in each
# In repeated random text, no other pattern is meaningful.
IN_REPEATS = ("current", "previous", "first", "duplicate", INDUCTION)
# The toy grammar has no capital letters, so two of the masks would be the same.
IN_SENTENCES = tuple(name for name in PATTERNS if name not in ("same_letter", INDUCTION))

Mask = NDArray[np.bool_]


# --- claims -------------------------------------------------------------------------------------


def claimed_numbers(record: Record, part: Part, answer: Answer, rng: random.Random) -> str:
    """Judge the scores of a claim: they must agree with those measured on text drawn for this submission."""
    exercise, claim, found = _measured(record, answer, rng)
    exercise.check_numbers(claim, found, lenient=True)
    return "Right: score, chance and null are as measured on text drawn for this submission."


def claimed_pattern(record: Record, part: Part, answer: Answer, rng: random.Random) -> str:
    """Judge by the rule of `find_heads` whether the head does what is claimed."""
    exercise, claim, found = _measured(record, answer, rng)
    exercise.check_pattern(claim, found, lenient=True)
    return f"Right: head {claim.head} of layer {claim.layer} does that."


def claimed_ablation(record: Record, part: Part, answer: Answer, rng: random.Random) -> str:
    """Judge the change in the loss: it must agree with the measured one and be large enough for a head that matters."""
    exercise, claim, found = _measured(record, answer, rng)
    exercise.check_ablation(claim, found, lenient=True)
    return "Right: without the head, the loss rises as claimed."


def _measured(record: Record, answer: Answer, rng: random.Random) -> tuple[ClaimExercise, Claim, Found]:
    """Return the claim and its measured values, measured once for all parts; raise CheckFailed if there is no claim."""
    exercise = record.public
    assert isinstance(exercise, ClaimExercise)
    if "claim" not in answer.kept:
        reply, _ = answer.ask("report", name=record.defines, texts=TEXT)
        failed = failure_told(reply)
        if failed:
            raise failed
        claim = exercise.read(reply.get("report"))
        model, tokenizer = exercise.model()
        text = toy_tokens(rng, tokenizer, TEXTS, model.config.max_len + 1)
        answer.kept["claim"] = claim, measured(model, tokenizer, claim, text, _generator(rng))
    claim, measurements = answer.kept["claim"]
    return exercise, claim, measurements


# --- unseen heads -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heads:
    """The attention weights of a model's heads on some texts, and the patterns that they might follow, by name.

    Shapes:
        weights   (b, h, i, j)
        patterns  (p, b, i, j)
        by_place  (p)
    """

    weights: NDArray[np.float32]
    patterns: Mask
    by_place: Mask
    names: tuple[str, ...]
    clear: float = CLEAR

    @property
    def arrays(self) -> dict[str, NDArray]:
        """The arrays that an answer gets."""
        return {"weights": self.weights, "patterns": self.patterns, "by_place": self.by_place}


def unseen(record: ValueRecord, part: Part, answer: Answer, rng: random.Random) -> str | Mark:
    """Judge a detector on heads drawn for this submission: made up, planted in models, and trained ones on new text.

    Heads that are too close to another decision are left out. A detector that is right about all heads gets full
    points. It gets half of them if it can be trusted: it names no head that clearly does nothing, and at least half of
    the others.
    """
    outcome = Outcome()
    for heads in (*_made_up(rng, record), *_planted(rng), *_trained(rng)):
        expected, clearness = decisions(heads.weights.astype(np.float64), heads.patterns, heads.by_place)
        clear = clearness >= heads.clear
        outcome.add(_asked(record, answer, heads)[clear], expected[clear], clearness[clear] >= CLEAR, heads.names)
    if outcome.right == outcome.total:
        return f"Right for {outcome.total} heads drawn for this submission."
    points = part.points / 2 if outcome.can_be_trusted else 0
    return Mark(points, failure=outcome.failed().failure)


@dataclass
class Outcome:
    """Counts how often a detector was right so far, and about which kinds of heads it was wrong."""

    total: int = 0
    right: int = 0
    invented: int = 0  # names for heads that clearly do nothing
    nearly: int = 0  # names for heads that almost do something
    others: int = 0  # heads that do something
    named: int = 0  # those of them that are named correctly
    missed: set[str] = field(default_factory=set)
    renamed: set[str] = field(default_factory=set)

    def add(self, found: NDArray, expected: NDArray[np.int64], sure: Mask, names: Sequence[str]) -> None:
        """Compare a detector's result for heads, (h), with what they do, (h), and whether that is beyond doubt, (h)."""
        self.total += len(expected)
        for theirs, ours, is_sure in zip(found.tolist(), expected.tolist(), sure.tolist(), strict=True):
            self.right += theirs == ours
            if ours == NO_PATTERN:
                self.invented += theirs != ours and is_sure
                self.nearly += theirs != ours and not is_sure
                continue
            self.others += 1
            self.named += theirs == ours
            if theirs != ours:
                (self.missed if theirs == NO_PATTERN else self.renamed).add(names[ours])

    @property
    def can_be_trusted(self) -> bool:
        """Whether no head that clearly does nothing was named, and at least half of the others are right."""
        return not self.invented and 2 * self.named >= self.others

    def failed(self) -> CheckFailed:
        """Return the failure of a detector: the kinds of heads that it is wrong about, without numbers."""
        yours = [f"{self.right} are right"]
        known = hint("patterns-mixed-up", "find-heads")
        if self.renamed:
            yours.append(f"another name for: {', '.join(sorted(self.renamed))}")
        if self.missed:
            yours.append(f"not found: {', '.join(sorted(self.missed))}")
            known = hint("heads-overlooked", "find-heads")
        if self.nearly:
            yours.append(f"{self.nearly} that narrowly miss a threshold get a name")
            known = hint("thresholds-missed", "find-heads")
        if self.invented:
            yours.append(f"{self.invented} that do nothing get a name")
            known = hint("heads-invented", "find-heads")
        tried = f"find_heads on {self.total} heads drawn for this submission"
        return CheckFailed(tried, "; ".join(yours), "all of them, for all points", known)


def _asked(record: ValueRecord, answer: Answer, heads: Heads) -> NDArray:
    """Return what a detector says about each head, or raise CheckFailed if that is not a list of numbers."""
    reply, found = answer.ask("call", heads.arrays, name=record.defines, build=True)
    failed = failure_told(reply)
    if failed:
        raise failed
    tried = record.public.tried(tensors(heads.arrays), "heads")
    output, h = found.get("outputs/heads"), heads.weights.shape[1]
    if output is None or output.shape != (h,):
        yours = "no tensor" if output is None else f"heads of shape {output.shape}"
        raise CheckFailed(tried, yours, f"heads of shape ({h},)", hint("not-a-number-each", "find-heads"))
    require_unchanged(tried, heads.arrays, inputs_after(found))
    return output


def decisions(
    weights: NDArray[np.float64], patterns: Mask, by_place: Mask
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return what each head does, (h), and the margin, (h), of scores and excesses against any other decision."""
    margin, excess = margins(weights, patterns, by_place)
    best = np.where(margin >= 0, excess, -1).argmax(axis=0)  # (h,)
    found = (margin >= 0).any(axis=0)
    ahead = np.take_along_axis(excess, best[None], 0) - excess  # (p, h)
    ahead[best, np.arange(len(best))] = np.take_along_axis(margin, best[None], 0)[0]
    clearness = np.where(found, np.maximum(ahead, -margin), -margin).min(axis=0)
    return np.where(found, best, NO_PATTERN), clearness


def margins(
    weights: NDArray[np.float64], patterns: Mask, by_place: Mask
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how far each pattern is above counting, or below 0 if it does not count, and its excess, (p, h) each.

    The excess is over the pattern's baseline. Both are -1 if no query has such a key.
    """
    nulls = np.broadcast_to(reference_null(weights), weights.shape)
    found, excesses = [], []
    for pattern, place in zip(patterns, by_place, strict=True):
        score, chance = reference_score(weights, pattern)
        baseline = np.full(len(score), chance) if place else np.maximum(chance, reference_score(nulls, pattern)[0])
        excesses.append(score - baseline)
        found.append(np.minimum(score - SCORE, score - baseline - EXCESS))
    return np.nan_to_num(np.array(found), nan=-1), np.nan_to_num(np.array(excesses), nan=-1)


def _made_up(rng: random.Random, record: ValueRecord) -> Iterator[Heads]:
    """Yield made-up heads, like those of the student's own check."""
    names = ("a drawn mask",) * MADE_UP["p"]
    for _ in range(TIMES):
        case = record.draw(rng, MADE_UP)
        yield Heads(case["weights"].astype(np.float32), case["patterns"], case["by_place"], names, clear=EXACT)


def _planted(rng: random.Random) -> Iterator[Heads]:
    """Yield models whose heads follow a random plan, with random texts."""
    tokenizer = planted_tokenizer()
    for _ in range(PLANTED):
        seed, sharpness = rng.getrandbits(32), rng.uniform(7, 20)
        model = planted_model(_plan(rng), tokenizer, N, sharpness, seed)
        tokens = torch.tensor([tokenizer.encode(planted_text(rng, N)) for _ in range(B)])
        yield _heads(rng, model, tokenizer, tokens, tuple(PATTERNS))


def _plan(rng: random.Random) -> list[list[str]]:
    """Return what each of four heads in three layers does; in each layer, one does nothing."""
    needs_copies = ("word_start", INDUCTION)
    kinds = [kind for kind in KINDS if kind not in (*needs_copies, *NOTHING, "previous")] + ["offset 2", "offset 5"]
    plan = []
    for special in ("previous", "word_start", rng.choice(needs_copies)):
        layer = [special, rng.choice(NOTHING), *rng.sample(kinds, 2)]
        rng.shuffle(layer)
        plan.append(layer)
    return plan


def _trained(rng: random.Random) -> Iterator[Heads]:
    """Yield trained models, each on newly drawn sentences and repeated random text."""
    for model, tokenizer in _models():
        yield _heads(rng, model, tokenizer, toy_tokens(rng, tokenizer, B, N), IN_SENTENCES)
        repeats = repeated_tokens(tokenizer.vocab_size, B, N, _generator(rng))
        yield _heads(rng, model, tokenizer, repeats, IN_REPEATS)


@functools.cache
def _models() -> list[tuple[TransformerLM, Tokenizer]]:
    models = []
    for path in sorted(TRAINED.glob("*.safetensors")):
        model, tokenizer = load_model(path)
        assert isinstance(model, TransformerLM)
        assert isinstance(tokenizer, Tokenizer)
        models.append((model, tokenizer))
    return models


def _heads(
    rng: random.Random, model: nn.Module, tokenizer: Tokenizer, tokens: Tensor, patterns: Sequence[str]
) -> Heads:
    """Return the heads of all layers on these texts, with the patterns in random order."""
    names = tuple(rng.sample(patterns, len(patterns)))
    weights = torch.cat(list(record_attention(model, tokens).values()), dim=1)  # (b, h, i, j)
    masks = torch.stack([PATTERNS[name](tokens, Alphabet.of(tokenizer)) for name in names])
    return Heads(weights.numpy(), masks.numpy(), np.array([name in BY_PLACE for name in names]), names)


# --- texts --------------------------------------------------------------------------------------


def toy_tokens(rng: random.Random, tokenizer: Tokenizer, b: int, n: int) -> Tensor:
    """Return slices of a newly drawn text of the toy grammar, (b, n)."""
    drawn, text = sentences(random.Random(rng.getrandbits(64))), ""
    while len(text) < LENGTH:
        text += next(drawn) + "\n"
    return random_slices(torch.tensor(tokenizer.encode(text)), b, n, _generator(rng))


def _generator(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.getrandbits(63))
