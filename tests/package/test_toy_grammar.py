"""The toy grammar: the recogniser accepts only its sentences, and the entropy is that of its texts."""

import itertools
import math
import random
import re
import statistics
import time

import pytest

from transformer_lm.texts.toy_grammar import (
    CHARACTERS,
    GRAMMAR,
    WORDS,
    entropy_per_character,
    grammatical_share,
    is_grammatical,
    sentences,
)

CLASS = {  # the symbol that has only words, for each of them
    word: symbol
    for symbol, rows in GRAMMAR.items()
    if GRAMMAR.keys().isdisjoint(" ".join(rows).split())
    for word in rows
}
OTHER_NUMBER = {}  # of each verb
for kind in ("INTRANSITIVE", "TRANSITIVE"):
    for one, many in zip(GRAMMAR[f"{kind}1"], GRAMMAR[f"{kind}2"], strict=True):
        OTHER_NUMBER |= {one: many, many: one}
DETERMINERS = {"a": "an", "an": "a", "every": "some", "some": "every", "many": "every", "two": "every"}  # none fits


def drawn(count: int, seed: int = 0) -> list[str]:
    return list(itertools.islice(sentences(random.Random(seed)), count))


def words_of(sentence: str) -> list[str]:
    return sentence.removesuffix(".").split(" ")


def in_place(words: list[str], index: int, *others: str) -> str:
    """Return a sentence in which other words replace one."""
    return " ".join([*words[:index], *others, *words[index + 1 :]]) + "."


def language(symbol: str, longest: int) -> set[tuple[str, ...]]:
    """Return all that a symbol can be expanded to with at most this many words."""
    if symbol not in GRAMMAR:
        return {(symbol,)} if longest else set()
    found = set()
    for row in GRAMMAR[symbol]:
        beginnings = {()}
        for part in row.split():
            beginnings = {
                (*beginning, *more) for beginning in beginnings for more in language(part, longest - len(beginning))
            }
        found |= beginnings
    return found


def derivations(symbol: str, words: list[str], start: int) -> dict[int, list[float]]:
    """Return the probabilities of all ways to expand a symbol to the words from `start`, by where they end."""
    if symbol not in GRAMMAR:
        return {start + 1: [1.0]} if words[start : start + 1] == [symbol] else {}
    found = {}
    total = sum(GRAMMAR[symbol].values())
    for row, weight in GRAMMAR[symbol].items():
        ways = {start: [weight / total]}
        for part in row.split():
            longer = {}
            for end, before in ways.items():
                for further, after in derivations(part, words, end).items():
                    longer.setdefault(further, []).extend(p * q for p in before for q in after)
            ways = longer
        for end, probabilities in ways.items():
            found.setdefault(end, []).extend(probabilities)
    return found


# What is drawn


def test_a_seed_gives_the_same_sentences_always():
    assert drawn(3) == [
        "the dogs that wait sing.",
        "some mice that hear a small red child like the small horse.",
        "many angry cats follow the mice.",
    ]
    assert drawn(3, seed=1) != drawn(3)


def test_the_sentences_are_short_and_of_few_words_and_letters():
    text = "\n".join(drawn(2000))
    assert 40 <= len(WORDS) <= 60
    assert set(re.findall("[a-z]+", text)) == WORDS
    assert "".join(sorted(set(text))) == CHARACTERS
    lengths = [len(sentence) for sentence in text.split("\n")]
    assert sum(length < 60 for length in lengths) / len(lengths) > 0.9


def test_hardly_any_sentence_comes_twice():
    """150,000 characters are about 4,000 sentences: a model that has memorised them knows few of the next ones."""
    known = drawn(4000)
    assert len(set(known)) / len(known) > 0.85
    fresh = drawn(1000, seed=1)
    assert sum(sentence in set(known) for sentence in fresh) / len(fresh) < 0.2


def test_agreement_reaches_over_another_noun():
    """As in `the owl that sees the mice sings`: the noun before the verb is of the other number."""
    ends = [[CLASS.get(word, word) for word in words_of(sentence)[-2:]] for sentence in drawn(2000)]
    assert ends.count(["NOUN2", "INTRANSITIVE1"]) > 20
    assert sum(end[0] in ("ANOUN1", "BNOUN1") and end[1] == "INTRANSITIVE2" for end in ends) > 20


# What is recognised


def test_all_that_is_drawn_is_grammatical():
    assert all(map(is_grammatical, drawn(5000)))


def test_the_recogniser_knows_all_short_sentences_and_no_other_row_of_words():
    short = language("SENTENCE", 3)
    assert len(short) == 4 * (2 * 8 + 3 + 5) + 4 * (4 * 8)  # four verbs; the and every, an, a; the, some, many, two
    found = {words for words in itertools.product(sorted(WORDS), repeat=3) if is_grammatical(" ".join(words) + ".")}
    assert found == short


