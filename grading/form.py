"""Judges of form: shape comments, style, length. They take points off those of the other parts, or add to them."""

import ast
import random
import re

from grading.answers import LONGEST_READ, Answer, AnswerEnded
from grading.judge import as_given, failure_told
from grading.record import Mark, Part, ValueRecord
from transformer_lm.checks.report import CheckFailed
from transformer_lm.checks.source import parsed
from transformer_lm.checks.style import FEW, TRIED, listed, statements, style_findings

SHAPES_COST = 1  # however many comments are missing or wrong
STYLE_COSTS = 0.25  # each finding
STYLE_COST = 1  # at most
SHORT_EARNS = 1

SHAPES = "to compare your shape comments with the shapes that occur"
GIVE_SHAPES = "End each line that makes a tensor with its shape, such as # (b, n, d)."
MEND_SHAPES = "Print the shape just before that line and just after it, and name each axis once more."


def shape_comments(record: ValueRecord, part: Part, answer: Answer, rng: random.Random) -> str | Mark:
    """Judge the comments that give shapes, by the shapes that occur."""
    source = answer.source_of(record.defines)
    if not source:
        return _unreadable(SHAPES, SHAPES_COST, record)
    inputs = {name: as_given(array) for name, array in record.draw(rng, record.first_sizes).items()}
    reply, _ = answer.ask("shapes", inputs, name=record.defines, source=source)
    if failure_told(reply):
        if _has_shapes(source):
            return "Nothing is taken off: your code could not be run to watch its shapes."
        return Mark(-SHAPES_COST, str(CheckFailed(SHAPES, "there are no such comments", "some", GIVE_SHAPES)))
    try:
        # Comments are read where no student's code has run, and where reading may not take for ever.
        with answer.without_cells() as reader:
            reader.keep_running()
            told, _ = reader.ask("read", source=source, observations=reply.get("observations"))
    except AnswerEnded:
        return Mark(-SHAPES_COST, str(CheckFailed(SHAPES, "they take too long to be read", "plain ones", GIVE_SHAPES)))
    if failure_told(told):
        return Mark(-SHAPES_COST, str(CheckFailed(SHAPES, "your code tells no shapes", "shapes", GIVE_SHAPES)))
    found = told["findings"]
    if not found:
        return "Every tensor's shape is given, and right."
    hint = GIVE_SHAPES if all(kind == "missing" for _, kind, _ in found) else MEND_SHAPES
    yours = listed([(line, text) for line, _, text in found])
    return Mark(-SHAPES_COST, str(CheckFailed(SHAPES, yours, "a right shape for each tensor", hint)))


def _has_shapes(source: str) -> bool:
    """Tell whether at least every other statement has a comment that looks like a shape."""
    nodes = ast.walk(parsed(source) or ast.Module([], []))
    made = sum(isinstance(node, ast.Assign | ast.AnnAssign | ast.Return) for node in nodes)
    return 2 * len(re.findall(r"#.*[\[(][^\])#]*,[^\])#]*[\])]", source)) >= made


def _unreadable(tried: str, cost: float, record: ValueRecord) -> Mark:
    yours = f"no cell of up to {LONGEST_READ} characters that can be read defines {record.defines}"
    return Mark(-cost, str(CheckFailed(tried, yours, "one", "Write your answer, and its helpers, in its cell.")))


def style(record: ValueRecord, part: Part, answer: Answer, rng: random.Random) -> str | Mark:
    """Judge the cell by PEP 8: each finding takes off a little, up to a limit."""
    source = answer.source_of(record.defines)
    if not source:
        return _unreadable(TRIED, STYLE_COST, record)
    found = style_findings(source)
    if not found:
        return "The cell follows PEP 8."
    points = min(STYLE_COST, STYLE_COSTS * len(found))
    hint = f"Each finding takes off {STYLE_COSTS} points, all together at most {STYLE_COST}."
    return Mark(-points, str(CheckFailed(TRIED, listed(found), "nothing to find", hint)))


def short_forward(record: ValueRecord, part: Part, answer: Answer, rng: random.Random) -> str | Mark:
    """Give an extra point for a short answer, if everything before is right."""
    count = statements(answer.source_of(record.defines), record.defines)
    if count is None or count > FEW:
        return f"The extra point is for a right answer whose forward takes {FEW} statements or fewer."
    return Mark(SHORT_EARNS, f"An extra point, if all the rest is right: your forward takes {count} statements.")
