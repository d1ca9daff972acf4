"""Machine-made wrong answers: every small change to an answer's text that could be a mistake."""

import ast
import builtins
import difflib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

Replacement = ast.AST | list[ast.AST]

# Names that are confused with each other, as functions, methods, layers or variables.
FAMILIES = (
    ("softmax", "sigmoid", "log_softmax"),
    ("Softmax", "Sigmoid", "LogSoftmax"),
    ("tril", "triu"),
    ("sum", "mean", "prod"),
    ("cumsum", "cumprod"),
    ("max", "min"),
    ("amax", "amin"),
    ("maximum", "minimum"),
    ("argmax", "argmin"),
    ("any", "all"),
    ("eq", "ne"),
    ("lt", "le", "gt", "ge"),
    ("add", "sub"),
    ("mul", "div"),
    ("log", "log2", "log10", "log1p"),
    ("exp", "exp2", "expm1"),
    ("sin", "cos"),
    ("sqrt", "rsqrt", "square"),
    ("floor", "ceil", "round"),
    ("relu", "gelu", "tanh", "sigmoid"),
    ("ReLU", "GELU", "Tanh", "Sigmoid"),
    ("LayerNorm", "RMSNorm"),
    ("cross_entropy", "nll_loss"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("new_zeros", "new_ones"),
    ("cat", "stack"),
    ("hstack", "vstack"),
    ("view", "reshape"),
    ("squeeze", "unsqueeze"),
    ("repeat", "repeat_interleave", "expand", "tile"),
    ("masked_fill", "masked_fill_"),
    ("logical_and", "logical_or", "logical_xor"),
    ("eval", "train"),
    ("T", "mT"),
    ("q", "k", "v"),
    ("queries", "keys", "values"),
    ("query", "key", "value"),
    ("dim0", "dim1"),
    ("b", "n", "d"),
    ("START", "END", "PAD"),
    ("weight", "bias"),
)
OPERATORS = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult, ast.Sub),
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult, ast.Div),
    ast.MatMult: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,),
}
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
# Code that no number depends on, and definitions, without which nothing runs.
LEFT_ALONE = (ast.Import, ast.ImportFrom, ast.Raise, ast.JoinedStr, ast.Pass)
KEPT = (ast.FunctionDef, ast.ClassDef)
SKIPPED_FIELDS = ("annotation", "returns", "ctx", "type_params")


@dataclass(frozen=True)
class Mutant:
    """An answer with one change: the answer's name, the line, its text before and after, and the whole text."""

    answer: int
    line: int
    before: str
    after: str
    source: str


