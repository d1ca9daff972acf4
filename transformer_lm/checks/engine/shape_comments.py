"""Shape comments, such as `k = self.k(x)  # (b, n, hidden)`, compared with the shapes that occur.

A comment is beside its statement, directly below or directly above, and gives the shape of what the statement assigns
or returns. A right shape counts in any wording. Only a comment in the notation that the assignments describe can
be wrong; any other is not understood, and costs nothing as long as at least as many statements have a right comment.
"""

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import PublicExercise
from transformer_lm.checks.engine.failure import CheckFailed, described_errors, passed
from transformer_lm.checks.engine.observed_shapes import (
    MOST_CALLS,
    MOST_SHAPES,
    MOST_STATEMENTS,
    Valued,
    observe,
    target_names,
)
from transformer_lm.checks.engine.shape_notation import (
    CONTINUES,
    LONGEST_COMMENT,
    Remark,
    Shape,
    Size,
    Written,
    is_unfinished,
    read_remark,
)
from transformer_lm.checks.engine.source import cell_source, without_magics
from transformer_lm.checks.engine.style import listed
from transformer_lm.device import best_device
from transformer_lm.test_values import load_frozen

GIVE_SHAPES = hint("shapes-missing")
MEND_SHAPES = hint("shapes-wrong")
ALL_RIGHT = "every tensor's shape is given, and right."
MISSING, WRONG, UNCLEAR = "missing", "wrong", "not understood"
MOST_REMARKS = 30  # beside, above or below one statement
SHORT = 3  # longer names mean the argument of `__init__` with that name


@dataclass(frozen=True)
class Finding:
    """A statement whose shape comment is missing, wrong or not understood; `text` gives its real shape."""

    line: int
    kind: str
    text: str

    @property
    def costs(self) -> bool:
        """Whether it costs points."""
        return self.kind != UNCLEAR


def findings(source: str, observations: list[dict]) -> list[Finding]:
    """Return the statements of a cell whose shape comments are not right, in the order of their lines.

    If more comments are not understood than are right, those count as missing. The source is not executed. Raises
    ValueError if it is not Python, or the observations are of other code.
    """
    try:
        functions = _Reader(without_magics(source)).functions
    except (RecursionError, tokenize.TokenError) as error:
        raise ValueError("the cell must be Python, got one that is nested too deeply.") from error
    calls = _checked_calls(observations, functions)
    made_with: dict[str, dict[str, int]] = defaultdict(dict)
    for function, call, _ in calls:
        if function.name == "__init__":
            made_with[function.owner] |= {name: sizes[0] for name, sizes in call["values"].items()}
    found: dict[int, Finding] = {}
    right: set[int] = set()
    lone: dict[int, Finding] = {}
    settled: set[int] = set()
    for function, call, executions in calls:
        verdicts = _Call(function, call, executions, made_with[function.owner])
        right |= verdicts.right
        settled |= verdicts.settled
        found = verdicts.found | found
        lone = verdicts.lone | lone
    executed = {id(each.statement) for _, _, executions in calls for each in executions}
    unexecuted = (each for function in functions.values() for each in function.statements.values())
    settled |= {id(each) for other in unexecuted if id(other) not in executed for each in other.around}
    by_line = {finding.line: finding for remark, finding in lone.items() if remark not in settled}
    by_line |= {each.line: each for each in found.values() if each.kind == WRONG or each.line not in by_line}
    several = list(by_line.values())
    if sum(finding.kind == UNCLEAR for finding in several) > len(right - found.keys()):
        several = [Finding(each.line, each.kind if each.costs else MISSING, each.text) for each in several]
    return sorted(several, key=lambda finding: finding.line)


def check_shape_comments(exercise: PublicExercise, answer: Callable) -> None:
    """Print one line if the shape comments in the answer's cell are right, else raise CheckFailed."""
    device = best_device()
    inputs = {name: tensor.to(device, copy=True) for name, tensor in load_frozen(exercise.id).cases[0].inputs.items()}
    tried = f"the shape comments against the shapes in {exercise.tried(inputs, next(iter(exercise.axes)))}"
    expected = "a right shape for each tensor"

    def run(observed: object) -> None:
        with exercise.rules():
            for _ in exercise.called(exercise.build(observed, inputs), inputs):
                pass

    with described_errors(tried, expected):
        source = cell_source(answer)
        functions = [answer, *vars(answer).values()]
        namespace: dict = next((each.__globals__ for each in functions if hasattr(each, "__globals__")), {})
        found = findings(source, observe(source, answer.__name__, namespace, run))
    costly = [finding for finding in found if finding.costs]
    if costly:
        known = MEND_SHAPES if any(finding.kind == WRONG for finding in costly) else GIVE_SHAPES
        raise CheckFailed(tried, listed([(finding.line, finding.text) for finding in costly]), expected, known)
    passed(exercise.id, praise([finding.line for finding in found]))


