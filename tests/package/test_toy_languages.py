"""The two toy languages: hand-made translations of every rule, the alignment, and what is not in the language.

Probabilities and the number of words do not matter here.
"""

import itertools
import random
import re

import pytest

from transformer_lm.texts import toy_languages
from transformer_lm.texts.pairs import load_toy_pairs
from transformer_lm.texts.toy_languages import (
    ADJECTIVES,
    CONJUNCTIONS,
    DETERMINERS,
    NAMES,
    NOUNS,
    VERBS,
    english_words,
    lorin_words,
    toy_sentences,
    toy_translation,
)
from transformer_lm.texts.word_tokenizers import CONTROLS, UNKNOWN


def drawn(count: int, seed: int = 0) -> list[str]:
    return list(itertools.islice(toy_sentences(random.Random(seed)), count))


def stems() -> dict[str, str]:
    """Return the beginning of each English word's translation."""
    found = {".": "."} | {name: name for name in NAMES} | CONJUNCTIONS | ADJECTIVES
    for words in DETERMINERS:
        found |= words
    for singular, (plural, stem, _) in NOUNS.items():
        found |= {singular: stem, plural: stem}
    for singular, (plural, stem) in VERBS.items():
        found |= {singular: stem, plural: stem}
    return found


# What is translated


@pytest.mark.parametrize(
    ("english", "lorin"),
    [
        # A verb comes last, an object before it.
        ("the cat sleeps .", "mila namia ."),
        ("the cat sees the bird .", "mila pires vidia ."),
        ("the bird sees the cat .", "pire milas vidie ."),
        # In a phrase the noun comes first, then the adjective, then the determiner.
        ("this red owl sings .", "huva rusa taka sinia ."),
        ("the red owl sings .", "huva rusa sinia ."),
        ("this owl sings .", "huva taka sinia ."),
        # Three classes, with the vowels a, e and u: adjectives, determiners and verbs agree.
        ("every old king waits .", "lora dula omna estia ."),
        ("every old goat waits .", "ruve dule omne estie ."),
        ("every old horse waits .", "selu dulu omnu estiu ."),
        # In the plural too; the words of an object agree with the object, the verb with its subject.
        ("two black dogs run .", "kanuno moruno otuno koriuno ."),
        ("many owls hear these quiet mice .", "huvano multano tikenos sileno takeno soniano ."),
        ("this dog follows many happy sisters .", "kanu taku banunos galuno multuno toriu ."),
        # `A and B` stays, `A because B` is reversed.
        ("the cat sings and the dogs run .", "mila sinia ka kanuno koriuno ."),
        ("the cat sings because the dogs run .", "kanuno koriuno ko mila sinia ."),
        ("the cat sings because the dogs run and the goat waits .", "kanuno koriuno ko mila sinia ka ruve estie ."),
        ("the cat sings and the dogs run because the goat waits .", "mila sinia ka ruve estie ko kanuno koriuno ."),
        # A name comes first in its phrase, then its meaning, which applies wherever the name occurs later.
        ("the goat banel sings .", "banel ruve sinie ."),
        ("this old goat banel sings and banel waits .", "banel ruve dule take sinie ka banel ruve estie ."),
        ("the king banel sings and old banel waits .", "banel lora sinia ka banel lora dula estia ."),
        ("the dog banel sings because red banel waits .", "banel kanu rusu estiu ko banel kanu siniu ."),
        ("the cat likes the bird codin and codin runs .", "mila codin pires amia ka codin pire korie ."),
        # A name does not change as an object; its meaning does.
        (
            "the bird codin sings and two cats like young codin .",
            "codin pire sinie ka milano otano codin pires fene amiano .",
        ),
        # Several names at once, and one twice.
        (
            "the owl hatam helps the horse jopon because jopon sees red hatam .",
            "jopon selu hatam huvas rusa vidiu ko hatam huva jopon selus pomia .",
        ),
        ("the owl hatam sees hatam .", "hatam huva hatam huvas vidia ."),
        # `the` has no translation, of one and of several.
        ("the cats like the cat .", "milano milas amiano ."),
    ],
)
def test_every_rule_by_hand(english, lorin):
    pair = toy_translation(english)
    assert (pair.source, pair.target) == (english, lorin)


def test_the_example_in_the_module_is_right():
    example = re.search(r'toy_translation\("(.*)"\)\.target\n +"(.*)"\n', toy_languages.__doc__)
    assert toy_translation(example[1]).target == example[2]


