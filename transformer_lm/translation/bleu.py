"""How close translations come to the right ones: three scores, as others report them.

scores = translation_scores(["Il fait froid."], ["Il fait très froid."])
scores.bleu, scores.chrf, scores.exact
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TranslationScores:
    """Three scores of many translations together; more is better.

    bleu   0 to 100: the share of the runs of one to four words that the right sentences have too, as a geometric mean,
           less if all translations together are too short. It sees no likeness between two forms of a word, and needs
           sentences of four words: without any it is 0.
           BLEU: a Method for Automatic Evaluation of Machine Translation (Papineni et al., 2002).
    chrf   0 to 100: the same idea with runs of one to six characters, where what is missing counts twice as much as
           what is wrong. It rewards a word whose ending alone is wrong.
           chrF: character n-gram F-score for automatic MT evaluation (Popović, 2015).
    exact  0 to 1: the share of sentences that are identical to the right ones, to the last full stop.

    There is only one right translation for each sentence here, but many good ones: no good translator gets 100.
    """

    bleu: float
    chrf: float
    exact: float


def translation_scores(found: Sequence[str], right: Sequence[str]) -> TranslationScores:
    """Return how close each translation that was found comes to the right one, over all of them.

    Raises ValueError if there is none, or their numbers differ.
    """
    for name, sentences in {"found": found, "right": right}.items():
        if isinstance(sentences, str):
            raise ValueError(f"{name} must be several sentences, got the string {sentences[:80]!r}. Put it in a list.")
    if len(found) != len(right):
        raise ValueError(f"found and right must have the same length, got {len(found)} and {len(right)} sentences.")
    if not len(found):
        raise ValueError("found and right must have at least one sentence, got none.")
    import sacrebleu  # not at the top: most who import this package never need it

    exact = sum(one == other for one, other in zip(found, right, strict=True)) / len(found)
    # Forced: it would else take texts with a space before each full stop for a mistake, and say so.
    bleu = sacrebleu.corpus_bleu(list(found), [list(right)], force=True).score
    return TranslationScores(
        bleu=min(bleu, 100.0),  # rounding may lead a little beyond
        chrf=sacrebleu.corpus_chrf(list(found), [list(right)]).score,
        exact=exact,
    )
