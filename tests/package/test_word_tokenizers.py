"""Words and byte pairs: decoding gives the text back, no text makes a control token, and training is deterministic."""

import json
import os
import pickle
import subprocess
import sys

import pytest
import torch
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as some

from transformer_lm.texts.tokenizers import KINDS, load_tokenizer, tokenizer_from_table
from transformer_lm.texts.word_tokenizers import (
    CONTROLS,
    END,
    PAD,
    START,
    UNKNOWN,
    BytePairTokenizer,
    WordTokenizer,
    _bytes,
)

OWLS = ["The owl sings.", "The owls sing!", "L'eau de l\u2019est \u2014 o\u00f9 ?", "The owl waits ."]
WORDS = WordTokenizer.of(OWLS)
PAIRS = BytePairTokenizer.of(OWLS, vocab_size=277)
BOTH = [WORDS, PAIRS]
texts = some.text(some.characters(exclude_categories=["Cs"]))  # all that UTF-8 can hold


# Control tokens


def test_the_control_tokens_come_first():
    assert (PAD, START, END, UNKNOWN) == (0, 1, 2, 3)
    for tokenizer in BOTH:
        assert tokenizer.pieces([PAD, START, END, UNKNOWN]) == ["<pad>", "<start>", "<end>", "<unknown>"]


@pytest.mark.parametrize("tokenizer", BOTH)
def test_control_tokens_are_left_out_of_a_text(tokenizer):
    tokens = tokenizer.encode("The owl sings.")
    assert min(tokens) > UNKNOWN
    assert tokenizer.decode([START, *tokens[:2], UNKNOWN, *tokens[2:], END, PAD, PAD]) == "The owl sings."
    assert tokenizer.decode([START, END]) == tokenizer.decode([]) == ""


@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_token_that_is_written_in_a_text_is_only_text(control):
    written = [f"a {control} b {control}c" for _ in range(5)]
    for tokenizer in (WordTokenizer.of(written), BytePairTokenizer.of(written, 300)):
        for text in (control, f" {control}", written[0]):
            assert min(tokenizer.encode(text)) > UNKNOWN
            assert tokenizer.decode(tokenizer.encode(text)).split() == text.split()
    assert set(WORDS.encode(control)) == {UNKNOWN}  # its words are unknown here, and it does not count as one


# Words


def test_words_and_punctuation_are_tokens_and_carry_the_space_before_them():
    tokenizer = WordTokenizer.of(["I don't drink (l'eau), Tom."])
    tokens = tokenizer.encode("I don't drink (l'eau), Tom.")
    expected = ["␣I", "␣don'", "t", "␣drink", "␣(", "l'", "eau", ")", ",", "␣Tom", "."]
    assert tokenizer.pieces(tokens) == expected
    assert tokenizer.vocab_size == len(CONTROLS) + len(expected)


def test_the_typographic_apostrophe_joins_words_too():
    assert WORDS.pieces(WORDS.encode("de l\u2019est")) == ["␣de", "␣l\u2019", "est"]


def test_an_apostrophe_that_joins_nothing_is_punctuation():
    tokenizer = WordTokenizer.of(["the 'owl' of the owls'"])
    assert tokenizer.pieces(tokenizer.encode("'owl' owls'")) == ["␣'", "owl", "'", "␣owls", "'"]


def test_the_most_frequent_words_come_first_and_others_are_unknown():
    tokenizer = WordTokenizer.of(["b b b a a", "d c a"], vocab_size=7)
    assert tokenizer.words == (" a", " b", " c")  # of c and d, which are equally frequent, the first
    assert tokenizer.encode("d c b a e") == [UNKNOWN, 6, 5, 4, UNKNOWN]


def test_a_word_is_the_same_token_at_the_beginning_and_later():
    assert WORDS.encode("owl owl") == WORDS.encode("owl") * 2


@pytest.mark.parametrize("text", ["The owl waits .", "The owl waits.", "The owls sing !", "owl", ""])
def test_a_full_stop_stays_attached_or_apart(text):
    assert WordTokenizer.of([*OWLS, text]).decode(WordTokenizer.of([*OWLS, text]).encode(text)) == text


