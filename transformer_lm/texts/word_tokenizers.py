"""Tokenizers for translation models: words or byte pairs, with four control tokens.

    tokenizer = WordTokenizer.of(["The owl sings.", "The owls sing."])
    tokenizer.pieces(tokenizer.encode("The owl sleeps.")) == ["␣The", "␣owl", "<unknown>", "."]

A token includes the space before it, and a space is assumed before the first word of a text. So `sings` is the same
token at any position in a text, a full stop that is attached to its word is another token than one that is not, and
tokens can be joined again without guessing. The library that does the work, `tokenizers`, is imported when it is first
needed, and does not know the control tokens, so that no text can contain one.
"""

import functools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from transformer_lm.texts.tokenizers import GLYPHS, BaseTokenizer, check_entries, shortened, tokenizer_from_table

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

PAD, START, END, UNKNOWN = 0, 1, 2, 3
CONTROLS = ("<pad>", "<start>", "<end>", "<unknown>")  # their display forms

# A word, a word with the apostrophe that joins it to the next one (l'eau is l' and eau), or any other character; each
# with the space before it.
WORD = r" ?(?:\w+['\u2019](?=\w)|\w+|[^\w ])"
NO_LIMIT = 2**31 - 1


class _PairTokenizer(BaseTokenizer):
    """The base of the two kinds."""

    @property
    def _library(self) -> "Library":
        raise NotImplementedError

    @property
    def _contents(self) -> list[bytes]:
        raise NotImplementedError

    @staticmethod
    def _prepared(text: str) -> str:
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without control tokens around them."""
        return self._library.encode(self._prepared(text)).ids

    def decode(self, tokens: Iterable[int] | Tensor) -> str:
        """Return the text of tokens. Control tokens are left out.

        Raises ValueError for an index that is not in the vocabulary.
        """
        contents = (self._contents[token] for token in self._indices(tokens))  # empty for control tokens
        return b"".join(contents).decode("utf-8", errors="replace").removeprefix(" ")

    def pieces(self, tokens: Iterable[int] | Tensor) -> list[str]:
        """Return what each token shows, for the axes of a figure: `␣owl`, `<end>`, or `\\xC3` for half a character.

        Raises ValueError for an index that is not in the vocabulary.
        """
        return [self._shown(token) for token in self._indices(tokens)]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.vocab_size:,} tokens>"

    def _shown(self, token: int) -> str:
        if token < len(CONTROLS):
            return CONTROLS[token]
        try:
            return self._contents[token].decode("utf-8").translate(GLYPHS)
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02X}" for byte in self._contents[token])


@dataclass(frozen=True, repr=False)
class WordTokenizer(_PairTokenizer):
    """One token per word and per punctuation mark. Words that are not in the vocabulary become the token UNKNOWN.

    A text of known words is decoded with each white space as one space, and none at its ends; `Salut !` and `Salut!`
    remain different. A word ends after an apostrophe that joins it to the next one: `l'eau` is `l'` and `eau`, `don't`
    is `don'` and `t`.

    Raises ValueError if `words` is empty, or a word occurs twice.
    """

    words: tuple[str, ...]

    kind = "words"

    def __post_init__(self) -> None:
        if not isinstance(self.words, tuple) or not self.words:
            raise ValueError(f"words must be a tuple of at least one word, got {shortened(self.words)}.")
        if others := [word for word in self.words if not isinstance(word, str) or not word or word in CONTROLS]:
            raise ValueError(f"words must be strings other than control tokens, got {shortened(others[0])}.")
        if twice := [word for word, count in Counter(self.words).items() if count > 1]:
            raise ValueError(f"words must be distinct, got {shortened(twice[0])} more than once.")

    @classmethod
    def of(cls, texts: Iterable[str], vocab_size: int | None = None) -> "WordTokenizer":
        """Return a tokenizer of all words in texts, or of the most frequent, as many as fit into `vocab_size`.

        The control tokens count too. Of equally frequent words, those that come first in Unicode order are taken.

        Raises ValueError if `vocab_size` has no room for a word, or the texts contain no words.
        """
        if vocab_size is not None and vocab_size <= len(CONTROLS):
            raise ValueError(f"vocab_size must be at least {len(CONTROLS) + 1}, got {vocab_size}.")
        size = NO_LIMIT if vocab_size is None else vocab_size - len(CONTROLS)
        trained = cls._splitter({})
        trainer = _library().trainers.WordLevelTrainer(vocab_size=size, show_progress=False)
        trained.train_from_iterator(map(cls._prepared, _several(texts)), trainer)
        vocabulary = trained.get_vocab()
        return cls(tuple(sorted(vocabulary, key=vocabulary.__getitem__)))

    @property
    def vocab_size(self) -> int:
        """The number of tokens, including control tokens."""
        return len(CONTROLS) + len(self.words)

    def as_table(self) -> dict:
        """Return the tokenizer as a table, to be saved."""
        return {"kind": self.kind, "words": list(self.words)}

    @classmethod
    def from_table(cls, table: dict) -> "WordTokenizer":
        """Return the tokenizer of a table.

        Raises ValueError if the table cannot come from `as_table`.
        """
        check_entries(table, cls.kind, {"words"})
        return cls(_as_tuple(table["words"]))

    @cached_property
    def _library(self) -> "Library":
        words = {word: token for token, word in enumerate(self.words, start=len(CONTROLS))}
        return self._splitter(words | {CONTROLS[UNKNOWN]: UNKNOWN})

    @cached_property
    def _contents(self) -> list[bytes]:
        return [b""] * len(CONTROLS) + [word.encode("utf-8") for word in self.words]

    @staticmethod
    def _prepared(text: str) -> str:
        return "".join(f" {part}" for part in text.split())

    @staticmethod
    def _splitter(vocabulary: dict[str, int]) -> "Library":
        library = _library()
        splitter = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token=CONTROLS[UNKNOWN]))
        splitter.pre_tokenizer = library.pre_tokenizers.Split(library.Regex(WORD), "isolated")
        return splitter


@dataclass(frozen=True, repr=False)
class BytePairTokenizer(_PairTokenizer):
    """One token per byte, and one per pair of tokens that were merged, the most frequent pair first.

    A frequent word is one token, a rare one is several, and no word is unknown: every text is decoded exactly. UNKNOWN
    keeps its index but is never used. In `merges`, a byte is written as the character that represents it in the files
    of GPT-2: printable ones represent themselves, `Ġ` a space.

    Neural Machine Translation of Rare Words with Subword Units (Sennrich, Haddow and Birch, 2016).

    Raises ValueError for a merge of tokens that do not exist yet.
    """

    merges: tuple[tuple[str, str], ...]

    kind = "byte-pairs"

    def __post_init__(self) -> None:
        if not isinstance(self.merges, tuple):
            raise ValueError(f"merges must be a tuple of pairs, got {shortened(self.merges)}.")
        known = set(_bytes())
        for pair in self.merges:
            if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                raise ValueError(f"merges must be pairs of strings, got {shortened(pair)}.")
            if not known.issuperset(pair):
                raise ValueError(f"merges must be of bytes and of earlier merges, got {shortened(pair)}.")
            known.add("".join(pair))

    @classmethod
    def of(cls, texts: Iterable[str], vocab_size: int | None) -> "BytePairTokenizer":
        """Return a tokenizer with merges from texts, as many as fit into `vocab_size`, or fewer if texts are short.

        The control tokens and the 256 bytes count too.

        Raises ValueError if `vocab_size` has no room for these.
        """
        smallest = len(CONTROLS) + len(_bytes())
        if vocab_size is None or vocab_size < smallest:
            raise ValueError(f"vocab_size must be at least {smallest}, got {vocab_size}.")
        trained = cls._splitter({}, ())
        trainer = _library().trainers.BpeTrainer(
            vocab_size=vocab_size - len(CONTROLS), initial_alphabet=list(_bytes()), show_progress=False
        )
        trained.train_from_iterator(map(cls._prepared, _several(texts)), trainer)
        return cls(tuple(_merges(trained)))

    @property
    def vocab_size(self) -> int:
        """The number of tokens, including control tokens."""
        return len(self._contents)

    def as_table(self) -> dict:
        """Return the tokenizer as a table, to be saved."""
        return {"kind": self.kind, "merges": [list(pair) for pair in self.merges]}

    @classmethod
    def from_table(cls, table: dict) -> "BytePairTokenizer":
        """Return the tokenizer of a table.

        Raises ValueError if the table cannot come from `as_table`.
        """
        check_entries(table, cls.kind, {"merges"})
        merges = table["merges"]
        return cls(tuple(map(_as_tuple, merges)) if isinstance(merges, list) else merges)

    @cached_property
    def _parts(self) -> list[str]:
        """The parts that have a token, in order. Two merges may have the same result: t + he and th + e."""
        return list(dict.fromkeys([*sorted(_bytes()), *map("".join, self.merges)]))

    @cached_property
    def _library(self) -> "Library":
        vocabulary = {part: token for token, part in enumerate(self._parts, start=len(CONTROLS))}
        return self._splitter(vocabulary, self.merges)

    @cached_property
    def _contents(self) -> list[bytes]:
        byte = _bytes()
        return [b""] * len(CONTROLS) + [bytes(byte[character] for character in part) for part in self._parts]

    @staticmethod
    def _prepared(text: str) -> str:
        return f" {text}" if text else ""

    @staticmethod
    def _splitter(vocabulary: dict[str, int], merges: tuple[tuple[str, str], ...]) -> "Library":
        library = _library()
        splitter = library.Tokenizer(library.models.BPE(vocabulary, list(merges)))
        splitter.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        return splitter


@dataclass(frozen=True)
class PairTokenizer:
    """The tokenizers of both sides, as they are saved with a translation model."""

    source: WordTokenizer | BytePairTokenizer
    target: WordTokenizer | BytePairTokenizer

    kind = "pair"

    def as_table(self) -> dict:
        """Return the tokenizer as a table, to be saved."""
        return {"kind": self.kind, "source": self.source.as_table(), "target": self.target.as_table()}

    @classmethod
    def from_table(cls, table: dict) -> "PairTokenizer":
        """Return the tokenizers of a table.

        Raises ValueError if the table cannot come from `as_table`.
        """
        check_entries(table, cls.kind, {"source", "target"})
        sides = [tokenizer_from_table(table[side]) for side in ("source", "target")]
        if others := [side for side in sides if not isinstance(side, WordTokenizer | BytePairTokenizer)]:
            raise ValueError(f"both sides must be words or byte pairs, got {type(others[0]).__name__}.")
        return cls(*sides)


def _library() -> ModuleType:
    """Return the library, set to one thread: older versions warn if a process forks after using several."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    return tokenizers


def _merges(trained: "Library") -> Iterator[tuple[str, str]]:
    """Yield the merges of a tokenizer of the library, which exports them only as JSON."""
    yield from map(tuple, json.loads(trained.to_str())["model"]["merges"])


@functools.cache
def _bytes() -> dict[str, int]:
    """Map 256 characters to the bytes that they represent: a printable byte is itself, others follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def _several(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str):
        raise ValueError(f"texts must be several, got the string {shortened(texts)}. Put it in a list.")
    return texts


def _as_tuple(value: object) -> Any:
    """Return a list as a tuple, and anything else as it is, to be refused."""
    return tuple(value) if isinstance(value, list) else value
