"""Tokenizers for language models: one token per character, or one per byte.

    tokenizer = CharTokenizer.of("to be or not to be")
    tokenizer.decode(tokenizer.encode("not to be")) == "not to be"

Both kinds have the same methods. `load_tokenizer` reads what `save` writes, a table in plain JSON. There are two more
kinds for translation, of words and of subwords, in `word_tokenizers.py`.
"""

import codecs
import html
import importlib
import json
import operator
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from transformer_lm.files import write_whole

GLYPHS = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})

REPLACEMENT = "\ufffd"  # Unicode's replacement for anything that cannot be shown
NAMED = 5  # unknown characters that an error message names


class BaseTokenizer:
    """The base of all kinds of tokenizers."""

    kind: str

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        raise NotImplementedError

    def as_table(self) -> dict:
        """Return what is saved."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike) -> None:
        """Write the table to a file, which is either complete or unchanged."""
        write_whole(path, json.dumps(self.as_table(), ensure_ascii=False) + "\n")

    def _indices(self, tokens: Iterable[int] | Tensor) -> list[int]:
        """Return tokens as integers.

        Raises ValueError if they are not one sequence, or if one of them is not in the vocabulary.
        """
        if isinstance(tokens, Tensor):
            if tokens.dim() != 1:
                raise ValueError(f"tokens must have one axis, got shape {tuple(tokens.shape)}.")
            tokens = tokens.tolist()
        indices = [operator.index(token) for token in tokens]
        if outside := [index for index in indices if not 0 <= index < self.vocab_size]:
            raise ValueError(f"tokens must be between 0 and {self.vocab_size - 1}, got {outside[0]}.")
        return indices


@dataclass(frozen=True)
class CharTokenizer(BaseTokenizer):
    """One token per character: the index of the character in `characters`.

    A text may only have characters of the vocabulary, unless `unknown` is True. Then one more token, the last,
    represents all others, and is decoded as U+FFFD. The tokenizers of corpora do not have it: every character of a
    corpus is known, so a model would never see that token in training. A prompt with a character that is not in the
    corpus is refused.

    Raises ValueError if `characters` is empty, or a character occurs twice.
    """

    characters: str
    unknown: bool = False

    kind = "characters"

    def __post_init__(self) -> None:
        if not isinstance(self.characters, str) or not self.characters:
            raise ValueError(f"characters must be a string of at least one character, got {self.characters!r}.")
        if not isinstance(self.unknown, bool):
            raise ValueError(f"unknown must be True or False, got {self.unknown!r}.")
        if twice := [character for character, count in Counter(self.characters).items() if count > 1]:
            raise ValueError(f"characters must be distinct, got {_named(twice)} more than once.")

    @classmethod
    def of(cls, text: str, unknown: bool = False) -> "CharTokenizer":
        """Return a tokenizer for the characters of a text, in the order of Unicode."""
        return cls("".join(sorted(set(text))), unknown)

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self.characters) + self.unknown

    @cached_property
    def _tokens(self) -> dict[str, int]:
        return {character: token for token, character in enumerate(self.characters)}

    def encode(self, text: str) -> list[int]:
        """Return the token of each character.

        Raises ValueError for characters that are not in the vocabulary, unless there is a token for unknown ones.
        """
        if self.unknown:
            return [self._tokens.get(character, len(self.characters)) for character in text]
        if others := [character for character in text if character not in self._tokens]:
            raise ValueError(
                f"text must only have characters of the vocabulary, got {len(others)} others: {_named(others)}."
            )
        return [self._tokens[character] for character in text]

    def decode(self, tokens: Iterable[int] | Tensor) -> str:
        """Return the characters of tokens.

        Raises ValueError for an index that is not in the vocabulary.
        """
        shown = self.characters + REPLACEMENT
        return "".join(shown[token] for token in self._indices(tokens))

    def decoder(self) -> Callable[[int], str]:
        """Return a function that takes one token at a time and returns the text that it adds."""
        return lambda token: self.decode([token])

    def as_table(self) -> dict:
        """Return the tokenizer as a table, to be saved."""
        return {"kind": self.kind, "characters": self.characters, "unknown": self.unknown}

    @classmethod
    def from_table(cls, table: dict) -> "CharTokenizer":
        """Return the tokenizer of a table.

        Raises ValueError if the table cannot come from `as_table`.
        """
        check_entries(table, cls.kind, {"characters", "unknown"})
        return cls(table["characters"], table["unknown"])


@dataclass(frozen=True)
class ByteTokenizer(BaseTokenizer):
    """One token per byte of UTF-8, 256 in all: every text can be encoded. A Hebrew letter takes two, an emoji four."""

    kind = "bytes"
    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode("utf-8"))

    def decode(self, tokens: Iterable[int] | Tensor) -> str:
        """Return the text of bytes, with U+FFFD for those that are not valid UTF-8.

        Raises ValueError for an index that is not a byte.
        """
        return bytes(self._indices(tokens)).decode("utf-8", errors="replace")

    def decoder(self) -> Callable[[int], str]:
        """Return a function that takes one token at a time and returns the text that it adds.

        The text is empty while a character is incomplete; a byte after which it cannot be completed adds a U+FFFD.
        """
        incremental = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return lambda token: incremental.decode(bytes(self._indices([token])))

    def as_table(self) -> dict:
        """Return the tokenizer as a table, to be saved."""
        return {"kind": self.kind}

    @classmethod
    def from_table(cls, table: dict) -> "ByteTokenizer":
        """Return the tokenizer of a table.

        Raises ValueError if the table cannot come from `as_table`.
        """
        check_entries(table, cls.kind, set())
        return cls()


Tokenizer = CharTokenizer | ByteTokenizer
# The class of each kind, and its module. The module of words and byte pairs imports this one.
KINDS = {
    "characters": (__name__, "CharTokenizer"),
    "bytes": (__name__, "ByteTokenizer"),
    "words": ("transformer_lm.texts.word_tokenizers", "WordTokenizer"),
    "byte-pairs": ("transformer_lm.texts.word_tokenizers", "BytePairTokenizer"),
    "pair": ("transformer_lm.texts.word_tokenizers", "PairTokenizer"),
}


def tokenizer_from_table(table: dict) -> Any:
    """Return the tokenizer of a table, of any kind.

    Raises ValueError if the table cannot come from `as_table` of any kind.
    """
    kind = table.get("kind") if isinstance(table, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"a tokenizer must be a table with a kind, one of {', '.join(KINDS)}, got {shortened(table)}.")
    module, name = KINDS[kind]
    return getattr(importlib.import_module(module), name).from_table(table)


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """Return the tokenizer saved in a file.

    Raises FileNotFoundError if the file does not exist, ValueError, which names the file, if it is damaged.
    """
    try:
        return tokenizer_from_table(json.loads(Path(path).read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or not a tokenizer
        raise ValueError(f"{path} must hold a tokenizer: {error}") from None


def right_to_left(text: str) -> bool:
    """Return whether most letters of a text are written from right to left, as in Hebrew and Arabic."""
    directions = [unicodedata.bidirectional(character) for character in text if character.isalpha()]
    leftward = sum(direction in ("R", "AL") for direction in directions)
    return leftward > len(directions) / 2


class ShownText:
    """A text that a notebook shows as it is: HTML is escaped, and lines and direction are kept."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        direction = "rtl" if right_to_left(self.text) else "ltr"
        return f'<div dir="{direction}" style="white-space: pre-wrap">{html.escape(self.text)}</div>'


def check_entries(table: dict, kind: str, others: set[str]) -> None:
    """Refuse a table unless it has this kind and exactly these other entries."""
    if not isinstance(table, dict) or table.get("kind") != kind or table.keys() != {"kind", *others}:
        wanted = ", ".join([f"kind {kind!r}", *sorted(others)])
        raise ValueError(f"a table must have {wanted} and nothing else, got {shortened(table)}.")


def _named(characters: Iterable[str]) -> str:
    """Return the first few distinct characters as written in code, each with its code point."""
    distinct = list(dict.fromkeys(characters))
    names = [f"{character!r} (U+{ord(character):04X})" for character in distinct[:NAMED]]
    return ", ".join(names) + (" and more" if len(distinct) > NAMED else "")


def shortened(value: object) -> str:
    """Return a value for an error message, in Python syntax; a long one is cut."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
