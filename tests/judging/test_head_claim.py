"""Claims about a head: an honest one holds on every text, a wrong one on none, and both get the reason."""

import random

import pytest
import torch
from repetition import first_of

from grading.exercises import records
from grading.exercises.topic_05_attention_heatmaps.head_claim import (
    EVERYTHING,
    OTHERS,
    OVERALL,
    QUALIFY,
    SPACES,
    SPACES_LOSS,
)
from grading.judging import head_claims
from transformer_lm import checks
from transformer_lm.checks import CheckFailed
from transformer_lm.checks.engine.reported_values import plain
from transformer_lm.checks.topic_05_attention_heatmaps.head_claim import (
    HEAD_CLAIM,
    TEXT,
    Claim,
    ClaimExercise,
    Found,
    measured,
)
from transformer_lm.heads.ablation import LossChange, ablate_heads
from transformer_lm.heads.character_classes import Alphabet
from transformer_lm.heads.patterns import PATTERNS
from transformer_lm.heads.planted import planted_model, planted_text, planted_tokenizer
from transformer_lm.heads.repeats import repeated_tokens
from transformer_lm.heads.scores import PatternScore, measure_heads
from transformer_lm.lm import random_slices
from transformer_lm.texts.corpora import load_toy

RECORD = records()["head-claim"]
MODEL, TOKENIZER = HEAD_CLAIM.model()
N = MODEL.config.max_len
SLICES, REPEATS = 64, 256  # what a student measures on
CHECKS = {
    "head-claim-numbers": checks.head_claim_numbers,
    "head-claim-pattern": checks.head_claim_pattern,
    "head-claim-ablation": checks.head_claim_ablation,
}
RIGHT = {"model-answer": RECORD.model_answer, **RECORD.right}


@pytest.fixture(scope="module")
def validation():
    return load_toy().validation


def claim_of(head, numbers) -> dict:
    entries = ("layer", "head", "pattern", "score", "chance", "null", "loss_change")
    return dict(zip(entries, (*head, *numbers), strict=True))


def honest_claims(text, seed: int) -> dict[tuple, dict]:
    """Return the claims of a student who measures on these slices, (b, n + 1), by the functions of the lesson."""
    found = measure_heads(MODEL, [text[:, :-1]], TOKENIZER, seed=seed, progress=False)
    repeats = repeated_tokens(TOKENIZER.vocab_size, REPEATS, N + 1, torch.Generator().manual_seed(seed))
    alphabet, claims = Alphabet.of(TOKENIZER), {}
    for layer, head, name in QUALIFY:

        def serves(tokens, name=name):
            return PATTERNS[name](tokens, alphabet).any(-1)

        batches, place = [repeats if name == "induction" else text], (layer, head)
        change = ablate_heads(MODEL, batches, heads=[place], serves=serves, progress=False)[place].served_change
        scores = found.patterns[name]
        numbers = scores.score[place], scores.chance, scores.null[place], change
        claims[layer, head, name] = claim_of((*place, name), (round(float(number), 2) for number in numbers))
    return claims


class Reporter:
    """Replaces an answer process that reports this."""

    def __init__(self, value):
        self.value, self.kept = value, {}

    def ask(self, do, **request):
        assert (do, request) == ("report", {"name": "claim", "texts": TEXT})
        return {"error": None, "report": plain(self.value, texts=TEXT)}, {}


def failing_parts(claim, seed: int) -> list[str]:
    """Return the parts in which the judge refuses a claim."""
    answer, rng, failed = Reporter(claim), random.Random(seed), []
    for part in RECORD.parts:
        try:
            part.judge(RECORD, part, answer, rng)
        except CheckFailed:
            failed.append(part.name)
    return failed


# --- honest claims ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", first_of(range(8, 16), 1))
def test_honest_claims_hold_on_text_that_nobody_has_seen(seed, validation):
    text = random_slices(validation, SLICES, N + 1, torch.Generator().manual_seed(100 + seed))
    failing = {head: failing_parts(claim, seed) for head, claim in honest_claims(text, seed).items()}
    assert failing == {head: [] for head in QUALIFY}


