"""Your own answers, kept in `my_answers/`, so that later notebooks can build on them.

    mine.save("01_self_attention", globals())           at the end of an assignment: save what passes its check
    attention_scores = mine.load("attention_scores")    later: yours if you have saved one, else the package's

A saved file is plain Python, yours to read and to change. An answer in it is used as long as it passes its check.
"""

import ast
import functools
import io
import itertools
import linecache
import os
import symtable
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from transformer_lm import (
    attention,
    checks,
    lm,
    modeling_attention,
    modeling_classifier,
    modeling_lm,
    modeling_transformer,
    sampling,
)
from transformer_lm.checks.engine.source import cell_source
from transformer_lm.files import write_whole


@dataclass(frozen=True)
class Answer:
    """A name that an assignment asks for, the checks that it must pass, and the package's object of that name."""

    name: str
    checks: tuple[Callable[[object], None], ...]
    package: object


# In the order of the course: an answer may use those of earlier assignments. No two answers have the same name.
ANSWERS = {
    "01_self_attention": (
        Answer("create_kqv_parameters", (checks.kqv_parameters,), attention.create_kqv_parameters),
        Answer("kqv", (checks.kqv,), attention.kqv),
        Answer("attention_scores", (checks.attention_scores,), attention.attention_scores),
        Answer(
            "SelfAttention", (checks.self_attention_layers, checks.self_attention), modeling_attention.SelfAttention
        ),
    ),
    "02_multi_head_attention": (
        Answer("create_causal_mask", (checks.causal_mask,), attention.create_causal_mask),
        Answer("self_attention", (checks.masked_self_attention,), attention.self_attention),
        Answer(
            "multi_head_attention_layer",
            (checks.multi_head_attention_layer,),
            attention.multi_head_attention_layer,
        ),
        Answer("MultiHeadSelfAttention", (checks.multi_head_attention,), modeling_attention.MultiHeadSelfAttention),
        Answer("TransformerDecoderBlock", (checks.decoder_block,), modeling_transformer.TransformerDecoderBlock),
    ),
    # Padding batches is left out because torch has it, and so is a second name for multi-head attention: see topic 02.
    "03_classification": (
        Answer("pooled", (checks.mean_pool, checks.max_pool, checks.select_pool), modeling_classifier.pooled),
        Answer("SequenceClassifier", (checks.sequence_classifier,), modeling_classifier.SequenceClassifier),
        Answer("SimpleSelfAttention", (checks.simple_attention,), modeling_attention.SimpleSelfAttention),
        Answer("PositionEmbedding", (checks.position_embedding,), modeling_transformer.PositionEmbedding),
        Answer("TransformerEncoderBlock", (checks.encoder_block,), modeling_transformer.TransformerEncoderBlock),
    ),
    # The package has its own way to mask, to build the model and to sample from it.
    "04_language_model": (
        Answer("batch_to_labeled_samples", (checks.labels,), lm.batch_to_labeled_samples),
        Answer("compute_loss", (checks.loss,), lm.compute_loss),
        Answer("random_slices", (checks.slices,), lm.random_slices),
        Answer("Embed", (checks.embed,), modeling_lm.Embed),
        Answer("last_position_bits", (checks.last_position_bits,), lm.last_position_bits),
        Answer("next_probabilities", (checks.next_probabilities,), sampling.next_probabilities),
    ),
}

# The definitions in the set-up cells of the assignments, without the figures.
SETUP = """\
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_lm import best_device

device = best_device()
"""

BROKEN = (Exception, SystemExit)  # any error that an answer may raise; an interrupt comes from the student


