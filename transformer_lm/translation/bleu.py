"""Three standard scores of translations: BLEU, chrF and exact match.

scores = translation_scores(["Il fait froid."], ["Il fait très froid."])
scores.bleu, scores.chrf, scores.exact
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TranslationScores:
    """Three scores of many translations together; higher is better.

    bleu   0 to 100: the fraction of n-grams of one to four words that also occur in the right sentences, as a geometric
           mean, reduced if all translations together are too short. Two forms of a word count as different. If no
           sentence has four words, it is 0.
           BLEU: a Method for Automatic Evaluation of Machine Translation (Papineni et al., 2002).
    chrf   0 to 100: the same idea with n-grams of one to six characters, where recall counts twice as much as
           precision. A word with a wrong ending still counts in part.
           chrF: character n-gram F-score for automatic MT evaluation (Popović, 2015).
    exact  0 to 1: the fraction of sentences that are identical to the right ones, to the last full stop.

    Each sentence has only one reference translation here but many good ones, so even a good translator does not get
    100.
    """

    bleu: float
    chrf: float
    exact: float


def translation_scores(found: Sequence[str], right: Sequence[str]) -> TranslationScores:
    """Return the scores of all translations together, compared with the right ones.

    Raises ValueError if there are none, or their numbers differ.
    """
    for name, sentences in {"found": found, "right": right}.items():
        if isinstance(sentences, str):
            raise ValueError(f"{name} must be several sentences, got the string {sentences[:80]!r}. Put it in a list.")
    if len(found) != len(right):
        raise ValueError(f"found and right must have the same length, got {len(found)} and {len(right)} sentences.")
    if not len(found):
        raise ValueError("found and right must have at least one sentence, got none.")
    import sacrebleu  # not at the top, because most uses of the package do not need it

    exact = sum(one == other for one, other in zip(found, right, strict=True)) / len(found)
    # `force` avoids a warning about texts with a space before each full stop.
    bleu = sacrebleu.corpus_bleu(list(found), [list(right)], force=True).score
    return TranslationScores(
        bleu=min(bleu, 100.0),  # rounding may exceed it slightly
        chrf=sacrebleu.corpus_chrf(list(found), [list(right)]).score,
        exact=exact,
    )
