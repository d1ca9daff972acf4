"""The feedback page for a student: points, reasons and the submission, readable on phones and desktops."""

import re
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from markupsafe import Markup
from nbconvert.exporters import Exporter
from nbconvert.filters import strip_ansi
from nbconvert.writers import FilesWriter
from nbformat import NotebookNode
from nbgrader.api import Gradebook, SubmittedNotebook
from nbgrader.converters import GenerateFeedback
from traitlets import Float

from grading.nbgrader_steps.late import in_words, renew_penalty
from grading.nbgrader_steps.pipeline import NOTICE
from grading.nbgrader_steps.submission import is_check, marks, marks_of_parts
from grading.results.pages import code, rendered, shortened
from grading.results.sanitise import PICTURES, AttachedPictures, from_markdown
from transformer_lm.checks.engine.verdict import Mark

LONGEST_PAGE = 20_000_000  # characters of the whole notebook, with its pictures
LONGEST_HEADING = 200
HEADING = re.compile(r"#{1,4} +(.*)")
PICTURE = re.compile(r"<img\b([^<>]*)>")


@dataclass(frozen=True)
class Score:
    """The score of a cell. It `waits` if it needs manual grading; `judged` is its score before manual grading."""

    points: float
    most: float
    waits: bool = False
    judged: float | None = None
    by_hand: bool = False

    @property
    def state(self) -> str:
        """Whether it is full, part or none of the points, or waits; even if the maximum and the score are 0."""
        if self.waits and not self.by_hand:
            return "waits"
        if not self.points and not self.most:
            return "even"
        if self.points >= self.most:
            return "full"
        return "part" if self.points > 0 else "none"


@dataclass(frozen=True)
class Check:
    """A check with its points and messages."""

    name: str
    score: Score
    mark: Mark | None
    outputs: list[Markup] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """A cell filled in by a student, code or text, with the instructor's comment, and a `score` if graded manually."""

    name: str
    source: Markup
    is_code: bool
    comment: Markup | None
    score: Score | None = None
    question: Markup | None = None


@dataclass
class Exercise:
    """The cells under one heading: checks, the code that they check, and manually graded answers."""

    anchor: str
    title: str
    checks: list[Check] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def scores(self) -> list[Score]:
        """The scores of everything that gets points."""
        return [each.score for each in [*self.checks, *self.answers] if each.score]

    @property
    def score(self) -> Score:
        """The points of all parts together."""
        points, most = (sum(getattr(score, name) for score in self.scores) for name in ("points", "most"))
        only_waiting = all(score.state == "waits" for score in self.scores)
        return Score(points, most, waits=any(score.waits for score in self.scores), by_hand=not only_waiting)


@dataclass(frozen=True)
class Shown:
    """A cell of the whole notebook, as displayed."""

    source: Markup
    is_code: bool
    outputs: list[Markup]


class TookTooLong(BaseException):
    """A page was not ready in time; not an Exception, so that it is not taken for a fault of the notebook."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in the body if it takes longer than this; only the main thread can be interrupted.

    What is raised during a finaliser or a callback is lost, so it is raised again every second, and at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    late = False

    def stop(*signals: object) -> None:
        nonlocal late
        late = True
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if late:
        raise TookTooLong


class WholeFilesWriter(FilesWriter):
    """Writes a page under a temporary name, then renames it, so that there is never a partial page."""

    def write(self, output: str, resources: dict, notebook_name: str | None = None, **options: object) -> Path:
        """Write a page and return its path."""
        unfinished = super().write(output, resources, notebook_name=f".unfinished-{notebook_name}", **options)
        return unfinished.replace(unfinished.with_name(unfinished.name.removeprefix(".unfinished-")))


class FeedbackExporter(Exporter):
    """The exporter for `nbgrader generate_feedback`, which writes self-contained pages."""

    file_extension = ".html"
    seconds = Float(60, help="How long a page may take; then it is made without the notebook's cells.").tag(config=True)

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        if isinstance(self.parent, GenerateFeedback):
            self.parent.writer = WholeFilesWriter(parent=self.parent, config=self.parent.config)
            _remove_unfinished(self.parent)

    def from_notebook_node(
        self, nb: NotebookNode, resources: dict | None = None, **options: object
    ) -> tuple[str, dict]:
        """Return the page of a graded notebook, after the preprocessors named in nbgrader_config.py."""
        ids = resources["nbgrader"]
        with Gradebook(ids["db_url"]) as gradebook:
            renew_penalty(gradebook, gradebook.find_submission(ids["assignment"], ids["student"]), self.config)
            graded = gradebook.find_submission_notebook(ids["notebook"], ids["assignment"], ids["student"])
            facts, scores, comments = _facts(graded), _scores(graded), _comments(graded)
        try:
            with time_limit(self.seconds):
                clean, resources = super().from_notebook_node(nb, resources, **options)
                return rendered("feedback.html.j2", **facts, **page(clean, scores, comments)), resources
        except TookTooLong:
            self.log.warning("%s: the page took too long, and is made without the cells.", ids["student"])
            resources = {**resources, "output_extension": self.file_extension}
            return rendered("feedback.html.j2", **facts, **page(_bare(nb), scores, comments, False)), resources


def _remove_unfinished(converter: GenerateFeedback) -> None:
    """Remove the folders in which a page is missing, which nbgrader would take for complete."""
    names = re.compile(converter._format_source("(?P<assignment>.*)", "(?P<student>.*)", escape=True))
    for folder, notebooks in converter.assignments.items():
        found = names.match(folder)
        target = Path(converter._format_dest(found["assignment"], found["student"]))
        pages = [target / f"{Path(notebook).stem}.html" for notebook in notebooks]
        if target.is_dir() and not all(page.exists() and page.stat().st_size for page in pages):
            shutil.rmtree(target)


def _facts(graded: SubmittedNotebook) -> dict[str, object]:
    """Return the template's values from the gradebook."""
    student, submission = graded.student, graded.assignment
    penalty = graded.late_submission_penalty or 0
    return {
        "assignment": submission.name,
        "notebook": graded.name,
        "student": " ".join(filter(None, (student.first_name, student.last_name))) or student.id,
        "student_id": student.id,
        "handed_in": f"{submission.timestamp:%Y-%m-%d %H:%M} UTC" if submission.timestamp else "",
        "late": in_words(timedelta(seconds=submission.total_seconds_late)) if submission.total_seconds_late else "",
        "penalty": penalty,
        "before": graded.score,
        "score": Score(max(0, graded.score - penalty), graded.max_score),
    }