def save(assignment: str, namespace: dict[str, Any]) -> None:
    """Write the answers in a notebook's `globals()` that pass their checks to a file, and report which these are.

    An answer is saved only if it also passes when loaded from the new file. One that does not pass never replaces one
    that did: an earlier answer stays in the file while it still passes. The file is replaced completely or not at all.

    Raises ValueError for an unknown assignment.
    """
    if assignment not in ANSWERS:
        raise ValueError(f"assignment must be one of {', '.join(ANSWERS)}, got {assignment!r}.")
    file = folder() / f"{assignment}.py"
    before = _text_before(file)
    problems = {answer.name: _problem(answer, namespace) for answer in ANSWERS[assignment]}
    cells = {name: before if problem else cell_source(namespace[name]) for name, problem in problems.items()}

    _module.cache_clear()
    while failure := _first_failure(file, cells):
        name, error = failure
        if cells[name] == before:
            del cells[name]
        else:
            problems[name] = _needs(assignment, name, error)
            cells[name] = before
    if cells:
        write_whole(file, _file_text(assignment, cells, set(cells)))

    for name, problem in problems.items():
        stays = " (the one from before stays)" if name in cells else ""
        print(f"✗ {name}: not saved, {problem}{stays}" if problem else f"✓ {name}: saved")
    print(f"Your answers are in {file}" if cells else "Nothing is saved.")


def load(name: str) -> object:
    """Return the student's saved answer if it passes its check, else the package's, and report which one it is.

    Raises ValueError for a name that no assignment asks for; never because of the content of a saved file.
    """
    known = {answer.name: (assignment, answer) for assignment, answers in ANSWERS.items() for answer in answers}
    if name not in known:
        raise ValueError(f"name must be one of {', '.join(known)}, got {name!r}.")
    assignment, answer = known[name]
    file = folder() / f"{assignment}.py"
    shown = f"{file.parent.name}/{file.name}"
    why = f"{file.parent.name}/ holds none of yours"
    if file.exists():
        try:
            yours = _checked(answer, file, file.read_text(encoding="utf-8"))
        except BROKEN as error:
            why = f"{shown} has none that works: {_described(_first_cause(error))}"
        else:
            print(f"{name}: yours, from {shown}")
            return yours
    print(f"{name}: the package's, since {why}.")
    return answer.package


def folder() -> Path:
    """Return the folder of the answers, the same for every notebook of the course."""
    if chosen := os.environ.get("TRANSFORMER_LM_ANSWERS"):
        return Path(chosen).expanduser().absolute()
    here = Path.cwd()
    roots = [root for root in (here, *here.parents) if (root / "my_answers").is_dir() or (root / "notebooks").is_dir()]
    return (roots or [here])[0] / "my_answers"


def _text_before(file: Path) -> str:
    """Return the text of a file, or nothing if it is not Python."""
    try:
        text = file.read_text(encoding="utf-8")
        ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return ""
    return text


# Checking answers in the notebook and from a file


def _check(answer: Answer, value: object) -> None:
    """Run the checks of an answer without their output and without affecting later random numbers."""
    with redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
        for check in answer.checks:
            check(value)


def _problem(answer: Answer, namespace: dict[str, Any]) -> str | None:
    """Return why the notebook's answer cannot be saved, or None if it can."""
    if answer.name not in namespace:
        return "it is not defined: run its cell first"
    value = namespace[answer.name]
    if value is answer.package:
        return "it is the package's"
    try:
        _check(answer, value)
    except BROKEN:
        return "its check does not pass yet"
    try:
        cell_source(value)
    except ValueError:
        return "the text of its cell is not known. Take out a first line that begins with %%"
    return None


@functools.cache  # a class stays the same class however often it is loaded
def _module(file: Path, text: str) -> ModuleType:
    """Return the text of a file, executed without its output, as a module."""
    module = ModuleType(f"my_answers_{file.stem}")
    sys.modules[module.__name__] = module  # where pickle and torch.compile look it up
    linecache.cache[str(file)] = (len(text), None, text.splitlines(keepends=True), str(file))  # for tracebacks
    with redirect_stdout(io.StringIO()):
        exec(compile(text, file, "exec"), vars(module))
    return module


def _checked(answer: Answer, file: Path, text: str) -> object:
    """Return an answer from the text of a file; passes on any error of the file or the check."""
    value = getattr(_module(file, text), answer.name, answer.package)
    if value is answer.package:
        raise NameError(f"name {answer.name!r} is not defined", name=answer.name)
    _check(answer, value)
    return value


def _first_failure(file: Path, cells: dict[str, str]) -> tuple[str, BaseException] | None:
    """Return the first answer that fails from its file, alone with its dependencies or with all, and its error."""
    answers = [answer for answer in ANSWERS[file.stem] if answer.name in cells]
    for wanted in (*({answer.name} for answer in answers), set(cells)):
        text = _file_text(file.stem, cells, wanted)
        for answer in answers:
            try:
                if answer.name in wanted:
                    _checked(answer, file, text)
            except BROKEN as error:
                return answer.name, _first_cause(error)
    return None


