"""The shapes that really occur while the code of a cell runs, recorded call by call and statement by statement.

We run a copy of the cell in which each statement reports what it assigns or returns. Torch itself reports the tensors
that are used in between. The student's code computes the same values in the same order.
"""

import ast
import contextlib
import io
import linecache
import warnings
from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transformer_lm.checks.engine.shape_notation import Shape
from transformer_lm.checks.engine.source import without_magics

MOST_CALLS, MOST_CALLS_OF_ONE = 200, 20
MOST_STATEMENTS, MOST_STATEMENTS_OF_ONE, MOST_SHAPES = 800, 200, 50  # in all, in one call, in one statement
RECORDER, CALL = "_shape_recorder_", "_shape_call_"  # names that students do not use
FILE = "<shape comments>"

Valued = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr


def observe(source: str, name: str, namespace: dict, run: Callable[[object], None]) -> list[dict]:
    """Return a record of each call of the cell's functions while `run` gets what the cell defines as `name`.

    The cell runs in a copy of the namespace, without its bare expressions and without printing; calls that the cell
    makes itself are not recorded, and the code after the definition may raise. Each call is a dict: the line of its
    function, the ints by name (`values`), those of self (`attributes`), and its `statements`.

    Raises ValueError if the cell is not Python, or does not define the name; passes on any error raised before the
    definition, or in `run`.
    """
    text = without_magics(source)
    tree = ast.parse(text)
    tree.body = [statement for statement in tree.body if not isinstance(statement, ast.Expr)]
    tree = ast.fix_missing_locations(_Instrumented().visit(tree))
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)  # for tracebacks
    inside = {key: value for key, value in namespace.items() if key != name} | {RECORDER: Recorder()}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            exec(compile(tree, FILE, "exec", dont_inherit=True), inside)
        except Exception:
            if name not in inside:
                raise
        if name not in inside:
            raise ValueError(f"the cell must define {name}, got {_defined(tree) or 'nothing'}.")
        inside[RECORDER] = recorder = Recorder()
        with recorder:
            run(inside[name])
    return recorder.calls


def _defined(tree: ast.Module) -> str:
    return ", ".join(node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))


def target_names(statement: ast.stmt) -> list[str]:
    """Return the targets of a statement as written; none for a return or an expression."""
    return [ast.unparse(target) for target in _targets(statement)]


def _targets(statement: ast.stmt) -> list[ast.expr]:
    """Return the targets one by one: those of the first tuple if there is one, else the first."""
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        return [statement.target]
    targets = getattr(statement, "targets", [])
    several = [target for target in targets if isinstance(target, ast.Tuple | ast.List)]
    return _flat(several[0]) if several else targets[:1]


def _flat(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [part for element in target.elts for part in _flat(element)]
    return _flat(target.value) if isinstance(target, ast.Starred) else [target]


class _Instrumented(ast.NodeTransformer):
    """Makes each function report its calls and each of its statements report its values."""

    def __init__(self) -> None:
        self.in_function = False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._visit_inside(node, True)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        pairs = ast.Dict(
            [ast.Constant(given.arg) for given in arguments], [ast.Name(given.arg, ast.Load()) for given in arguments]
        )
        entry = ast.Assign([ast.Name(CALL, ast.Store())], _report("enter", ast.Constant(node.lineno), pairs))
        node.body.insert(0 if ast.get_docstring(node, clean=False) is None else 1, _at(node.body[0], entry))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._visit_inside(node, False)
        return node

    def _visit_inside(self, node: ast.AST, in_function: bool) -> None:
        outside, self.in_function = self.in_function, in_function
        self.generic_visit(node)
        self.in_function = outside

    def _visit_statement(self, node: Valued) -> ast.stmt | list[ast.stmt]:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not self.in_function or node.value is None or is_text:
            return node
        where = [ast.Name(CALL, ast.Load()), ast.Constant(node.lineno), ast.Constant(node.col_offset)]
        targets = _targets(node)
        names = ast.List([ast.Constant(ast.unparse(target)) for target in targets], ast.Load())
        several = any(isinstance(target, ast.Tuple | ast.List) for target in getattr(node, "targets", []))
        at_once = not several and not isinstance(node, ast.AugAssign) and not _is_item(targets)
        if at_once:  # the value is all we need
            node.value = _report("whole", _report("begin"), node.value, *where, names)
            return node
        node.value = _report("begun", _report("begin"), node.value, *where)
        loads = [ast.parse(ast.unparse(t), mode="eval").body if _is_plain(t) else ast.Constant(None) for t in targets]
        values = ast.Constant(None) if _is_item(targets) else ast.List(loads, ast.Load())
        return [node, _at(node, ast.Expr(_report("assigned", *where, names, values)))]

    visit_Assign = visit_AnnAssign = visit_AugAssign = visit_Return = visit_Expr = _visit_statement  # noqa: N815


def _report(method: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(RECORDER, ast.Load()), method, ast.Load()), list(arguments), [])


