"""The masks of patterns that a head might attend to, against loops over pairs of characters."""

import random

import pytest
import torch

from transformer_lm.heads.character_classes import Alphabet, character_class
from transformer_lm.heads.patterns import PATTERNS, at_offset
from transformer_lm.texts.tokenizers import CharTokenizer

TEXTS = ("To be, or\nnot to be", "oO aA  bookkeep.\n\nI", ".. 'tis a tte. Tte\n")
TOKENIZER = CharTokenizer.of("".join(TEXTS))
ALPHABET = Alphabet.of(TOKENIZER)
TOKENS = torch.tensor([TOKENIZER.encode(text[:18]) for text in TEXTS])


def is_letter(character: str) -> bool:
    return character_class(character) in ("vowel", "consonant")


def is_space(character: str) -> bool:
    return character in " \n"


def start_of_word(text: str, i: int) -> int | None:
    """Return where the word that contains position i begins, None if it is in no word."""
    if not is_letter(text[i]):
        return None
    while i and is_letter(text[i - 1]):
        i -= 1
    return i


def last_space(text: str, i: int) -> int | None:
    return max((j for j in range(i) if is_space(text[j])), default=None)


RULES = {
    "current": lambda text, i, j: j == i,
    "previous": lambda text, i, j: j == i - 1,
    "first": lambda text, i, j: j == 0 < i,
    "duplicate": lambda text, i, j: j < i and text[j] == text[i],
    "same_letter": lambda text, i, j: j < i and text[j].lower() == text[i].lower(),
    "previous_space": lambda text, i, j: j == last_space(text, i),
    "any_space": lambda text, i, j: j < i and is_space(text[j]),
    "word_start": lambda text, i, j: j == start_of_word(text, i) != i,
    "vowel_to_consonant": lambda text, i, j: (
        j < i and (character_class(text[i]), character_class(text[j])) == ("vowel", "consonant")
    ),
    "consonant_to_vowel": lambda text, i, j: (
        j < i and (character_class(text[i]), character_class(text[j])) == ("consonant", "vowel")
    ),
    "punctuation": lambda text, i, j: j < i and character_class(text[j]) == "punctuation",
    "newline": lambda text, i, j: j < i and text[j] == "\n",
    "induction": lambda text, i, j: 0 < j < i and text[j - 1] == text[i],
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_what_its_rule_says(name):
    mask = PATTERNS[name](TOKENS, ALPHABET)
    for row, text in enumerate(TEXTS):
        expected = [[bool(RULES[name](text, i, j)) for j in range(18)] for i in range(18)]
        assert mask[row].tolist() == expected
    assert mask.any()


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_looks_ahead_or_at_itself(name):
    mask = PATTERNS[name](TOKENS, ALPHABET)
    assert not mask.triu(0 if name != "current" else 1).any()


def test_an_offset_is_a_diagonal():
    for offset in (0, 1, 5):
        mask = at_offset(offset)(TOKENS, ALPHABET)
        assert mask.shape == (3, 18, 18)
        assert {(i - j).item() for _, i, j in mask.nonzero()} == {offset}
        assert mask.sum() == 3 * (18 - offset)


def test_a_doubled_letter_is_no_induction_of_itself():
    tokens = torch.tensor([[4, 4, 4]])
    assert PATTERNS["induction"](tokens, ALPHABET).nonzero().tolist() == [[0, 2, 1]]


def test_patterns_leave_the_tokens_as_they_are():
    rng = random.Random(0)
    tokens = torch.tensor([[rng.randrange(ALPHABET.classes.numel()) for _ in range(9)] for _ in range(2)])
    before = tokens.clone()
    for pattern in PATTERNS.values():
        pattern(tokens, ALPHABET)
    assert torch.equal(tokens, before)
