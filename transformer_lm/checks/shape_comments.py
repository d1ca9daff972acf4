"""Shape comments, such as `k = self.k(x)  # (b, n, hidden)`, held against the shapes that occur.

A comment is on a line of its statement, directly below or directly above, and says something about the tensor that the
statement assigns or returns. One above may be about several statements in a row, and can only help. In doubt it is
right.
"""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from transformer_lm.checks.exercise import PublicExercise
from transformer_lm.checks.observed_shapes import (
    MOST_CALLS,
    MOST_SHAPES,
    MOST_STATEMENTS,
    observe,
    target_names,
)
from transformer_lm.checks.report import CheckFailed, described_errors, passed
from transformer_lm.checks.shape_names import Execution, Given, Names, Statement
from transformer_lm.checks.shape_notation import (
    ARROW,
    CERTAIN,
    CONTINUES,
    LIKELY,
    MOST_AXES,
    PROSE,
    Group,
    Remark,
    Shape,
    read_remark,
    read_size,
)
from transformer_lm.checks.source import cell_source, without_magics
from transformer_lm.checks.style import listed
from transformer_lm.device import best_device
from transformer_lm.test_values import load_frozen

MOST_COMPARED, MOST_SHARING = 1000, 8  # shapes that occur, statements with one comment
GIVE_SHAPES = "Give each tensor's shape at the end of the line that makes it, or on the line above: # (b, n, d)."
MEND_SHAPES = "Print the shape just before that line and just after it, and name each axis once more."
COMMENTED_OUT = re.compile(r"\w\s*=[^=>].*#")
OF_A_CALL = re.compile(r"len|seq|batch|max|block|context|position")  # a class is made with the most that a call may use


@dataclass(frozen=True)
class Finding:
    """A statement whose shape comment is missing or wrong; `text` says what its shape was."""

    line: int
    kind: str
    text: str


def findings(source: str, observations: list[dict]) -> list[Finding]:
    """Return the statements of a cell whose shape comments are missing or wrong, in the order of their lines.

    Nothing of the source is executed. Raises ValueError if it is not Python, or the observations are not those of it.
    """
    try:
        functions = _Reader(without_magics(source)).functions
    except (RecursionError, tokenize.TokenError) as error:
        raise ValueError("the cell must be Python, got one that is nested too deeply.") from error
    calls = _checked_calls(observations, functions)
    made_with: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for function, call, _ in calls:
        if function.name == "__init__":
            for name, values in call["values"].items():
                made_with[function.owner][name].update(values)
    scenes = []
    everywhere: dict[int, _Everywhere] = defaultdict(_Everywhere)
    for function, call, executions in calls:
        names = Names(executions, _given(function, call, executions, made_with[function.owner]))
        everywhere[id(function)].add(names)
        scenes.append(_Scene(function, names, everywhere[id(function)]))
    found: dict[int, Finding] = {}
    for scene in scenes:
        for execution in scene.names.executions:
            finding = None if id(execution.statement) in found else scene.judged(execution)
            if finding:
                found[id(execution.statement)] = finding
    return sorted(found.values(), key=lambda finding: finding.line)


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
        namespace = next((each.__globals__ for each in functions if hasattr(each, "__globals__")), {})
        found = findings(source, observe(source, answer.__name__, namespace, run))
    if found:
        hint = MEND_SHAPES if any(finding.kind == "wrong" for finding in found) else GIVE_SHAPES
        raise CheckFailed(tried, listed([(finding.line, finding.text) for finding in found]), expected, hint)
    passed(exercise.id, "every tensor's shape is given, and right.")


# --- where comments stand -----------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """A function, or a method of an `owner`; its statements by line and column, and names that need not be sizes."""

    name: str
    owner: str
    statements: dict[tuple[int, int], Statement]
    unsteady: frozenset[str]


