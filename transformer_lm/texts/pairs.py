"""Sentences and their translations, as pairs of tokens for training, validation and test.

    corpus = load_french(tokenizer="words", max_words=8)
    source, target = corpus.train[0]
    corpus.source_tokenizer.decode(source), corpus.target_tokenizer.decode(target)

`load_pairs` reads your own file. A sentence often has several translations, and each of these may translate other
sentences too. All pairs that are connected in this way are in the same part, so no sentence for validation or test, on
either side, occurs in training.
"""

import hashlib
import io
import os
import random
import tarfile
import unicodedata
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from transformer_lm.files import read_member
from transformer_lm.texts.batching import padded
from transformer_lm.texts.corpora import text_of
from transformer_lm.texts.downloads import FRENCH_PACKAGE, FRENCH_SENTENCES, fetched
from transformer_lm.texts.toy_languages import english_words, lorin_words, toy_sentences, toy_translation
from transformer_lm.texts.word_tokenizers import PAD, BytePairTokenizer, PairTokenizer, WordTokenizer

TOKENIZERS = {kind.kind: kind for kind in (WordTokenizer, BytePairTokenizer)}
PARTS = ("train", "validation", "test")
TOY_SEED = 6
SHARE = 20  # one in this many pairs is for validation, and one for the test

FRENCH_MEMBER = "nmt-0.0.6/data/fra-eng.zip"

Pair = tuple[list[int], list[int]]


@dataclass(frozen=True, eq=False, repr=False)
class PairCorpus:
    """Pairs of sentences in three disjoint parts, as tokens, and their tokenizers.

    Each part is a list of pairs: the tokens of the source and those of the target, without control tokens.
    """

    name: str
    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    source_tokenizer: WordTokenizer | BytePairTokenizer
    target_tokenizer: WordTokenizer | BytePairTokenizer

    @property
    def tokenizer(self) -> PairTokenizer:
        """Both tokenizers, as they are saved with a model."""
        return PairTokenizer(self.source_tokenizer, self.target_tokenizer)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(getattr(self, part)):,} {part}" for part in PARTS)
        return f"<PairCorpus {self.name}: {sizes}>"


def load_pairs(
    path: str | os.PathLike,
    *,
    tokenizer: str,
    vocab_size: int | None = 8000,
    max_words: int | None = None,
    limit: int | None = None,
    shared: bool = False,
) -> PairCorpus:
    """Return the pairs of a file that has one on each line: the source, a tab and the target.

    The file must be UTF-8. It may have the line breaks of any system. A byte order mark, blank lines and the text after
    a second tab are ignored. Any white space in a sentence becomes one space, and duplicate pairs are kept once.

    `tokenizer` is "words" or "byte-pairs", trained on the training part with up to `vocab_size` tokens, including
    control tokens; for words, None keeps all. There is one tokenizer for each side, or one for both if `shared`.
    `max_words` leaves out pairs with more words on a side, counted by spaces. `limit` keeps that many pairs in total,
    chosen by a hash.

    About 90 % of the pairs are for training, 5 % for validation, 5 % for the test, by a hash. Pairs with a source or a
    target in common, ignoring case, are in the same part, and so are those that have one in common with these; the hash
    of the smallest pair decides for the group. A group of several pairs with more than 5 % of all is for training.
    Groups are formed before anything is left out, so a pair is in the same part whatever the options are.

    Raises FileNotFoundError if there is no such file, ValueError if a line has no pair, or a part would be empty.
    """
    return _corpus(str(path), text_of(Path(path)), str(path), tokenizer, vocab_size, max_words, limit, shared)