@pytest.mark.parametrize("sentence", ["the  cat sleeps .", " the cat sleeps .\n", "the\tcat sleeps ."])
def test_white_space_makes_no_difference(sentence):
    assert toy_translation(sentence) == toy_translation("the cat sleeps .")


def test_the_same_name_means_somebody_else_in_another_sentence():
    assert toy_translation("the cat banel sings and banel waits .").target.endswith("banel mila estia .")
    assert toy_translation("the dog banel sings and banel waits .").target.endswith("banel kanu estiu .")


def test_every_sentence_that_is_drawn_has_a_translation_of_words_that_its_alignment_names():
    begins = stems()
    for sentence in drawn(1500):
        pair = toy_translation(sentence)
        english, lorin = pair.source.split(), pair.target.split()
        assert pair.source == sentence
        assert sorted(set(pair.alignment)) == [place for place, word in enumerate(english) if word != "the"]
        again = {place for place in pair.alignment if pair.alignment.count(place) > 1}
        assert again <= {place - 1 for place, word in enumerate(english) if word in NAMES}  # nouns that were named
        assert len(lorin) == len(pair.alignment)
        for word, place in zip(lorin, pair.alignment, strict=True):
            assert word.startswith(begins[english[place]])


def test_another_noun_of_the_same_class_changes_its_own_word_alone_and_one_of_another_class_changes_more():
    cat, owl, goat = (toy_translation(f"this old {noun} sings .").target.split() for noun in ("cat", "owl", "goat"))
    assert [ours == theirs for ours, theirs in zip(cat, owl, strict=True)] == [False, True, True, True, True]
    assert [ours == theirs for ours, theirs in zip(cat, goat, strict=True)] == [False, False, False, False, True]


def test_class_and_number_reach_as_far_as_a_name_does():
    """The class of a name is given once, and applies in the last of four clauses."""
    middle = "and these birds wait and two dogs run"
    for noun, end in (("cat", "mila sinia"), ("goat", "ruve sinie"), ("child", "nenu siniu")):
        assert toy_translation(f"the {noun} banel waits {middle} and banel sings .").target.endswith(f"banel {end} .")


# What is drawn


def test_the_same_seed_gives_the_same_sentences_and_another_seed_others():
    assert drawn(50) == drawn(50)
    assert drawn(50) != drawn(50, seed=1)


def test_every_kind_of_word_is_drawn_and_none_that_is_not_in_the_lists():
    sentences = drawn(3000)
    english = {word for sentence in sentences for word in sentence.split()}
    lorin = {word for sentence in sentences for word in toy_translation(sentence).target.split()}
    assert english == set(english_words())
    assert lorin <= set(lorin_words())
    assert len(lorin) > 0.8 * len(lorin_words())  # forms that are rare may not have come up


@pytest.mark.parametrize("words", [english_words(), lorin_words()], ids=["english", "lorin"])
def test_the_words_of_a_language_are_distinct_and_single(words):
    assert len(set(words)) == len(words)
    assert all(re.fullmatch(r"[a-z]+|\.", word) for word in words)


def test_no_form_of_lorin_means_two_things():
    """Names are the only words that both languages share, apart from the full stop."""
    assert set(english_words()) & set(lorin_words()) == {".", *NAMES}


def test_sentences_are_of_many_lengths_and_hardly_any_comes_twice():
    sentences = drawn(2000)
    lengths = [len(sentence.split()) for sentence in sentences]
    assert min(lengths) <= 5
    assert max(lengths) >= 20
    assert len(set(sentences)) / len(sentences) > 0.9


def test_a_name_is_said_again_in_many_sentences():
    again = [sum(sentence.split().count(name) > 1 for name in NAMES) > 0 for sentence in drawn(500)]
    assert sum(again) > 100