def _first_cause(error: BaseException) -> BaseException:
    return _first_cause(error.__cause__) if error.__cause__ else error


def _described(error: BaseException) -> str:
    """Return an error in one line, without a full stop."""
    text = error.hint if isinstance(error, checks.CheckFailed) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0].rstrip(".: ")


def _needs(assignment: str, name: str, error: BaseException) -> str:
    """Return why an answer that passes in the notebook does not pass from a file."""
    missing = error.name if isinstance(error, NameError) else None
    if missing != name and missing in {answer.name for answer in ANSWERS[assignment]}:
        return f"it needs {missing}, which is not saved"
    return f"it needs something outside of its cell: {_described(error)}. Put that into the cell."


# The text of a file: the statements of each cell that the answers need


def _file_text(assignment: str, cells: dict[str, str], wanted: set[str]) -> str:
    """Return the file with the wanted answers: set-up, answers to earlier assignments, then statements of the cells.

    `cells` maps each answer to the cell that defines it. Definitions of other answers in a cell are left out, because
    they are wrong or redefined in another cell.
    """
    topics = itertools.takewhile(lambda topic: topic != assignment, ANSWERS)
    earlier = [answer.name for topic in topics for answer in ANSWERS[topic]]
    loads = {name: f'{name} = mine.load("{name}")' for name in earlier}
    given = {*_statements(SETUP), *loads.values()}  # an earlier file has them too
    statements: dict[str, None] = {}  # a dictionary, so that each occurs only once
    for cell in dict.fromkeys(cells.values()):
        others = {answer.name for answer in ANSWERS[assignment] if cells.get(answer.name) != cell}
        statements |= {each: None for each in _statements(cell) if each not in given and not others & _defined([each])}
    needed = _needed(list(statements), wanted)
    missing = _used(needed) - _defined(needed)
    head = [f'"""Your answers to {assignment}, saved by transformer_lm.mine when they passed their checks."""\n', SETUP]
    if not missing.isdisjoint(loads):
        head += ["from transformer_lm import mine\n", *(loads[name] for name in earlier if name in missing), ""]
    return "\n\n".join(["\n".join(head), *(f"{statement}\n" for statement in needed)])


def _statements(text: str) -> list[str]:
    """Return the statements of a text that are not inside another one, each with the comments above it."""
    lines = text.split("\n")
    starts, end = [], 0
    for node in ast.parse(text).body:
        start = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]) - 1
        if start >= end:  # otherwise it shares a line with the one before
            while start > end and (not lines[start - 1].strip() or lines[start - 1].startswith("#")):
                start -= 1
            starts.append(start)
        assert node.end_lineno is not None
        end = node.end_lineno
    return ["\n".join(lines[start:stop]).strip("\n") for start, stop in itertools.pairwise([*starts, len(lines)])]


def _needed(statements: list[str], wanted: set[str]) -> list[str]:
    """Return the statements that define the wanted names, and those that these depend on, and so on."""
    needed: set[str] = set()
    while more := {statement for statement in statements if _defined([statement]) & wanted} - needed:
        needed |= more
        wanted = wanted | _used(more)
    return [statement for statement in statements if statement in needed]


def _table(statement: str) -> symtable.SymbolTable:
    try:
        return symtable.symtable(statement, "cell", "exec")
    except SyntaxError:  # an `await` outside a function, which only notebooks allow
        return symtable.symtable("", "cell", "exec")


def _defined(statements: Iterable[str]) -> set[str]:
    """Return the global names that statements define."""
    symbols = [symbol for statement in statements for symbol in _table(statement).get_symbols()]
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def _used(statements: Iterable[str]) -> set[str]:
    """Return the global names that statements use, inside their functions too."""
    tables = [_table(statement) for statement in statements]
    for table in tables:  # the list grows during the loop
        tables.extend(table.get_children())
    symbols = [symbol for table in tables for symbol in table.get_symbols()]
    return {symbol.get_name() for symbol in symbols if symbol.is_global() and symbol.is_referenced()}
