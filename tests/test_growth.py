"""Readers of what students write take time in proportion to its size: no small file holds a process for hours."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from grading.repair import read_submission, repair

ROOT = Path(__file__).parents[1]
RELEASED = nbformat.read(ROOT / "release" / "01_self_attention" / "01_self_attention.ipynb", as_version=4)

# Four times the input may take so many times as long: 4 if all is well, 16 where it grows with the square.
MOST = 9
SHORTEST = 0.002  # seconds; below, a clock says little


def seconds(call: Callable[[], object]) -> float:
    """Return the best of three processor times, in which other people's load does not count."""
    times = []
    for _ in range(3):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return max(min(times), SHORTEST)


def assert_linear(prepare: Callable[[int], Callable[[], object]], n: int) -> None:
    """Compare the times of what is prepared for the sizes n, 2n and 4n."""
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
