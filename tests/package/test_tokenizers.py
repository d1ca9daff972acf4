"""Tokenizers: decoding gives the encoded text back, at once or token by token, and nothing is guessed."""

import json
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from transformer_lm.texts.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    ShownText,
    load_tokenizer,
    right_to_left,
    tokenizer_from_table,
)

PANGRAM = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n"
HEBREW = "שלום עולם"
ARABIC = "السلام عليكم"
TOKENIZERS = [CharTokenizer("banhe\n"), CharTokenizer("לא\U0001f600", unknown=True), ByteTokenizer()]
texts = some.text(some.characters(exclude_categories=["Cs"]))  # all that UTF-8 can hold


# Characters


def test_a_character_is_encoded_as_its_index():
    tokenizer = CharTokenizer("nab")
    assert tokenizer.vocab_size == 3
    assert tokenizer.encode("banana") == [2, 1, 0, 1, 0, 1]
    assert tokenizer.decode([2, 1, 0]) == "ban"


def test_a_tokenizer_of_a_text_has_its_characters_in_order():
    assert CharTokenizer.of("banana\n") == CharTokenizer("\nabn")


@given(texts.filter(len))
def test_every_text_comes_back_from_a_tokenizer_of_its_characters(text):
    tokenizer = CharTokenizer.of(text)
    tokens = tokenizer.encode(text)
    assert sorted(set(tokens)) == list(range(tokenizer.vocab_size))
    assert tokenizer.decode(tokens) == text


def test_unknown_characters_are_named_and_counted():
    with pytest.raises(ValueError, match="text must only") as refusal:
        CharTokenizer.of("abc").encode("a\u05d0b\r\u05d0")
    assert str(refusal.value) == (
        "text must only have characters of the vocabulary, got 3 others: 'א' (U+05D0), '\\r' (U+000D)."
    )


def test_of_many_unknown_characters_the_first_are_named():
    with pytest.raises(ValueError, match=r"got 8 others: 'z' \(U\+007A\), 'y' .*, 'v' \(U\+0076\) and more\.$"):
        CharTokenizer.of("abc").encode("zzyxwvut")


