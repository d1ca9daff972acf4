"""Self-contained pages, without scripts or other hosts, in which all inserted text is escaped."""

import functools
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

TEMPLATES = Path(__file__).parent / "templates"
LONGEST_TEXT = 20_000  # characters of one cell or output
LONGEST_LINE, MOST_EMPTY_LINES = 500, 20  # of highlighted code


def rendered(template: str, **values: object) -> str:
    """Return a page made from one of the templates."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"points": points_told, "plain_number": plain_number, "with_code": with_code}
    return environment


def plain_number(number: float) -> str:
    """Return a number with at most two decimals, without trailing zeros."""
    text = f"{round(number, 2) + 0:g}"  # + 0 turns -0.0 into 0.0
    return text.replace("-", "\N{MINUS SIGN}")


def points_told(points: float, most: float) -> str:
    """Return points in words; for a maximum of 0, they are points taken off or added."""
    if most:
        return f"{plain_number(points)} of {plain_number(most)} {'point' if most == 1 else 'points'}"
    if not points:
        return "nothing taken off or added"
    return f"{'+' if points > 0 else ''}{plain_number(points)} {'point' if abs(points) == 1 else 'points'}"


def with_code(text: str) -> Markup:
    """Return a sentence with `names in backticks` set as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def printable(text: str) -> str:
    """Return a line for a terminal, with control characters and changes of text direction shown as codes."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def shortened(text: str) -> str:
    """Return a text, shortened if it is too long for a page."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n… and {len(text) - LONGEST_TEXT:,} more characters"


def wrapped(source: str) -> str:
    """Return code without very long lines, trailing spaces, and runs of many empty lines.

    Pygments takes time quadratic in their length.
    """
    parts = (
        line[start : start + LONGEST_LINE].rstrip()
        for line in source.splitlines()
        for start in range(0, len(line) or 1, LONGEST_LINE)
    )
    return re.sub(rf"\n{{{MOST_EMPTY_LINES},}}", "\n" * MOST_EMPTY_LINES, "\n".join(parts))


def code(source: str) -> Markup:
    """Return Python code as highlighted HTML."""
    return Markup(highlight(wrapped(shortened(source)), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)))
