"""Shapes as people write them in comments: `(b, n, d)`, `[b*h, n] -> [b, h, n]`, `b x n x d`, in words or numbers."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

Shape = tuple[int, ...]

ARROW = re.compile(r"[-=]+>|[→⇒⟶↦]")
CONTINUES = re.compile(r"\s*(?:[-=]+>|[→⇒⟶↦@])")
QUOTED = re.compile(r"\s*['\"`]")
EACH = re.compile(r"\b(?:per|each|every|one)\b", re.IGNORECASE)
SUBJECTS = re.compile(r"\s*(\w+(?:\s*(?:,|&|\band\b)\s*\w+)+)\W")
TIMES = re.compile("\\s+[xX]\\s+|\\s*\u00d7\\s*|(?<=\\d)x(?=\\d)")
SHAPE_WORD = re.compile(r"(?:tensor|size|shape)$", re.IGNORECASE)
AXES_WORD = re.compile(r"(?:transpose|permute|axes|axis|dims?|swapaxes|movedim|flatten|squeeze)\W*$", re.IGNORECASE)
CITATION = re.compile(r"\(\s*[A-Z][a-z]+[^()]*\b(?:19[5-9]|20[0-3])\d[a-z]?\s*\)")
NAME = re.compile(r"[^\W\d]\w*'*")
WORDS = re.compile(r"#?[^\W\d][\w .'#-]*")

LONGEST_COMMENT, LONGEST_SIZE, LARGEST, MOST_GROUPS, MOST_AXES = 2000, 60, 10**9, 30, 16
CERTAIN, LIKELY, PROSE = 2, 1, 0  # how sure it is that something is a shape; only a certain one can do harm


@dataclass(frozen=True)
class Size:
    """One axis of a written shape: a number, a name, or an expression, which has a `node`."""

    text: str
    names: frozenset[str] = frozenset()
    node: ast.expr | None = None

    @cached_property
    def number(self) -> int | None:
        """The number that stands there, if it is one."""
        value = None if self.names else self.value({})
        return int(value) if value is not None and value.denominator == 1 else None

    def value(self, known: dict[str, int]) -> Fraction | None:
        """Return what it comes to, or None if a name in it is not known."""
        return _value(self.node or ast.Name(self.text), known)

    def is_unclear(self, unknown: frozenset[str]) -> bool:
        """Tell whether it cannot be solved for what is unknown: several names, or one that stands there twice."""
        return len(unknown) > 1 or (
            self.node is not None and any(_names(self.node).count(name) > 1 for name in unknown)
        )

    def solved(self, axis: int, known: dict[str, int], name: str) -> int | None:
        """Return the size of a name with which this comes to the axis, all other names being known."""
        node, result = self.node or ast.Name(name), Fraction(axis)
        while isinstance(node, ast.BinOp):
            is_left = name in _names(node.left)
            other = _value(node.right if is_left else node.left, known)
            if not other or not result:
                return None
            result = (LEFT if is_left else RIGHT)[type(node.op)](result, other)
            node = node.left if is_left else node.right
        return int(result) if result.denominator == 1 and result >= 1 else None


DOTS, ANY = Size("..."), Size("_")

OPERATORS = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
}
LEFT = {  # what stands on the left, for a result and what stands on the right
    ast.Add: lambda result, right: result - right,
    ast.Sub: lambda result, right: result + right,
    ast.Mult: lambda result, right: result / right,
    ast.Div: lambda result, right: result * right,
    ast.FloorDiv: lambda result, right: result * right,
}
RIGHT = LEFT | {
    ast.Sub: lambda result, left: left - result,
    ast.Div: lambda result, left: left / result,
    ast.FloorDiv: lambda result, left: left / result,
}


def _names(node: ast.expr) -> list[str] | None:
    """Return the names in an expression, as often as they stand there; None if it is no expression of sizes."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _names(node.left), _names(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and _names(node.value):
        return [ast.unparse(node)]
    is_size = isinstance(node, ast.Constant) and type(node.value) is int and node.value < LARGEST
    return [] if is_size else None