@given(texts.filter(str.strip))
def test_a_text_of_known_words_comes_back_with_single_spaces(text):
    tokenizer = WordTokenizer.of([text])
    assert UNKNOWN not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), r"words must be a tuple of at least one word, got \(\)\."),
        ([" a"], "words must be a tuple of at least one word"),
        ((" a", ""), "words must be strings other than control tokens, got ''"),
        ((" a", 7), "words must be strings other than control tokens, got 7"),
        ((" a", "<unknown>"), "words must be strings other than control tokens, got '<unknown>'"),
        ((" a", " b", " a"), "words must be distinct, got ' a' more than once"),
    ],
)
def test_words_that_are_none_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        WordTokenizer(words)


# Byte pairs


def test_the_characters_that_stand_for_bytes_are_those_of_the_library():
    from tokenizers import decoders, pre_tokenizers

    assert sorted(_bytes()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    decoder = decoders.ByteLevel()
    for character, byte in _bytes().items():
        assert decoder.decode([character]) == bytes([byte]).decode("utf-8", errors="replace")


def test_frequent_words_become_one_token():
    tokenizer = BytePairTokenizer.of(["the owl sees the owls"] * 3, vocab_size=270)
    assert tokenizer.vocab_size == 270
    assert tokenizer.pieces(tokenizer.encode("the owl"))[0] == "␣the"
    assert len(tokenizer.encode("the owl")) < len(tokenizer.encode("tho ewl"))


@given(texts)
def test_every_text_comes_back_exactly_from_byte_pairs(text):
    tokens = PAIRS.encode(text)
    assert UNKNOWN not in tokens
    assert PAIRS.decode(tokens) == text


def test_the_tokens_are_those_of_the_library_with_its_own_decoder():
    tokens = PAIRS.encode("The owl où шум\n")
    from tokenizers import decoders

    assert decoders.ByteLevel().decode([PAIRS._parts[token - 4] for token in tokens]) == " The owl où шум\n"


def test_a_merge_that_two_ways_lead_to_has_one_token():
    tokenizer = BytePairTokenizer((("t", "h"), ("h", "e"), ("th", "e"), ("t", "he")))
    assert tokenizer.vocab_size == 4 + 256 + 3
    assert tokenizer.decode(tokenizer.encode("the")) == "the"


def test_half_a_character_is_shown_as_bytes_and_decoded_as_unknown():
    tokenizer = BytePairTokenizer(())
    tokens = tokenizer.encode("é\n")
    assert tokenizer.pieces(tokens) == ["␣", "\\xC3", "\\xA9", "↵"]
    assert tokenizer.decode(tokens[:2]) == "\ufffd"


def test_short_texts_have_fewer_merges_than_there_is_room_for():
    assert BytePairTokenizer.of(["a b"], vocab_size=1000).vocab_size == 4 + 256 + 2  # a space and a, a space and b
    assert BytePairTokenizer.of([], vocab_size=1000).vocab_size == 4 + 256


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        ([("a", "b")], "merges must be a tuple of pairs, got "),
        ((["a", "b"],), r"merges must be pairs of strings, got \['a', 'b'\]"),
        ((("a", "b", "c"),), "merges must be pairs of strings, got "),
        ((("a", 7),), "merges must be pairs of strings, got "),
        ((("ab", "c"), ("a", "b")), r"merges must be of bytes and of earlier merges, got \('ab', 'c'\)"),
        ((("a", " "),), "merges must be of bytes and of earlier merges, got "),
    ],
)
def test_merges_that_are_none_are_refused(merges, message):
    with pytest.raises(ValueError, match=message):
        BytePairTokenizer(merges)


# Both


@pytest.mark.parametrize(("kind", "smallest"), [(WordTokenizer, 5), (BytePairTokenizer, 260)])
def test_a_vocabulary_without_room_is_refused(kind, smallest):
    with pytest.raises(ValueError, match=f"vocab_size must be at least {smallest}, got {smallest - 1}"):
        kind.of(OWLS, vocab_size=smallest - 1)
    assert kind.of(OWLS, vocab_size=smallest).vocab_size == smallest


@pytest.mark.parametrize("kind", [WordTokenizer, BytePairTokenizer])
def test_one_string_in_place_of_several_texts_is_refused(kind):
    with pytest.raises(ValueError, match=r"texts must be several, got the string 'The owl'\. Put it in a list\."):
        kind.of("The owl", vocab_size=300)


def test_texts_without_words_are_refused():
    with pytest.raises(ValueError, match="words must be a tuple of at least one word"):
        WordTokenizer.of(["", " \n"])


