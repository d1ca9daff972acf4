"""Corpora: parts that share nothing and lose nothing, the same text from each source, and clear refusals."""

import dataclasses
import gzip
import hashlib
import io
import itertools
import os
import random
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from needed_data import skip_without

from transformer_lm.texts import corpora
from transformer_lm.texts.corpora import load_corpus, load_hebrew, load_shakespeare, load_text, load_toy, load_wp
from transformer_lm.texts.tokenizers import ByteTokenizer, CharTokenizer, right_to_left
from transformer_lm.texts.toy_grammar import CHARACTERS, grammatical_share, is_grammatical, sentences

BIBLE_SUM = "8add3be7216e58745675fd7ee0efc63c12d77d7d4b6c4e6b51967847f9c3cd13"
WIKIPEDIA_SUM = "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"

GENESIS = """<osis xmlns="http://www.bibletechnologies.net/2003/OSIS/namespace"><chapter><verse>
    <w>בְּ/רֹ֖אשׁ</w> <w>אֶת</w><seg type="x-maqqef">־</seg><w>זֶה</w><note>n</note>
    <w type="x-ketiv">כתב</w><note type="variant"><rdg type="x-qere"><w>קָרָא</w></rdg></note>
    <seg type="x-paseq">\u05c0</seg><w>סוֹף</w><seg type="x-sof-pasuq">\u05c3</seg> <seg type="x-pe">פ</seg>
    </verse><verse><w>אַחֵר</w></verse></chapter></osis>"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Return an empty data folder."""
    monkeypatch.setenv("TRANSFORMER_LM_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def put(folder, monkeypatch):
    """Return a function that puts content in the folder as one of the files of `corpora`, as if it were right."""

    def write(name: str, content: bytes) -> None:
        file = getattr(corpora, name)
        right = dataclasses.replace(file, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        monkeypatch.setattr(corpora, name, right)
        right.path.write_bytes(content)

    return write


def tarred(name: str, content: bytes) -> bytes:
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        return buffer.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)
        return buffer.getvalue()


def whole(corpus) -> str:
    """Return the text of all parts, one after another."""
    return corpus.tokenizer.decode(torch.cat([corpus.train, corpus.validation, corpus.test]))


def sizes(corpus) -> list[int]:
    return [len(part) for part in (corpus.train, corpus.validation, corpus.test)]


def assert_keeps_the_promises(corpus, text: str):
    """The parts follow each other, so they share no position and lose none, and each has its fraction."""
    n = len(text)
    assert whole(corpus) == text
    assert sizes(corpus) == [n * 90 // 100, n * 95 // 100 - n * 90 // 100, n - n * 95 // 100]
    assert all(part.dtype == torch.int64 for part in (corpus.train, corpus.validation, corpus.test))
    assert corpus.tokenizer == CharTokenizer.of(text)


# Shakespeare


def test_shakespeare_is_in_three_parts():
    skip_without("shakespeare")
    corpus = load_shakespeare(download=False)
    text = whole(corpus)
    assert_keeps_the_promises(corpus, text)
    assert hashlib.sha256(text.encode()).hexdigest() == corpora.SHAKESPEARE_HOME.sha256  # in the package too
    assert corpus.name == "shakespeare"
    assert corpus.tokenizer.vocab_size == 65
    assert sizes(corpus) == [1_003_854, 55_770, 55_770]
    assert text.startswith("First Citizen:\nBefore we proceed any further, hear me speak.\n")


@pytest.mark.parametrize("source", ["SHAKESPEARE_HOME", "SHAKESPEARE_PACKAGE"])
def test_each_file_of_shakespeare_gives_its_text(source, put):
    text = b"Now is the winter of our discontent"
    put(source, text if source == "SHAKESPEARE_HOME" else zipped("microgpt/input.txt", text))
    assert whole(load_shakespeare(download=False)) == text.decode()


# Hebrew


def test_hebrew_is_the_bible_without_vowel_marks():
    skip_without("hebrew")
    corpus = load_hebrew(download=False)
    text = whole(corpus)
    assert_keeps_the_promises(corpus, text)
    assert corpus.name == "hebrew bible"
    assert hashlib.sha256(text.encode()).hexdigest() == BIBLE_SUM
    assert set(text) == {*map(chr, range(0x5D0, 0x5EB)), "\u05be", "\u05c3", " ", "\n"}
    assert text.count("\n") == 23_213  # verses
    assert text.startswith("אדם שת אנוש\u05c3\n")  # the first verse of 1 Chronicles
    assert right_to_left(text)


def test_a_verse_has_the_words_as_they_are_written(put):
    put("HEBREW_BIBLE", tarred("package/wlc/Gen.xml", GENESIS.encode()))
    assert whole(load_hebrew(download=False)) == "בראש את־זה כתב סוף\u05c3\nאחר\n"


def test_without_hebrew_the_error_says_how_to_get_it(folder):
    with pytest.raises(FileNotFoundError) as failure:
        load_hebrew(download=False)
    assert str(failure.value).split("\n")[1:] == [
        f"- run npm pack morphhb@2.0.2 and put the file at {folder / 'morphhb-2.0.2.tgz'}",
    ]


# The toy grammar


def test_the_toy_corpus_is_of_the_size_asked_for():
    for n in (150_000, 1009, 10):
        assert sizes(load_toy(n)) == [n, n // 10, n // 10]
    assert sizes(load_toy()) == [150_000, 15_000, 15_000]


def test_the_toy_corpus_is_grammatical():
    corpus = load_toy(20_000)
    assert corpus.tokenizer == CharTokenizer(CHARACTERS)
    for part in (corpus.train, corpus.validation, corpus.test):
        text = corpus.tokenizer.decode(part)
        assert is_grammatical(text.split("\n")[0])
        assert grammatical_share(text) == 1.0


def test_no_sentence_is_in_two_parts_of_the_toy_corpus():
    corpus = load_toy(300_000)
    parts = (corpus.train, corpus.validation, corpus.test)
    lines = [set(corpus.tokenizer.decode(part).split("\n")[:-1]) for part in parts]  # the last may be cut off
    assert [len(part) > 400 for part in lines] == [True] * 3
    for one, other in itertools.combinations(lines, 2):
        assert one.isdisjoint(other)


def test_the_toy_corpus_is_always_the_same_and_a_longer_one_begins_with_it():
    short, longer = load_toy(1000), load_toy(3000)
    assert torch.equal(short.train, load_toy(1000).train)
    for part in ("train", "validation", "test"):
        beginning = getattr(short, part)
        assert torch.equal(getattr(longer, part)[: len(beginning)], beginning)


def test_the_parts_of_the_toy_corpus_are_drawn_alike():
    """A hash deals out the sentences, so those of a part are as long as all sentences of the grammar."""
    average = sum(len(line) + 1 for line in itertools.islice(sentences(random.Random(0)), 5000)) / 5000
    corpus = load_toy(300_000)
    for part in (corpus.train, corpus.validation, corpus.test):
        lines = corpus.tokenizer.decode(part).count("\n")
        assert len(part) / lines == pytest.approx(average, rel=0.1)


def test_a_toy_corpus_without_validation_is_refused():
    with pytest.raises(ValueError, match="n must be at least 10, got 9"):
        load_toy(9)


# Wikipedia


@pytest.mark.parametrize("source", ["WIKIPEDIA_HOME", "WIKIPEDIA_PACKAGE"])
def test_wikipedia_is_bytes_in_three_parts(source, put):
    content = bytes(range(256)) * 3 + "<title>Größe</title>".encode()
    archives = {
        "WIKIPEDIA_HOME": zipped("enwik8", content),
        "WIKIPEDIA_PACKAGE": tarred("mingru_pytorch-0.2.1/data/enwik8.gz", gzip.compress(content)),
    }
    put(source, archives[source])
    corpus = load_wp(download=False)
    assert corpus.name == "wikipedia"
    assert corpus.tokenizer == ByteTokenizer()
    assert bytes(torch.cat([corpus.train, corpus.validation, corpus.test]).tolist()) == content
    assert corpus.train.dtype == corpus.test.dtype == torch.uint8
    assert corpus.train[:300].long().dtype == torch.int64
    assert corpus.train[255].long() == 255
    n = len(content)
    assert sizes(corpus) == [n * 90 // 100, n * 95 // 100 - n * 90 // 100, n - n * 95 // 100]


def test_the_real_wikipedia_is_the_one_of_published_results():
    skip_without("wikipedia")
    corpus = load_wp(download=False)
    assert sizes(corpus) == [90_000_000, 5_000_000, 5_000_000]
    found = hashlib.sha256()
    for part in (corpus.train, corpus.validation, corpus.test):
        found.update(part.numpy().tobytes())
    assert found.hexdigest() == WIKIPEDIA_SUM
    assert corpus.tokenizer.decode(corpus.train[:10]) == "<mediawiki"


# All that are downloaded


@pytest.mark.parametrize(
    ("load", "files"),
    [
        (load_shakespeare, ["SHAKESPEARE_HOME", "SHAKESPEARE_PACKAGE"]),
        (load_hebrew, ["HEBREW_BIBLE"]),
        (load_wp, ["WIKIPEDIA_HOME", "WIKIPEDIA_PACKAGE"]),
    ],
)
def test_a_damaged_file_is_refused_with_both_sums(load, files, folder):
    for name in files:
        file = getattr(corpora, name)
        file.path.write_bytes(b"damaged")
        with pytest.raises(ValueError, match=f"{re.escape(file.name)} must have SHA-256 {file.sha256}") as refusal:
            load(download=False)
        assert f"got {hashlib.sha256(b'damaged').hexdigest()} (7 bytes)" in str(refusal.value)
        file.path.unlink()


@pytest.mark.parametrize("load", [load_shakespeare, load_hebrew, load_wp])
def test_nothing_is_downloaded_unless_allowed(load, folder):
    with pytest.raises(FileNotFoundError, match="a file must be in the data folder, got none"):
        load(download=False)
    assert list(folder.iterdir()) == []


# Texts of your own


def test_a_text_file_is_in_three_parts(tmp_path):
    text = "Füße! שלום\n" * 7 + "only here: z"
    (tmp_path / "mine.md").write_bytes(text.encode())
    corpus = load_text(tmp_path / "mine.md")
    assert_keeps_the_promises(corpus, text)
    assert corpus.name == str(tmp_path / "mine.md")
    last = corpus.tokenizer.encode("z")[0]
    assert last not in corpus.train  # but it has a token


def test_line_breaks_become_those_of_unix_and_the_mark_at_the_beginning_goes(tmp_path):
    (tmp_path / "mine.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n\r\n" + b"four" * 5)
    assert whole(load_text(tmp_path / "mine.txt")) == "one\ntwo\nthree\n\n" + "four" * 5


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path):
    texts = {
        "b.txt": "second file\n",
        "a.txt": "first file",
        "c/inner.txt": "third file\r\n",
        "c/deep/er.txt": "before it\n",
        "notes.md": "no text\n",
        ".hidden.txt": "hidden\n",
        ".git/x.txt": "hidden too\n",
        "c/.cache/x.txt": "hidden as well\n",
        "d.txt/e.txt": "in a folder with such a name\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    expected = "first file\nsecond file\nbefore it\nthird file\nin a folder with such a name\n"
    corpus = load_text(tmp_path)
    assert_keeps_the_promises(corpus, expected)


def test_other_bytes_than_utf_8_are_refused_with_file_and_position(tmp_path):
    (tmp_path / "a.txt").write_text("this one is fine, and long enough")
    (tmp_path / "b.txt").write_bytes("Füße".encode("latin-1"))
    with pytest.raises(ValueError, match="UTF-8") as refusal:
        load_text(tmp_path)
    assert str(refusal.value) == (
        f"{tmp_path / 'b.txt'} must be text in UTF-8, got byte 0xFC at position 1. Save it as UTF-8 and run again."
    )


@pytest.mark.parametrize("text", ["", "nineteen characters"])
def test_a_text_too_short_for_three_parts_is_refused(text, tmp_path):
    (tmp_path / "short.txt").write_text(text)
    with pytest.raises(ValueError, match=f"a text must have at least 20 characters, got {len(text)} in .*short.txt"):
        load_text(tmp_path / "short.txt")


def test_a_folder_of_empty_files_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match="a text must have at least 20 characters, got 1 in "):
        load_text(tmp_path)


def test_twenty_characters_are_enough(tmp_path):
    (tmp_path / "short.txt").write_text("twenty characters ok")
    assert sizes(load_text(tmp_path / "short.txt")) == [18, 1, 1]


def test_a_folder_without_texts_is_refused(tmp_path):
    (tmp_path / ".hidden.txt").write_text("nobody looks into this file")
    with pytest.raises(ValueError, match=r"a folder of texts must have files \*\.txt, got none in "):
        load_text(tmp_path)


# By name


def test_a_corpus_is_loaded_by_name_or_path(put, tmp_path, monkeypatch):
    put("SHAKESPEARE_HOME", b"Now is the winter of our discontent")
    put("HEBREW_BIBLE", tarred("package/wlc/Gen.xml", GENESIS.encode()))
    put("WIKIPEDIA_HOME", zipped("enwik8", b"Anarchism originated as a term of abuse"))
    for name in ("shakespeare", "hebrew", "toy", "wikipedia"):
        assert load_corpus(name).name.split()[0] == name
    (tmp_path / "mine.txt").write_text("a text of my own, in a file")
    assert whole(load_corpus(tmp_path / "mine.txt")) == "a text of my own, in a file"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    shutil.copy("mine.txt", "toy")
    assert load_corpus("toy").name == "toy"
    assert whole(load_corpus(f".{os.sep}toy")) == "a text of my own, in a file\n"


def test_an_unknown_corpus_is_refused_with_the_names_that_are_known(tmp_path):
    with pytest.raises(FileNotFoundError, match="a corpus must be one of shakespeare, hebrew, toy, wikipedia, or the"):
        load_corpus(str(tmp_path / "no-such.txt"))