def praise(unclear: list[int]) -> str:
    """Return the message for comments without a mistake, with the lines whose comments are not understood."""
    if not unclear:
        return ALL_RIGHT
    lines = ", ".join(map(str, unclear))
    return f"every tensor's shape that can be read is right (not understood, and not judged: line {lines})."


# --- where the comments are -------------------------------------------------------------------------


@dataclass(eq=False)
class Statement:
    """A statement of a function with the comments beside, above and below it."""

    node: Valued
    beside: list[Remark]
    above: list[Remark]
    below: list[Remark]

    @property
    def around(self) -> list[Remark]:
        """The comments on separate lines, which may be about a neighbouring statement."""
        return self.above + self.below


@dataclass(frozen=True)
class Function:
    """A function or a method of an `owner`, its statements by line and column, and names that need not be sizes."""

    name: str
    owner: str
    statements: dict[tuple[int, int], Statement]
    unsteady: frozenset[str]


class _Reader(ast.NodeVisitor):
    """Collects the functions of a cell by the line of their `def`."""

    def __init__(self, text: str) -> None:
        self.functions: dict[int, Function] = {}
        self.columns, self.remarks = _comments(text)
        self.statements: dict[tuple[int, int], Statement] | None = None  # of the function we are in
        self.owner = ""
        self.visit(ast.parse(text))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outside = self.statements, self.owner
        self.statements, self.owner = None, f"{node.name}:{node.lineno}"
        self.generic_visit(node)
        self.statements, self.owner = outside

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside = self.statements, self.owner
        self.statements, self.owner = {}, ""
        self.generic_visit(node)
        _share(list(self.statements.values()))
        statements = self.statements
        self.statements, self.owner = outside
        self.functions[node.lineno] = Function(node.name, self.owner, statements, _unsteady(node))

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def _visit_statement(self, node: Valued) -> None:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if self.statements is None or node.value is None or is_text:
            return  # there is nothing to observe
        assert node.end_lineno is not None
        first, last = node.lineno, node.end_lineno
        while self.columns.get(last + 1, -1) >= node.col_offset:
            last += 1
        while self.columns.get(first - 1, -1) >= 0:
            first -= 1
        beside = self._between(node.lineno, node.end_lineno)
        above, below = self._between(first, node.lineno - 1), self._between(node.end_lineno + 1, last)
        self.statements[node.lineno, node.col_offset] = Statement(node, beside, above, below)

    visit_Assign = visit_AnnAssign = visit_AugAssign = visit_Return = visit_Expr = _visit_statement  # noqa: N815

    def _between(self, first: int, last: int) -> list[Remark]:
        return [self.remarks[line] for line in range(first, last + 1) if line in self.remarks][:MOST_REMARKS]


def _comments(text: str) -> tuple[dict[int, int], dict[int, Remark]]:
    """Return the columns of comments on separate lines, and the remarks of all comments by their first lines.

    A line that continues the comment before it belongs to that comment.
    """
    columns: dict[int, int] = {}
    texts: dict[int, str] = {}
    last = (0, 0)  # the first and the last line of a comment
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            (line, column), said = token.start, token.string.lstrip("#")
            if not token.line[:column].strip():
                columns[line] = column
            first, before = last
            is_next = line == before + 1 and line in columns and len(texts[first]) < LONGEST_COMMENT
            if is_next and (CONTINUES.match(said) or is_unfinished(texts[first])):
                texts[first] += f" {said}"
            else:
                texts[line], first = said, line
            last = first, line
    return columns, {line: read_remark(line, said) for line, said in texts.items()}


def _share(statements: list[Statement]) -> None:
    """Give consecutive statements without comments the one above the first and the one below the last."""
    rows = [(one, other) for one, other in pairwise(statements) if one.node.end_lineno == other.node.lineno - 1]
    for one, other in rows:
        if not (one.beside or other.beside):
            other.above = one.above
    for one, other in reversed(rows):
        if not (one.beside or other.beside):
            one.below = other.below
    for one, other in pairwise(statements):
        if one.node.end_lineno == other.node.lineno:  # a comment may be about either of the two
            one.beside = other.beside = [replace(remark, is_plain=False) for remark in other.beside]


