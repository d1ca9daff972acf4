"""The check before submitting, by command and in the last cell: what passes, what fails and why, what is missing."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from checkout import ROOT
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell
from sample_class import edited
from sentences import opening

from grading.authoring.demo import STUDENTS, solved_notebook
from grading.nbgrader_steps.submission import marks
from transformer_lm import hand_in
from transformer_lm.__main__ import main
from transformer_lm.checks.engine.failure import CHECKING, FAILURE
from transformer_lm.checks.engine.ready_made import READY_MADE
from transformer_lm.checks.engine.verdict import Failure
from transformer_lm.course.outlines import load_outline
from transformer_lm.course.progress import load, progress
from transformer_lm.hand_in import CheckResult, Problem, Report, report_of

TOPIC = "01_self_attention"


def said(check: CheckResult) -> str:
    """Return what a report says of a check."""
    return check.problem.text if check.problem else ""


@pytest.fixture
def course(tmp_path, monkeypatch) -> Path:
    """A student's course folder."""
    monkeypatch.setenv("TRANSFORMER_LM_ANSWERS", str(tmp_path / "my_answers"))
    return tmp_path


def written(course: Path, notebook: nbformat.NotebookNode, name: str = TOPIC) -> Path:
    path = course / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path


def cell(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    return next(each for each in notebook.cells if marks(each).get("grade_id") == name)


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "transformer_lm", "check", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_solved_notebook_is_complete(course):
    done = command(str(written(course, solved_notebook(ROOT))), folder=course)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("✓ ") for line in lines) == 8
    assert "Points so far: 8 of 8 by checks." in lines
    assert "The file is complete and will be accepted." in lines
    assert "Traceback" not in done.stderr
    assert f"{TOPIC}        8 of 8         8 of 8   2 of 2   0 " in done.stdout
    assert (course / "my_answers" / "progress.json").is_file()


def test_whatever_is_wrong_is_said_at_once(course):
    """One notebook with a mistake of each kind, so that one kernel is enough."""
    notebook = solved_notebook(ROOT)
    edited("attention-scores", " / math.sqrt(dh)", "")(notebook)
    cell(notebook, "self-attention").source = next(
        each.source for each in load_outline(TOPIC).cells if each.name == "self-attention"
    )
    cell(notebook, "attention-scores-check").source = "print('✓')"  # the released check counts
    cell(notebook, "q1-answer").source = "YOUR ANSWER HERE"
    notebook.cells.remove(cell(notebook, "q2-answer"))
    notebook.cells.remove(cell(notebook, "kqv-look"))
    notebook.cells.append(nbformat.from_dict(cell(notebook, "kqv") | {"id": "again"}))
    notebook.cells.insert(3, new_code_cell("1 / 0"))
    own = ['hints.show("attention-scores", globals())', f'hand_in.check("{TOPIC}")  # as often as you like', "tried"]
    notebook.cells += map(new_code_cell, own)
    notebook.cells.insert(3, new_code_cell("!true\n%time print('magics are fine')"))
    report = report_of(written(course, notebook, "my homework"))

    results = {check.name: said(check) for check in report.checks}
    assert results["kqv-check"] == ""
    assert results["attention-scores-check"].startswith(opening("not-scaled"))
    assert results["self-attention-check"] == "not answered yet"
    assert report.notes[0] == "Grading will put back what you have deleted: kqv-look."
    assert report.notes[1].startswith("Cell 5, one of your own, stops with ZeroDivisionError")
    assert len(report.notes) == 3  # a check in a check does nothing
    assert "name 'tried' is not defined (demonstrations, which may define it, are not run here)" in report.notes[2]
    assert load()["hints"] == {}
    assert report.problems == [
        "The cell kqv occurs 2 times: delete all but one.",
        "The cell q2-answer is gone: copy it from a fresh notebook, with all its metadata.",
        f"Its name must be {TOPIC}.ipynb, got my homework.ipynb.",
    ]
    assert report.written == [("q1-answer", 1, False), ("q2-answer", 1, False)]
    assert not report.is_complete
    assert "Points so far: 2 of 8 by checks." in str(report)
    assert "still empty: q1-answer, q2-answer" in str(report)
    assert progress().rows[0][:4] == (TOPIC, "2 of 8", "2 of 8", "0 of 2")


def test_ready_made_attention_is_promised_no_points(course):
    """The judge gives none for it, so the check before submitting must not say otherwise."""
    notebook = solved_notebook(ROOT)
    STUDENTS["cheats-ready-made"](notebook)
    results = {check.name: check for check in report_of(written(course, notebook)).checks}
    refused = {name for name, check in results.items() if said(check).startswith(READY_MADE)}
    assert refused == {"self-attention-check", "self-attention-check-shapes"}
    assert results["self-attention-check"].earned == 0