@pytest.mark.parametrize("tokenizer", BOTH)
def test_tokens_outside_of_the_vocabulary_are_refused(tokenizer):
    last = tokenizer.vocab_size - 1
    assert tokenizer.decode([last])
    for outside in (-1, last + 1, 10**9):
        for method in (tokenizer.decode, tokenizer.pieces):
            with pytest.raises(ValueError, match=f"tokens must be between 0 and {last}, got {outside}"):
                method([0, outside])


@pytest.mark.parametrize("tokenizer", BOTH)
def test_tensors_are_decoded_as_lists_are_but_no_batches(tokenizer):
    tokens = tokenizer.encode("The owl waits.")
    assert tokenizer.decode(torch.tensor(tokens)) == tokenizer.decode(iter(tokens)) == "The owl waits."
    assert tokenizer.pieces(torch.tensor(tokens)) == tokenizer.pieces(tokens)
    with pytest.raises(ValueError, match=r"tokens must have one axis, got shape \(1, "):
        tokenizer.decode(torch.tensor([tokens]))


@pytest.mark.parametrize("tokenizer", BOTH)
def test_a_saved_tokenizer_comes_back(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    text = "The owl sees l\u2019eau !"
    for copy in (
        load_tokenizer(path),
        tokenizer_from_table(tokenizer.as_table()),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert copy == tokenizer
        assert copy.encode(text) == tokenizer.encode(text)
    assert json.loads(path.read_text(encoding="utf-8")) == tokenizer.as_table()
    assert os.listdir(tmp_path) == ["tokenizer.json"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "words"}, "a table must have kind 'words', words and nothing else, got "),
        ({"kind": "words", "words": " a"}, "words must be a tuple of at least one word, got ' a'"),
        ({"kind": "words", "words": [[" a"]]}, "words must be strings other than control tokens"),
        ({"kind": "byte-pairs", "merges": {}}, "merges must be a tuple of pairs, got {}"),
        ({"kind": "byte-pairs", "merges": ["ab"]}, "merges must be pairs of strings, got 'ab'"),
        ({"kind": "byte-pairs", "merges": [["a", None]]}, "merges must be pairs of strings"),
    ],
)
def test_a_damaged_table_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        tokenizer_from_table(table)


def test_every_kind_is_known_by_its_own_name():
    assert [KINDS[tokenizer.kind][1] for tokenizer in BOTH] == [type(tokenizer).__name__ for tokenizer in BOTH]


def test_a_tokenizer_is_shown_in_one_line():
    assert repr(WORDS) == f"<WordTokenizer of {WORDS.vocab_size} tokens>"
    assert repr(PAIRS) == "<BytePairTokenizer of 277 tokens>"


# In another process


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=kept | environment, capture_output=True, text=True, check=True
    )


def test_training_is_the_same_in_every_process_and_quiet():
    code = """
from transformer_lm.texts.word_tokenizers import BytePairTokenizer, WordTokenizer
texts = [f"{a}{b} {c}{a}." for a in "abcdefg" for b in "hijklm" for c in "nopq"]  # all equally frequent
print(WordTokenizer.of(texts, 40).as_table(), BytePairTokenizer.of(texts, 330).as_table())
"""
    runs = [run(code, PYTHONHASHSEED=seed) for seed in "012"]
    assert len({one.stdout for one in runs}) == 1
    assert {one.stderr for one in runs} == {""}


def test_the_library_is_imported_when_it_is_needed():
    code = """
import sys
import transformer_lm, transformer_lm.texts.tokenizers, transformer_lm.texts.word_tokenizers as ours
assert "tokenizers" not in sys.modules
ours.WordTokenizer.of(["a b", "b c"])
assert "tokenizers" in sys.modules and "matplotlib" not in sys.modules
"""
    assert run(code).stderr == ""


def test_the_library_uses_one_thread_so_that_processes_can_fork_unless_told_otherwise():
    code = """
import os
from transformer_lm.texts.word_tokenizers import WordTokenizer
tokenizer = WordTokenizer.of(["a b", "b c"] * 1000)
print(os.environ["TOKENIZERS_PARALLELISM"], flush=True)
if os.fork():
    os.wait()
else:
    print(tokenizer.encode("b"), flush=True)
"""
    assert (run(code).stdout, run(code).stderr) == ("false\n[4]\n", "")
    assert run(code, TOKENIZERS_PARALLELISM="true").stdout.startswith("true")