def _unsteady(function: ast.AST) -> frozenset[str]:
    """Return the names that need not be sizes: those of loops, changed in place, set to a number, or for an axis."""
    names = {"dim", "axis"}
    for node in ast.walk(function):
        targets: list[ast.expr | None] = [] if isinstance(node, ast.AnnAssign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            targets = [*node.targets]
        names |= {name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)}
    return frozenset(names)


# --- what was observed ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Execution:
    """One execution of a statement: the shapes of what it assigns or returns, and of all tensors that it uses."""

    statement: Statement
    kind: str  # of the value: tensor, tuple, list or other
    shapes: tuple[Shape, ...]
    parts: tuple[Shape, ...]

    @property
    def has_shape(self) -> bool:
        """Whether a tensor gets a name or is returned, alone or among others that can be distinguished."""
        node = self.statement.node
        is_return = isinstance(node, ast.Return)
        is_several = len(target_names(node)) > 1 or (is_return and self.kind == "tuple")
        is_stored = isinstance(node, ast.Assign | ast.AnnAssign) and not _is_item(node)
        return (is_return or is_stored) and bool(self.shapes) and (self.kind == "tensor" or is_several)

    @property
    def needs_comment(self) -> bool:
        """Whether the tensor is a new one."""
        return self.has_shape and not _is_plain(self.statement.node.value)


def _is_item(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)


def _is_plain(node: ast.expr | None) -> bool:
    """Return whether a value is a name or several names, and so not a new tensor."""
    if isinstance(node, ast.IfExp):
        return _is_plain(node.body) and _is_plain(node.orelse)
    if isinstance(node, ast.Tuple | ast.List):
        return all(_is_plain(element) for element in node.elts)
    if isinstance(node, ast.Attribute | ast.Starred):
        return _is_plain(node.value)
    return node is None or isinstance(node, ast.Name | ast.Constant)


def _checked_calls(
    observations: list[dict], functions: dict[int, Function]
) -> list[tuple[Function, dict, list[Execution]]]:
    """Return the calls with their functions and statements, or raise ValueError if they cannot come from `observe`."""
    try:
        _demand(type(observations) is list and len(observations) <= MOST_CALLS)
        calls = []
        for call in observations:
            values, attributes, statements = call["values"], call["attributes"], call["statements"]
            _demand(all(type(name) is str for name in (*values, *attributes)))
            _demand(all(type(sizes) is list and sizes for sizes in values.values()))
            _demand(all(type(size) is int for sizes in (*values.values(), attributes.values()) for size in sizes))
            _demand(type(statements) is list)
            function = functions[call["function"]]
            calls.append((function, call, [_checked(statement, function) for statement in statements]))
            _demand(sum(len(executions) for _, _, executions in calls) <= MOST_STATEMENTS)
        told = sum(len(executions) for _, _, executions in calls)
        _demand(told > 0 or not any(function.statements for function in functions.values()))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"observations must be those of observe, got {type(error).__name__}: {error}.") from error
    return calls


def _checked(observed: dict, function: Function) -> Execution:
    statement = function.statements[observed["line"], observed["column"]]
    targets, shapes, parts = observed["targets"], observed["shapes"], observed["parts"]
    _demand(all(type(each) is list and len(each) <= MOST_SHAPES for each in (targets, shapes, parts)))
    for shape in [*(shape for shape in shapes if shape is not None), *parts]:
        _demand(type(shape) is list and len(shape) <= 64)
        _demand(all(type(axis) is int and 0 <= axis < 2**40 for axis in shape))
    ignored = [len(targets) > 1 and target == "_" for target in targets] + [False] * len(shapes)
    own = [tuple(shape) for shape, is_ignored in zip(shapes, ignored, strict=False) if shape and not is_ignored]
    return Execution(statement, str(observed["kind"]), tuple(own), tuple(map(tuple, parts)))


def _demand(condition: bool) -> None:
    if not condition:
        raise TypeError("a value of another type or size")


# --- the verdict --------------------------------------------------------------------------------