def test_what_grading_accepts_is_accepted(course):
    """An answer beside the stub, no set-up, and names only where Colab keeps them."""
    notebook = solved_notebook(ROOT)
    stub = next(each.source for each in load_outline(TOPIC).cells if each.name == "kqv")
    place = notebook.cells.index(cell(notebook, "kqv"))
    notebook.cells.insert(place, new_code_cell(cell(notebook, "kqv").source))
    notebook.cells[place + 1].source = stub
    notebook.cells.remove(cell(notebook, "setup"))
    for each in notebook.cells:
        each.metadata = nbformat.from_dict({"id": each.pop("id")})
    path = course / f"{TOPIC}.ipynb"
    path.write_text(json.dumps(notebook | {"nbformat_minor": 4}))
    report = report_of(path)
    assert [check.problem for check in report.checks] == [None] * 8
    assert report.notes == ["Grading will put back what you have deleted: setup."]
    assert report.problems == []


def test_a_check_in_a_check_ends_at_once(course, monkeypatch, capsys):
    monkeypatch.setenv(CHECKING, "1")
    path = written(course, solved_notebook(ROOT))
    monkeypatch.setattr(hand_in, "_outcomes", lambda *arguments: pytest.fail("it must not run"))
    assert main(["check", str(path)]) == 0
    monkeypatch.chdir(course)
    hand_in.check(TOPIC)
    assert capsys.readouterr().out == ""


def test_a_folder_that_cannot_be_written_costs_the_progress_alone(course, monkeypatch):
    monkeypatch.setattr(hand_in, "_outcomes", lambda sources, folder: [""] * len(sources))
    (course / "my_answers").write_text("a file in the place of the folder")
    report = report_of(written(course, solved_notebook(ROOT)))
    assert report.is_complete
    assert report.notes[0].startswith("Your progress could not be saved: ")


def test_a_check_by_degrees_gives_its_points():
    failure = Failure("a", "a loss of 0.510, for 3 points", "less", "Train longer.", earned=3)
    shown = {"output_type": "display_data", "data": {FAILURE: failure.as_table()}}
    error = {"output_type": "error", "ename": "CheckFailed", "evalue": str(failure)}
    problem = hand_in._problem({"outputs": [shown, error]})
    assert problem.text == "A loss of 0.510, for 3 points. Train longer."
    report = Report(TOPIC, [], [], [CheckResult("training-run-check", 4.0, problem)], [])
    assert "Points so far: 3 of 4 by checks." in str(report)
    assert "3 of 4" in str(report).splitlines()[0]
    assert "complete" not in str(report)
    assert "will be accepted as it is" in str(report)


def test_an_answer_that_hangs_or_kills_the_kernel_costs_seconds(course, monkeypatch):
    monkeypatch.setattr(hand_in, "CELL_SECONDS", 12)  # torch is imported in some of them
    notebook = solved_notebook(ROOT)
    edited("kqv", "    keys, ", "    while True:\n        pass\n    keys, ")(notebook)
    cell(notebook, "self-attention").source += "\nimport os\nos._exit(1)"
    results = {check.name: said(check) for check in report_of(written(course, notebook)).checks}
    assert results["kqv-check-parameters"] == ""
    assert results["kqv-check"] == "it was stopped after 12 seconds"
    assert results["attention-scores-check"] == ""
    assert results["self-attention-check"] == "it killed the kernel"


def test_the_last_cell_asks_for_a_saved_file_then_reports_on_it(course):
    """A real kernel runs the notebook as a student would."""
    path = written(course, solved_notebook(ROOT))
    older = nbformat.read(path, as_version=4)
    edited("kqv", "return keys, queries, values", "return queries, keys, values")(older)
    cell(older, "kqv").source += "\n%time 1 + 1"  # the text that runs is not the text that is saved
    last = f'hand_in.check("{TOPIC}")'
    assert any(each.source == last for each in older.cells)
    live = nbformat.v4.new_notebook(
        cells=[new_code_cell(cell(older, name).source) for name in ("setup", "kqv")] + [new_code_cell(last)]
    )
    client = NotebookClient(live, kernel_name="python3", resources={"metadata": {"path": str(course)}})
    with client.setup_kernel():
        for number, each in enumerate(live.cells):
            client.execute_cell(each, number)
        (said,) = live.cells[-1].outputs
        assert "The saved file does not have your latest answer to kqv." in said.text
        assert "save the notebook (Ctrl+S)" in said.text
        nbformat.write(older, path)
        client.execute_cell(live.cells[-1], len(live.cells) - 1)
    report, table = live.cells[-1].outputs
    assert f"✗ kqv-check                    0 of 1    {opening('queries-first', 'kqv')}" in report.text
    assert "| 01_self_attention | 7 of 8 | 7 of 8 | 2 of 2 |" in table.data["text/markdown"]