# What is refused


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("", "'' must continue with a determiner, or a name that was given before, got the end."),
        ("the", "'the' must continue with a noun, got the end."),
        ("the cat sings", "'the cat sings' must continue with ., got the end."),
        ("cat sings .", "must continue with a determiner, or a name that was given before, got 'cat' as word 1."),
        ("the zebra sings .", "must continue with a noun, got 'zebra' as word 2."),
        ("The cat sings .", "must continue with a determiner, or a name that was given before, got 'The' as word 1."),
        ("the cat sings.", "must continue with a verb for one, got 'sings.' as word 3."),
        ("the cat old sings .", "must continue with a verb for one, got 'old' as word 3."),
        # number
        ("the cats sings .", "must continue with a verb for several, got 'sings' as word 3."),
        ("the cat sing .", "must continue with a verb for one, got 'sing' as word 3."),
        ("this cats sing .", "must continue with a determiner for several, got 'this' as word 1."),
        ("the cat sees two bird .", "must continue with a determiner for one, got 'two' as word 4."),
        # objects
        ("the cat sees .", "must continue with a determiner, or a name that was given before, got '.' as word 4."),
        ("the cat sings the dog .", "must continue with ., got 'the' as word 4."),
        ("the old red cat sings .", "must continue with a noun, got 'red' as word 3."),
        ("the cat sings because the dog runs because the owl waits .", "continue with ., got 'because' as word 8."),
        # names
        ("banel sings .", "must continue with a determiner, or a name that was given before, got 'banel' as word 1."),
        ("the cat banel sings and codin waits .", "a name that was given before, got 'codin' as word 6."),
        ("the cat banel sings and the dog banel runs .", "must continue with a new name, got 'banel' as word 8."),
        ("the cats banel sing .", "must continue with a verb for several, got 'banel' as word 3."),
        ("the banel sings .", "must continue with a noun, got 'banel' as word 2."),
        # joints and ends
        ("the cat sings and .", "must continue with a determiner, or a name that was given before, got '.' as word 5."),
        ("because the cat sings .", "a name that was given before, got 'because' as word 1."),
        ("the cat sings . the dog runs .", "a sentence must end with its first full stop, got 'the cat sings . the"),
    ],
)
def test_what_is_not_in_the_language_is_refused_and_the_error_says_where(sentence, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        toy_translation(sentence)


def test_a_sentence_that_is_cut_off_or_has_a_word_twice_is_refused():
    for sentence in drawn(300):
        words = sentence.split()
        for place in range(len(words)):
            with pytest.raises(ValueError, match="must continue with "):
                toy_translation(" ".join(words[:place]))
            with pytest.raises(ValueError, match=r"must continue with |must end with its first full stop"):
                toy_translation(" ".join((*words[: place + 1], *words[place:])))


# As a corpus


@pytest.fixture(scope="module")
def corpus():
    return load_toy_pairs(240)


def test_the_parts_are_of_the_promised_sizes_and_have_no_sentence_in_common(corpus):
    parts = [corpus.train, corpus.validation, corpus.test]
    assert list(map(len, parts)) == [240, 12, 12]
    sources = [tuple(source) for part in parts for source, _ in part]
    assert len(set(sources)) == len(sources) == 264


def test_each_pair_is_a_sentence_and_its_translation_and_every_word_is_known(corpus):
    for source, target in (*corpus.train, *corpus.validation, *corpus.test):
        assert UNKNOWN not in source
        assert UNKNOWN not in target
        english, lorin = corpus.source_tokenizer.decode(source), corpus.target_tokenizer.decode(target)
        assert toy_translation(english).target == lorin
        assert len(source) == len(english.split())
        assert len(target) == len(lorin.split())


def test_one_tokenizer_knows_all_words_of_both_languages(corpus):
    assert corpus.source_tokenizer is corpus.target_tokenizer
    assert corpus.source_tokenizer.vocab_size == len(CONTROLS) + len({*english_words(), *lorin_words()})
    assert corpus.source_tokenizer.decode(corpus.source_tokenizer.encode("the cat sleeps .")) == "the cat sleeps ."


def test_the_pairs_are_always_the_same_and_more_of_them_begin_with_the_same(corpus):
    again, more = load_toy_pairs(240), load_toy_pairs(300)
    for part in ("train", "validation", "test"):
        pairs = getattr(corpus, part)
        assert getattr(again, part) == pairs
        assert getattr(more, part)[: len(pairs)] == pairs
    assert len(more.validation) == 15


@pytest.mark.parametrize("n", [99, 0, -1])
def test_too_few_pairs_are_refused(n):
    with pytest.raises(ValueError, match=f"n must be at least 100, got {n}"):
        load_toy_pairs(n)


def test_a_hundred_pairs_are_enough():
    corpus = load_toy_pairs(100)
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (100, 5, 5)
    assert repr(corpus) == "<PairCorpus toy: 100 train, 5 validation, 5 test>"