def test_honest_claims_pass_the_checks(validation, capsys):
    text = random_slices(validation, SLICES, N + 1, torch.Generator().manual_seed(7))
    for claim in honest_claims(text, seed=7).values():
        for check in CHECKS.values():
            check(claim)
    assert capsys.readouterr().out.count("✓ head-claim: ") == len(QUALIFY) * len(CHECKS)


def test_the_numbers_of_our_answers_are_those_of_the_model():
    """If this fails, the model was trained again: measure the numbers in the record of head-claim again."""
    text = head_claims.toy_tokens(random.Random(1), TOKENIZER, 256, N + 1)
    for head, numbers in (QUALIFY | OTHERS).items():
        found = measured(MODEL, TOKENIZER, Claim(*head, *numbers), text, torch.Generator().manual_seed(1))
        score, chance, null, change = numbers
        assert found.scores.score[head[:2]].item() == pytest.approx(score, abs=0.025), head
        assert found.scores.chance == pytest.approx(chance, abs=0.01), head
        assert found.scores.null[head[:2]].item() == pytest.approx(null, abs=0.02), head
        assert found.losses.served_change == pytest.approx(change, rel=0.1, abs=0.02), head
        if head == next(iter(QUALIFY)):
            assert found.losses.change == pytest.approx(OVERALL, rel=0.06)
        if head == SPACES:
            assert found.losses.served_loss == pytest.approx(SPACES_LOSS, abs=0.03)


def test_every_head_that_has_a_name_can_be_claimed(validation):
    text = random_slices(validation, 128, N, torch.Generator().manual_seed(2))
    named = measure_heads(MODEL, text.split(32), TOKENIZER, progress=False).names()
    found = {(layer, head, name) for layer, row in enumerate(named) for head, name in enumerate(row) if name}
    assert found <= set(QUALIFY)
    assert len(found) >= 4


@pytest.mark.parametrize("name", RIGHT)
def test_each_check_of_a_right_claim_passes_in_one_line(name, capsys):
    for check in CHECKS.values():
        check(RECORD.answer(RIGHT[name]))
        printed = capsys.readouterr().out
        assert printed.startswith("✓ head-claim: ")
        assert printed.count("\n") == 1


# --- wrong claims -------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", RECORD.misbehaving, ids=lambda wrong: wrong.name)
def test_a_wrong_claim_fails_the_checks_of_its_parts_in_four_lines_and_hears_its_hint(wrong, capsys):
    mistakes = {}
    for part, check in CHECKS.items():
        try:
            check(RECORD.answer(wrong.source))
        except CheckFailed as failed:
            lines = [line.split(":")[0] for line in str(failed).splitlines()]
            assert lines == ["tried", "yours", "expected", "hint"]
            mistakes[part] = failed.mistake
    assert set(mistakes) == set(wrong.fails)
    assert wrong.hint in mistakes.values()


def test_a_check_does_not_tell_what_is_measured():
    claim = RECORD.answer(RECORD.model_answer) | {"score": 0.5}
    with pytest.raises(CheckFailed) as failed:
        checks.head_claim_numbers(claim)
    assert "0.8" not in str(failed.value)


def test_what_is_expected_of_a_change_is_the_same_whatever_is_measured():
    expected = set()
    for change in (0.1, 5.0):
        found = Found(measured_scores(0.7, 0.1, 0.2).scores, LossChange(1.0, change, 1.0, change))
        with pytest.raises(CheckFailed) as failed:
            HEAD_CLAIM.check_ablation(Claim(0, 0, "first", 0.7, 0.1, 0.2, 9.0), found)
        expected.add(failed.value.expected)
    assert len(expected) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(50, 53))
@pytest.mark.parametrize("wrong", RECORD.misbehaving, ids=lambda wrong: wrong.name)
def test_a_wrong_claim_fails_its_parts_on_every_text(wrong, seed):
    assert failing_parts(RECORD.answer(wrong.source), seed) == [part for part in EVERYTHING if part in wrong.fails]