def _value(node: ast.expr, known: dict[str, int]) -> Fraction | None:
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, known), _value(node.right, known)
        if left is None or right is None or (isinstance(node.op, ast.Div | ast.FloorDiv) and not right):
            return None
        return OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    value = known.get(node.id if isinstance(node, ast.Name) else ast.unparse(node))
    return None if value is None else Fraction(value)


def read_size(text: str) -> Size | None:
    """Return one size, or None if the text cannot be one; several words are a name too."""
    text = re.sub(r"^(['\"`])(.*)\1$|\s*=\s*\d+$", r"\2", text.strip())
    first, *others = text.split("=")
    if len(others) == 1 and re.search("\\w\\s*[*/\u00d7·⋅]\\s*\\w", text):  # h * dh = hidden
        text = first.strip()
    if text in ("...", "…", "*"):
        return DOTS
    if text in ("_", "?"):
        return ANY
    if NAME.fullmatch(text):
        return Size(text, frozenset({text}))
    if not 0 < len(text) <= LONGEST_SIZE:
        return None
    product = re.sub(r"^(\d+)([^\W\d]\w*)$", r"\1*\2", re.sub("[\u00d7·⋅]", "*", text))
    try:
        node = ast.parse(product, mode="eval").body
    except (SyntaxError, ValueError):
        return Size(text, frozenset({text})) if WORDS.fullmatch(text) else None
    names = _names(node)
    size = None if names is None else Size(ast.unparse(node), frozenset(names), node)
    return None if size is None or (not names and (size.number or 0) < 1) else size


@dataclass(frozen=True)
class Group:
    """A written shape, and how sure it is that it is one."""

    text: str
    sizes: tuple[Size, ...]
    level: int

    @cached_property
    def names(self) -> set[str]:
        """All names in it."""
        return {name for size in self.sizes for name in size.names}

    @property
    def as_part(self) -> "Group":
        """The same shape with any axes before it."""
        return self if DOTS in self.sizes else replace(self, sizes=(DOTS, *self.sizes))

    def aligned(self, shape: Shape) -> list[tuple[Size, int]] | None:
        """Return each size with the axis it stands for, or None if there are too many or too few."""
        if DOTS not in self.sizes:
            return list(zip(self.sizes, shape, strict=True)) if len(self.sizes) == len(shape) else None
        before = self.sizes.index(DOTS)
        after = len(self.sizes) - before - 1
        if before + after > len(shape):
            return None
        ends = shape[:before] + shape[len(shape) - after :]
        return list(zip(self.sizes[:before] + self.sizes[before + 1 :], ends, strict=True))


@dataclass(frozen=True)
class Remark:
    """One remark: the shapes it claims for the result, and those `before`, of what the result is made from.

    If it is a list, nothing but commas stands between its claims. Around an equals sign, all but products are claims.
    """

    claims: tuple[Group, ...]
    before: tuple[Group, ...]
    has_arrow: bool
    is_list: bool
    is_below: bool
    is_connected: bool  # it goes on with the statement, so it is no heading of what follows
    is_per_item: bool  # it also speaks of parts, as one matrix per head
    subjects: frozenset[str]  # of q, k and v: (b, n, d)


def read_remark(text: str, is_below: bool) -> Remark:
    """Return what a remark says: after the last arrow about the result, before it about what that is made from."""
    text = CITATION.sub("", text[:LONGEST_COMMENT])
    about = SUBJECTS.match(text)
    found = list(_groups(text))[:MOST_GROUPS]
    if len(found) < 2 and all(group.level == PROSE for _, _, group in found):
        found = [(0, 0, group) for group in _bare_group(text)] or found
    connected, is_per_item = CONTINUES.match(text) or QUOTED.match(text), EACH.search(text) is not None
    for start, end, _ in found:
        text = text[:start] + " " * (end - start) + text[end:]
    text = re.sub(r"(?<=\w)\([^()]*\)", lambda call: " " * len(call[0]), text)
    arrow = max((match.end() for match in ARROW.finditer(text)), default=-1)
    operands, is_list = set(), True
    for (start, end, _), (next_start, _, _) in pairwise(found):
        between = text[end:next_start].strip()
        operands |= {start, next_start} if "@" in between else set()
        is_list &= next_start < arrow or between.strip(" ,;") in ("", "and")
    if arrow >= 0:
        before = [group for start, _, group in found if start < arrow]
        claims = [group for start, _, group in found if start >= arrow]
        claims = claims or [replace(group, level=min(group.level, LIKELY)) for group in before[-1:]]
    else:
        before = [group for start, _, group in found if start in operands]
        claims = [group for start, _, group in found if start not in operands]
    subjects = frozenset(re.findall(r"\w+", about[1])) if about else frozenset()
    return Remark(
        tuple(claims), tuple(before), arrow >= 0, is_list, is_below, connected is not None, is_per_item, subjects
    )