def mutants(sources: Iterable[str], sample: int | None = None, turn: int = 0) -> list[Mutant]:
    """Return every mutant of some answers once, or about `sample` of them, answer by answer and in the order of lines.

    No mutant is one of the answers in another notation. Where answers share a function, such as an `__init__`, a change
    to it is made only in the first of them. Successive turns take every mutant once before they take any a second time.
    """
    trees = [ast.parse(source) for source in sources]
    changes = list(_changes(trees))
    stride = 1 if sample is None else max(1, len(changes) // sample)
    texts = [ast.unparse(tree) for tree in trees]
    seen, found = set(texts), []
    for number, site, replacement in changes[turn % stride :: stride]:
        text = site.unparsed_with(trees[number], replacement)
        if text not in seen and _compiles(text):
            seen.add(text)
            found.append(Mutant(number, site.node.lineno, *_difference(texts[number], text), text))
    return found


def _changes(trees: Sequence[ast.AST]) -> Iterator[tuple[int, "_Site", Replacement]]:
    """Yield each possible change with its tree and site, once for all functions with the same text."""
    seen = set()
    for number, tree in enumerate(trees):
        known = _known_names(tree)
        for site in _sites(tree, _Function(tree)):
            for replacement in _replacements(site.node, known):
                change = (site.function.text, site.place, _text(replacement))
                if change not in seen and _text(site.node) != _text(replacement):
                    seen.add(change)
                    yield number, site, replacement


class _Function:
    """A function of an answer, with the number of sites found in it so far."""

    def __init__(self, node: ast.AST) -> None:
        self.text, self.places = ast.unparse(node), 0


@dataclass(frozen=True)
class _Site:
    """A site in a tree: a field of a node, or an item of a field that is a list, and the function that contains it."""

    function: _Function
    place: int
    owner: ast.AST
    field: str
    index: int | None
    node: ast.AST

    def unparsed_with(self, tree: ast.AST, replacement: Replacement) -> str:
        """Return the text of the tree with this site replaced; the tree itself does not change."""
        before = getattr(self.owner, self.field)
        if self.index is None:
            after = replacement
        else:
            new = replacement if isinstance(replacement, list) else [replacement]
            after = before[: self.index] + new + before[self.index + 1 :]
        setattr(self.owner, self.field, after)
        try:
            return ast.unparse(ast.fix_missing_locations(tree))
        finally:
            setattr(self.owner, self.field, before)


def _sites(owner: ast.AST, function: _Function) -> Iterator[_Site]:
    """Yield the sites below a node that could be changed."""
    function = _Function(owner) if isinstance(owner, ast.FunctionDef) else function
    for field, value in ast.iter_fields(owner):
        if field in SKIPPED_FIELDS:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not isinstance(node, LEFT_ALONE) and not _is_docstring(node):
                if hasattr(node, "lineno"):
                    function.places += 1
                    yield _Site(function, function.places, owner, field, index, node)
                if not _is_negative_number(node):
                    yield from _sites(node, function)


def _text(part: Replacement) -> str:
    """Return a part of an answer as text."""
    parts = part if isinstance(part, list) else [part]
    return "\n".join(ast.unparse(ast.fix_missing_locations(each)) for each in parts)


def _known_names(tree: ast.AST) -> set[str]:
    """Return the names that are defined in an answer: its own and those of torch."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg | ast.keyword) and node.arg}
    return names.union(*map(dir, (builtins, math, torch, torch.Tensor, nn, nn.functional)))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            compile(source, "<mutant>", "exec")
    except SyntaxError:
        return False
    return True


def _difference(before: str, after: str) -> tuple[str, str]:
    """Return the lines of each text that differ, joined into one line each."""
    old, new = before.splitlines(), after.splitlines()
    blocks = [block for block in difflib.SequenceMatcher(None, old, new, False).get_opcodes() if block[0] != "equal"]
    start, end, new_start, new_end = blocks[0][1], blocks[-1][2], blocks[0][3], blocks[-1][4]
    return _as_one_line(old[start:end]), _as_one_line(new[new_start:new_end])


def _as_one_line(lines: list[str]) -> str:
    return " ⏎ ".join(line.strip() for line in lines)


# --- what a node may be mistaken for --------------------------------------------------------------


def _replacements(node: ast.AST, known: set[str]) -> Iterator[Replacement]:
    """Yield the possible replacements for a node; a name is replaced only by known names."""
    if isinstance(node, ast.stmt) and not isinstance(node, KEPT):
        yield ast.Pass()
    for field in ("id", "attr"):
        for other in _relatives(getattr(node, field, None), known):
            yield _with(node, **{field: other})
    if isinstance(node, ast.Call):
        yield from _keywords(node, known)
    for kind, changes in CHANGES.items():
        if isinstance(node, kind):
            yield from changes(node)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """Return a copy of a node with other fields; its children are shared."""
    return type(node)(**dict(ast.iter_fields(node)) | fields)


def _without(items: list, index: int) -> list:
    return items[:index] + items[index + 1 :]


def _swapped(items: list) -> Iterator[list]:
    """Yield the items with two neighbours swapped."""
    for first, second in pairwise(range(len(items))):
        yield [*items[:first], items[second], items[first], *items[second + 1 :]]


def _binary(node: ast.BinOp) -> Iterator[Replacement]:
    for operator in OPERATORS.get(type(node.op), ()):
        yield _with(node, op=operator())
    yield _with(node, left=node.right, right=node.left)
    yield node.left
    yield node.right


def _augmented(node: ast.AugAssign) -> Iterator[Replacement]:
    for operator in OPERATORS.get(type(node.op), ()):
        yield _with(node, op=operator())
    yield ast.Assign(targets=[node.target], value=node.value)


def _comparison(node: ast.Compare) -> Iterator[Replacement]:
    for index, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            yield _with(node, ops=[*node.ops[:index], other(), *node.ops[index + 1 :]])


def _boolean(node: ast.BoolOp) -> Iterator[Replacement]:
    yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    yield from node.values


def _unary(node: ast.UnaryOp) -> Iterator[Replacement]:
    yield node.operand
    if _is_negative_number(node) and isinstance(node.operand, ast.Constant):
        for other in _other_numbers(node.operand.value):
            yield _with(node, operand=ast.Constant(other))


def _is_negative_number(node: ast.AST) -> bool:
    """Return whether a node is a negative number, which is two nodes of the tree but one number to a reader."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)


def _other_numbers(value: float) -> tuple[float, ...]:
    return (value + 1, value - 1) if isinstance(value, int) else (2 * value, value / 2, 0.0)


def _either(node: ast.IfExp) -> Iterator[Replacement]:
    yield node.body
    yield node.orelse


def _constant(node: ast.Constant) -> Iterator[Replacement]:
    value = node.value
    if isinstance(value, bool):
        others: Iterable = (not value,)
    elif isinstance(value, int | float):
        others = (*_other_numbers(value), -value)
    elif isinstance(value, str):
        others = _letters_swapped(value) if "->" in value else (value.removeprefix("-"),)
    else:
        others = ()
    yield from map(ast.Constant, others)


def _letters_swapped(pattern: str) -> Iterator[str]:
    """Yield an einsum's pattern with two neighbouring letters of one operand swapped."""
    for place, (first, second) in enumerate(pairwise(pattern)):
        if first.isalpha() and second.isalpha():
            yield pattern[:place] + second + first + pattern[place + 2 :]


def _call(node: ast.Call) -> Iterator[Replacement]:
    if isinstance(node.func, ast.Attribute):
        yield node.func.value
    yield from node.args[:1]
    for index in range(len(node.args)):
        yield _with(node, args=_without(node.args, index))
    for arguments in _swapped(node.args):
        yield _with(node, args=arguments)


def _keywords(node: ast.Call, known: set[str]) -> Iterator[Replacement]:
    for index, keyword in enumerate(node.keywords):
        yield _with(node, keywords=_without(node.keywords, index))
        for other in _relatives(keyword.arg, known):
            renamed = ast.keyword(arg=other, value=keyword.value)
            yield _with(node, keywords=[*node.keywords[:index], renamed, *node.keywords[index + 1 :]])


def _relatives(name: str | None, known: set[str]) -> list[str]:
    """Return the known names that a name could be confused with."""
    return list({other: None for family in FAMILIES if name in family for other in family if other in known})


def _items(node: ast.Tuple | ast.List) -> Iterator[Replacement]:
    for items in _swapped(node.elts):
        yield _with(node, elts=items)
    if len(node.elts) > 1 and isinstance(node.ctx, ast.Load):
        for index in range(len(node.elts)):
            yield _with(node, elts=_without(node.elts, index))


def _subscript(node: ast.Subscript) -> Iterator[Replacement]:
    if isinstance(node.ctx, ast.Load):
        yield node.value


def _slice(node: ast.Slice) -> Iterator[Replacement]:
    for bound in ("lower", "upper", "step"):
        value = getattr(node, bound)
        if value is None:
            continue
        yield _with(node, **{bound: None})
        if bound != "step":
            for operator in (ast.Add(), ast.Sub()):
                yield _with(node, **{bound: ast.BinOp(left=value, op=operator, right=ast.Constant(1))})


def _comprehension(node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Iterator[Replacement]:
    for index, generator in enumerate(node.generators):
        for condition in range(len(generator.ifs)):
            changed = _with(generator, ifs=_without(generator.ifs, condition))
            yield _with(node, generators=[*node.generators[:index], changed, *node.generators[index + 1 :]])


def _if(node: ast.If) -> Iterator[Replacement]:
    yield _with(node, test=ast.UnaryOp(op=ast.Not(), operand=node.test))
    yield list(node.body)
    yield list(node.orelse) or ast.Pass()


def _loop(node: ast.For | ast.While) -> Iterator[Replacement]:
    yield _with(node, body=[*node.body, ast.Break()])


def _with_block(node: ast.With) -> Iterator[Replacement]:
    yield list(node.body)


def _jump(node: ast.Break | ast.Continue) -> Iterator[Replacement]:
    yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _function(node: ast.FunctionDef) -> Iterator[Replacement]:
    for index in range(len(node.decorator_list)):
        yield _with(node, decorator_list=_without(node.decorator_list, index))


CHANGES: dict[type | tuple[type, ...], Callable[..., Iterator[Replacement]]] = {
    ast.BinOp: _binary,
    ast.AugAssign: _augmented,
    ast.Compare: _comparison,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.IfExp: _either,
    ast.Constant: _constant,
    ast.Call: _call,
    (ast.Tuple, ast.List): _items,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    (ast.ListComp, ast.GeneratorExp, ast.SetComp): _comprehension,
    ast.If: _if,
    (ast.For, ast.While): _loop,
    ast.With: _with_block,
    (ast.Break, ast.Continue): _jump,
    (ast.FunctionDef, ast.ClassDef): _function,
}
