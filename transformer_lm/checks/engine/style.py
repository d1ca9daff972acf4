"""The style of an answer: whether it follows PEP 8, Python's style guide, and how many statements it has."""

import ast
import contextlib
import re
from collections.abc import Callable, Iterator

import pycodestyle

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.failure import CheckFailed, passed
from transformer_lm.checks.engine.source import cell_source, parsed, without_magics

LINE_LENGTH = 120  # as everywhere in this course; PEP 8 lets a team choose
FEW = 3  # statements of a short answer
SHOWN = 4  # findings in a message
# Rules that pycodestyle ignores by default, where PEP 8 is not clear, and those about the end of a file.
NOT_ASKED = ("E121", "E123", "E126", "E226", "E24", "E704", "W503", "W504", "W292", "W391")
NO_QA = re.compile("# no(?=qa|pep8)", re.IGNORECASE)  # comments that make pycodestyle skip a line
MARKERS = re.compile(r"^([ \t]*)###(?= (?:BEGIN|END) SOLUTION$)", re.MULTILINE)  # nbgrader's lines, not the student's
# Names that turn strings into code, or put code where a reader of the cell would not look for it.
UNREAD = re.compile(
    r"\b(?:exec|setattr|builtins|__builtins__|__import__|importlib|FunctionType|CodeType|CompilationUnit|"
    r"run_cell|user_ns|__code__|__globals__|__dict__)\b|(?<![\w.])(?:eval|compile|vars)\b|globals\(\)\["
)

TRIED = f"to check your cell against PEP 8, with lines of up to {LINE_LENGTH} characters"


class _Findings(pycodestyle.BaseReport):
    """Keeps the findings in order."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.found: list[tuple[int, str]] = []

    def error(self, line_number: int, offset: int, text: str, check: object) -> None:
        """Keep one finding, unless its rule is ignored."""
        if not self._ignore_code(text[:4]):
            self.found.append((line_number, text))


def style_findings(source: str) -> list[tuple[int, str]]:
    """Return the lines of a cell that violate PEP 8, each with the message of pycodestyle.

    The lines by which nbgrader marks a solution are not the student's: their three `#` count as one.
    """
    guide = pycodestyle.StyleGuide(reporter=_Findings, max_line_length=LINE_LENGTH, ignore=NOT_ASKED)
    with contextlib.suppress(ValueError):  # code that is not Python is a finding too
        source = without_magics(source)
    lines = MARKERS.sub(r"\1#", NO_QA.sub("# --", source)).rstrip().splitlines()
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)  # cells may begin with empty lines
    report = guide.init_report(_Findings)
    lines = [f"{line}\n" for line in lines[first:]]
    pycodestyle.Checker(lines=lines, options=guide.options, report=report).check_all()
    return sorted((first + line, text) for line, text in report.found)


def listed(findings: list[tuple[int, str]]) -> str:
    """Return the first findings in one line, with their line numbers and the number of further ones."""
    shown = "; ".join(f"line {line}: {text}" for line, text in findings[:SHOWN])
    return shown + (f"; and {len(findings) - SHOWN} more" if len(findings) > SHOWN else "")


def style(answer: Callable) -> None:
    """Check that the student's cell follows PEP 8."""
    findings = style_findings(cell_source(answer))
    if findings:
        known = hint("style-codes")
        raise CheckFailed(TRIED, listed(findings), "nothing to find", known)
    passed("style", "the cell follows PEP 8.")


def statements(source: str, name: str) -> int | None:
    """Return the number of statements in a class's cell, without docstrings, imports and code that runs once.

    Code that runs once is its `__init__`, unless that may be called again, and what runs with the cell itself, such as
    a comparison below the class, or a function that is only called there. What an `__init__` defines for later does
    count: functions, classes and lambdas with their contents. A lambda, a `:=` and a `for` over literal values count as
    statements. Return None if the cell does not define the class, or is not Python.
    """
    tree = parsed(source)
    if tree is None or not any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        return None
    return sum(map(_is_counted, _nodes_that_count(tree, name)))


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOK_UP = ("getattr", "globals", "locals", "sys", "gc", "inspect", "__main__")  # find a function without its name


