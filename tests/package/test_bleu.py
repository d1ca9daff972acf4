"""Scores of translations: equal to the formulas, best for right translations, and bad input is refused clearly."""

import math
import subprocess
import sys
from collections import Counter

import pytest
from checkout import ROOT

from transformer_lm.translation.bleu import TranslationScores, translation_scores

RIGHT = ["the old owl sings in the tree", "two mice run", "a cat that sees the dog waits for it"]
FOUND = ["the owl sings in the tree", "two mice ran", "a cat sees the dog that waits for it"]


def runs(sequence, n: int) -> Counter:
    return Counter(tuple(sequence[start : start + n]) for start in range(len(sequence) - n + 1))


def bleu(found: list[str], right: list[str]) -> float:
    """Return BLEU by its formula, for words that spaces separate."""
    logs = []
    for n in (1, 2, 3, 4):
        pairs = [(runs(one.split(), n), runs(other.split(), n)) for one, other in zip(found, right, strict=True)]
        logs.append(math.log(sum((one & other).total() for one, other in pairs)))
        logs[-1] -= math.log(sum(one.total() for one, _ in pairs))
    lengths = [sum(len(sentence.split()) for sentence in sentences) for sentences in (found, right)]
    return 100 * math.exp(sum(logs) / 4 + min(0, 1 - lengths[1] / lengths[0]))


def chrf(found: list[str], right: list[str]) -> float:
    """Return chrF2 by its formula: runs of characters other than spaces, counted over all sentences."""
    precisions, recalls = [], []
    for n in range(1, 7):
        without = [[sentence.replace(" ", "") for sentence in sentences] for sentences in (found, right)]
        pairs = [(runs(one, n), runs(other, n)) for one, other in zip(*without, strict=True)]
        common = sum((one & other).total() for one, other in pairs)
        precisions.append(common / sum(one.total() for one, _ in pairs))
        recalls.append(common / sum(other.total() for _, other in pairs))
    precision, recall = sum(precisions) / 6, sum(recalls) / 6
    return 100 * 5 * precision * recall / (4 * precision + recall)


def test_the_scores_are_those_of_the_formulas():
    scores = translation_scores(FOUND, RIGHT)
    assert scores.bleu == pytest.approx(bleu(FOUND, RIGHT))
    assert scores.chrf == pytest.approx(chrf(FOUND, RIGHT))
    assert scores.exact == 0


def test_the_right_translations_have_the_best_scores():
    assert translation_scores(RIGHT, tuple(RIGHT)) == TranslationScores(bleu=100.0, chrf=100.0, exact=1.0)


def test_nothing_in_common_has_the_worst_scores():
    assert translation_scores(["xyz", "", "xyz xyz xyz xyz"], ["ab", "a", "b b b b b"]).chrf == 0
    assert translation_scores([""] * 3, RIGHT) == TranslationScores(bleu=0.0, chrf=0.0, exact=0.0)


def test_exact_is_the_share_of_identical_sentences():
    assert translation_scores([RIGHT[0], "two mice run.", RIGHT[2]], RIGHT).exact == pytest.approx(2 / 3)


def test_scores_do_not_depend_on_the_order_of_the_pairs():
    there, back = translation_scores(FOUND, RIGHT), translation_scores(FOUND[::-1], RIGHT[::-1])
    assert there == back
    assert translation_scores(FOUND, RIGHT[::-1]).bleu < there.bleu


def test_only_characters_see_the_likeness_of_two_forms_of_a_word():
    right, near, far = ["the owls sing in this tree"], ["the owl sings in this tree"], ["the cat waits in this tree"]
    assert translation_scores(near, right).bleu == pytest.approx(translation_scores(far, right).bleu)
    assert translation_scores(near, right).chrf > translation_scores(far, right).chrf


@pytest.mark.parametrize(
    ("found", "right", "message"),
    [
        (["a"], ["a", "b"], "found and right must have the same length, got 1 and 2 sentences"),
        ([], [], "found and right must have at least one sentence, got none"),
        ("abc", ["a", "b", "c"], r"found must be several sentences, got the string 'abc'\. Put it in a list"),
        (["a", "b", "c"], "abc", "right must be several sentences, got the string 'abc'"),
    ],
)
def test_what_can_not_be_compared_is_refused(found, right, message):
    with pytest.raises(ValueError, match=message):
        translation_scores(found, right)


def test_scoring_is_quiet_and_imports_its_library_only_then():
    code = """
import sys
from transformer_lm.translation.bleu import translation_scores
assert "sacrebleu" not in sys.modules
translation_scores(["the owl sings ."] * 200, ["the owl sings ."] * 200)
assert "sacrebleu" in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == run.stderr == ""
