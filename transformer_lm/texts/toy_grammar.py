"""A small grammar of English-looking sentences: training data with rules that can all be checked in a sample.

    the old owl that sees two black mice sings.

A verb agrees with its subject, even across a relative clause, like `sings` and `owl` here. `a` and `an` agree with the
sound that follows, `every`, `some` and the like with the number, and a colour comes directly before its noun. Relative
clauses are not nested, so there are finitely many sentences, about 10 ** 11. In a text each has its own line.
"""

import functools
import itertools
import math
import random
import re
from collections.abc import Iterator

# A word in capitals is a symbol, here with its expansions and their frequencies. Other words are literal.
# 1 is singular and 2 is plural; A begins with a vowel and B with a consonant.
GRAMMAR = {
    "SENTENCE": {"SUBJECT1 CLAUSE1": 1, "SUBJECT2 CLAUSE2": 1},
    "SUBJECT1": {"THING1": 1, "THING1 that CLAUSE1": 1},
    "SUBJECT2": {"THING2": 1, "THING2 that CLAUSE2": 1},
    "CLAUSE1": {"INTRANSITIVE1": 2, "TRANSITIVE1 THING1": 1, "TRANSITIVE1 THING2": 1},
    "CLAUSE2": {"INTRANSITIVE2": 2, "TRANSITIVE2 THING1": 1, "TRANSITIVE2 THING2": 1},
    "THING1": {"the NOUNPHRASE1": 3, "every NOUNPHRASE1": 1, "an ANOUNPHRASE1": 1, "a BNOUNPHRASE1": 2},
    "THING2": {"the NOUNPHRASE2": 3, "some NOUNPHRASE2": 2, "many NOUNPHRASE2": 1, "two NOUNPHRASE2": 1},
    "NOUNPHRASE1": {"ANOUNPHRASE1": 1, "BNOUNPHRASE1": 2},
    "ANOUNPHRASE1": {"ANOUN1": 3, "AQUALITY NOUN1": 1, "ACOLOUR NOUN1": 1, "AQUALITY COLOUR NOUN1": 1},
    "BNOUNPHRASE1": {"BNOUN1": 3, "BQUALITY NOUN1": 1, "BCOLOUR NOUN1": 1, "BQUALITY COLOUR NOUN1": 1},
    "NOUNPHRASE2": {"NOUN2": 3, "QUALITY NOUN2": 1, "COLOUR NOUN2": 1, "QUALITY COLOUR NOUN2": 1},
    "QUALITY": {"AQUALITY": 2, "BQUALITY": 3},
    "AQUALITY": dict.fromkeys(("old", "angry"), 1),
    "BQUALITY": dict.fromkeys(("young", "happy", "small"), 1),
    "COLOUR": {"ACOLOUR": 1, "BCOLOUR": 3},
    "ACOLOUR": dict.fromkeys(("orange",), 1),
    "BCOLOUR": dict.fromkeys(("red", "white", "black"), 1),
    "NOUN1": {"ANOUN1": 3, "BNOUN1": 5},
    "ANOUN1": dict.fromkeys(("owl", "ant", "ape"), 1),
    "BNOUN1": dict.fromkeys(("cat", "dog", "horse", "mouse", "child"), 1),
    "NOUN2": dict.fromkeys(("owls", "ants", "apes", "cats", "dogs", "horses", "mice", "children"), 1),
    "INTRANSITIVE1": dict.fromkeys(("sleeps", "sings", "runs", "waits"), 1),
    "INTRANSITIVE2": dict.fromkeys(("sleep", "sing", "run", "wait"), 1),
    "TRANSITIVE1": dict.fromkeys(("sees", "hears", "likes", "follows", "chases"), 1),
    "TRANSITIVE2": dict.fromkeys(("see", "hear", "like", "follow", "chase"), 1),
}
# The same expansions as lists of symbols, each with its probability.
EXPANSIONS = {
    symbol: [(weight / sum(rows.values()), row.split()) for row, weight in rows.items()]
    for symbol, rows in GRAMMAR.items()
}
WORDS = frozenset(part for rows in EXPANSIONS.values() for _, row in rows for part in row) - GRAMMAR.keys()
CHARACTERS = "".join(sorted(set("".join(WORDS)) | set(" .\n")))  # of a text


def sentences(rng: random.Random) -> Iterator[str]:
    """Yield sentences without end, drawn independently. A seed gives the same ones in every version of Python."""
    while True:
        yield " ".join(_drawn("SENTENCE", rng)) + "."


def is_grammatical(sentence: str) -> bool:
    """Return whether the grammar has this sentence: its words with one space between them, then a full stop."""
    return _recogniser().fullmatch(sentence) is not None


def grammatical_share(text: str) -> float:
    """Return the fraction of the complete sentences in a text that are grammatical, between 0 and 1.

    A line between two line breaks is complete. The text before the first and after the last may be cut off, and is
    ignored.

    Raises ValueError if the text has no complete sentence.
    """
    complete = text.split("\n")[1:-1]
    if not complete:
        raise ValueError(f"text must have a line between two line breaks, got {text[:80]!r}.")
    return sum(map(is_grammatical, complete)) / len(complete)


def entropy_per_character() -> float:
    """Return the entropy of a text in nats per character: no model can have a lower loss on a text that is long enough.

    No sentence can be drawn in two ways, so the entropy of a sentence is that of all choices that lead to it. Sentences
    are drawn independently, and a line break ends each, so we divide this by their average length.
    """
    choices, length = _averages("SENTENCE")
    return choices / (length + len(".\n"))


def _drawn(symbol: str, rng: random.Random) -> list[str]:
    """Return a random expansion of a symbol into words. Only rng.random() is used, the same in all versions."""
    if symbol in WORDS:
        return [symbol]
    expansions = EXPANSIONS[symbol]
    ends = itertools.accumulate(probability for probability, _ in expansions[:-1])  # the last one would end at 1
    point = rng.random()
    _, row = expansions[sum(point >= end for end in ends)]
    return [word for part in row for word in _drawn(part, rng)]


@functools.cache
def _recogniser() -> re.Pattern:
    """Return a regular expression for all sentences. It exists because no symbol occurs in its own expansion."""

    def pattern(symbol: str) -> str:
        if symbol in WORDS:
            return symbol
        return "(?:" + "|".join(" ".join(map(pattern, row)) for _, row in EXPANSIONS[symbol]) + ")"

    return re.compile(pattern("SENTENCE") + r"\.")


@functools.cache
def _averages(symbol: str) -> tuple[float, float]:
    """Return the entropy of a symbol's expansion, in nats, and its average number of characters."""
    if symbol in WORDS:
        return 0.0, len(symbol)
    entropy = length = 0.0
    for probability, row in EXPANSIONS[symbol]:
        entropies, lengths = zip(*map(_averages, row), strict=True)
        entropy += probability * (sum(entropies) - math.log(probability))
        length += probability * (sum(lengths) + len(row) - 1)  # with the spaces between
    return entropy, length
