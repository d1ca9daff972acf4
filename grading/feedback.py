"""Notebooks as pages: without hidden tests and rubrics, and without what would run in a reader's browser."""

import bleach
from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbgrader.preprocessors import ClearHiddenTests, ClearMarkScheme, NbGraderPreprocessor

from grading.submission import is_check, marks

TAGS = bleach.ALLOWED_TAGS | {
    *("br", "caption", "dd", "del", "details", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img"),
    *("p", "pre", "s", "span", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "u"),
}
PICTURES = ("image/png", "image/jpeg", "image/gif")
TEXTS_AND_PICTURES = frozenset({"text/plain", "text/html", "text/markdown", "text/latex", *PICTURES})


class HideHiddenTests(ClearHiddenTests):
    """Takes hidden tests out of feedback, and with them the lines of errors that would quote them.

    What such a cell prints goes too: an answer may print what a hidden test has called it with.
    """

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        """Hide what students should not see of one cell."""
        if is_check(cell) and self._remove_hidden_test_region(cell):
            cell.outputs = [output for output in cell.outputs if output.output_type == "error" or _is_told(output)]
            for output in cell.outputs:
                if output.output_type == "error":
                    output.traceback = [f"{output.ename}: {output.evalue}"]
        return cell, resources


def _is_told(output: NotebookNode) -> bool:
    """Tell whether an output is a message of the judge."""
    return output.output_type == "stream" and output.text.startswith("Graded: ")


class HideRubrics(ClearMarkScheme):
    """Takes out of feedback the rubrics, which the release leaves out and grading brings back for whoever marks."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        """Hide the rubric of one cell; what students write is theirs."""
        if marks(cell).get("locked") or marks(cell).get("task"):
            self._remove_mark_scheme_region(cell)
        return cell, resources


class HarmlessOutputs(NbGraderPreprocessor):
    """Leaves texts and pictures of a cell's outputs, and of HTML what runs nothing."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        """Clean the outputs of one cell."""
        for output in cell.get("outputs", []):
            if "metadata" in output:  # nbconvert would write its width and height without quotes
                output.metadata = NotebookNode()
            data = output.get("data", {})
            for kind in set(data) - TEXTS_AND_PICTURES:
                del data[kind]
            for kind in {"text/html", "text/markdown"} & set(data):
                data[kind] = harmless(data[kind])
        return cell, resources


class AttachedPictures(IPythonRenderer):
    """Shows pictures that are attached to a cell, and none where they are not there."""

    def _embed_image_or_attachment(self, src: str) -> str:
        prefix, _, name = src.partition(":")
        if prefix != "attachment":
            return src
        found = self.attachments.get(name, {})
        kind = next((kind for kind in PICTURES if kind in found), None)
        return f"data:{kind};base64,{found[kind]}" if kind else ""


@pass_context
def harmless_markdown(context: Context, source: str) -> Markup:
    """Return a text in Markdown as HTML that runs nothing; the filter that nbconvert's pages use."""
    renderer = AttachedPictures(escape=False, attachments=context.get("cell", {}).get("attachments", {}))
    return Markup(harmless(MarkdownWithMath(renderer=renderer).render(source)))


def harmless(page: str) -> str:
    """Return HTML without scripts, styles and forms; pictures must be part of it."""
    return bleach.clean(page, TAGS, _allowed, protocols={"http", "https", "mailto", "data"}, strip=True)


def _allowed(tag: str, name: str, value: str) -> bool:
    if name == "src":
        return tag == "img" and value.startswith("data:image/")
    if name == "href":
        return tag == "a" and value.startswith(("http://", "https://", "mailto:", "#"))
    return name in ("alt", "class", "id", "title", "open", "colspan", "rowspan", "border")