class _Call:
    """One call of a function: the values of its names, and the verdict on the comments of the statements that it runs.

    Comments between two statements count as those of the upper or of the lower one, whichever makes more of them right.
    """

    def __init__(self, function: Function, call: dict, executions: list[Execution], made_with: dict[str, int]) -> None:
        self.executions = sorted(executions, key=lambda each: each.statement.node.lineno)
        self.continued = {remark for statement in function.statements.values() for remark in statement.below}
        self.occurring = {axis for each in executions for shape in (*each.shapes, *each.parts) for axis in shape}
        values = {name: sizes for name, sizes in call["values"].items() if name not in function.unsteady}
        around = {name: size for name, size in (made_with | call["attributes"]).items() if name not in call["values"]}
        known = {name: size for name, size in around.items() if len(name) > SHORT and size in self.occurring}
        known |= {f"self.{name}": size for name, size in call["attributes"].items()}
        known |= {name: sizes[0] for name, sizes in values.items()}
        self.known = {name: size for name, size in known.items() if size > 0}
        self.free = {name for name, sizes in call["values"].items() if len(sizes) > 1}
        self.right: set[int] = set()  # statements that need a comment and have a right one
        self.settled: set[int] = set()  # comments on separate lines that fit a neighbour
        self.found: dict[int, Finding] = {}
        self.lone: dict[int, Finding] = {}
        given = self.known
        tables = [given | self._agreed(given, is_above) for is_above in (False, True)]
        self.known = max(tables, key=self._number_right)
        self._judge()

    def _own(self, execution: Execution, is_above: bool) -> list[Remark]:
        """Return the comments that are most probably about a statement."""
        statement = execution.statement
        around = [statement.above, statement.below] if is_above else [statement.below, statement.above]
        several = [[remark for remark in remarks if remark.claims] for remarks in (statement.beside, *around)]
        return next(filter(None, several), [])

    def _agreed(self, known: dict[str, int], is_above: bool) -> dict[str, int]:
        """Return the sizes on which most comments agree; in a tie, one that no other name has."""
        votes: dict[str, Counter] = defaultdict(Counter)
        places: dict[tuple, set[int]] = defaultdict(set)
        for each in self.executions:
            for remark in self._own(each, is_above):
                for number, (written, shape) in enumerate(_pairs(remark, each)):
                    if len(written.sizes) == len(shape):
                        for place, (size, axis) in enumerate(zip(written.sizes, shape, strict=True)):
                            places[each.statement, remark, number, place, frozenset(size.names - known.keys())].add(
                                axis
                            )
                            if size.value(known) is None:
                                votes[size.text][axis] += 1
        self.free |= {name for (*_, names), axes in places.items() if len(axes) > 1 for name in names}
        agreed: dict[str, int] = {}
        for name, counts in sorted(votes.items(), key=lambda pair: (len(pair[1]), -max(pair[1].values()))):
            agreed[name] = max(counts, key=lambda axis: (counts[axis], axis not in agreed.values()))
        return agreed

    def _number_right(self, known: dict[str, int]) -> int:
        self.known = known
        needed = [each for each in self.executions if each.needs_comment]
        return sum(any(self._is_right(remark, each) for remark in _remarks_of(each)) for each in needed)

    def _judge(self) -> None:
        """Judge the comments of each statement, and those on separate lines."""
        taken: dict[Remark, Statement] = {}
        for each in self.executions:
            statement = each.statement
            above = [remark for remark in statement.above if taken.get(remark, statement) is statement]
            right = [remark for remark in (*statement.beside, *above) if self._is_right(remark, each)]
            if each.shapes and not right:
                right = [remark for remark in statement.below if self._is_right(remark, each)]
                taken |= dict.fromkeys(right, statement)
            for remark in statement.around:
                self._place(remark, each, right)
            finding = self._finding(each, right, above) if each.shapes or _is_item(statement.node) else None
            if finding:
                self.found.setdefault(id(statement), finding)
            elif each.needs_comment:
                self.right.add(id(statement))

    def _place(self, remark: Remark, execution: Execution, right: list[Remark]) -> None:
        """Record whether a comment on a separate line fits a statement beside it."""
        is_below = remark in execution.statement.below
        if remark.is_connected and not is_below and remark in self.continued:
            return  # it is about the statement above it
        wrong = [written for written in remark.before if not self._are_parts([written], execution)]
        is_last = remark.is_connected and is_below and not any(each in right for each in execution.statement.below)
        is_step = not is_last and self._are_parts(remark.claims, execution)
        is_claim_right = is_step or self._is_right(remark, execution)
        if not self._is_clear(remark) or (is_claim_right and not wrong):
            self.settled.add(id(remark))
        elif is_below or id(remark) not in self.lone:
            said = _said_wrongly(remark.shapes[-1], execution, self.known)
            self.lone[id(remark)] = _of_no_tensor(wrong[0], execution) if is_claim_right else said

    def _finding(self, execution: Execution, right: list[Remark], above: list[Remark]) -> Finding | None:
        """Return the finding for a statement, given those comments that are right."""
        statement, is_needed = execution.statement, execution.needs_comment
        is_settled = any(remark in right for remark in statement.beside) or not execution.has_shape
        for remark in filter(self._is_clear, statement.beside):
            is_step = is_settled and self._are_parts(remark.claims, execution)
            if remark.claims and not (remark in right or is_step):
                return _said_wrongly(remark.shapes[-1], execution, self.known)
            for written in remark.before:
                if not self._are_parts([written], execution):
                    return _of_no_tensor(written, execution)
        if right or not is_needed:
            return None
        remarks = [*statement.beside, *above, *statement.below]
        if any(remark.looks_like_one and not self._is_clear(remark) for remark in remarks):
            return Finding(
                statement.node.lineno,
                UNCLEAR,
                f"the comment of {_subject(execution)} is not understood; {_outcome(execution)}",
            )
        return _missing(execution)

    def _is_right(self, remark: Remark, execution: Execution) -> bool:
        """Return whether a comment gives the shapes of what is assigned, in order, or one for all of them."""
        pairs = list(_pairs(remark, execution))
        return bool(pairs) and all(self._fits(written, shape) for written, shape in pairs)

    def _is_clear(self, remark: Remark) -> bool:
        """Return whether a comment is in the notation of the assignments, with no numbers but those that occur."""
        sizes = [size for written in remark.shapes for size in written.sizes if not size.names]
        return remark.is_plain and all(size.value({}) in {1, *self.occurring} for size in sizes)

    def _are_parts(self, shapes: Iterable[Written], execution: Execution) -> bool:
        """Return whether all written shapes are those of tensors that a statement uses."""
        parts = (*execution.shapes, *execution.parts)
        return all(any(self._fits(written, shape) for shape in parts) for written in shapes)

    def _fits(self, written: Written, shape: Shape) -> bool:
        """Return whether a written shape can be this one; an unknown name must have one size throughout."""
        bound: dict[str, int] = {}

        def fits(size: Size, axis: int) -> bool:
            if size.names & self.free:
                return True
            value = size.value(self.known)
            return axis == (self.known.get(size.text, bound.setdefault(size.text, axis)) if value is None else value)

        return len(written.sizes) == len(shape) and all(map(fits, written.sizes, shape))