def page(
    nb: NotebookNode, scores: dict[str, Score], comments: dict[str, tuple[str, str]], whole: bool = True
) -> dict[str, object]:
    """Return the feedback template's values from the notebook, with or without all cells."""
    notice = next((cell.source for cell in nb.cells if cell.get("id") == NOTICE), "")
    shown = list(_shown_cells(cell for cell in nb.cells if cell.source != notice)) if whole else []
    return {
        "title": _title(nb),
        "waiting": sum(score.most for score in scores.values() if score.waits),
        "exercises": exercises(nb, scores, comments),
        "readable": not nb.metadata.get("grading", {}).get("unreadable", ""),
        "notice": text_of(notice) if notice else "",
        "cells": shown,
        "is_whole": whole,
    }


def _bare(nb: NotebookNode) -> NotebookNode:
    """Return a notebook with only the headings of the course's texts, the cells' marks, and the messages."""
    bare = NotebookNode(metadata=nb.metadata, cells=[])
    for cell in nb.cells:
        source = "\n".join(f"# {heading}" for heading in _headings(cell)) if marks(cell).get("locked") else ""
        bare.cells.append(NotebookNode(cell_type=cell.cell_type, metadata=cell.metadata, source=source, outputs=[]))
    return bare


def _shown_cells(cells: Iterable[NotebookNode]) -> Iterator[Shown]:
    """Yield cells as displayed, as long as they fit on a page."""
    left = LONGEST_PAGE
    for cell in cells:
        shown = _shown(cell)
        left -= len(shown.source) + sum(map(len, shown.outputs))
        if left < 0:
            yield Shown(Markup("<p>… and more cells, too long for a page</p>"), False, [])
            return
        yield shown


def _scores(graded: SubmittedNotebook) -> dict[str, Score]:
    return {grade.name: _score(grade) for grade in graded.grades}


def _score(grade: object) -> Score:
    by_hand = grade.manual_score is not None
    return Score(grade.score, grade.max_score, grade.needs_manual_grade, grade.auto_score, by_hand)


def _comments(graded: SubmittedNotebook) -> dict[str, tuple[str, str]]:
    """Return the instructor's and nbgrader's comments on each cell."""
    return {each.name: (each.manual_comment or "", each.auto_comment or "") for each in graded.comments}


def _title(nb: NotebookNode) -> str:
    return next((headings[0] for cell in nb.cells if (headings := _headings(cell))), "")


def _headings(cell: NotebookNode) -> list[str]:
    """Return the headings of a course text, without Markdown syntax and points."""
    if cell.cell_type != "markdown" or marks(cell).get("solution"):
        return []
    found, is_code = [], False
    for line in cell.source.splitlines():
        is_code ^= line.startswith("```")
        heading = HEADING.match(line)
        if heading and not is_code:
            found.append(_without_points(heading[1].rstrip(" #").replace("`", "").replace("*", "")))
    return [heading[:LONGEST_HEADING] for heading in found if heading]


