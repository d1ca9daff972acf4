"""The time to read what students write grows in proportion to its size: no small file blocks a process for hours."""

import functools
import json
import time
from collections.abc import Callable

import nbformat
import pytest
from checkout import ROOT
from nbformat.v4 import new_markdown_cell

from grading.nbgrader_steps.repair import read_submission, repair
from grading.results import feedback_page, pages, sanitise

RELEASED = nbformat.read(ROOT / "release" / "01_self_attention" / "01_self_attention.ipynb", as_version=4)

# Four times the input may take this many times as long: 4 if time is linear, 16 if it is quadratic.
MOST = 9
SHORTEST = 0.002  # seconds; a clock says little about less


def seconds(call: Callable[[], object]) -> float:
    """Return the best of three processor times, in which the load of other processes does not count."""
    times = []
    for _ in range(3):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return max(min(times), SHORTEST)


def assert_linear(prepare: Callable[[int], Callable[[], object]], n: int) -> None:
    """Compare the times of inputs that are prepared in the sizes n, 2n and 4n."""
    times = {size: seconds(prepare(size)) for size in (n, 2 * n, 4 * n)}
    print("  ".join(f"{size}: {1000 * value:.1f} ms" for size, value in times.items()))
    assert times[4 * n] < MOST * times[n]


# Notebooks.


def code(**fields: object) -> dict:
    return {"cell_type": "code", "source": "", "metadata": {}, "outputs": [], **fields}


def attached(n: int) -> list[dict]:
    """Return a text with many attachments and much metadata, known and unknown."""
    metadata = {f"key{i}": i for i in range(n)} | {"tags": [f"tag{i}" for i in range(n)]}
    return [{"cell_type": "markdown", "metadata": metadata, "attachments": {f"{i}.png": {} for i in range(n)}}]


