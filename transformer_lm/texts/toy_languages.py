"""Two small languages with exactly one right translation, for training a translation model and measuring it.

    toy_translation("the old goat banel helps these birds because banel sings .").target
    "banel ruve sinie ko banel ruve dule pirenos takeno pomie ."

The first looks like English; the second is called Lorin. Replacing words one by one is not enough to translate:

- order: a verb comes last in its clause, after its object. In a phrase the name comes first, then the noun, the
  adjective, the determiner. `A because B` becomes `B ko A`.
- agreement: nouns are of three classes, with the vowels `a`, `e` and `u`, which English does not show. Adjectives,
  determiners and verbs take the class and number of their noun; a noun is marked if it is an object.
- names: `the old goat banel` gives a goat a name. From then on `banel` means a goat, at any distance:
  Lorin says both, `banel ruve`. In another sentence the same name can mean another animal.
- `the` has no translation, and a noun may have several: lengths differ.

Each word of Lorin comes from one word of the source, so the alignment is known, and attention can be compared with it.
"""

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# English singular and plural; in Lorin, the stem and the vowel of the noun's class.
NOUNS = {
    "cat": ("cats", "mil", "a"),
    "dog": ("dogs", "kan", "u"),
    "bird": ("birds", "pir", "e"),
    "child": ("children", "nen", "u"),
    "farmer": ("farmers", "gam", "e"),
    "king": ("kings", "lor", "a"),
    "owl": ("owls", "huv", "a"),
    "horse": ("horses", "sel", "u"),
    "mouse": ("mice", "tik", "e"),
    "sister": ("sisters", "ban", "u"),
    "goat": ("goats", "ruv", "e"),
    "neighbour": ("neighbours", "dor", "a"),
}
SINGULARS = {plural: singular for singular, (plural, _, _) in NOUNS.items()}
ADJECTIVES = {
    "old": "dul",
    "young": "fen",
    "red": "rus",
    "black": "mor",
    "small": "pet",
    "happy": "gal",
    "quiet": "sil",
    "clever": "vek",
}
TRANSITIVE = {
    "sees": ("see", "vid"),
    "hears": ("hear", "son"),
    "likes": ("like", "am"),
    "follows": ("follow", "tor"),
    "finds": ("find", "nak"),
    "helps": ("help", "pom"),
}
INTRANSITIVE = {"sleeps": ("sleep", "nam"), "sings": ("sing", "sin"), "runs": ("run", "kor"), "waits": ("wait", "est")}
VERBS = TRANSITIVE | INTRANSITIVE
SINGULAR_VERBS = {plural: singular for singular, (plural, _) in VERBS.items()}
VERB_STEMS = (
    {singular: stem for singular, (_, stem) in VERBS.items()},
    dict(VERBS.values()),
)
DETERMINERS = (
    {"the": "", "this": "tak", "every": "omn"},  # singular
    {"the": "", "these": "tak", "two": "ot", "many": "mult"},  # plural
)
FIRST_SYLLABLES = (
    *("ba", "bi", "co", "da", "du", "fe", "fo", "gi", "go", "ha"),
    *("he", "jo", "ju", "ki", "ku", "la", "me", "ni", "po", "ro"),
)
NAMES = tuple(
    first + last
    for first in FIRST_SYLLABLES
    for last in ("bek", "din", "fol", "gar", "mik", "nel", "pon", "rud", "tam", "vix")
)

CONJUNCTIONS = {"and": "ka", "because": "ko"}

# The probabilities of one statement or two in a sentence, and of its optional parts.
STATEMENTS = (0.6, 0.4)
PLURAL, NAMED_BEFORE, NAMED_NOW, ADJECTIVE = 0.3, 0.6, 0.9, 0.4
INTRANSITIVE_VERB, BECAUSE = 0.4, 0.2


@dataclass(frozen=True)
class ToyPair:
    """A sentence, its only right translation, and for each word of the latter the index of its source word."""

    source: str
    target: str
    alignment: tuple[int, ...]


