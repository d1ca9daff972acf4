"""The time to read a student's text grows in proportion to its length, whatever the text is."""

import time
from collections.abc import Callable

import pytest

from grading.isolation.answers import LONGEST_CELLS, Answer
from grading.isolation.cells_read import LONGEST_READ, MOST_SEARCHED, Cell, cells_read
from grading.judging.form import _lines_with_shapes, _statements
from transformer_lm.checks.engine.source import _is_magic, assigned_names, defined_names, used_names, without_magics
from transformer_lm.checks.engine.style import NO_QA, UNREAD, statements, unread

GROWS = 10  # times for four times the length: a line takes 4, a square 16, a cube 64
TIMES = 5
READERS = (defined_names, assigned_names, used_names)


def seconds(read: Callable[[], object]) -> float:
    """Return the processor time of the fastest of several calls."""
    times = []
    for _ in range(TIMES):
        for reader in READERS:
            reader.cache_clear()
        start = time.process_time()
        read()
        times.append(time.process_time() - start)
    return min(times)


def tolerated(read: Callable[[str], object]) -> Callable[[str], object]:
    def call(text: str) -> object:
        try:
            return read(text)
        except ValueError:
            return None

    return call


TEXTS = {
    "opened": lambda n: "####" + "(," * (n // 2),
    "hashes": lambda n: "#" * (n // 2) + "[(," * (n // 6),
    "blanks": lambda n: " " * n + "x",
    "tabs": lambda n: "x = not" + "\t" * n + "a",
    "questions": lambda n: "? " * (n // 2) + "x",
    "blanks-before-equals": lambda n: "a, " * (n // 6) + " " * (n // 2) + "= x",
    "magics": lambda n: "%a\n" * (n // 3),
    "magics-in-turn": lambda n: "%a\nx = 1\n" * (n // 9),
    "backslashes": lambda n: "%a\\\n" * (n // 4),
    "nested": lambda n: "(" * n,
    "nested-and-closed": lambda n: "(" * (n // 2) + ")" * (n // 2),
    "lambdas": lambda n: "lambda: " * (n // 8) + "1",
    "commas": lambda n: "a," * (n // 2),
    "attributes": lambda n: "a" + ".b" * (n // 2),
    "classes": lambda n: "class A: pass\n" * (n // 14),
    "words": lambda n: "exec" * (n // 4) + " eval" * (n // 4),
    "exceptions": lambda n: "# no" * (n // 4),
}
READ = {
    "shapes": _lines_with_shapes,
    "statements-that-make-tensors": _statements,
    "magic": _is_magic,
    "without-magics": tolerated(without_magics),
    "defined": defined_names,
    "assigned": assigned_names,
    "used": used_names,
    "statements": lambda text: statements(text, "A"),
    "unread": unread,
    "exceptions": lambda text: NO_QA.sub("", text),
    "unread-word": UNREAD.findall,
}


@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_text_takes_longer_than_its_length_says(read, text):
    lengths = (LONGEST_READ // 4, LONGEST_READ)
    once, fourfold = (seconds(lambda length=length: read(text(length))) for length in lengths)
    assert fourfold <= max(GROWS * once, 0.02)  # shorter times mostly measure the clock


def chain(n: int) -> list[Cell]:
    """Return cells each of which uses a helper that the next one defines."""
    return [Cell(number, f"def f{number}(): f{number + 1}()") for number in range(n)]


def test_a_chain_of_helpers_is_followed_in_time_that_grows_with_it():
    assert len(cells_read("f0", chain(300))) == 300
    once, fourfold = (seconds(lambda n=n: cells_read("f0", chain(n))) for n in (500, 2000))
    assert fourfold <= GROWS * once
    assert cells_read("f0", chain(2000)) == ()  # more than is read


def test_cells_that_are_too_many_to_search_are_not_searched():
    cells = [*chain(2), *(Cell(number, "x = 1\n" * 1500) for number in range(2, 30))]
    assert sum(len(cell.source) for cell in cells) > MOST_SEARCHED
    assert cells_read("f0", cells) == ()


def test_the_longest_cells_are_left_out_in_time_that_grows_with_their_number():
    def left_out(n: int) -> dict:
        answer = Answer(None, "", [Cell(number, "x" * (LONGEST_CELLS // 1000)) for number in range(n)], False)
        return answer.errors

    assert len(left_out(2000)) >= 1000
    once, fourfold = (seconds(lambda n=n: left_out(n)) for n in (2000, 8000))
    assert fourfold <= GROWS * once
