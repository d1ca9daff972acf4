"""What kind of character each token is."""

import torch

from transformer_lm.heads.character_classes import CLASSES, Alphabet, character_class
from transformer_lm.texts.tokenizers import ByteTokenizer, CharTokenizer


def test_each_character_has_its_class():
    text = {"e": "vowel", "E": "vowel", "y": "consonant", "Q": "consonant", " ": "space", "\t": "space"}
    text |= {
        "\n": "newline",
        ",": "punctuation",
        "'": "punctuation",
        "-": "punctuation",
        "7": "other",
        "\ufffd": "other",
    }
    assert {character: character_class(character) for character in text} == text


def test_hebrew_letters_that_may_stand_for_vowels_are_vowels():
    assert [character_class(letter) for letter in "אהוישלם"] == ["vowel"] * 4 + ["consonant"] * 3
    assert character_class("\u05be") == "punctuation"


def test_classes_follow_the_tokens_of_a_tokenizer():
    alphabet = Alphabet.of(CharTokenizer("b a\nA"))
    assert [CLASSES[number] for number in alphabet.classes] == ["consonant", "space", "vowel", "newline", "vowel"]
    assert alphabet.is_one_of("vowel", "newline").tolist() == [False, False, True, True, True]


def test_both_cases_of_a_letter_have_one_number():
    letters = Alphabet.of(CharTokenizer("aBbA c")).letters
    assert letters[0] == letters[3]
    assert letters[1] == letters[2]
    assert len(letters.unique()) == 4


def test_bytes_that_are_part_of_a_character_are_of_no_class():
    alphabet = Alphabet.of(ByteTokenizer())
    assert CLASSES[alphabet.classes[ord("e")]] == "vowel"
    assert (alphabet.classes[128:] == CLASSES.index("other")).all()
    assert alphabet.classes.shape == torch.Size([256])