def english_words() -> list[str]:
    """Return all words of the first language."""
    verbs = (form for singular, (plural, _) in VERBS.items() for form in (singular, plural))
    nouns = (form for singular, (plural, *_) in NOUNS.items() for form in (singular, plural))
    small = (".", *CONJUNCTIONS, *dict.fromkeys((*DETERMINERS[False], *DETERMINERS[True])))
    return [*small, *ADJECTIVES, *nouns, *verbs, *NAMES]


def lorin_words() -> list[str]:
    """Return all words of the second language, in all their forms."""
    endings = {plural: [_ending(vowel, plural) for vowel in "aeu"] for plural in (False, True)}
    all_endings = [*endings[False], *endings[True]]
    determiners = [
        stem + ending for plural in endings for stem in DETERMINERS[plural].values() for ending in endings[plural]
    ]
    nouns = [stem + vowel + role for _, stem, vowel in NOUNS.values() for role in ("", "s", "no", "nos")]
    described = [stem + ending for stem in ADJECTIVES.values() for ending in all_endings]
    verbs = [f"{stem}i{ending}" for _, stem in VERBS.values() for ending in all_endings]
    small = (".", *CONJUNCTIONS.values())
    return [*small, *(word for word in determiners if word not in all_endings), *described, *nouns, *verbs, *NAMES]


def toy_sentences(rng: random.Random) -> Iterator[str]:
    """Yield English sentences without end, drawn independently. A seed gives the same ones in every Python version."""
    while True:
        sentence = _Speaker(rng)
        sentence.statements(1 + sentence.drawn(STATEMENTS))
        yield " ".join((*sentence.words, "."))


def toy_translation(sentence: str) -> ToyPair:
    """Return a sentence with its translation.

    Raises ValueError, which says where, if the sentence is not in the language.
    """
    translator = _Translator(sentence.split())
    translated = [*translator.statements(), translator.taken(".", {".": "."})]
    if translator.place < len(translator.words):
        raise ValueError(f"a sentence must end with its first full stop, got {sentence!r}.")
    words, alignment = zip(*translated, strict=True)
    return ToyPair(" ".join(translator.words), " ".join(words), alignment)