def test_the_recogniser_knows_all_sentences_of_five_words_and_no_other_row():
    """With a word of each kind, as all of one kind are treated alike."""
    few = ["a", "an", "the", "some", "old", "red", "owl", "cat", "owls", "sings", "sing", "sees", "see", "that"]
    known = {words for words in language("SENTENCE", 5) if set(words) <= set(few)}
    for count in (1, 2, 3, 4, 5):
        found = {words for words in itertools.product(few, repeat=count) if is_grammatical(" ".join(words) + ".")}
        assert found == {words for words in known if len(words) == count}
        assert bool(found) == (count >= 3)


@pytest.mark.parametrize(
    "sentence",
    [
        "the owl sings.",
        "an old owl sings.",
        "a small owl sings.",
        "every orange cat sleeps.",
        "an angry orange cat sleeps.",
        "the owl that sees two black mice sings.",
        "the owls that see the mouse sing.",
        "some dogs follow an ape.",
        "the small red horse that hears two angry orange dogs likes many old white children.",
    ],
)
def test_these_are_grammatical(sentence):
    assert is_grammatical(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        ".",
        "the",
        "the owl sings",
        "the owl sings. ",
        "the owl sings.\n",
        " the owl sings.",
        "the  owl sings.",
        "the owl sings..",
        "the owl sings .",
        "The owl sings.",
        "the owl sings.the owl sings.",
        "the owl sing.",
        "a owl sings.",
        "an small owl sings.",
        "a owls sing.",
        "every owls sing.",
        "some owl sings.",
        "the red old owl sings.",
        "the old small owl sings.",
        "the owl that sees two black mice sing.",
        "the owls that see the mouse sings.",
        "the owl that see the mice sings.",
        "the owl that sees the mice that run sings.",
        "the owl sees the mice that run.",
        "the owl sees.",
        "the owl sings the mouse.",
        "the owl that sings.",
        "owls sing.",
        "the owl sings a.",
    ],
)
def test_these_are_not_grammatical(sentence):
    assert not is_grammatical(sentence)


def test_a_word_too_many_too_few_or_elsewhere_is_noticed():
    for sentence in drawn(500):
        words = words_of(sentence)
        for index, word in enumerate(words):
            assert not is_grammatical(in_place(words, index, word, word)), "doubled"
            assert not is_grammatical(in_place(words, index, word[:-1] + "x")), "misspelt"
            if word in OTHER_NUMBER:
                assert not is_grammatical(in_place(words, index, OTHER_NUMBER[word])), "verb of the other number"
            if word in DETERMINERS:
                assert not is_grammatical(in_place(words, index, DETERMINERS[word])), "another article"
            if word in {"the", *DETERMINERS}:
                assert not is_grammatical(in_place(words, index)), "no article"
        for index, (word, following) in enumerate(itertools.pairwise(words)):
            if CLASS.get(word, word) != CLASS.get(following, following):
                assert not is_grammatical(in_place([*words[:index], *words[index + 1 :]], index, following, word))


def test_thousands_of_sentences_are_recognised_in_a_second():
    known = drawn(2000)
    is_grammatical("")  # makes the recogniser
    began = time.process_time()
    assert all(map(is_grammatical, known))
    assert time.process_time() - began < 1


# The fraction in a text


def test_the_share_is_of_the_sentences_that_are_complete():
    assert grammatical_share("wl sings.\nthe owl sings.\nthe owl sing.\na cat runs.\nan ape waits.\nthe o") == 0.75


def test_an_empty_line_is_a_sentence_that_is_not_grammatical():
    assert grammatical_share(".\n\nthe owl sings.\n") == 0.5


def test_a_text_of_the_grammar_has_share_one():
    assert grammatical_share("\n".join(drawn(100))) == 1.0


@pytest.mark.parametrize("text", ["", "the owl sings.", "the owl sings.\n", "the owl sings.\nthe owl"])
def test_a_text_without_a_complete_sentence_is_refused(text):
    with pytest.raises(ValueError, match="text must have a line between two line breaks, got "):
        grammatical_share(text)


# The entropy


def test_no_sentence_can_be_drawn_in_two_ways():
    for sentence in drawn(200):
        words = words_of(sentence)
        assert len(derivations("SENTENCE", words, 0)[len(words)]) == 1, sentence


def test_the_entropy_is_that_of_many_sentences():
    """The average of -ln p of a sentence, each computed from all its derivations, over the average length."""
    drawn_ones = drawn(1500)
    surprises = []
    for sentence in drawn_ones:
        words = words_of(sentence)
        surprises.append(-math.log(sum(derivations("SENTENCE", words, 0)[len(words)])))
    lengths = [len(sentence) + 1 for sentence in drawn_ones]
    assert statistics.mean(surprises) / statistics.mean(lengths) == pytest.approx(entropy_per_character(), rel=0.01)