NOTEBOOKS = {
    "attachments and metadata": (attached, 300),
    "outputs and tags": (
        lambda n: [code(outputs=[{"output_type": "error"}] * n, metadata={"tags": [f"tag{i}" for i in range(n)]})],
        400,
    ),
    "cells with one id": (lambda n: [code(id="kqv")] * n, 400),
    "cells without a name": (lambda n: [code(source="x" * 2_000 + " \n" * 200)] * n, 100),
    "names in one cell": (lambda n: [code(source="name = 1\n" * n + "x" * n + " " * n)], 10_000),
    "lines of one text": (lambda n: [code(source=["\n"] * n)], 10_000),
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_reading_and_repairing_takes_time_in_proportion(tmp_path, name):
    cells, n = NOTEBOOKS[name]

    def prepare(size: int) -> Callable[[], object]:
        path = tmp_path / f"{size}.ipynb"
        path.write_text(json.dumps({"cells": cells(size)}))
        return lambda: repair(read_submission(path), RELEASED)

    assert_linear(prepare, n)


def test_a_notebook_of_an_old_format_takes_time_in_proportion(tmp_path):
    def prepare(size: int) -> Callable[[], object]:
        cell = {"cell_type": "code", "language": "python", "input": "", "outputs": [], "collapsed": False}
        path = tmp_path / f"{size}.ipynb"
        path.write_text(json.dumps({"nbformat": 3, "metadata": {}, "worksheets": [{"cells": [cell] * size}]}))
        return lambda: read_submission(path)

    assert_linear(prepare, 200)


# Pages.


def headings(text: str) -> list[str]:
    return feedback_page._headings(new_markdown_cell(text))


def with_picture(text: str) -> str:
    return feedback_page.text_of(text, {"a": {"image/png": "A" * 100_000}})


READERS = {
    "blanks in a heading": (lambda n: f"# a{' ' * n}b", headings, 20_000),
    "signs in a heading": (lambda n: "# " + "#" * n + " x" + " #" * n, headings, 20_000),
    "fences": (lambda n: "```\n# a\n" * n, headings, 5_000),
    "points in a heading": (lambda n: "# a (" + "points " * n + ")" * 2, headings, 10_000),
    "parentheses in a heading": (lambda n: "# " + " (points" * n + ")", headings, 10_000),
    "one long line": (lambda n: "[0.1, 0.2], " * n, feedback_page._overwritten, 20_000),
    "a progress bar": (lambda n: "10%\r" * n, feedback_page._overwritten, 20_000),
    "pictures without an end": (lambda n: "<img " * n, feedback_page._described, 20_000),
    "pictures without a text": (lambda n: '<img alt="">' * n, feedback_page._described, 5_000),
    "colours": (lambda n: "\x1b[1" * n + "\x1b[" + "1" * n, feedback_page._text, 20_000),
    "backticks": (lambda n: "`a" * n + "`" * n, pages.with_code, 20_000),
    "HTML in HTML": (lambda n: "<div>" * n, sanitise.harmless, 5_000),
    "lists in lists": (lambda n: "<ul><li>" * n, sanitise.harmless, 5_000),
    "unclosed words": (
        lambda n: "<p>" + "".join(f"<b id={i}>" for i in range(n)) + "</p>" + "<p>x</p>" * n,
        sanitise.harmless,
        2_000,
    ),
    "attachments": (lambda n: "![](attachment:a)" * n, with_picture, 200),
}


@pytest.mark.parametrize("name", READERS)
def test_making_a_page_takes_time_in_proportion(name):
    text, read, n = READERS[name]
    assert_linear(lambda size: functools.partial(read, text(size)), n)


L = pages.LONGEST_TEXT
ORDINARY_TEXT = ("Some *words* and `code`, [a link](http://a.b), and $x^2$.\n\n- one\n- two\n\n" * L)[:L]
ORDINARY_CODE = ('def double(x):  # twice\n    """Return it twice."""\n    return {"a": 2 * x + 1.5}\n\n\n' * L)[:L]
TEXTS = {
    "brackets": "[" * L,
    "links": "[a](" * L,
    "pictures": "![" * L,
    "backticks": "".join("`" * i + " " for i in range(L // 50)),
    "stars": "*a **b " * L,
    "quotes": ">" * L,
    "quotes of lists": "> - " * L,
    "lists": "- " * L,
    "a wide table": "|a" * (L // 7) + "\n" + "|-" * (L // 7) + "\n" + "|b" * L,
    "a long table": "|a|b|\n|-|-|\n" + "|a\n" * L,
    "tags": "<a" * L,
    "elements": "<div>" * L,
    "lists in HTML": "<ul><li>" * L,
    "words in HTML": "<b><p>" * L,
    "mathematics": "\\begin{a}" * L,
    "dollars": "$a " * L,
    "fences": "```\n" * L,
    "blanks": "a" + " " * (L - 2) + "b",
    "references": "[a]: b\n" * L,
    "comments": "<!--" * L,
}
CODES = {
    "blank lines": "\n  " * L,
    "tabs": "\t\n" * L,
    "form feeds": "\f" * L,
    "a long number in a text": '"%' + "0" * L,
    "case and blanks": "case " + " " * L,
    "quotes": '"' * L,
    "braces": '"' + "{" * L,
    "dots": "from " + ". " * L,
}


@functools.cache
def ordinary(show: Callable[[str], object], text: str) -> float:
    return seconds(lambda: show(text))


@pytest.mark.parametrize(
    ("show", "usual", "odd"),
    [
        *(pytest.param(feedback_page.text_of, ORDINARY_TEXT, text[:L], id=name) for name, text in TEXTS.items()),
        *(pytest.param(pages.code, ORDINARY_CODE, text[:L], id=f"code, {name}") for name, text in CODES.items()),
    ],
)
def test_nothing_on_a_page_takes_much_longer_than_ordinary_text(show, usual, odd):
    """Pygments and mistune take quadratic time for some texts, which are short enough on a page."""
    times = ordinary(show, usual), seconds(lambda: show(odd))
    print("ordinary: {:.0f} ms  odd: {:.0f} ms".format(*(1000 * value for value in times)))
    assert times[1] < 20 * times[0]