def _at(place: ast.stmt, new: ast.stmt) -> ast.stmt:
    return ast.copy_location(new, place)


def _is_item(targets: list[ast.expr]) -> bool:
    """Return whether the only target is an item, as in `scores[mask] = 0`, whose shape differs from the name's."""
    return len(targets) == 1 and isinstance(targets[0], ast.Subscript)


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_plain(node.value))


class Recorder(TorchFunctionMode):
    """Records what instrumented code reports, and the shapes of all tensors that torch takes or returns."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict] = []
        self._count = 0  # of statements
        self._open: list[dict[Shape, None]] = []  # the shapes seen so far in each unfinished statement
        self._begun: dict[tuple, tuple[dict, object]] = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = list(_shapes([*args, *kwargs.values()])) if self._open else []
        if getattr(function, "__name__", "") == "linear" and len(args) > 1:
            given += [shape[::-1] for shape in _shapes(args[1])]  # as it appears in the formula
        result = function(*args, **kwargs)
        for seen in self._open:
            _note(seen, [*given, *_shapes(result)])
        return result

    def enter(self, line: int, arguments: dict[str, object]) -> int:
        """Record a call of a function; return its number, or -1 beyond the limit."""
        before = sum(call["function"] == line for call in self.calls)
        if len(self.calls) >= MOST_CALLS or before >= MOST_CALLS_OF_ONE:
            return -1
        own = getattr(arguments.get("self"), "__dict__", {})
        attributes = {str(name): value for name, value in list(own.items())[:MOST_SHAPES] if type(value) is int}
        values = {name: [value] for name, value in arguments.items() if type(value) is int}
        self.calls.append({"function": line, "values": values, "attributes": attributes, "statements": []})
        return len(self.calls) - 1

    def begin(self) -> dict[Shape, None]:
        """Record that a statement begins; return the dict that will collect its shapes."""
        del self._open[:-MOST_SHAPES]  # statements that an error left unfinished
        self._open.append({})
        return self._open[-1]

    def whole(self, seen: dict, value: object, call: int, line: int, column: int, names: list[str]) -> object:
        """Record a complete statement whose value is assigned or returned as it is; return the value."""
        self._note_statement(seen, call, line, column, names, value)
        return value

    def begun(self, seen: dict, value: object, call: int, line: int, column: int) -> object:
        """Record what is known before the value is assigned; return the value."""
        self._begun[call, line, column] = seen, value
        return value

    def assigned(self, call: int, line: int, column: int, names: list[str], values: list | None) -> None:
        """Record a statement after it has assigned values to several targets, or in place, or to an item."""
        seen, value = self._begun.pop((call, line, column))
        if values is None:
            self._note_statement(seen, call, line, column, names, value)
        else:
            self._note_statement(seen, call, line, column, names, values[0] if len(values) == 1 else tuple(values))

    def _note_statement(self, seen: dict, call: int, line: int, column: int, names: list[str], value: object) -> None:
        self._open = [other for other in self._open if other is not seen]
        if call < 0:
            return
        values = list(value) if isinstance(value, tuple | list) else [value]
        _note(seen, _shapes(values))
        for name, part in zip(names, values if len(names) > 1 else [value], strict=False):
            if type(part) is int:
                known = self.calls[call]["values"].setdefault(name, [])
                known += [part] if part not in known and len(known) < 3 else []
        kind = next((kind.__name__ for kind in (Tensor, tuple, list) if isinstance(value, kind)), "other").lower()
        shapes = [list(part.shape) if isinstance(part, Tensor) else None for part in values[:MOST_SHAPES]]
        statement = {"line": line, "column": column, "targets": names, "kind": kind, "shapes": shapes}
        statement["parts"] = [list(shape) for shape in seen]
        statements = self.calls[call]["statements"]
        is_room = len(statements) < MOST_STATEMENTS_OF_ONE and self._count < MOST_STATEMENTS
        if is_room and statement not in statements:
            statements.append(statement)
            self._count += 1


def _note(seen: dict[Shape, None], shapes: Iterable[Shape]) -> None:
    for shape in shapes:
        if len(seen) < MOST_SHAPES:
            seen[shape] = None


def _shapes(value: object, depth: int = 3) -> Iterable[Shape]:
    """Yield the shapes of the tensors in a value or its lists; for a matrix parameter, the transposed shape too."""
    if isinstance(value, Tensor):
        yield tuple(value.shape)
        if isinstance(value, nn.Parameter) and value.ndim == 2:
            yield tuple(value.shape)[::-1]
    elif isinstance(value, tuple | list) and depth:
        for part in value[:MOST_SHAPES]:
            yield from _shapes(part, depth - 1)
