"""Code that a student could copy from the zip: functions, classes and methods, each judged as an answer."""

import ast
import inspect
import random
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import nbformat
import numpy as np

from grading.authoring.prove import computing_once
from grading.exercises import topic_of
from grading.isolation.answers import Answer, AnswerEnded, Cell
from grading.isolation.sandbox import missing_walls
from grading.judging.judge import as_given, judge
from grading.judging.record import SETUP, Record, ValueRecord
from grading.processes.workers import answer_server

REDUCED = bool(missing_walls())
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
WITH_LAYERS = ("kqv", "self-attention")
SECONDS = 10_000  # for all candidates together; each call has its own limit
# Each text has a separate namespace. One that ends with an error still defines what comes before it. A candidate that
# takes too few or too many arguments for every call of the judge is left undefined: it could only raise a TypeError.
PASTE = """
import inspect

def _takes(candidate, fewest, most):
    try:
        parameters = inspect.signature(candidate).parameters.values()
    except ValueError:
        return True
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    open_ended = any(each.kind in variable for each in parameters)
    needed = [each for each in parameters if each.default is each.empty and each.kind not in variable]
    return len(needed) <= most and (open_ended or len(parameters) >= fewest)

_namespace = {{"__name__": "__main__"}}
try:
    exec({source!r}, _namespace)
except Exception:
    pass
for _alias, _name in {names!r}:
    try:
        _candidate = eval(_name, _namespace)
    except Exception:
        continue
    if not callable(_candidate) or _takes(_candidate, {fewest}, {most}):
        globals()[_alias] = _candidate
"""


@dataclass(frozen=True)
class Text:
    """Python that can be copied as a whole, the place that it comes from, and the names in it to try."""

    place: str
    source: str
    names: tuple[str, ...]


