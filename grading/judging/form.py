"""Judges of form (shape comments, style, length), which take points off the other parts or add points."""

import ast
import random
from typing import Any

from grading.isolation.answers import Answer, AnswerEnded
from grading.isolation.cells_read import LONGEST_READ, Cell
from grading.judging.judge import as_given, failure_told
from grading.judging.record import Part, ValueRecord
from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.engine.shape_comments import GIVE_SHAPES, MEND_SHAPES, WRONG, Finding, praise
from transformer_lm.checks.engine.source import parsed
from transformer_lm.checks.engine.style import FEW, TRIED, listed, statements, unread
from transformer_lm.checks.engine.verdict import Mark

SHAPES_COST = 1  # regardless of how many comments are missing or wrong
STYLE_COSTS = 0.25  # per finding
STYLE_COST = 1  # at most
SHORT_EARNS = 1
SHOWN = 40  # characters of a cell that identify it

SHAPES = "to compare your shape comments with the shapes that occur"


def shape_comments(record: ValueRecord, part: Part, answer: Answer, rng: random.Random) -> str | Mark:
    """Judge the comments that give shapes by the shapes that occur."""
    source = _joined(answer.cells_of(record.defines))
    if not source:
        return _unreadable(SHAPES, SHAPES_COST, record)
    inputs = {name: as_given(array) for name, array in record.draw(rng, record.first_sizes).items()}
    reply, _ = answer.ask("shapes", inputs, name=record.defines, source=source)
    if failure_told(reply):
        commented, made = _lines_with_shapes(source), _statements(source)
        if 2 * commented >= made:
            return "Nothing is taken off: your code could not be run to record its shapes."
        yours = f"{commented} of {made} statements have one" if commented else "there are no such comments"
        expected = "at least one for every two, since your code could not be run to record its shapes"
        return _off(SHAPES_COST, SHAPES, yours, expected, GIVE_SHAPES)
    try:
        told = _read(answer, "read", source=source, observations=reply.get("observations"))
    except AnswerEnded:
        return _off(SHAPES_COST, SHAPES, "they take too long to be read", "plain ones", GIVE_SHAPES)
    if failure_told(told):
        return _off(SHAPES_COST, SHAPES, "your code tells no shapes", "shapes", GIVE_SHAPES)
    found = [Finding(*each) for each in told["findings"]]
    costly = [finding for finding in found if finding.costs]
    if not costly:
        said = praise([finding.line for finding in found])
        return said[0].upper() + said[1:]
    known = MEND_SHAPES if any(finding.kind == WRONG for finding in costly) else GIVE_SHAPES
    yours = listed([(finding.line, finding.text) for finding in costly])
    return _off(SHAPES_COST, SHAPES, yours, "a right shape for each tensor", known)


def _off(points: float, tried: str, yours: str, expected: str, known: str) -> Mark:
    """Return the mark that takes points off, with the reason."""
    return Mark(-points, failure=CheckFailed(tried, yours, expected, known).failure)


def _joined(cells: tuple[Cell, ...]) -> str:
    """Return the text of all cells, joined."""
    return "\n\n\n".join(cell.source.strip("\n") for cell in cells)


def _read(answer: Answer, do: str, **what: Any) -> dict:
    """Return what a process that has run no student's code finds in a text, within a time limit.

    Raises AnswerEnded if it takes too long.
    """
    with answer.without_cells() as reader:
        reader.keep_running()
        return reader.ask(do, **what)[0]


def _lines_with_shapes(source: str) -> int:
    """Return the number of lines with a comment that looks like a shape."""
    return sum(map(_looks_like_a_shape, source.splitlines()))


def _statements(source: str) -> int:
    """Return the number of statements that may create a tensor when the answer is called, `__init__` excluded."""
    tree = parsed(source) or ast.Module([], [])
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    called = {node for function in functions if function.name != "__init__" for node in ast.walk(function)}
    return sum(isinstance(node, ast.Assign | ast.AnnAssign | ast.Return) for node in called)


def _looks_like_a_shape(line: str) -> bool:
    """Return whether a line ends in a comment with a comma between brackets."""
    comment = line.partition("#")[2]
    opened = min((place for place in map(comment.find, "([") if place >= 0), default=len(comment))
    return "," in comment[opened : max(map(comment.rfind, ")]"), default=0)]


def _unreadable(tried: str, cost: float, record: ValueRecord) -> Mark:
    yours = f"no cell of up to {LONGEST_READ} characters that can be read defines {record.defines}"
    return _off(cost, tried, yours, "one", hint("write-in-the-cell"))


def style(record: ValueRecord, part: Part, answer: Answer, rng: random.Random) -> str | Mark:
    """Judge the cell by PEP 8; each finding takes off a fraction of a point, up to a limit."""
    cells = answer.cells_of(record.defines)
    if not cells:
        return _unreadable(TRIED, STYLE_COST, record)
    try:
        told = _read(answer, "style", sources=[cell.source for cell in cells])
    except AnswerEnded:
        told = {}
    if "findings" not in told:
        return _off(STYLE_COST, TRIED, "it cannot be read in time", "a plain cell", hint("write-plainly"))
    found = [
        (line, text if len(cells) == 1 else f"{text} (in the cell that begins `{_beginning(cell)}`)")
        for cell, findings in zip(cells, told["findings"], strict=True)
        for line, text in findings
    ]
    if not found:
        return "The cell follows PEP 8."
    points = min(STYLE_COST, STYLE_COSTS * len(found))
    known = hint("style-findings", each=STYLE_COSTS, most=STYLE_COST)
    return _off(points, TRIED, listed(found), "nothing to find", known)


def _beginning(cell: Cell) -> str:
    return cell.source.strip().partition("\n")[0][:SHOWN]


def short_forward(record: ValueRecord, part: Part, answer: Answer, rng: random.Random) -> str | Mark:
    """Give an extra point for a short and readable answer, if all previous parts are right."""
    word = unread("\n".join(answer.sources))
    if word:
        return f"The extra point is for a forward that is written out: leave out {word} in all your cells."
    count = statements(_joined(answer.cells_of(record.defines)), record.defines)
    if count is None or count > FEW:
        return f"The extra point is for a right answer whose forward takes {FEW} statements or fewer."
    return Mark(SHORT_EARNS, f"An extra point, if all the rest is right: your forward takes {count} statements.")