def test_on_request_all_unknown_characters_share_one_token():
    tokenizer = CharTokenizer("ab", unknown=True)
    assert tokenizer.vocab_size == 3
    assert tokenizer.encode("axbא") == [0, 2, 1, 2]
    assert tokenizer.decode([0, 2, 1, 2]) == "a\ufffdb\ufffd"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "characters must be a string of at least one character, got ''"),
        ((["a", "b"],), "characters must be a string of at least one character, got "),
        (("abcb",), r"characters must be distinct, got 'b' \(U\+0062\) more than once"),
        (("ab", 1), "unknown must be True or False, got 1"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CharTokenizer(*arguments)


# Bytes


@given(texts)
def test_every_text_comes_back_from_its_bytes(text):
    tokens = ByteTokenizer().encode(text)
    assert bytes(tokens) == text.encode("utf-8")
    assert ByteTokenizer().decode(tokens) == text


def test_there_are_256_bytes_and_all_can_be_decoded():
    assert ByteTokenizer().vocab_size == 256
    assert len(ByteTokenizer().decode(range(256))) == 256  # no two of these belong together


def test_bytes_that_are_no_text_are_replaced():
    assert ByteTokenizer().decode([0x61, 0xFF, 0x62, 0xD7]) == "a\ufffdb\ufffd"


# Both


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("outside", [-1, 256, 10**9])
def test_tokens_outside_of_the_vocabulary_are_refused(tokenizer, outside):
    message = f"tokens must be between 0 and {tokenizer.vocab_size - 1}, got {outside}"
    with pytest.raises(ValueError, match=message):
        tokenizer.decode([0, outside])
    with pytest.raises(ValueError, match=message):
        tokenizer.decoder()(outside)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_first_index_past_the_last_token_is_refused(tokenizer):
    assert tokenizer.decode([tokenizer.vocab_size - 1])
    with pytest.raises(ValueError, match="tokens must be between"):
        tokenizer.decode([tokenizer.vocab_size])


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_tensors_are_decoded_as_lists_are(dtype):
    tokenizer = CharTokenizer("nab")
    tokens = torch.tensor([2, 1, 0], dtype=dtype)
    assert tokenizer.decode(tokens) == tokenizer.decode(iter(tokens)) == "ban"


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_batch_of_rows_is_refused(shape):
    with pytest.raises(ValueError, match=r"tokens must have one axis, got shape \("):
        ByteTokenizer().decode(torch.zeros(shape, dtype=torch.int64))


def test_fractions_are_no_tokens():
    with pytest.raises(TypeError):
        ByteTokenizer().decode([1.5])
    with pytest.raises(TypeError):
        ByteTokenizer().decode(torch.tensor([1.5]))


# One token after another


@given(texts)
def test_a_text_streams_as_it_is(text):
    for tokenizer in (CharTokenizer("ab", unknown=True), ByteTokenizer()):
        feed = tokenizer.decoder()
        tokens = tokenizer.encode(text)
        assert "".join(map(feed, tokens)) == tokenizer.decode(tokens)


def test_a_character_is_shown_once_it_is_complete():
    feed = ByteTokenizer().decoder()
    assert [feed(token) for token in "aא😀".encode()] == ["a", "", "א", "", "", "", "😀"]


@given(some.binary())
def test_bytes_that_are_no_text_stream_as_they_are_decoded(content):
    feed = ByteTokenizer().decoder()
    content += b"."  # so that nothing stays incomplete at the end
    assert "".join(map(feed, content)) == ByteTokenizer().decode(content)


def test_two_streams_do_not_mix():
    one, other = ByteTokenizer().decoder(), ByteTokenizer().decoder()
    assert (one(0xD7), other(0x61), one(0x90)) == ("", "a", "א")


# Files


@pytest.mark.parametrize("tokenizer", [*TOKENIZERS, CharTokenizer.of(PANGRAM), CharTokenizer.of(HEBREW)])
def test_a_saved_tokenizer_comes_back(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    for _ in range(2):  # over an old one too
        tokenizer.save(path)
        assert load_tokenizer(path) == tokenizer
    assert json.loads(path.read_text(encoding="utf-8")) == tokenizer.as_table()
    assert tokenizer_from_table(tokenizer.as_table()) == type(tokenizer).from_table(tokenizer.as_table()) == tokenizer
    assert os.listdir(tmp_path) == ["tokenizer.json"]


def test_a_saved_tokenizer_can_be_read_by_people(tmp_path):
    CharTokenizer("אב ", unknown=True).save(tmp_path / "tokenizer.json")
    content = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    assert content == '{"kind": "characters", "characters": "אב ", "unknown": true}\n'


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    ByteTokenizer().save(path)
    with pytest.raises(UnicodeEncodeError):
        CharTokenizer("\ud800").save(path)  # half a character: UTF-8 has no bytes for it
    assert load_tokenizer(path) == ByteTokenizer()
    assert os.listdir(tmp_path) == ["tokenizer.json"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], r"a tokenizer must be a table with a kind, one of characters, bytes, words, byte-pairs, pair, got \[\]\."),
        ({}, r"must be a table with a kind, one of characters, bytes, words, byte-pairs, pair, got \{\}\."),
        ({"kind": "syllables"}, "got {'kind': 'syllables'}"),
        ({"kind": ["bytes"]}, r"got {'kind': \['bytes'\]}"),
        ({"kind": "bytes", "characters": "ab"}, "a table must have kind 'bytes' and nothing else, got "),
        ({"kind": "characters"}, "a table must have kind 'characters', characters, unknown and nothing else, got "),
        ({"kind": "characters", "characters": "ab", "unknown": 0}, "unknown must be True or False, got 0"),
        ({"kind": "characters", "characters": ["a"], "unknown": False}, "characters must be a string"),
        ({"kind": "characters", "characters": "aa", "unknown": False}, "characters must be distinct"),
    ],
)
def test_a_damaged_table_is_refused(table, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        tokenizer_from_table(table)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=f"tokenizer.json must hold a tokenizer: .*{message}"):
        load_tokenizer(path)


def test_a_table_of_another_kind_is_refused():
    with pytest.raises(ValueError, match=r"a table must have kind 'bytes' and nothing else, got {'kind': 'characters'"):
        ByteTokenizer.from_table(CharTokenizer("ab").as_table())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"kind": "byt', b"[" * 100_000])
def test_a_damaged_file_is_refused_by_name(content, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json must hold a tokenizer: "):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_tokenizer(tmp_path / "tokenizer.json")


# In a notebook


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEBREW, True),
        (ARABIC, True),
        (f"{HEBREW}, said I.", True),
        ("The Hebrew for peace is שלום.", False),
        ("hello", False),
        ("", False),
        ("123 ... !?", False),
        ("בָּ a b", False),
    ],
)
def test_the_direction_of_a_text_is_that_of_most_of_its_letters(text, expected):
    assert right_to_left(text) is expected


def test_a_text_is_shown_escaped_with_its_lines_and_direction():
    shown = ShownText("\n<b>a & b</b>\n  c")
    assert shown._repr_html_() == (
        '<div dir="ltr" style="white-space: pre-wrap">\n&lt;b&gt;a &amp; b&lt;/b&gt;\n  c</div>'
    )
    assert 'dir="rtl"' in ShownText(HEBREW)._repr_html_()
    assert repr(shown) == "\n<b>a & b</b>\n  c"
