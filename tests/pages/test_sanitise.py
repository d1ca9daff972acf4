"""What a page shows of a notebook: no more than fits, within a time limit, and never only half of it."""

import contextlib
import re
import shutil
import time
from pathlib import Path
from timeit import repeat

import nbformat
import pytest
from nbconvert.writers import FilesWriter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader.apps import NbGraderAPI
from sample_class import ASSIGNMENT, FULL_SCORE, OUT_OF, feedback, graded_course

from grading.nbgrader_steps.gradebook import nbgrader_of
from grading.results import feedback_page
from grading.results import sanitise as module
from grading.results.pages import LONGEST_TEXT, code
from grading.results.sanitise import HarmlessOutputs, harmless


def shown(*cells: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return cells as the pages get them."""
    return HarmlessOutputs().preprocess(new_notebook(cells=list(cells)), {})[0].cells


def page_of(*cells: nbformat.NotebookNode) -> list[feedback_page.Shown]:
    return feedback_page.page(new_notebook(cells=shown(*cells)), {}, {})["cells"]


def test_outputs_beyond_a_hundred_are_counted_and_the_last_one_stays():
    outputs = [new_output("stream", text=f"{number}\n") for number in range(150)]
    (cell,) = shown(new_code_cell("", outputs=outputs))
    assert [output.text for output in cell.outputs[-3:]] == ["98\n", "… and 50 more outputs\n", "149\n"]


def test_html_that_is_too_long_or_too_deep_is_shown_as_text():
    assert harmless("<b>a</b><script>b</script>") == "<b>a</b>"
    assert harmless("<div>" * 5_000).startswith("<pre>&lt;div&gt;&lt;div&gt;")
    table = "<table>" + "<tr><td>1.5</td></tr>" * 1_000 + "</table>"
    assert harmless(table).count("<td>") == 1_000
    long = "<b>a</b>" * 10_000
    (cell,) = shown(new_code_cell("", outputs=[new_output("display_data", data={"text/html": long})]))
    assert cell.outputs[0].data["text/html"].startswith("<pre>&lt;b&gt;a")


def test_markup_of_all_outputs_is_limited(monkeypatch):
    monkeypatch.setattr(module, "MOST_MARKUP", 20)
    cells = [new_code_cell("", outputs=[new_output("display_data", data={"text/html": "<b>bold</b>"})])] * 2
    assert [cell.outputs[0].data["text/html"] for cell in shown(*nbformat.from_dict(cells))] == [
        "<b>bold</b>",
        "<pre>&lt;b&gt;bold&lt;/b&gt;</pre>",
    ]


def test_added_cells_are_limited_in_all_and_marked_ones_each(monkeypatch):
    monkeypatch.setattr(module, "MOST_SOURCE", 30_000)
    marked = new_code_cell("#" * 50_000, metadata={"nbgrader": {"grade_id": "kqv", "solution": True}})
    first, second, answer = shown(new_markdown_cell("a" * 25_000), new_markdown_cell("b" * 25_000), marked)
    assert first.source == "a" * LONGEST_TEXT + "\n… and 5,000 more characters"
    assert second.source == "… 25,000 characters"
    assert answer.source.replace("\n", "").startswith("#" * LONGEST_TEXT + "…")


def test_a_picture_that_is_attached_once_is_shown_once():
    cell = new_markdown_cell("![](attachment:a.png) " * 100, attachments={"a.png": {"image/png": "AAAA"}})
    for _ in range(2):  # the cell keeps it
        assert str(feedback_page.text_of(cell.source, cell.attachments)).count("base64,AAAA") == 1


def test_a_page_ends_where_it_would_be_too_long(monkeypatch):
    monkeypatch.setattr(feedback_page, "LONGEST_PAGE", 250)
    picture = new_output("display_data", data={"image/png": "A" * 100})
    cells = page_of(*(new_code_cell("a", outputs=[picture]) for _ in range(5)))
    assert len(cells) == 2
    assert "more cells, too long for a page" in cells[-1].source


def test_long_lines_are_wrapped_and_all_of_them_shown():
    assert str(code("#" * 1_200)).count("#") == 1_200
    assert code("a\n  \n\nb").striptags() == code("a\n\n\nb").striptags()


def test_headings_are_found_without_points_signs_and_code():
    text = "# One (2 points)\n```\n# code\n```\n## `two` **x** ##\n#### (a) b (1 point)\n##### five\n#no\n# (points) c"
    assert feedback_page._headings(new_markdown_cell(text)) == ["One", "two x", "(a) b", "(points) c"]


@pytest.mark.parametrize(
    ("text", "left"),
    [("a\rb\n", "b\n"), ("a\r\nb", "a\nb"), ("10%\r20%\r\ndone", "20%\ndone"), ("a\n\rb\r\r", "a\n"), ("a\r", "a")],
)
def test_of_a_progress_bar_its_last_state_is_left(text, left):
    assert feedback_page._overwritten(text) == left


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    writer = feedback_page.WholeFilesWriter(build_directory=str(tmp_path))
    resources = {"output_extension": ".html"}
    assert writer.write("old", resources, notebook_name="a") == tmp_path / "a.html"

    def stop(self: FilesWriter, output: str, resources: dict, notebook_name: str) -> None:
        (tmp_path / f"{notebook_name}.html").write_text(output[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(FilesWriter, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        writer.write("new", resources, notebook_name="a")
    assert (tmp_path / "a.html").read_text() == "old"


def test_a_time_limit_ends_what_runs_and_leaves_no_alarm():
    with pytest.raises(feedback_page.TookTooLong), feedback_page.time_limit(0.05):
        re.fullmatch("(a*)*b", "a" * 60)
    with feedback_page.time_limit(0.05):
        pass
    time.sleep(0.1)


def test_a_time_limit_ends_what_swallows_it_once():
    def swallow() -> None:
        with contextlib.suppress(feedback_page.TookTooLong):
            time.sleep(30)

    begun = time.monotonic()
    with pytest.raises(feedback_page.TookTooLong), feedback_page.time_limit(0.01):
        repeat(swallow, number=1, repeat=2)
    assert time.monotonic() - begun < 30


# With a gradebook.


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    return graded_course(tmp_path_factory.mktemp("course"), ASSIGNMENT, {"perfect": lambda notebook: None})


def generate(course: Path, **settings: object) -> None:
    """Generate the feedback of all, as `nbgrader generate_feedback` without --force."""
    app = nbgrader_of(course)
    app.config.FeedbackExporter.update(settings)
    api = NbGraderAPI(config=app.config, coursedir=app.coursedir)
    assert api.generate_feedback(ASSIGNMENT, force=False)["success"]


@pytest.mark.parametrize("left", ["nothing", "an empty page"])
def test_what_was_stopped_in_the_middle_is_done_at_the_next_run(course, left):
    generate(course)
    folder = course / "feedback" / "perfect" / ASSIGNMENT
    page = folder / f"{ASSIGNMENT}.html"
    page.unlink()
    if left == "an empty page":
        page.touch()
    generate(course)
    assert "</html>" in page.read_text()
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_page_that_takes_too_long_has_points_and_messages_but_no_cells(course):
    shutil.rmtree(course / "feedback", ignore_errors=True)
    generate(course, seconds=0.001)
    words = feedback(course, "perfect", ASSIGNMENT)
    assert "Your notebook took too long to show." in words
    assert f"{FULL_SCORE:g} of {OUT_OF:g} points" in words
    assert "kqv" in words
    assert "def attention_scores" not in words
    assert "½ point" not in words
    blank = feedback(course, "blank", ASSIGNMENT)
    assert "the cell is as it was released" in blank
    shutil.rmtree(course / "feedback")
    assert "def attention_scores" in feedback(course, "perfect", ASSIGNMENT)
