"""Hints one by one, each after another attempt; the reference answer after all of them."""

import shutil

import pytest
from checkout import ROOT
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from grading.exercises import records
from transformer_lm import checks
from transformer_lm.checks.engine.source import cells_run, defined_names
from transformer_lm.course import progress
from transformer_lm.course.outlines import assignments, load_outline
from transformer_lm.hints import answer, hint_texts, reference
from transformer_lm.hints import show as hint

STUB = next(cell.source for cell in load_outline("01_self_attention").cells if cell.name == "attention-scores")
EXERCISE = "attention-scores"
ORDER = ("**The picture.**", "**The tool.**", "**The plan.**")


class Notebook:
    """What a notebook's kernel has: its names, and the cells that were run."""

    def __init__(self) -> None:
        self.namespace = {"In": [""], "checks": checks}
        self.run("import math\nimport torch\nfrom torch import Tensor, nn\nfrom torch.nn import functional as F")

    def run(self, source: str) -> None:
        self.namespace["In"].append(source)
        exec(source, self.namespace)

    def attempt(self, number: float) -> None:
        self.run(STUB.replace("raise NotImplementedError()", f"return queries @ keys.transpose(1, 2) * {number}"))


@pytest.fixture
def notebook(tmp_path, monkeypatch) -> Notebook:
    monkeypatch.delenv("TRANSFORMER_LM_ANSWERS")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    return Notebook()


def shown(notebook: Notebook, capsys, ask=hint) -> str:
    ask(EXERCISE, notebook.namespace)
    return capsys.readouterr().out


def count(text: str) -> int:
    """Return how many hints a text contains, which must be the first ones in order."""
    places = [text.find(name) for name in ORDER]
    there = [place for place in places if place >= 0]
    assert there == sorted(places[: len(there)])
    return len(there)


def test_an_attempt_with_magics_is_one_too():
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    typed = f"%%time\n{STUB}\n%pwd"
    shell.run_cell(typed, store_history=True, silent=False)
    assert "%%time" not in shell.user_ns["In"][-1]
    assert cells_run(shell.user_ns)[-1] == typed
    assert defined_names(typed) == {"attention_scores"}


def test_there_is_no_hint_before_an_attempt(notebook, capsys):
    assert "Try it first" in shown(notebook, capsys)
    notebook.run(STUB)
    assert "Try it first" in shown(notebook, capsys)
    notebook.run(STUB.replace("# YOUR CODE HERE", "# I do not know"))
    assert "Try it first" in shown(notebook, capsys)
    assert progress.load()["hints"] == {}


def test_each_new_attempt_gives_one_more_hint_and_asking_twice_none(notebook, capsys):
    for number in (1, 2, 3, 4):
        notebook.attempt(number)
        assert count(shown(notebook, capsys)) == min(number, 3)
        assert count(shown(notebook, capsys)) == min(number, 3)
        notebook.run(notebook.namespace["In"][-1] + "  # the same with a comment\n")
        assert count(shown(notebook, capsys)) == min(number, 3)
    assert len(progress.load()["hints"][EXERCISE]) == 3


def test_a_new_kernel_remembers_what_was_shown(notebook, capsys):
    notebook.attempt(1)
    assert count(shown(notebook, capsys)) == 1
    again = Notebook()
    again.attempt(1)
    assert count(shown(again, capsys)) == 1
    again.attempt(2)
    assert count(shown(again, capsys)) == 2


def test_an_answer_that_passes_needs_no_hint(notebook, capsys):
    notebook.run(records()[EXERCISE].model_answer)
    assert "no hint is needed" in shown(notebook, capsys)


def test_asking_changes_no_random_number_and_no_name(notebook, capsys):
    notebook.attempt(1)
    torch = notebook.namespace["torch"]
    torch.manual_seed(5)
    names = set(notebook.namespace)
    shown(notebook, capsys)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))
    assert set(notebook.namespace) == names


def test_without_the_sources_there_is_no_answer_to_show(notebook, capsys):
    for number in (1, 2, 3, 4):
        notebook.attempt(number)
        shown(notebook, capsys)
    assert "holds no answers" in shown(notebook, capsys, answer)


def test_the_answer_is_shown_after_three_hints_and_another_attempt(notebook, capsys, tmp_path):
    shutil.copytree(ROOT / "source" / "01_self_attention", tmp_path / "source" / "01_self_attention")
    ours = reference(tmp_path / "source" / "01_self_attention" / "01_self_attention.ipynb", EXERCISE)
    assert "SOLUTION" not in ours
    assert "Not yet" in shown(notebook, capsys, answer)
    for number in (1, 2, 3):
        notebook.attempt(number)
        shown(notebook, capsys)
        assert "Not yet" in shown(notebook, capsys, answer)
    notebook.attempt(4)
    assert ours in shown(notebook, capsys, answer)
    assert progress.load()["shown"] == [EXERCISE]
    assert ours in shown(notebook, capsys, answer)


def test_whoever_has_passed_may_compare_with_the_answer(notebook, capsys, tmp_path):
    shutil.copytree(ROOT / "source" / "01_self_attention", tmp_path / "source" / "01_self_attention")
    notebook.run(records()[EXERCISE].model_answer)
    assert "math.sqrt" in shown(notebook, capsys, answer)


def test_the_claim_and_the_file_of_other_topics_have_attempts_too(notebook, capsys):
    notebook.run("claim = {'layer': 0}")
    hint("head-claim", notebook.namespace)
    assert count(capsys.readouterr().out) == 1
    hint("training-run", notebook.namespace)
    assert count(capsys.readouterr().out) == 1


def test_an_exercise_without_hints_says_so(notebook, capsys):
    notebook.run("simple_experiment = {}")
    hint("simple-experiment", notebook.namespace)
    assert "The exercise **simple-experiment** has no hints." in capsys.readouterr().out


def test_an_exercise_that_does_not_exist_is_refused(notebook):
    for ask in (hint, answer):
        with pytest.raises(ValueError, match=r"exercise must be one of kqv, .*, got 'kvq'"):
            ask("kvq", notebook.namespace)


@pytest.mark.parametrize("assignment", assignments())
def test_every_hint_is_short_and_holds_no_line_of_code(assignment):
    answers = [cell.name for cell in load_outline(assignment).of_kind("answer")]
    texts = hint_texts(assignment)
    assert set(texts) <= set(answers)
    assert len(texts) >= len(answers) - 2  # an exercise that asks for a report of an experiment has none
    for name, hints in texts.items():
        assert [text.split(".**")[0] + ".**" for text in hints] == list(ORDER), name
        assert all(len(text.split()) <= 60 for text in hints), name
        assert "```" not in "".join(hints), name


def test_every_notebook_offers_its_hints():
    for assignment in assignments():
        text = (ROOT / "source" / assignment / f"{assignment}.ipynb").read_text()
        for name in hint_texts(assignment):
            assert f'# hints.show(\\"{name}\\", globals())' in text, name