@pytest.mark.parametrize(
    "value",
    [None, [], {}, 3, "text", {"layer": {}}, dict.fromkeys(("layer", "head", "pattern"), None), {1: 2}, {"x" * 999: 1}],
)
def test_whatever_an_answer_process_reports_the_judge_has_words_for_it(value):
    assert failing_parts(value, 1) == list(EVERYTHING)


@pytest.mark.parametrize("entry", ["layer", "head", "score", "chance", "null", "loss_change", "pattern"])
@pytest.mark.parametrize("value", [10**400, -(10**400), 1e999, float("nan"), True, None, "8", [1], {}], ids=repr)
def test_no_value_is_too_strange_for_an_entry(entry, value):
    claim = claim_of((1, 1, "induction"), QUALIFY[1, 1, "induction"]) | {entry: value}
    with pytest.raises(CheckFailed, match=f"tried:    {entry} in claim"):
        HEAD_CLAIM.read(plain(claim, texts=TEXT))


# --- what position explains, on a planted model -------------------------------------------------


@pytest.fixture(scope="module")
def positional():
    """A model with a head that always attends to the previous character, and texts."""
    tokenizer = planted_tokenizer()
    model = planted_model([["previous", "uniform", "any_space"]], tokenizer, max_len=30)
    rng = random.Random(4)
    return model, tokenizer, torch.tensor([tokenizer.encode(planted_text(rng, 31)) for _ in range(40)])


def found_in(positional, head: int, pattern: str):
    model, tokenizer, text = positional
    claim = Claim(0, head, pattern, 0.5, 0.1, 0.1, 0.1)
    return claim, measured(model, tokenizer, claim, text, torch.Generator().manual_seed(1))


def test_a_head_is_what_position_says_if_that_is_claimed(positional):
    HEAD_CLAIM.check_pattern(*found_in(positional, 0, "previous"))
    HEAD_CLAIM.check_pattern(*found_in(positional, 2, "any_space"))


def test_a_uniform_head_does_nothing(positional):
    with pytest.raises(CheckFailed, match="stand out by this pattern"):
        HEAD_CLAIM.check_pattern(*found_in(positional, 1, "vowel_to_consonant"))


def test_a_pattern_that_only_position_explains_is_refused_for_that():
    found = measured_scores(score=0.7, chance=0.1, null=0.65)
    with pytest.raises(CheckFailed) as caught:
        HEAD_CLAIM.check_pattern(Claim(0, 0, "word_start", 0.7, 0.1, 0.65, 1.0), found)
    assert caught.value.mistake == "no-more-than-the-null"
    HEAD_CLAIM.check_pattern(Claim(0, 0, "previous", 0.7, 0.1, 0.65, 1.0), found)


def measured_scores(score: float, chance: float, null: float):
    scores = PatternScore(torch.tensor([[score]]), chance, torch.tensor([[null]]), queries=9)
    return Found(scores, LossChange(1.0, 0.5, 1.0, 0.5))


def test_a_pattern_without_any_query_is_refused():
    found = measured_scores(float("nan"), float("nan"), float("nan"))
    claim = Claim(0, 0, "newline", 0.7, 0.1, 0.65, 1.0)
    with pytest.raises(CheckFailed, match="stand out by this pattern"):
        HEAD_CLAIM.check_pattern(claim, found)
    with pytest.raises(CheckFailed, match="of the measured value"):
        HEAD_CLAIM.check_numbers(claim, found)


# --- plain values -------------------------------------------------------------------------------


def test_texts_stay_only_if_they_are_wanted_and_short():
    report = {"pattern": "induction", "long": "x" * 50, "empty": ""}
    assert plain(report) == dict.fromkeys(report, "of type str")
    assert plain(report, texts=40) == {"pattern": "induction", "long": "of type str", "empty": ""}


def test_a_claim_is_about_the_model_that_students_get():
    assert isinstance(HEAD_CLAIM, ClaimExercise)
    assert HEAD_CLAIM.trained == "toy"
    assert (MODEL.config.num_layers, MODEL.config.num_heads) == (2, 4)
