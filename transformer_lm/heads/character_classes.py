"""Classes of characters: letters, vowels and consonants, space, line break, punctuation."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from transformer_lm.texts.tokenizers import Tokenizer

# Hebrew writes few vowels: each of these letters is a vowel or a consonant.
VOWELS = frozenset("aeiouAEIOU\N{HEBREW LETTER ALEF}\N{HEBREW LETTER HE}\N{HEBREW LETTER VAV}\N{HEBREW LETTER YOD}")
CLASSES = ("vowel", "consonant", "space", "newline", "punctuation", "other")


@dataclass(frozen=True)
class Alphabet:
    """The character of each token. A token that is only part of a character, such as a byte of Hebrew, is "�"."""

    characters: tuple[str, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Alphabet":
        """Return the alphabet of a tokenizer."""
        return cls(tuple(tokenizer.decode([token]) for token in range(tokenizer.vocab_size)))

    @cached_property
    def classes(self) -> Tensor:
        """The class of each token as its index in CLASSES, (v)."""
        return torch.tensor([CLASSES.index(character_class(character)) for character in self.characters])

    @cached_property
    def letters(self) -> Tensor:
        """A number for each token, the same for a letter in either case, (v)."""
        folded = [character.casefold() for character in self.characters]
        return torch.tensor([folded.index(letter) for letter in folded])

    def is_one_of(self, *classes: str) -> Tensor:
        """Return for each token whether it is of one of these classes, (v)."""
        return torch.isin(self.classes, torch.tensor([CLASSES.index(name) for name in classes]))


def character_class(character: str) -> str:
    """Return which of CLASSES a character belongs to."""
    if character == "\n":
        return "newline"
    if character.isspace():
        return "space"
    if character.isalpha():
        return "vowel" if character in VOWELS else "consonant"
    return "punctuation" if character.isprintable() and not character.isdigit() and character != "�" else "other"