def load_toy_pairs(n: int = 20_000) -> PairCorpus:
    """Return n toy sentences with their unique translations, and n // 20 others each for validation and test.

    See toy_languages.py. Both sides share one vocabulary, because names occur in both. A hash of a sentence decides its
    part, so none is in two. The pairs are generated here and are always the same; 20,000 take two seconds.

    Raises ValueError if n is below 100.
    """
    if n < 100:
        raise ValueError(f"n must be at least 100, got {n}.")
    sizes = {"train": n, "validation": n // SHARE, "test": n // SHARE}
    parts: dict[str, dict[str, str]] = {part: {} for part in PARTS}
    for sentence in toy_sentences(random.Random(TOY_SEED)):
        if all(len(parts[part]) == size for part, size in sizes.items()):
            break
        part = _part(_number(sentence, "toy"))
        if len(parts[part]) < sizes[part] and sentence not in parts[part]:
            parts[part][sentence] = toy_translation(sentence).target
    words = dict.fromkeys((*english_words(), *lorin_words()))
    tokenizer = WordTokenizer(tuple(f" {word}" for word in words))
    tokens = {
        part: [(tokenizer.encode(source), tokenizer.encode(target)) for source, target in found.items()]
        for part, found in parts.items()
    }
    return PairCorpus("toy", **tokens, source_tokenizer=tokenizer, target_tokenizer=tokenizer)


def load_french(
    download: bool = True,
    *,
    tokenizer: str,
    vocab_size: int | None = 8000,
    max_words: int | None = None,
    limit: int | None = None,
    shared: bool = False,
) -> PairCorpus:
    """Return short English sentences of Tatoeba with their French translations. The options are those of `load_pairs`.

    They are read from a file in the data folder or, if `download`, downloaded as a package of 16 million bytes at the
    first call; see `transformer_lm.texts.downloads`. A newer `fra.txt` is refused there; use `load_pairs` for it. The
    sentences are under CC BY 2.0 FR: if you redistribute them, name tatoeba.org and manythings.org.

    Of 178,009 lines 177,832 are distinct. They form 116,787 groups, of which 36,843 have more than one pair and the
    largest has 52, so the parts have nearly the sizes that they would have without groups: 159,672, 9,095 and 9,065
    pairs.

    Raises FileNotFoundError if they are not available, ValueError if the file is damaged.
    """
    path = fetched(FRENCH_SENTENCES, FRENCH_PACKAGE, download=download)
    content = path.read_bytes() if path.name == FRENCH_SENTENCES.name else _french_member(path)
    return _corpus("french", content.decode("utf-8"), path.name, tokenizer, vocab_size, max_words, limit, shared)


def pair_batches(pairs: Sequence[Pair], batch_size: int, seed: int | str) -> list[list[int]]:
    """Return the indices of all pairs, in batches of `batch_size` pairs of similar length.

    They are sorted by the length of the target, then of the source; the longest may be in a smaller batch. Each seed
    gives another order of the batches, and of pairs of equal length.

    Raises ValueError if `pairs` is empty, or `batch_size` is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    if not pairs:
        raise ValueError("pairs must hold at least one pair, got none.")
    shuffle = random.Random(seed).shuffle
    places = list(range(len(pairs)))
    shuffle(places)
    places.sort(key=lambda place: (len(pairs[place][1]), len(pairs[place][0])))  # stable: keeps the order of equal ones
    batches = [places[start : start + batch_size] for start in range(0, len(places), batch_size)]
    shuffle(batches)
    return batches


def padded_pairs(pairs: Sequence[Pair], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return the sources and the targets of pairs, with PAD after those shorter than the longest.

    Shapes:
        returns  (b, m) the sources, and (b, n) the targets

    Raises ValueError if `pairs` is empty, or a sentence has no tokens.
    """
    if not pairs:
        raise ValueError("pairs must hold at least one pair, got none.")
    sides = tuple(zip(*pairs, strict=True))
    for side, sentences in zip(("source", "target"), sides, strict=True):
        if empty := [number for number, sentence in enumerate(sentences) if not len(sentence)]:
            raise ValueError(f"every {side} must have a token, got none in number {empty[0]}.")
    sources, targets = (padded(sentences, PAD, device) for sentences in sides)
    return sources, targets


def _corpus(
    name: str,
    text: str,
    file: str,
    tokenizer: str,
    vocab_size: int | None,
    max_words: int | None,
    limit: int | None,
    shared: bool,
) -> PairCorpus:
    if tokenizer not in TOKENIZERS:
        raise ValueError(f"tokenizer must be one of {', '.join(TOKENIZERS)}, got {tokenizer!r}.")
    for option, value in {"max_words": max_words, "limit": limit}.items():
        if value is not None and value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}.")
    pairs = _pairs(text, file)
    part_of = dict(zip(pairs, _parts(pairs), strict=True))
    if max_words is not None:
        pairs = [pair for pair in pairs if max(len(sentence.split()) for sentence in pair) <= max_words]
    if limit is not None:
        chosen = set(sorted(pairs, key=lambda pair: _number(*pair))[:limit])
        pairs = [pair for pair in pairs if pair in chosen]
    parts = {part: [pair for pair in pairs if part_of[pair] == part] for part in PARTS}
    if not all(parts.values()):
        found = ", ".join(f"{len(parts[part])} for {part}" for part in PARTS)
        raise ValueError(f"each part must have a pair, got {found} in {file}. A hundred pairs are enough.")

    make = TOKENIZERS[tokenizer].of
    sources, targets = zip(*parts["train"], strict=True)
    if shared:
        source_tokenizer = target_tokenizer = make([*sources, *targets], vocab_size)
    else:
        source_tokenizer, target_tokenizer = make(sources, vocab_size), make(targets, vocab_size)
    tokens = {
        part: [(source_tokenizer.encode(source), target_tokenizer.encode(target)) for source, target in parts[part]]
        for part in PARTS
    }
    return PairCorpus(name, **tokens, source_tokenizer=source_tokenizer, target_tokenizer=target_tokenizer)