def test_what_is_not_there_is_said_in_the_cell(course, monkeypatch, capsys):
    monkeypatch.chdir(course)
    hand_in.check(TOPIC)
    assert f"There is no {TOPIC}.ipynb in " in capsys.readouterr().out
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    hand_in.check(TOPIC)
    assert "Grading does its own checks." in capsys.readouterr().out


def test_a_model_that_is_handed_in_must_lie_beside_the_notebook(tmp_path):
    topic = "04_language_model"
    file = tmp_path / f"{topic}.ipynb"
    assert hand_in._files_beside(file, load_outline(topic)) == ["my_model.safetensors is not beside it."]
    with (tmp_path / "my_model.safetensors").open("wb") as model:
        model.truncate(50_000_000)
    (problem,) = hand_in._files_beside(file, load_outline(topic))
    assert problem == "my_model.safetensors must have at most 40,000,000 bytes, got 50,000,000."
    assert hand_in._files_beside(file, load_outline(TOPIC)) == []


def test_a_model_counts_even_if_the_cell_for_training_is_as_it_was(course, monkeypatch):
    topic = "04_language_model"
    ran = []

    def outcomes(sources: list[str], folder: Path) -> list[str]:
        ran.extend(sources)
        return ["" if "checks.training_run" in source else "NameError" for source in sources]

    monkeypatch.setattr(hand_in, "_outcomes", outcomes)
    file = course / f"{topic}.ipynb"
    file.write_bytes((ROOT / "release" / topic / file.name).read_bytes())
    passed = report_of(file).passed
    assert passed == ["training-run-check"]
    assert ran


def test_the_cell_that_trains_is_not_run():
    topic = "04_language_model"
    notebook = json.loads((ROOT / "release" / topic / f"{topic}.ipynb").read_text())
    for each in notebook["cells"]:
        each["source"] = "".join(each["source"])
    names = [name for _, name, _ in hand_in._to_run(notebook, load_outline(topic), {})]
    assert "training-run" not in names
    assert "training-run-check" in names
    assert "" not in names  # no demonstration either


def test_what_is_no_notebook_of_this_course_is_refused_in_one_sentence(course, monkeypatch, capsys):
    monkeypatch.chdir(course)
    (course / "text.ipynb").write_text("no JSON")
    (course / "other.ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook(cells=[new_code_cell("1")])))
    for file, words in (
        ("missing.ipynb", "check: NOTEBOOK must be a file, got missing.ipynb."),
        ("text.ipynb", "check: NOTEBOOK must be a Jupyter notebook, got text.ipynb: "),
        ("other.ipynb", f"check: NOTEBOOK must be one of {TOPIC}, "),
    ):
        assert main(["check", file]) == 1
        said = capsys.readouterr().err
        assert said.startswith(words)
        assert len(said.splitlines()) == 1


def test_metadata_that_an_editor_has_lost_does_no_harm(course):
    notebook = solved_notebook(ROOT)
    for each in notebook.cells:
        each.metadata = nbformat.NotebookNode()
    found, problems, notes = hand_in._matched(hand_in._read(written(course, notebook)), load_outline(TOPIC))
    assert (problems, notes) == ([], [])
    assert "def kqv" in found["kqv"]


def test_a_long_problem_is_wrapped_below_its_beginning():
    report = Report(
        TOPIC, [], [], [CheckResult("kqv-check", 1.0, Problem("word " * 40)), CheckResult("other", 0, None)], []
    )
    first, second, third, *_, last = str(report).splitlines()[:4]
    assert first.index("word") == second.index("word") == third.index("word")
    assert max(map(len, (first, second, third))) <= 96
    assert last == "✓ other"


def test_a_report_survives_the_way_to_another_process():
    report = Report(
        TOPIC,
        ["a"],
        ["b"],
        [CheckResult("c", 1.0, Problem("d", "CheckFailed", Failure("a", "b", "c", "d", "id", "e", 0.5)))],
        [("e", 2.0, True)],
    )
    assert str(hand_in._read_report(hand_in.as_json(report))) == str(report)