def _without_points(heading: str) -> str:
    """Return a heading without the points in parentheses at its end."""
    before, _, inside = heading.removesuffix(")").rpartition("(")
    has_points = heading.endswith(")") and ")" not in inside and re.search(r"\bpoints?\b", inside)
    return before.rstrip(" ") if has_points else heading


def exercises(nb: NotebookNode, scores: dict[str, Score], comments: dict[str, tuple[str, str]]) -> list[Exercise]:
    """Return the exercises of a graded notebook, by grouping the cells under each heading."""
    judged = marks_of_parts(nb)
    # Where the course's own texts are locked, a student's headings do not count.
    locked = any(marks(cell).get("locked") and _headings(cell) for cell in nb.cells)
    found: list[Exercise] = []
    heading, question = "", None
    for cell in nb.cells:
        name = marks(cell).get("grade_id", "")
        if (
            cell.cell_type == "markdown"
            and not marks(cell).get("solution")
            and (marks(cell).get("locked") or not locked)
        ):
            heading, question = [heading, *_headings(cell)][-1], cell
        if name not in scores and not marks(cell).get("solution"):
            continue
        if not found or found[-1].title != (heading or "Exercises"):
            found.append(Exercise(f"exercise-{len(found) + 1}", heading or "Exercises"))
        if is_check(cell):
            outputs = [] if name in judged else _outputs(cell)
            found[-1].checks.append(Check(_part_name(name), scores[name], judged.get(name), outputs))
        else:
            found[-1].answers.append(_answer(cell, scores.get(name), comments.get(name, ("", "")), question))
    return [exercise for exercise in found if exercise.scores or exercise.answers]


def _part_name(name: str) -> str:
    """Return the name of a cell as words."""
    return re.sub(r"[-_]+", " ", re.sub(r"[-_](check|answer)\b", "", name))


def _answer(
    cell: NotebookNode, score: Score | None, comments: tuple[str, str], question: NotebookNode | None
) -> Answer:
    by_person, automatic = comments
    is_code = cell.cell_type == "code"
    comment = by_person or ("" if is_code else automatic)  # for code, the check says more
    return Answer(
        _part_name(marks(cell).get("grade_id", "")),
        code(cell.source) if is_code else text_of(cell.source, cell.get("attachments")),
        is_code,
        text_of(comment) if comment else None,
        score,
        text_of(question.source, question.get("attachments"))
        if question is not None and not is_code and question is not cell
        else None,
    )


class _Renderer(AttachedPictures):
    """Shows formulas as typed, because a page without scripts has no better way that is safe for any text."""

    def inline_math(self, body: str) -> str:
        return f"<code>{self.escape_html(body)}</code>"

    def block_math(self, body: str) -> str:
        return f"<pre>{self.escape_html(body.strip())}</pre>"

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(body)


def text_of(source: str, attachments: dict | None = None) -> Markup:
    """Return a Markdown text as HTML that runs nothing, with its attached pictures."""
    renderer = _Renderer(escape=False, exclude_anchor_links=True, attachments=attachments)
    return _described(from_markdown(source, renderer))


def _described(clean: str) -> Markup:
    """Return cleaned HTML in which every picture has an alternative text."""

    def describe(picture: re.Match) -> str:
        attributes = picture[1].replace(' alt=""', "")
        return f"<img{attributes}>" if " alt=" in attributes else f'<img alt="a picture"{attributes}>'

    return Markup(PICTURE.sub(describe, clean))


def _shown(cell: NotebookNode) -> Shown:
    if cell.cell_type == "code":
        return Shown(code(cell.source), True, _outputs(cell))
    return Shown(text_of(cell.source, cell.get("attachments")), False, [])


def _outputs(cell: NotebookNode) -> list[Markup]:
    return [_output(output) for output in cell.outputs]


def _output(output: NotebookNode) -> Markup:
    """Return one output, as cleaned by HarmlessOutputs, as HTML."""
    if output.output_type == "stream":
        return _text(_overwritten(output.text))
    if output.output_type == "error":
        return _text("\n".join(output.traceback) or f"{output.ename}: {output.evalue}")
    data = output.data
    if "text/html" in data:
        return Markup('<div class="scrolls">{}</div>').format(_described(data["text/html"]))
    if "text/markdown" in data:
        return text_of(data["text/markdown"])
    for kind in PICTURES:
        if kind in data:
            alt = data.get("text/plain", "").removeprefix("Figure: ") or "a picture"
            return Markup('<img alt="{}" src="data:{};base64,{}">').format(alt, kind, data[kind].strip())
    return _text(data.get("text/latex") or data.get("text/plain", ""))


def _overwritten(text: str) -> str:
    """Return a text without the earlier states of progress bars on the same line."""
    return "\n".join(line.removesuffix("\r").rpartition("\r")[2] for line in text.split("\n"))


def _text(text: str) -> Markup:
    return Markup("<pre>{}</pre>").format(shortened(strip_ansi(text)))
