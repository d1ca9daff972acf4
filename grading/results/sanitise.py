"""Cleans notebooks for pages: no hidden tests or rubrics, and nothing that would run in a browser."""

import re
from collections import Counter

import nh3
from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import ClearHiddenTests, ClearMarkScheme, NbGraderPreprocessor

from grading.nbgrader_steps.submission import is_check, marks, marks_of_parts
from grading.results.pages import shortened, wrapped

TAGS = {
    *("a", "abbr", "acronym", "b", "blockquote", "code", "em", "i", "li", "ol", "strong", "ul"),
    *("br", "caption", "dd", "del", "details", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img"),
    *("p", "pre", "s", "span", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "u"),
}
ATTRIBUTES = {"alt", "class", "id", "title", "open", "colspan", "rowspan", "border"}
ADDRESSES = {"src": "data:image/", "href": ("http://", "https://", "mailto:", "#")}
PICTURES = ("image/png", "image/jpeg", "image/gif")
TEXTS_AND_PICTURES = frozenset({"text/plain", "text/html", "text/markdown", "text/latex", *PICTURES})

# No honest notebook reaches these limits. Without them, cleaning a few kilobytes could take hours.
LONGEST_HTML = 60_000  # characters of one output; Markdown text is cut as on all pages
MOST_MARKUP = 1_000_000  # characters of all outputs that are to be cleaned
MOST_SOURCE = 1_000_000  # characters of all cells that a student has added
MOST_OUTPUTS = 100  # of a cell
MOST_NESTING = 50_000  # sum of the depths of all elements
TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
ENDS_ITSELF = {"br", "dd", "dt", "hr", "img", "li", "p", "td", "th", "tr"}


class HideHiddenTests(ClearHiddenTests):
    """Removes hidden tests from feedback, and with them the lines of errors that would quote them.

    Printed output of such a cell is removed too, because an answer may print the arguments of a hidden test.
    """

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Hide hidden tests in all cells."""
        self.judged = set(marks_of_parts(nb))
        return super().preprocess(nb, resources)

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        """Hide hidden tests in one cell."""
        if is_check(cell) and self._remove_hidden_test_region(cell):
            said = cell.outputs[-1:] if marks(cell)["grade_id"] in self.judged else []  # the judge's message comes last
            cell.outputs = [output for output in cell.outputs if output.output_type == "error"] + said
            for output in cell.outputs:
                if output.output_type == "error":
                    output.traceback = [f"{output.ename}: {output.evalue}"]
        return cell, resources


class HideRubrics(ClearMarkScheme):
    """Removes rubrics from feedback; the release leaves them out, and grading restores them for the instructor."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        """Hide the rubric of one cell; students' own text is not changed."""
        if marks(cell).get("locked") or marks(cell).get("task"):
            self._remove_mark_scheme_region(cell)
        return cell, resources


class HarmlessOutputs(NbGraderPreprocessor):
    """Keeps text, pictures and harmless HTML of outputs, as far as a page can show them."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Clean the outputs of all cells, and shorten those that are too long."""
        self.source_left, self.markup_left = MOST_SOURCE, MOST_MARKUP
        return super().preprocess(nb, resources)

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        """Clean the outputs of one cell."""
        self._cut_source(cell)
        if len(cell.get("outputs", [])) > MOST_OUTPUTS:
            note = f"… and {len(cell.outputs) - MOST_OUTPUTS:,} more outputs\n"
            # The last output is kept: under a check, it is the judge's message.
            cell.outputs[MOST_OUTPUTS - 1 : -1] = [new_output("stream", text=note)]
        for output in cell.get("outputs", []):
            if "metadata" in output:  # nbconvert would write its width and height without quotes
                output.metadata = NotebookNode()
            data = output.get("data", {})
            for kind in set(data) - TEXTS_AND_PICTURES:
                del data[kind]
            for kind in ("text/html", "text/markdown"):
                if kind in data:
                    data[kind] = self._cleaned(data[kind], kind)
        return cell, resources

    def _cut_source(self, cell: NotebookNode) -> None:
        if not marks(cell):
            self.source_left -= len(cell.source)
            cell.source = cell.source if self.source_left >= 0 else f"… {len(cell.source):,} characters"
        cell.source = shortened(cell.source)
        if cell.cell_type == "code":
            cell.source = wrapped(cell.source)

    def _cleaned(self, text: str, kind: str) -> str:
        self.markup_left -= len(text)
        if self.markup_left < 0 or (kind == "text/html" and len(text) > LONGEST_HTML):
            return _as_text(text)
        return harmless(text if kind == "text/html" else shortened(text))


class AttachedPictures(IPythonRenderer):
    """Shows the pictures attached to a cell, each once, and omits missing ones."""

    def __init__(self, *arguments: object, attachments: dict | None = None, **options: object) -> None:
        super().__init__(*arguments, attachments=dict(attachments or {}), **options)

    def _embed_image_or_attachment(self, src: str) -> str:
        prefix, _, name = src.partition(":")
        if prefix != "attachment":
            return src
        found = self.attachments.pop(name, {})  # a picture shown a thousand times would make a page of gigabytes
        kind = next((kind for kind in PICTURES if kind in found), None)
        return f"data:{kind};base64,{found[kind]}" if kind else ""


@pass_context
def harmless_markdown(context: Context, source: str) -> Markup:
    """Return a Markdown text as HTML that runs nothing; the filter used by nbconvert's pages."""
    renderer = AttachedPictures(escape=False, attachments=context.get("cell", {}).get("attachments", {}))
    return Markup(from_markdown(source, renderer))


def from_markdown(source: str, renderer: IPythonRenderer) -> str:
    """Return a Markdown text as HTML that runs nothing."""
    few_blanks = re.sub(" {100,}", " " * 100, shortened(source))  # mistune takes quadratic time for these
    return harmless(MarkdownWithMath(renderer=renderer).render(few_blanks))


def harmless(page: str) -> str:
    """Return HTML without scripts, styles and forms; pictures must be embedded. HTML nested too deeply becomes text."""
    if _nesting(page) > MOST_NESTING:
        return _as_text(page)
    return nh3.clean(
        page,
        TAGS,
        attributes={"*": ATTRIBUTES, "a": {"href"}, "img": {"src"}},
        attribute_filter=_address,
        link_rel=None,
        url_schemes={"http", "https", "mailto", "data"},
    )


def _nesting(page: str) -> int:
    """Return roughly the sum of the depths of all elements, to which the time for cleaning is proportional."""
    opened, depth, nesting = Counter(), 0, 0
    for end, name in TAG.findall(page):
        name = name.lower()
        if name in TAGS and name not in ENDS_ITSELF:
            step = 1 if not end else -1 if opened[name] else 0
            opened[name] += step
            depth += step
        nesting += depth
    return nesting


def _as_text(page: str) -> str:
    return f"<pre>{escape(shortened(page))}</pre>"


def _address(tag: str, name: str, value: str) -> str | None:
    """Return an attribute unchanged, or None for an address that is not allowed."""
    return value if name not in ADDRESSES or value.startswith(ADDRESSES[name]) else None
