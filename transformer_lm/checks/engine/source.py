"""The source of the cell that defines an answer, for the checks of comments and style."""

import ast
import functools
import inspect
import linecache
import re
import warnings
from collections.abc import Callable
from typing import Any

MOST_MAGICS = 50
MOST_PARSED = 100_000  # characters, in total over the attempts to parse one cell


def cell_source(answer: Callable) -> str:
    """Return the text of the whole cell that defines a function or class.

    Raises ValueError if there is no such text, as for an answer that was not written in Python.
    """
    functions = [answer, *vars(answer).values()] if inspect.isclass(answer) else [answer]
    for function in functions:
        code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
        lines = linecache.getlines(code.co_filename) if code else []
        if lines:
            return "".join(lines)
    raise ValueError(f"answer must be defined in a cell or file, got {answer!r}.")


def without_magics(source: str) -> str:
    """Return the text of a cell without the lines that only IPython understands; all others keep their line numbers.

    Raises ValueError if the rest is not Python either.
    """
    lines = re.split(r"\r\n|\r|\n", source)
    for _ in range(max(1, min(MOST_MAGICS, MOST_PARSED // (len(source) + 1)))):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse("\n".join(lines))
            return "\n".join(lines)
        except SyntaxError as error:
            number = (error.lineno or 0) - 1
            if not 0 <= number < len(lines) or not _is_magic(lines[number]):
                raise ValueError(f"the cell must be Python, got a syntax error in line {number + 1}.") from error
        except (RecursionError, MemoryError) as error:
            raise ValueError("the cell must be Python, got one that is nested too deeply.") from error
        while lines[number].endswith("\\") and number + 1 < len(lines):  # a magic of several lines
            lines[number] = _passing(lines[number])
            number += 1
        lines[number] = _passing(lines[number])
    raise ValueError("the cell must be Python, got too many lines that are not.")


def _is_magic(line: str) -> bool:
    """Return whether only IPython may understand a line: `%time`, `!ls`, `files = !ls`, `?len` or `len?`."""
    text = line.strip()
    targets, equals, value = text.partition("=")
    is_assigned = bool(equals) and all(each.isalnum() or each in "_, " for each in targets)
    return (
        text.startswith(("%", "!", "?"))
        or text.endswith("?")
        or (is_assigned and value.lstrip().startswith(("%", "!")))
    )


def _passing(line: str) -> str:
    """Return a line that does nothing instead of this one: inside a block, a `pass` statement."""
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}pass" if indent else ""


def cells_run(namespace: dict[str, Any]) -> list[str]:
    """Return the cells that a kernel has run, as they were typed; `In` holds them with magics translated."""
    if "get_ipython" in namespace:
        return namespace["get_ipython"]().history_manager.input_hist_raw
    return namespace.get("In", [])


def parsed(source: str) -> ast.Module | None:
    """Return the tree of a cell, or None if it is not Python."""
    try:
        return ast.parse(without_magics(source))
    except ValueError:
        return None


@functools.lru_cache(maxsize=4096)  # the cells of a submission are read again for each exercise
def defined_names(source: str) -> frozenset[str]:
    """Return the names of the functions and classes that a cell defines at its top level."""
    names = set()
    for node in getattr(parsed(source), "body", []):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif any(isinstance(inner, ast.Lambda) for inner in ast.walk(node)):
            names |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return frozenset(names)


@functools.lru_cache(maxsize=4096)
def assigned_names(source: str) -> frozenset[str]:
    """Return the names that a cell assigns or imports at its top level."""
    names = set()
    for node in getattr(parsed(source), "body", []):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            inner = ast.walk(node)
            names |= {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return frozenset(names)


@functools.lru_cache(maxsize=4096)
def used_names(source: str) -> frozenset[str]:
    """Return the names that a cell uses but never assigns, not even as an argument."""
    nodes = list(ast.walk(parsed(source) or ast.Module([], [])))
    assigned = {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    assigned |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    return frozenset(node.id for node in names) - assigned