class _Speaker:
    """Generates a sentence, part by part. It uses only rng.random(), which is the same in every version of Python."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.words: list[str] = []
        self.names: list[str] = []

    def drawn(self, shares: tuple[float, ...]) -> int:
        """Return the index of one of several options, drawn with these probabilities."""
        point = self.rng.random()
        return sum(point >= end for end in itertools.accumulate(shares[:-1]))

    def happens(self, share: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < share

    def one_of(self, options: Iterable[str]) -> str:
        """Return one of several options, all equally likely."""
        options = tuple(options)
        return options[int(self.rng.random() * len(options))]

    def statements(self, count: int) -> None:
        """Generate this many statements, some with a reason."""
        for number in range(count):
            if number:
                self.words.append("and")
            self.clause()
            if self.happens(BECAUSE):
                self.words.append("because")
                self.clause()

    def clause(self) -> None:
        """Generate a clause: a subject, a verb and perhaps an object."""
        plural, intransitive = self.phrase(), self.happens(INTRANSITIVE_VERB)
        verbs = INTRANSITIVE if intransitive else TRANSITIVE
        verb = self.one_of(verbs)
        self.words.append(verbs[verb][0] if plural else verb)
        if not intransitive:
            self.phrase()

    def phrase(self) -> bool:
        """Generate an earlier name, or a noun and its modifiers; return whether it is plural."""
        if self.names and self.happens(NAMED_BEFORE):
            self.adjective()
            self.words.append(self.one_of(self.names))
            return False
        plural = self.happens(PLURAL)
        self.words.append(self.one_of(DETERMINERS[plural]))
        self.adjective()
        self.words.append(self.one_of(SINGULARS if plural else NOUNS))
        if not plural and self.happens(NAMED_NOW):
            self.names.append(self.one_of(name for name in NAMES if name not in self.names))
            self.words.append(self.names[-1])
        return plural

    def adjective(self) -> None:
        """Generate an adjective, or none."""
        if self.happens(ADJECTIVE):
            self.words.append(self.one_of(ADJECTIVES))


Translated = list[tuple[str, int]]  # words of Lorin, each with the index of its source word


class _Translator:
    """Reads a sentence from left to right, and returns the translation of each part that it has read."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.place = words, 0
        self.names: dict[str, tuple[str, int]] = {}  # the noun that each name refers to, and its index

    @property
    def word(self) -> str:
        """The next word, or an empty string."""
        return self.words[self.place] if self.place < len(self.words) else ""

    def taken(self, what: str, translations: dict[str, str], ending: str = "") -> tuple[str, int]:
        """Read one word of a kind; return its translation with an ending, and its index."""
        if self.word not in translations:
            got = f"{self.word!r} as word {self.place + 1}" if self.word else "the end"
            raise ValueError(f"{' '.join(self.words)!r} must continue with {what}, got {got}.")
        self.place += 1
        return translations[self.words[self.place - 1]] + ending, self.place - 1

    def statements(self) -> Translated:
        """Read statements; in Lorin, a reason comes first."""
        translated = self.clause()
        if self.word == "because":
            because = self.taken("because", CONJUNCTIONS)
            translated = [*self.clause(), because, *translated]
        if self.word == "and":
            joint = self.taken("and", CONJUNCTIONS)
            translated = [*translated, joint, *self.statements()]
        return translated

    def clause(self) -> Translated:
        """Read a clause; in Lorin, its verb comes last."""
        subject, vowel, plural = self.phrase()
        transitive = self.word in VERB_STEMS[plural] and SINGULAR_VERBS.get(self.word, self.word) in TRANSITIVE
        several = "several" if plural else "one"
        verb = self.taken(f"a verb for {several}", VERB_STEMS[plural], "i" + _ending(vowel, plural))
        thing = self.phrase("s")[0] if transitive else []
        return [*subject, *thing, verb]

    def phrase(self, role: str = "") -> tuple[Translated, str, bool]:
        """Read a name, or a noun and its modifiers; return it with its vowel and whether it is plural."""
        start = self.place
        determined = self.word in DETERMINERS[False] or self.word in DETERMINERS[True]
        self.place += determined
        described = self.word in ADJECTIVES
        self.place += described
        if not determined:
            known = {name: name for name in self.names}
            name = self.taken("a determiner, or a name that was given before", known)
            named, place = self.names[name[0]]
            _, stem, vowel = NOUNS[named]
            plural, head = False, [name, (stem + vowel + role, place)]
        else:
            plural = self.word in SINGULARS
            _, stem, vowel = NOUNS[SINGULARS.get(self.word, self.word)] if self._is_noun else ("", "", "")
            noun = self.taken("a noun", {self.word: stem} if stem else {}, _ending(vowel, plural) + role)
            head = [noun]
            if not plural and self.word in NAMES:
                new = self.taken("a new name", {name: name for name in NAMES if name not in self.names})
                self.names[new[0]] = self.words[noun[1]], noun[1]
                head = [new, noun]
        end, self.place = self.place, start
        before: Translated = []
        if determined:
            several = "for several" if plural else "for one"
            stem, place = self.taken(f"a determiner {several}", DETERMINERS[plural])
            before = [(stem + _ending(vowel, plural), place)] if stem else []
        if described:
            before.append(self.taken("an adjective", ADJECTIVES, _ending(vowel, plural)))
        self.place = end
        return [*head, *reversed(before)], vowel, plural

    @property
    def _is_noun(self) -> bool:
        return self.word in NOUNS or self.word in SINGULARS


def _ending(vowel: str, plural: bool) -> str:
    return vowel + "no" * plural