def _pairs(text: str, file: str) -> list[tuple[str, str]]:
    """Return the distinct pairs of a text, in order, with single spaces.

    Raises ValueError with the number of a line that is not a pair.
    """
    pairs: dict[tuple[str, str], None] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        source, *others = (" ".join(column.split()) for column in line.split("\t"))
        if not others or not source or not others[0]:
            raise ValueError(f"line {number} of {file} must have a source, a tab and a target, got {line[:80]!r}.")
        pairs[source, others[0]] = None
    return list(pairs)


def _parts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the part of each pair; the hash of the smallest pair of a group decides for the whole group."""
    keys = [(_key(source), _key(target)) for source, target in pairs]
    groups = _groups(keys)
    members: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    part_of = {}
    for group, places in members.items():
        is_giant = len(places) > 1 and len(pairs) < len(places) * SHARE
        number = _number(*min(keys[place] for place in places))
        part_of[group] = "train" if is_giant else _part(number)
    return [part_of[group] for group in groups]


def _groups(keys: Sequence[tuple[str, str]]) -> list[int]:
    """Return a group number for each pair; pairs connected by a chain of common sentences have the same number."""
    leader = list(range(len(keys)))  # a pair of the same group; the leader points to itself

    def last(place: int) -> int:
        while leader[place] != place:
            leader[place] = leader[leader[place]]  # halves the path for the next search
            place = leader[place]
        return place

    for side in (0, 1):
        first: dict[str, int] = {}  # the first pair with this sentence
        for place, key in enumerate(keys):
            leader[last(place)] = last(first.setdefault(key[side], place))
    return [last(place) for place in range(len(keys))]


def _part(number: int) -> str:
    """Return the part that a pseudo-random number selects."""
    return {0: "validation", 1: "test"}.get(number % SHARE, "train")


def _key(sentence: str) -> str:
    """Return a key that is the same for two sentences that differ only in case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", sentence).casefold())


def _number(source: str, target: str) -> int:
    """Return a pseudo-random number that is always the same for a pair."""
    return int.from_bytes(hashlib.sha256(f"{source}\t{target}".encode()).digest())


def _french_member(archive: Path) -> bytes:
    with tarfile.open(archive) as members:
        content = read_member(members, FRENCH_MEMBER)
    with zipfile.ZipFile(io.BytesIO(content)) as members:
        return members.read(FRENCH_SENTENCES.name)