class _Candidates(Answer):
    """Many answers in one process; `alias` says which of them the judge gets, whatever name it asks for."""

    alias = ""

    def __enter__(self) -> "_Candidates":
        self.kept = {}  # nothing is remembered from the one before
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the process running for the next one."""

    def close(self) -> None:
        super().__exit__(None, None, None)

    def ask(self, do: str, arrays: dict[str, np.ndarray] | None = None, **request: object) -> tuple[dict, dict]:
        return super().ask(do, arrays, **request | ({"name": self.alias} if "name" in request else {}))


def earning(exercise: str, texts: Iterable[Text]) -> dict[str, float]:
    """Return what earns points as an answer to an exercise, as `place: name`, with the points.

    The judge gets the names of the texts one by one. At the end it gets the model answer, which must earn points:
    otherwise an earlier candidate has broken the process for those after it.
    """
    record, server = computing_once(exercise), answer_server(topic_of(exercise), REDUCED)
    fewest, most = _arguments(record)
    ours = Text("the model answer", SETUP + record.model_answer, (record.defines,))
    cells, aliases = [], {}
    for number, text in enumerate([*texts, ours]):
        named = [(f"candidate_{number}_{place}", name) for place, name in enumerate(text.names)]
        cells.append(Cell(number, PASTE.format(source=text.source, names=named, fewest=fewest, most=most)))
        aliases |= {alias: f"{text.place}: {name}" for alias, name in named}
    candidates = _Candidates(server, exercise, cells, record.forbids_attention, seconds=SECONDS)
    found = {}
    with mock.patch("grading.judging.judge.Answer", return_value=candidates):
        for candidates.alias, name in aliases.items():
            if _gives_something(record, candidates):
                result = judge(record, cells, server, seed=1)
                found[name] = sum(max(0, part.points) for part in result.parts)  # whatever its form takes off
    candidates.close()
    if not found.pop(f"{ours.place}: {record.defines}", 0):
        raise ValueError(f"{exercise}: the model answer must earn points after all others, got none.")
    return {name: points for name, points in found.items() if points}


def _arguments(record: Record) -> tuple[int, float]:
    """Return how many arguments a call of the judge has at least and at most: every right answer takes them."""
    namespace: dict[str, object] = {"__name__": "answer"}
    exec(SETUP + record.model_answer, namespace)
    asked = [record.defines, *(part.calls for part in record.parts if part.calls)]
    signatures = [inspect.signature(namespace[name]).parameters.values() for name in asked]
    needed = [
        sum(each.default is each.empty for each in signature if each.kind not in VARIABLE) for signature in signatures
    ]
    open_ended = any(each.kind in VARIABLE for signature in signatures for each in signature)
    return min(needed), 100 if open_ended else max(map(len, signatures))


def _gives_something(record: Record, candidates: _Candidates) -> bool:
    """Return whether a candidate has an output for an ordinary call: without one, no part of it can be right.

    Some exercises give points for layers that are never called, or compute no values; this says nothing about those.
    """
    if not isinstance(record, ValueRecord) or record.id in WITH_LAYERS:
        return True
    case = record.draw(random.Random(1), record.first_sizes)
    try:
        candidates.keep_running()
        if not candidates.ask("defines", name="")[0].get("defined"):
            return False
        _, arrays = candidates.ask("call", {name: as_given(array) for name, array in case.items()}, name="", build=True)
    except AnswerEnded:
        return True  # this candidate may have ended it, or an earlier one
    return any(name.startswith("outputs/") for name in arrays)


# The candidates


def texts_to_paste(folder: Path) -> Iterator[Text]:
    """Yield the modules of the package and the definitions in every notebook of an unpacked zip."""
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.ipynb")]):
        source = _definitions(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
        yield Text(str(path.relative_to(folder)), *_with_inner_functions(source))


def _definitions(notebook: Path) -> str:
    """Return what the code cells of a notebook import and define, and what they assign without calling anything."""
    kept = []
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if not line.startswith(("%", "!"))]
            kept += [node for node in ast.parse("\n".join(lines)).body if _is_definition(node)]
    return "\n\n".join(map(ast.unparse, kept))


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return not any(isinstance(each, ast.Call) for each in ast.walk(node.value))
    return isinstance(node, FUNCTIONS | ast.ClassDef | ast.Import | ast.ImportFrom)


def _with_inner_functions(source: str) -> tuple[str, tuple[str, ...]]:
    """Return a text that also defines its inner functions at the end, and all names to try."""
    tree = ast.parse(source)
    names = list(_names(tree))
    inner = [
        node
        for outer in ast.walk(tree)
        if isinstance(outer, FUNCTIONS)
        for node in ast.walk(outer)
        if isinstance(node, FUNCTIONS | ast.ClassDef) and node is not outer
    ]
    copies = {node.name: ast.unparse(node) for node in inner if node.name not in names and _can_stand_alone(node)}
    return "\n\n".join([source, *copies.values()]), (*names, *copies)


def _can_stand_alone(node: ast.stmt) -> bool:
    """Return whether an inner function can be defined outside: not if it assigns to the variables of another one."""
    return not any(isinstance(each, ast.Nonlocal) for each in ast.walk(node))


def _names(scope: ast.AST, prefix: str = "") -> Iterator[str]:
    """Yield the functions, classes and methods of a text, such as `Model.forward`, outside of functions."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, FUNCTIONS | ast.ClassDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _names(node, f"{prefix}{node.name}.")
        elif not isinstance(node, FUNCTIONS):
            yield from _names(node, prefix)


def each_once(texts: Iterable[Text]) -> list[Text]:
    """Return texts without those names that an earlier text makes of the same statements."""
    known, kept = set(), []
    for text in texts:
        made_of = _statements_behind(text)
        new = tuple(name for name in text.names if (name, made_of[name]) not in known)
        known |= {(name, made_of[name]) for name in new}
        kept += [Text(text.place, text.source, new)] if new else []
    return kept


def _statements_behind(text: Text) -> dict[str, frozenset[str]]:
    """Return for each name the statements of its text that define it, and what these use, and so on."""
    statements = [ast.unparse(node) for node in ast.parse(text.source).body]
    tables = {statement: symtable.symtable(statement, text.place, "exec") for statement in statements}
    uses = {statement: _used(table) for statement, table in tables.items()}
    defining: dict[str, set[str]] = {}
    for statement, table in tables.items():
        for symbol in table.get_symbols():
            if symbol.is_assigned() or symbol.is_imported():
                defining.setdefault(symbol.get_name(), set()).add(statement)
    found = {}
    for name in text.names:
        waiting, behind = [name.partition(".")[0]], set()
        while waiting:
            new = defining.get(waiting.pop(), set()) - behind
            behind |= new
            waiting += [used for statement in new for used in uses[statement]]
        found[name] = frozenset(behind)
    return found


def _used(table: symtable.SymbolTable) -> set[str]:
    """Return the global names that a statement uses, including those inside its functions."""
    used = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return used.union(*map(_used, table.get_children()))
