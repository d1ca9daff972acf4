"""Tables of accuracies over several seeds, with their range."""

import html
from collections.abc import Sequence

import numpy as np

from transformer_lm.text_tables import aligned


class ResultsTable:
    """The accuracies on one data set over several seeds, with a row for each model and a column for each pool.

    It prints as text, and in a notebook as HTML. A cell shows the mean over the seeds and, if they differ, the smallest
    and the largest.
    """

    def __init__(self, title: str, rows: str = "model", columns: str = "pool") -> None:
        self.title = title
        self.axes = (rows, columns)
        self.rows: list[str] = []  # in the order in which they were added
        self.columns: list[str] = []
        self._found: dict[tuple[str, str], list[float]] = {}

    def add(self, row: str, column: str, accuracies: Sequence[float]) -> None:
        """Write the accuracies of all seeds into a cell, replacing its content.

        Raises ValueError if there are none, or one is not between 0 and 1.
        """
        accuracies = [float(accuracy) for accuracy in accuracies]
        if not accuracies:
            raise ValueError(f"accuracies must hold one number for each seed, got none for {row}, {column}.")
        if outside := [accuracy for accuracy in accuracies if not 0 <= accuracy <= 1]:  # NaN is outside too
            raise ValueError(f"accuracies must be between 0 and 1, got {outside[0]} for {row}, {column}.")
        for name, names in ((row, self.rows), (column, self.columns)):
            if name not in names:
                names.append(name)
        self._found[row, column] = accuracies

    def mean(self, row: str, column: str) -> float:
        """Return the mean over the seeds, NaN for an empty cell."""
        return float(np.mean(self._found.get((row, column), [np.nan])))

    def cell(self, row: str, column: str) -> str:
        """Return the text of a cell, which is empty until accuracies are added."""
        if not (found := self._found.get((row, column))):
            return ""
        mean, low, high = (f"{number:.2f}" for number in (np.mean(found), min(found), max(found)))
        return mean if low == high else f"{mean} ({low}\N{EN DASH}{high})"

    def _lines(self) -> list[list[str]]:
        """Return all cells line by line, including the names of columns and rows."""
        cells = [[row, *(self.cell(row, column) for column in self.columns)] for row in self.rows]
        return [[self.title, *self.columns], *cells]

    def __repr__(self) -> str:
        return aligned(self._lines())

    def _repr_html_(self) -> str:
        columns, *rows = [[html.escape(text) for text in line] for line in self._lines()]
        head = "".join(f"<th>{column}</th>" for column in columns)
        lines = [f"<th>{row}</th>" + "".join(f"<td>{cell}</td>" for cell in cells) for row, *cells in rows]
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in [head, *lines])}</table>"
