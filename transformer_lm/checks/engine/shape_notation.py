"""Shapes as the assignments write them in comments: `(b, n, d)`, `[b, n, d] @ [b, d, n] -> [b, n, n]`, `b x n x d`."""

import ast
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

Shape = tuple[int, ...]

ARROW = re.compile(r"[-=]+>|[→⇒⟶↦]")
CONTINUES = re.compile(r"\s*(?:[-=]+>|[→⇒⟶↦@])")
TIMES = re.compile("(?<=\\w)(?:\\s+x\\s+|\\s*\u00d7\\s*)(?=\\w)")
GROUP = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
BARE = re.compile(r"[\s:-]*(?:\w+\s*:|shape\b)?([^()\[\]{}]*,[^()\[\]{}]*)")
AXES_WORD = re.compile(r"(?:transpose|permute|swapaxes|movedim|flatten|squeeze)\s*$")
NOT_PLAIN = re.compile(r"[^\w\s.,:;@*/+'\"`()-]|\b(?:from|of)\b")
LOOKS_LIKE_ONE = re.compile(
    r"\(\w{1,3}\)|[(\[{]\s*[^\s,()\[\]{}]+\s*[\s,][^)\]}]*[)\]}]"  # anything in brackets, except one long word
    r"|\w\s*,\s*\w+\s*,\s*\w|\w\s+x\s+\w|\b\w{1,2}(?:[x\u00d7]\w{1,2}){2,}\b"  # b, n, d or bxnxd
)

LONGEST_COMMENT, LONGEST_SIZE, MOST_AXES = 2000, 60, 16
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class Size:
    """One axis of a written shape: a number, a name, or an expression."""

    node: ast.expr

    @cached_property
    def text(self) -> str:
        """The size in Python syntax."""
        return ast.unparse(self.node)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names in the size, such as `n` or `self.num_heads`."""
        return frozenset(_names(self.node))

    def value(self, known: dict[str, int]) -> Fraction | None:
        """Return the value of the size, or None if it contains an unknown name."""
        return _value(self.node, known)


def _names(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.BinOp):
        yield from _names(node.left)
        yield from _names(node.right)
    elif not isinstance(node, ast.Constant):
        yield ast.unparse(node)


def _value(node: ast.expr, known: dict[str, int]) -> Fraction | None:
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, known), _value(node.right, known)
        if left is None or right is None or (isinstance(node.op, ast.Div | ast.FloorDiv) and not right):
            return None
        return Fraction(OPERATORS[type(node.op)](left, right))
    value = (
        node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else known.get(ast.unparse(node))
    )
    return None if value is None else Fraction(value)


def _is_size(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in OPERATORS and _is_size(node.left) and _is_size(node.right)
    if isinstance(node, ast.Attribute):
        return _is_size(node.value) and not isinstance(node.value, ast.BinOp | ast.Constant)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) is int)


@dataclass(frozen=True)
class Written:
    """A written shape."""

    text: str
    sizes: tuple[Size, ...]


def read_sizes(text: str) -> tuple[Size, ...]:
    """Return the sizes between commas, or none if the text is something else; a trailing comma is ignored."""
    parts = text.strip().removesuffix(",").split(",")
    if len(parts) > MOST_AXES or max(map(len, parts)) > LONGEST_SIZE:
        return ()
    try:
        nodes = [ast.parse(part.strip(), mode="eval").body for part in parts]
    except (SyntaxError, ValueError):
        return ()
    return tuple(map(Size, nodes)) if all(map(_is_size, nodes)) else ()


@dataclass(frozen=True, eq=False)
class Remark:
    """The content of a comment: the shapes it `claims` for the result, and those `before`, of the result's operands.

    It is `plain` if it says nothing else; only a plain comment can be wrong. One that is neither right nor plain counts
    as not understood.
    """

    line: int
    claims: tuple[Written, ...]
    before: tuple[Written, ...]
    is_plain: bool
    is_connected: bool  # it continues the statement above it
    looks_like_one: bool

    @property
    def shapes(self) -> tuple[Written, ...]:
        """All shapes in the comment."""
        return self.before + self.claims


def read_remark(line: int, text: str) -> Remark:
    """Return the content of a comment: the result after the last arrow, and what it is made from before the arrow."""
    text = text[:LONGEST_COMMENT]
    listed = TIMES.sub(", ", text)
    found, between, end, is_read = [], [], 0, True
    for match in GROUP.finditer(listed):
        head, inner = listed[: match.start()], match[1]
        sizes = read_sizes(inner)
        is_call = match[0][0] == "(" and (head[-1:].isalnum() or (AXES_WORD.search(head[-LONGEST_SIZE:]) is not None))
        if is_call or (match[0][0] == "(" and "," not in inner):
            continue  # arguments, or words
        is_read &= bool(sizes)
        if sizes:
            found.append((match.start(), Written(match[0], sizes)))
            between.append(listed[end : match.start()])
            end = match.end()
    between.append(listed[end:])
    arrow = max((match.start() for match in ARROW.finditer(listed)), default=-1)
    if not found:
        found, between, is_read = _bare(listed, arrow) if listed != text else [], [], True
    is_operand = [start < arrow for start, _ in found]
    for place, words in enumerate(between[1:-1]):
        if arrow < 0 and "@" in words:
            is_operand[place : place + 2] = [True, True]
    if all(is_operand) and arrow >= 0:  # nothing after the arrow
        is_operand[-1:] = [False] * len(is_operand[-1:])
    return Remark(
        line,
        tuple(shape for (_, shape), is_before in zip(found, is_operand, strict=True) if not is_before),
        tuple(shape for (_, shape), is_before in zip(found, is_operand, strict=True) if is_before),
        bool(found) and is_read and all(map(_is_plain, between)),
        re.match(r"\s*(?:['\"`]|[-=]+>|[→⇒⟶↦@])", text) is not None,
        bool(found) or LOOKS_LIKE_ONE.search(text) is not None,
    )


def is_unfinished(text: str) -> bool:
    """Return whether a comment continues on the next line."""
    opened = text.count("(") + text.count("[") - text.count(")") - text.count("]")
    return opened > 0 or ARROW.search(text.rstrip()[-2:]) is not None


def _bare(text: str, arrow: int) -> list[tuple[int, Written]]:
    """Return the shape in a comment that consists of it alone, such as `b x n x d`, with its start."""
    match = BARE.fullmatch(ARROW.sub("", text[max(arrow, 0) :]))
    if not match:
        return []
    sizes = read_sizes(match[1].strip(" ."))
    return [(len(text), Written(match[1].strip(), sizes))] if len(sizes) > 1 else []


def _is_plain(words: str) -> bool:
    """Return whether the words before, between or after shapes are only the name of a tensor or a function."""
    parts = ARROW.split(words)
    return not any(NOT_PLAIN.search(part) or len(re.findall(r"[\w.]*\w", part)) > 1 for part in parts)