class _Reader(ast.NodeVisitor):
    """Collects the functions of a cell by the line of their `def`."""

    def __init__(self, text: str) -> None:
        self.functions: dict[int, Function] = {}
        self.comments = _comments(text)
        self.statements: dict[tuple[int, int], Statement] | None = None  # of the function we are in
        self.owner = ""
        self.visit(ast.parse(text))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outside = self.statements, self.owner
        self.statements, self.owner = None, f"{node.name}:{node.lineno}"
        self.generic_visit(node)
        self.statements, self.owner = outside

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outside = self.statements, self.owner
        self.statements, self.owner = {}, ""
        self.generic_visit(node)
        statements = _with_shared(_without_strangers(self.statements, node))
        self.statements, self.owner = outside
        self.functions[node.lineno] = Function(node.name, self.owner, statements, _unsteady(node))

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def _visit_statement(self, node: ast.stmt) -> None:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if self.statements is None or node.value is None or is_text:
            return  # nothing will be observed
        first, last = node.lineno, node.end_lineno
        while self._column(last + 1) >= node.col_offset:
            last += 1
        while self._column(first - 1) >= 0:
            first -= 1
        while first < node.lineno and self._goes_on(first):
            first += 1
        remarks = _remarks(self._between(node.lineno, node.end_lineno), self._between(node.end_lineno + 1, last))
        above = _remarks(self._between(first, node.lineno - 1), [])
        self.statements[node.lineno, node.col_offset] = Statement(node, remarks, above, (), last)

    visit_Assign = visit_AnnAssign = visit_AugAssign = visit_Return = visit_Expr = _visit_statement  # noqa: N815

    def _column(self, line: int) -> int:
        """Return where a comment starts that has a line for itself, or -1."""
        return self.comments.get(line, (-1, ""))[0]

    def _goes_on(self, line: int) -> bool:
        """Tell whether a comment goes on with the one before it."""
        before = self.comments.get(line - 1, (0, ""))[1]
        return CONTINUES.match(self.comments[line][1]) is not None or _is_unfinished(before)

    def _between(self, first: int, last: int) -> list[str]:
        return [self.comments[line][1] for line in range(first, last + 1) if line in self.comments]