def _remarks_of(execution: Execution) -> list[Remark]:
    return [*execution.statement.beside, *execution.statement.around]


def _pairs(remark: Remark, execution: Execution) -> Iterable[tuple[Written, Shape]]:
    """Return the claims of a comment with the shapes that they describe: one claim for all shapes, or one for each."""
    claims, shapes = remark.claims, execution.shapes
    return zip(claims if len(claims) >= len(shapes) else claims[:1] * len(shapes), shapes, strict=False)


def _said_wrongly(written: Written, execution: Execution, known: dict[str, int]) -> Finding:
    names = dict.fromkeys(name for size in written.sizes for name in sorted(size.names) if name in known)
    sizes = ", ".join(f"{name}={known[name]}" for name in names)
    text = f"{_subject(execution)} is said to be {written.text}, {_outcome(execution)}"
    return Finding(execution.statement.node.lineno, WRONG, text + (f" ({sizes})" if sizes else ""))


def _of_no_tensor(written: Written, execution: Execution) -> Finding:
    there = ", ".join(map(str, execution.parts[:6]))
    text = f"{written.text} is the shape of no tensor in this line (there are {there})"
    return Finding(execution.statement.node.lineno, WRONG, text)


def _missing(execution: Execution) -> Finding:
    text = f"{_subject(execution)} has no shape comment; {_outcome(execution)}"
    return Finding(execution.statement.node.lineno, MISSING, text)


def _subject(execution: Execution) -> str:
    node = execution.statement.node
    return f"`{', '.join(target_names(node)) or ('return' if isinstance(node, ast.Return) else ast.unparse(node))}`"


def _outcome(execution: Execution) -> str:
    shapes = execution.shapes or execution.parts[:6]
    return ("its shape was " if len(shapes) == 1 else "the shapes were ") + ", ".join(map(str, shapes))
