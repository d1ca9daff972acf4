"""How an answer is written: by PEP 8, Python's style guide, and in how many lines."""

import ast
import contextlib
from collections.abc import Callable

import pycodestyle

from transformer_lm.checks.report import CheckFailed, passed
from transformer_lm.checks.source import cell_source, parsed, without_magics

LINE_LENGTH = 120  # as everywhere in this course: PEP 8 leaves it to a team
FEW = 3  # statements of a short answer
SHOWN = 4  # findings in a message
# What the tool leaves out by itself, since PEP 8 is not clear there, and what a cell cannot have: an end of file.
NOT_ASKED = ("E121", "E123", "E126", "E226", "E24", "E704", "W503", "W504", "W292", "W391")

TRIED = f"to read your cell by PEP 8, with lines of up to {LINE_LENGTH} characters"


class _Findings(pycodestyle.BaseReport):
    """Keeps what is found, in order."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.found: list[tuple[int, str]] = []

    def error(self, line_number: int, offset: int, text: str, check: object) -> None:
        """Keep one finding, unless it is not asked for."""
        if not self._ignore_code(text[:4]):
            self.found.append((line_number, text))


def style_findings(source: str) -> list[tuple[int, str]]:
    """Return the lines of a cell that PEP 8 would have otherwise, each with what pycodestyle says about it."""
    guide = pycodestyle.StyleGuide(reporter=_Findings, max_line_length=LINE_LENGTH, ignore=NOT_ASKED)
    with contextlib.suppress(ValueError):  # what is no Python is a finding too
        source = without_magics(source)
    lines = source.rstrip().splitlines()
    report = guide.init_report(_Findings)
    pycodestyle.Checker(lines=[f"{line}\n" for line in lines], options=guide.options, report=report).check_all()
    return sorted(report.found)


def listed(findings: list[tuple[int, str]]) -> str:
    """Return the first findings in one line, with their line numbers, and how many more there are."""
    shown = "; ".join(f"line {line}: {text}" for line, text in findings[:SHOWN])
    return shown + (f"; and {len(findings) - SHOWN} more" if len(findings) > SHOWN else "")


def style(answer: Callable) -> None:
    """Check that the student's cell follows PEP 8."""
    findings = style_findings(cell_source(answer))
    if findings:
        hint = "The codes are those of pycodestyle; its documentation shows for each of them what is meant."
        raise CheckFailed(TRIED, listed(findings), "nothing to find", hint)
    passed("style", "the cell follows PEP 8.")


def statements(source: str, name: str) -> int | None:
    """Return how many statements a cell takes that defines a class, apart from docstrings, imports and `__init__`.

    A lambda and a `:=` count like a statement. None if the cell does not define the class, or is no Python.
    """
    tree = parsed(source)
    if tree is None or not any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        return None
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    given = [node for node in ast.walk(tree) if isinstance(node, functions) and node.name == "__init__"]
    left_out = {id(inner) for function in given for inner in ast.walk(function)}
    counted = [
        node
        for node in ast.walk(tree)
        if id(node) not in left_out
        and isinstance(node, ast.stmt | ast.Lambda | ast.NamedExpr)
        and not isinstance(node, (ast.ClassDef, ast.Import, ast.ImportFrom, *functions))
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return len(counted)


def short_forward(answer: Callable) -> None:
    """Say whether the student's `forward` is short enough for an extra point."""
    count = statements(cell_source(answer), answer.__name__)
    if count is not None and count <= FEW:
        length = f"{count} statement{'s' if count > 1 else ''}"
        passed("short forward", f"{length}, worth an extra point if all the rest is right.")
    else:
        print(f"Your forward is {count} statements long; the extra point is for {FEW} or fewer.")
