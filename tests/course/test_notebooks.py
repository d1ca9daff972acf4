"""The rules that every notebook of the course follows, and what the README says about them."""

import ast
import builtins
import re
import runpy
from pathlib import Path

import nbformat
import pytest
from checkout import ROOT

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WRITTEN = LESSONS + sorted((ROOT / "source").rglob("*.ipynb"))
BY_NAME = {"ids": lambda path: f"{path.parts[-2]}-{path.stem}"}

each_lesson = pytest.mark.parametrize("lesson", LESSONS, **BY_NAME)
each_notebook = pytest.mark.parametrize("notebook", WRITTEN, **BY_NAME)


def cells(path: Path) -> list[nbformat.NotebookNode]:
    return nbformat.read(path, as_version=4).cells


def prose(cell: nbformat.NotebookNode) -> str:
    """Return the words of a text cell that a student reads: no formula and no rubric."""
    return re.sub(r"=== BEGIN MARK SCHEME.*?END MARK SCHEME ===|\$+.*?\$+", "", cell.source, flags=re.DOTALL)


@each_notebook
def test_cells_are_short(notebook):
    for cell in cells(notebook)[:-1]:
        if cell.cell_type == "markdown":
            assert len(prose(cell).split()) <= 120, cell.id
        else:
            given = re.sub(r"### BEGIN SOLUTION.*?### END SOLUTION", "...", cell.source, flags=re.DOTALL)
            limit = 20 if given == cell.source else 30  # a class is given around the place of a solution
            limit = 25 if cell.id == "setup" else limit  # imports, line by line
            assert len(given.splitlines()) <= limit, (cell.id, len(given.splitlines()))


@each_notebook
def test_there_are_never_three_text_cells_in_a_row(notebook):
    kinds = "".join(cell.cell_type[0] for cell in cells(notebook))
    assert "mmm" not in kinds


@each_notebook
def test_no_word_makes_a_student_feel_slow(notebook):
    for cell in cells(notebook):
        assert not re.search(r"\b(simply|just|obviously|trivial(ly)?|of course)\b", prose(cell), re.IGNORECASE), cell.id


@each_notebook
def test_no_formula_has_lost_its_backslash(notebook):
    """A backslash read as the start of a control character turns \\top into a tab and "op"."""
    for cell in cells(notebook):
        assert not re.search(r"[\t\r\f\v\a\b]", cell.source), cell.id


@each_notebook
def test_title_and_last_cell_say_what_they_must(notebook):
    first, *_, last = cells(notebook)
    assert first.source.startswith(f"# {notebook.stem[:2]} · ")
    assert all(word in first.source for word in ("**Question.**", "**You build**", "**Time**", "**Points**"))
    assert all(word in last.source for word in ("## Recap", "pen questions", "**References.**"))
    assert len(re.findall(r"^- ", last.source, re.MULTILINE)) == 3


@each_lesson
def test_a_lesson_is_committed_as_executed_from_top_to_bottom_without_an_error(lesson):
    code = [cell for cell in cells(lesson) if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error", cell.id
            assert output.get("name") != "stderr", (cell.id, output.text)


def unasserted(code: list[nbformat.NotebookNode]) -> list[str]:
    """Return the cells with numbers that nbval does not compare, and that the next compared cell asserts nothing about.

    To assert something about a cell is to use one of its variables in a cell that has an `assert`.
    """
    found = []
    for place, cell in enumerate(code):
        if is_compared(cell) or not re.search(r"\d", shown(cell)):
            continue
        following = next((later for later in code[place:] if is_compared(later)), None)
        claims = ast.parse(following.source if following else "")
        asserts = any(isinstance(node, ast.Assert) for node in ast.walk(claims))
        if not asserts or not variables(claims) & variables(ast.parse(cell.source)):
            found.append(cell.id)
    return found


def is_compared(cell: nbformat.NotebookNode) -> bool:
    """Return whether nbval compares a cell's output with the stored one."""
    return "nbval" not in " ".join(cell.metadata.get("tags", [])).lower() and "NBVAL" not in cell.source.upper()


def shown(cell: nbformat.NotebookNode) -> str:
    """Return the text of a cell's output, with the descriptions of its figures."""
    return "\n".join(output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell.outputs)


def variables(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(dir(builtins)) - {"torch"}


@each_lesson
def test_no_number_goes_uncompared_unless_the_next_cell_asserts_what_it_should_be(lesson):
    assert unasserted([cell for cell in cells(lesson) if cell.cell_type == "code"]) == []


@pytest.mark.parametrize(
    ("following", "found"),
    [
        (["assert loss < 2, loss"], []),
        (["limit = 2\nassert loss < limit"], []),
        (["print(loss)"], ["train"]),
        (["assert other < 2"], ["train"]),
        (["print(3)", "assert loss < 2"], ["train"]),
        ([], ["train"]),
    ],
)
@pytest.mark.parametrize("mark", ["tag", "comment"])
def test_a_number_that_nobody_looks_at_is_found(following, found, mark):
    printed = nbformat.v4.new_output("stream", text="loss 1.95")
    train = nbformat.v4.new_code_cell("loss = train()\nprint(loss)", id="train", outputs=[printed])
    if mark == "tag":
        train.metadata["tags"] = ["nbval-ignore-output"]
    else:
        train.source = f"# NBVAL_IGNORE_OUTPUT\n{train.source}"
    assert unasserted([train, *map(nbformat.v4.new_code_cell, following)]) == found
    train.outputs[0].text = "the king sings"
    assert unasserted([train, *map(nbformat.v4.new_code_cell, following)]) == []


@each_lesson
def test_every_figure_has_a_text_for_those_who_cannot_see_it(lesson):
    figures = [
        output for cell in cells(lesson) for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert figures
    for figure in figures:
        (alt,) = re.findall(r'<img alt="([^"]{30,})"', figure.data["text/html"])
        assert figure.data["text/plain"] == f"Figure: {alt}"
    for cell in cells(lesson):
        for alt, path in re.findall(r"!\[(.*?)\]\((.*?)\)", cell.source):
            assert len(alt) >= 30, path
            assert (lesson.parent / path).is_file()


@each_lesson
def test_a_lesson_asks_for_a_prediction_in_every_section(lesson):
    text = "\n".join(cell.source for cell in cells(lesson) if cell.cell_type == "markdown")
    sections = re.split(r"^## (?=\d)", text, flags=re.MULTILINE)[1:]
    assert len(sections) > 2
    for section in sections:
        assert "**Predict.**" in section, section[:40]
        assert "**What to notice.**" in section, section[:40]


def test_the_readme_shows_the_figure_of_the_lesson():
    script = runpy.run_path(str(ROOT / "docs" / "readme_figure.py"))
    assert script["FIGURE"].read_bytes() == script["figure_bytes"](), "the figure is stale: run `make lessons`"
    assert "](docs/attention_by_hand.png)" in (ROOT / "README.md").read_text()
