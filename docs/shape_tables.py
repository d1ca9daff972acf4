"""A Sphinx extension: the tables in docstrings, of shapes above all, keep their columns."""

import itertools
import re
import textwrap

from sphinx.application import Sphinx

COLUMNS = re.compile(r"\S {2,}\S")


def keep_columns(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Make a literal block of every paragraph with columns; a heading such as `Shapes:` stays a line of text."""
    kept = []
    for blank, paragraph in itertools.groupby(lines, key=lambda line: not line.strip()):
        paragraph = list(paragraph)
        if not blank and any(map(COLUMNS.search, paragraph)):
            heading = [paragraph.pop(0), ""] if paragraph[0].endswith(":") else []
            table = textwrap.indent(textwrap.dedent("\n".join(paragraph)), "    ").splitlines()
            paragraph = [*heading, "::", "", *table]
        kept += paragraph
    lines[:] = kept


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension for every docstring."""
    app.connect("autodoc-process-docstring", keep_columns)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