def _comments(text: str) -> dict[int, tuple[int, str]]:
    """Return the comments by line: the column of one that has the line for itself, else -1; and what it says."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            found[line] = (-1 if token.line[:column].strip() else column, token.string.lstrip("#"))
    return found


def _remarks(inside: list[str], below: list[str]) -> tuple[Remark, ...]:
    """Return what comments say, each together with the lines that go on with it."""
    texts: list[tuple[str, bool]] = []
    for text, is_below in [*((text, False) for text in inside), *((text, True) for text in below)]:
        if is_below and COMMENTED_OUT.search(text):
            continue
        if texts and (CONTINUES.match(text) or _is_unfinished(texts[-1][0])):
            texts[-1] = (f"{texts[-1][0]} {text}", texts[-1][1])
        else:
            texts.append((text, is_below))
    return tuple(read_remark(text, is_below) for text, is_below in texts)


def _is_unfinished(text: str) -> bool:
    opened = text.count("(") + text.count("[") - text.count(")") - text.count("]")
    return opened > 0 or ARROW.search(text.rstrip()[-2:]) is not None


def _unsteady(function: ast.AST) -> frozenset[str]:
    """Return the names that need not be sizes: of loops, changed in place, set to a number, or of an axis."""
    names = {"dim", "axis"}
    for node in ast.walk(function):
        targets = [] if isinstance(node, ast.AnnAssign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            targets = node.targets
        names |= {name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)}
    return frozenset(names)


def _without_strangers(
    statements: dict[tuple[int, int], Statement], function: ast.FunctionDef
) -> dict[tuple[int, int], Statement]:
    """Return the statements with less trust in words, in parentheses or bare, that stand in no other shape."""
    uses, words = Counter(), Counter()  # words of any group, by the remarks they stand in
    for statement in statements.values():
        for remark in statement.remarks:
            groups = {*remark.claims, *remark.before}
            uses.update(name for group in groups if group.level > PROSE for name in group.names)
            words.update({word for group in groups for name in group.names for word in name.split()})
    nodes = [statement.node for statement in statements.values()]
    tensors = {name for node in nodes if not _is_plain(node.value) for name in target_names(node)}
    tensors |= {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    in_code = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} - tensors

    def is_shape(names: Iterable[str], longest: int) -> bool:
        is_known = all(len(name) <= longest or words[name] > 1 or name in in_code for name in names)
        return is_known and not tensors.issuperset(names)

    def trusted(group: Group) -> Group | None:
        names = group.sizes[0].text.split()
        if len(group.sizes) == 1 < len(names) <= MOST_AXES and group.sizes[0].node is None and is_shape(names, 2):
            return replace(group, sizes=tuple(map(read_size, names)), level=LIKELY)  # (b h n d)
        if group.text[0] not in "([{" and group.names:
            is_joined = re.fullmatch(r"\w+", group.text) is not None  # bxhxnxd
            is_list = is_joined or "," in group.text
            return None if is_list and not is_shape(group.names, 0 if is_joined else 2) else group
        is_known = any(uses[name] > (group.level > PROSE) for name in group.names)
        if group.text[0] == "[" or not group.names or is_known:
            return group
        return replace(group, level=min(group.level, LIKELY)) if group.level > PROSE else None

    def changed(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
        return tuple(
            replace(
                remark,
                claims=tuple(filter(None, map(trusted, remark.claims))),
                before=tuple(filter(None, map(trusted, remark.before))),
            )
            for remark in remarks
        )

    return {
        at: replace(each, remarks=changed(each.remarks), above=changed(each.above)) for at, each in statements.items()
    }


def _with_shared(statements: dict[tuple[int, int], Statement]) -> dict[tuple[int, int], Statement]:
    """Return the statements with what is said of several in a row, such as `q, k, v: (b, n, d)`."""
    rows = [(set(target_names(each.node)), each) for each in statements.values()]
    shared: dict[int, list[Remark]] = defaultdict(list)
    for place, (_, statement) in enumerate(rows):
        for remarks, step in ((statement.remarks, -1), (statement.above, 1)):
            for remark in remarks:
                for other in range(place + step, place + step * MOST_SHARING, step):
                    if not (0 <= other < len(rows) and rows[other][0] and rows[other][0] <= remark.subjects):
                        break
                    shared[other].append(remark)
    return {at: replace(each, shared=tuple(shared[place])) for place, (at, each) in enumerate(statements.items())}


# --- what has been observed ---------------------------------------------------------------------


def _checked_calls(
    observations: list[dict], functions: dict[int, Function]
) -> list[tuple[Function, dict, list[Execution]]]:
    """Return the calls with their functions and statements, or raise ValueError if `observe` cannot have told them."""
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


def _given(function: Function, call: dict, executions: list[Execution], made_with: dict[str, set[int]]) -> Given:
    """Return what the code says about the sizes of names; `made_with` holds what the class is made with."""
    values = {name: sizes for name, sizes in call["values"].items() if name not in function.unsteady}
    certain = {f"self.{name}": size for name, size in call["attributes"].items() if size > 0}
    certain |= {name: sizes[0] for name, sizes in values.items() if len(sizes) == 1 and sizes[0] > 0}
    around = defaultdict(set, {name: set(sizes) for name, sizes in made_with.items()} if function.owner else {})
    for name, size in call["attributes"].items():
        around[name].add(size)
    likely = {name: max(sizes) for name, sizes in around.items() if len(sizes) == 1 and name not in call["values"]}
    likely = {name: size for name, size in likely.items() if size > 0}
    occurring = {axis for each in executions for shape in (*each.shapes, *each.parts) for axis in shape}
    for name, size in likely.items():
        if len(name) > 3 and size in occurring and not OF_A_CALL.search(name):
            certain.setdefault(name, size)
    return Given(certain, likely, frozenset(name for name, sizes in values.items() if len(sizes) > 1))


# --- the verdict --------------------------------------------------------------------------------


class _Everywhere:
    """The shapes that occur in all calls of one function, and the statements that are executed."""

    def __init__(self) -> None:
        self.executed: set[int] = set()
        self.shapes: list[tuple[Names, dict[Shape, Execution]]] = []

    def add(self, names: Names) -> None:
        """Add what occurs in one call, unless another was the same."""
        self.executed |= {id(each.statement) for each in names.executions}
        shapes = {shape: each for each in names.executions for shape in (*each.shapes, *each.parts)}
        if all(shapes.keys() != others.keys() for _, others in self.shapes):
            self.shapes.append((names, shapes))

    def fits(self, group: Group) -> bool:
        """Tell whether a written shape occurs; in doubt, which is where there are too many, it does."""
        if sum(len(shapes) for _, shapes in self.shapes) > MOST_COMPARED:
            return True
        return any(
            names.fits(group, shape, execution.statement)
            for names, shapes in self.shapes
            for shape, execution in shapes.items()
        )


class _Scene:
    """One call of a function: judges the comments of what is executed in it."""

    def __init__(self, function: Function, names: Names, everywhere: _Everywhere) -> None:
        self.function, self.names, self.everywhere = function, names, everywhere
        self.helped: set[int] = set()  # the statements with a right comment above, or one that they share
        earlier: dict[int, tuple[Execution, bool]] = {}  # by their last line, and whether they need what is below them
        headings: dict[int, list[Remark]] = {}  # the comments above a row of statements, by its last line
        for each in sorted(names.executions, key=lambda each: each.statement.node.lineno):
            statement = each.statement
            inside = [remark for remark in statement.remarks if not remark.is_below]
            has_own = any(group.level == CERTAIN for remark in inside for group in remark.claims)
            before, is_relying = earlier.get(statement.node.lineno - 1, (None, False))
            is_theirs = before and (is_relying or has_own)
            above = [remark for remark in statement.above if not (is_theirs and _is_right(remark, before, names))]
            above += headings.get(statement.node.lineno - 1, [])
            if any(_is_right(remark, each, names) for remark in (*above, *statement.shared)):
                self.helped.add(id(statement))
                headings[statement.node.end_lineno] = above
            elif each.shapes:  # what makes no tensor, such as `b, n, d = x.shape`, needs no comment below it
                earlier[statement.last_line] = each, not any(_is_right(remark, each, names) for remark in inside)

    def judged(self, execution: Execution) -> Finding | None:
        """Return what is to be said about the comments of a statement that was executed."""
        statement, names, is_needed = execution.statement, self.names, _needs_comment(execution)
        if not execution.shapes and not _is_item(statement.node):
            return None
        right = [remark for remark in statement.remarks if _is_right(remark, execution, names)]
        together = [group for remark in statement.remarks for group in remark.claims]
        is_claimed = (
            bool(right)
            or id(statement) in self.helped
            or (len(statement.remarks) > 1 and _covers(together, execution, names))
        )
        for remark in statement.remarks:
            is_settled = not is_needed or (is_claimed and right != [remark]) or id(statement) in self.helped
            if remark.is_below and self._is_heading(remark, execution, is_settled):
                continue
            if remark not in right:
                least = LIKELY if is_needed and not is_claimed else CERTAIN
                claim = next((group for group in remark.claims if group.level >= least), None)
                is_step = is_claimed and not (remark.has_arrow and remark is statement.remarks[-1])
                if claim and not (is_step and names.fits_any(claim, execution)):
                    return _said_wrongly(claim, execution, names)
            for group in remark.before:
                meant = group.as_part if remark.is_per_item and remark in right else group
                if group.level == CERTAIN and not names.fits_any(meant, execution):
                    return _of_no_tensor(group, execution)
        return _missing(execution) if is_needed and not is_claimed else None

    def _is_heading(self, remark: Remark, execution: Execution, is_settled: bool) -> bool:
        """Tell whether a comment below may be about something else, which it may if the statement needs it not."""
        later = [at[0] for at in self.function.statements if at[0] > execution.statement.last_line]
        following = [each for each in self.names.executions if each.statement.node.lineno == min(later, default=0)]
        if any(_is_right(remark, each, self.names) for each in following):
            return not _is_right(remark, execution, self.names) or is_settled
        if not is_settled:
            return False
        unseen = [each for each in self.function.statements.values() if each.node.lineno == min(later, default=0)]
        if unseen and not any(id(each) in self.everywhere.executed for each in unseen):
            return True
        certain = [group for group in (*remark.claims[:1], *remark.before) if group.level == CERTAIN]
        return not remark.is_connected and all(map(self.everywhere.fits, certain))


def _needs_comment(execution: Execution) -> bool:
    """Tell whether a new tensor gets a name or is returned, alone or with others that are told apart."""
    node = execution.statement.node
    is_return = isinstance(node, ast.Return)
    is_several = len(target_names(node)) > 1 or (is_return and execution.kind == "tuple")
    is_stored = isinstance(node, ast.Assign | ast.AnnAssign) and not _is_item(node)
    is_one = execution.kind == "tensor" or is_several
    return (is_return or is_stored) and bool(execution.shapes) and is_one and not _is_plain(node.value)


def _is_item(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)


def _is_plain(node: ast.expr | None) -> bool:
    """Tell whether a value is a name or some of them, so no new tensor."""
    if isinstance(node, ast.IfExp):
        return _is_plain(node.body) and _is_plain(node.orelse)
    if isinstance(node, ast.Tuple | ast.List):
        return all(_is_plain(element) for element in node.elts)
    if isinstance(node, ast.Attribute | ast.Starred):
        return _is_plain(node.value)
    return node is None or isinstance(node, ast.Name | ast.Constant)


def _is_right(remark: Remark, execution: Execution, names: Names) -> bool:
    """Tell whether a remark gives the shapes of what is assigned; where none is asked for, less will do."""
    node, shapes, is_needed = execution.statement.node, execution.shapes, _needs_comment(execution)
    if remark.is_list and len(remark.claims) == len(shapes) > 1:
        return all(map(names.fits, remark.claims, shapes, [execution.statement] * len(shapes)))
    if _covers(remark.claims, execution, names):
        return True
    if remark.is_per_item and _covers(remark.before[:1], execution, names):  # (b, h, n, d) -> one (n, d) per head
        return all(names.fits_any(group.as_part, execution) for group in remark.claims)
    if is_needed and not isinstance(node.value, ast.IfExp):
        return False
    is_about_any = isinstance(node, ast.Expr | ast.AugAssign) or _is_item(node) or execution.kind != "tensor"
    possible = execution.parts if is_about_any and not is_needed else shapes
    return any(names.fits(group, shape, execution.statement) for group in remark.claims for shape in possible)


def _covers(groups: Iterable[Group], execution: Execution, names: Names) -> bool:
    """Tell whether there is a shape for each tensor, in order; one may stand for several in a row."""
    rest = list(execution.shapes)
    for group in groups:
        while rest and names.fits(group, rest[0], execution.statement):
            rest.pop(0)
    return bool(execution.shapes) and not rest


def _said_wrongly(group: Group, execution: Execution, names: Names) -> Finding:
    written = dict.fromkeys(name for size in group.sizes for name in sorted(size.names) if name in names.known)
    sizes = ", ".join(f"{name}={names.known[name]}" for name in written)
    text = f"{_subject(execution)} is said to be {group.text}, {_outcome(execution)}" + (f" ({sizes})" if sizes else "")
    return Finding(execution.statement.node.lineno, "wrong", text)


def _of_no_tensor(group: Group, execution: Execution) -> Finding:
    there = ", ".join(map(str, execution.parts[:6]))
    text = f"{group.text} is the shape of no tensor in this line (there are {there})"
    return Finding(execution.statement.node.lineno, "wrong", text)


def _missing(execution: Execution) -> Finding:
    text = f"{_subject(execution)} has no shape comment; {_outcome(execution)}"
    return Finding(execution.statement.node.lineno, "missing", text)


def _subject(execution: Execution) -> str:
    node = execution.statement.node
    return f"`{', '.join(target_names(node)) or ('return' if isinstance(node, ast.Return) else ast.unparse(node))}`"


def _outcome(execution: Execution) -> str:
    shapes = execution.shapes or execution.parts[:6]
    return ("its shape was " if len(shapes) == 1 else "the shapes were ") + ", ".join(map(str, shapes))