def _nodes_that_count(tree: ast.Module, name: str) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, except those that run only once: in the `__init__` of a class, or with the cell."""
    own = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    inits = {id(node) for each in own for node in each.body if getattr(node, "name", "") == "__init__"}
    called = {id(call.func): call.func for call in _calls_of_the_cell(tree)}
    tests = _only_called_once(tree, called)
    skipped = called.keys() | {id(node) for test in tests for node in ast.walk(test)}
    inits = set() if any(_makes_another(node, name) and id(node) not in skipped for node in ast.walk(tree)) else inits
    once = inits | {id(test) for test in tests}
    free = {name for node in tree.body if node not in tests for name in _free_names(node)}
    waiting: list[tuple[ast.AST, bool]] = [(node, not free & {each.id for each in _stored(node)}) for node in tree.body]
    while waiting:
        node, runs_once = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            runs_once = id(node) in once
        if not runs_once:
            yield node
        waiting += [(child, runs_once) for child in ast.iter_child_nodes(node)]


def _calls_of_the_cell(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls that a cell makes itself, outside of its functions and classes."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _only_called_once(tree: ast.Module, called: dict[int, ast.expr]) -> list[ast.AST]:
    """Return the functions that a cell calls when it runs, such as tests, and that no other code can find and call."""
    nodes = list(ast.walk(tree))
    if any(getattr(node, "id", getattr(node, "name", "")) in LOOK_UP for node in nodes):
        return []
    used = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {node.id for node in called.values() if isinstance(node, ast.Name)} - used
    functions = [node for node in tree.body if isinstance(node, FUNCTIONS) and not node.decorator_list]
    return [node for node in functions if node.name in names and not _holds_another(node)]


def _stored(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the names that a top-level statement of the cell assigns."""
    if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield from (each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))


def _free_names(node: ast.AST) -> set[str]:
    """Return the names that functions take from outside; their values in the cell count as parts of the functions."""
    free = set()
    for function in ast.walk(node):
        if isinstance(function, (*FUNCTIONS, ast.Lambda)):
            inside = list(ast.walk(function))
            names = [each for each in inside if isinstance(each, ast.Name)]
            bound = {each.id for each in names if isinstance(each.ctx, ast.Store)}
            bound |= {each.arg for each in inside if isinstance(each, ast.arg)}
            free |= {each.id for each in names} - bound
    return free


def _holds_another(function: ast.AST) -> bool:
    """Return whether a function creates other functions, which may be kept."""
    return any(isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)) for node in list(ast.walk(function))[1:])


def _makes_another(node: ast.AST, name: str) -> bool:
    """Return whether a node may call the `__init__` of a class later, and not that of the class above it."""
    if isinstance(node, ast.Attribute):
        above = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super"
        return node.attr == "__class__" or (node.attr == "__init__" and not above)
    return isinstance(node, ast.Name) and node.id in (name, "type", "__class__") and isinstance(node.ctx, ast.Load)


def _is_counted(node: ast.AST) -> bool:
    if isinstance(node, ast.comprehension):
        return isinstance(node.iter, ast.List | ast.Tuple | ast.Set)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    left_out = isinstance(node, (ast.ClassDef, ast.Import, ast.ImportFrom, *FUNCTIONS)) or is_text
    return isinstance(node, ast.stmt | ast.Lambda | ast.NamedExpr) and not left_out


def unread(source: str) -> str:
    """Return the first word of a cell that can run code hidden from its reader, such as `exec`, or an empty string."""
    found = UNREAD.search(source)
    return found[0] if found else ""


def length_of_forward(answer: Callable) -> None:
    """Report whether the student's `forward` is short enough for an extra point."""
    source = cell_source(answer)
    count = statements(source, answer.__name__)
    if unread(source):
        print(f"The extra point is for a forward that is written out: leave out {unread(source)}.")
    elif count is not None and count <= FEW:
        length = f"{count} statement{'s' if count > 1 else ''}"
        passed("short forward", f"{length}, worth an extra point if all the rest is right.")
    else:
        print(f"Your forward is {count} statements long; the extra point is for {FEW} or fewer.")