def _groups(text: str, offset: int = 0, depth: int = 4) -> Iterator[tuple[int, int, Group]]:
    """Yield where each shape in brackets starts and ends, and the shape."""
    for start, end in _brackets(text):
        before = text[:start]
        word = re.search(r"[\w\])]+$", before[-LONGEST_SIZE:])
        is_called = word is not None and not SHAPE_WORD.search(word[0])
        if is_called and text[start] == "(":
            continue  # the arguments of a call
        group = _group(text[start:end], before, is_called)
        if group:
            yield offset + start, offset + end, group
        elif depth:
            yield from _groups(text[start + 1 : end - 1], offset + start + 1, depth - 1)


def _brackets(text: str) -> list[tuple[int, int]]:
    """Return where the outermost pairs of brackets start and end."""
    found, opened = [], []
    for place, letter in enumerate(text):
        if letter in "([{":
            opened.append(place)
        elif letter in ")]}" and opened:
            start = opened.pop()
            if not opened:
                found.append((start, place + 1))
    return found


def _group(text: str, before: str, is_index: bool) -> Group | None:
    """Return the shape that stands in brackets, if it can be one."""
    parts = _split(text[1:-1])
    if len(parts) == 1:
        parts = TIMES.split(parts[0])
    elif is_index and re.fullmatch(r"\s*(['\"]).*\1\s*", parts[-1]):  # Float[Tensor, "b n d"]
        parts = parts[-1].strip(" '\"").split()
    sizes = [read_size(part) for part in parts[: MOST_AXES + 1]]
    if not 0 < len(sizes) <= MOST_AXES or None in sizes or sizes.count(DOTS) > 1 or set(sizes) <= {DOTS, ANY}:
        return None
    if AXES_WORD.search(before[-LONGEST_SIZE:]) and all(size.number for size in sizes):
        return None  # transpose (1, 2)
    is_square, is_one = text[0] == "[", len(sizes) == 1 and "," not in text
    level = LIKELY if is_index or text[0] == "{" else CERTAIN
    if any(size.node is None and " " in size.text for size in sizes):
        level = LIKELY if is_square else PROSE
    elif is_one:  # (again), [1], but also [n], or shape (n)
        is_said = is_square and sizes[0].names and not is_index
        level = LIKELY if is_said or SHAPE_WORD.search(before.rstrip()[-LONGEST_SIZE:]) else PROSE
    return Group(text, tuple(sizes), level)


def _bare_group(text: str) -> Iterator[Group]:
    """Yield the shape of a remark that is nothing else, such as `b x n x d`, `bxnxd` or `b, n, d`."""
    text = re.sub(r"^\s*(?:\w+\s*:|shape\b)?[\s:-]*", "", ARROW.split(text)[-1]).strip(" .")
    parts = TIMES.split(text)
    if len(parts) == 1:
        parts = text.split("," if "," in text else "x")[: MOST_AXES + 1]
    sizes = [read_size(part) for part in parts]
    if 1 < len(sizes) <= MOST_AXES and all(size and (size.node or NAME.fullmatch(size.text)) for size in sizes):
        yield Group(text, tuple(sizes), LIKELY)


def _split(text: str) -> list[str]:
    """Return what stands between commas, those in brackets left alone; a comma at the end adds nothing."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts[:-1] if len(parts) > 1 and not parts[-1].strip() else parts
