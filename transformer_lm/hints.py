"""Hints on request: three for each exercise, one after each new attempt; then, for self-learners, an answer.

    hints.show("kqv", globals())      the picture, then the tool, then the plan
    hints.answer("kqv", globals())    the reference answer, if your copy of the course has it

An attempt is an answer that you have changed and run. The texts are in `course/hint_texts/`, a file for each
assignment.
"""

import ast
import io
import json
import os
import re
from contextlib import redirect_stdout
from pathlib import Path

import torch

from transformer_lm.checks.engine.failure import CHECKING
from transformer_lm.checks.engine.source import cells_run, defined_names, parsed
from transformer_lm.course import progress
from transformer_lm.course.outlines import Outline, fingerprint, outline_with
from transformer_lm.mine import BROKEN, folder

FOLDER = Path(__file__).parent / "course" / "hint_texts"


def show(exercise: str, namespace: dict[str, object]) -> None:
    """Show one more hint if a notebook's `globals()` hold a new attempt, else the hints that were shown before.

    Raises ValueError for an exercise that this copy of the course does not have.
    """
    outline = outline_with(exercise)
    if os.environ.get(CHECKING):
        return
    texts = hint_texts(outline.assignment).get(exercise, [])
    if not texts:
        _show(f"The exercise **{exercise}** has no hints.")
        return
    attempt = _attempt(outline, exercise, namespace)
    if attempt is None:
        _show(
            f"Try it first: answer **{exercise}** in its cell and run it. If you are stuck after that, ask for a hint."
        )
        return
    if _passes(outline, exercise, namespace):
        _show(f"Your answer to **{exercise}** passes its checks: no hint is needed.")
        return
    known = progress.load()
    given = known["hints"].setdefault(exercise, [])
    if attempt not in given and len(given) < len(texts):
        given.append(attempt)
        progress.save(known)
    _show("\n\n".join(texts[: len(given)]))
    if len(given) < len(texts):
        _show("For the next hint: change your answer, run its cell, and ask again.")
    elif _source(outline).is_file():
        _show(f'After one more try, `hints.answer("{exercise}", globals())` shows ours.')


def answer(exercise: str, namespace: dict[str, object]) -> None:
    """Show the reference answer if your own answer passes, or once you have tried again after all hints.

    Raises ValueError for an exercise that this copy of the course does not have.
    """
    outline = outline_with(exercise)
    if os.environ.get(CHECKING):
        return
    source = _source(outline)
    if not source.is_file():
        _show("This copy of the course holds no answers. Ask your instructor, or use the edition for self-study.")
        return
    known = progress.load()
    given = known["hints"].get(exercise, [])
    attempt = _attempt(outline, exercise, namespace)
    tried = (
        attempt is not None
        and attempt not in given
        and len(given) == len(hint_texts(outline.assignment).get(exercise, ()))
    )
    if attempt is None or not (tried or exercise in known["shown"] or _passes(outline, exercise, namespace)):
        _show(
            f'Not yet: take the hints one by one, `hints.show("{exercise}", globals())`, and try again after the last.'
        )
        return
    if exercise not in known["shown"]:
        progress.save(known | {"shown": [*known["shown"], exercise]})
    _show(f"```python\n{reference(source, exercise)}\n```")


def hint_texts(assignment: str) -> dict[str, list[str]]:
    """Return the hints for each exercise of an assignment, in order."""
    file = FOLDER / f"{assignment}.md"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    _, *sections = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {
        name: [part.strip() for part in re.split(r"^(?=\*\*The )", section, flags=re.MULTILINE) if part.strip()]
        for name, section in zip(sections[::2], sections[1::2], strict=True)
    }


def reference(source: Path, exercise: str) -> str:
    """Return the answer in a notebook with solutions."""
    for cell in json.loads(source.read_text(encoding="utf-8"))["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == exercise:
            lines = "".join(cell["source"]).splitlines()
            return "\n".join(line for line in lines if not line.endswith((" BEGIN SOLUTION", " END SOLUTION")))
    raise ValueError(f"exercise must have an answer in {source.name}, got {exercise!r}.")


def _source(outline: Outline) -> Path:
    """Return the path of the notebook with the answers, whether this copy of the course has it or not."""
    return folder().parent / "source" / outline.assignment / f"{outline.assignment}.ipynb"


def _attempt(outline: Outline, exercise: str, namespace: dict[str, object]) -> str | None:
    """Return a fingerprint of the last attempt that was run in a notebook, None if there was none.

    It is the same for two texts that differ only in comments and blank lines. An answer that is a file has no text, so
    each new result of its check is another attempt.
    """
    names = outline.names_of(exercise)
    if not names:
        return fingerprint(_failure(outline, exercise, namespace))
    (released,) = [cell.source for cell in outline.cells if cell.name == exercise]
    defining = [text for text in cells_run(namespace) if names & (defined_names(text) | _assigned(text))]
    if not defining or _meaning(defining[-1]) == _meaning(released):
        return None
    return fingerprint(_meaning(defining[-1]))


def _assigned(text: str) -> set[str]:
    nodes = [node for node in getattr(parsed(text), "body", []) if isinstance(node, ast.Assign)]
    return {target.id for node in nodes for target in node.targets if isinstance(target, ast.Name)}


def _meaning(text: str) -> str:
    tree = parsed(text)
    return ast.dump(tree) if tree else text


def _passes(outline: Outline, exercise: str, namespace: dict[str, object]) -> bool:
    return not _failure(outline, exercise, namespace)


def _failure(outline: Outline, exercise: str, namespace: dict[str, object]) -> str:
    """Return the message of the first failing check of an exercise; empty if all pass."""
    for check in outline.checks_of(exercise):
        try:
            with redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
                exec(check.source, dict(namespace))
        except BROKEN as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _show(text: str) -> None:
    """Display a text as Markdown in a notebook, or else print it."""
    try:
        from IPython import get_ipython
        from IPython.display import Markdown, display
    except ImportError:
        print(text)
        return
    display(Markdown(text)) if get_ipython() else print(text)
