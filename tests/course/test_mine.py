"""Answers that students save and load: only right ones, from real cells, whatever else the cells and files contain."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkout import ROOT
from jupyter_client.manager import start_new_kernel
from sentences import opening

from transformer_lm import attention, mine, modeling_attention
from transformer_lm.checks.engine.source import cell_source

COURSE = ROOT
TOPIC = "01_self_attention"
NAMES = ["create_kqv_parameters", "kqv", "attention_scores", "SelfAttention"]
SAVE = f'from transformer_lm import mine\nmine.save("{TOPIC}", globals())'


def solutions(topic: str) -> dict[str, str]:
    """Return the set-up cell and the solution cells of an assignment, by their names."""
    cells = json.loads((COURSE / "source" / topic / f"{topic}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = {cell["metadata"].get("nbgrader", {}).get("grade_id"): cell for cell in cells if cell["cell_type"] == "code"}
    return {
        name: "".join(cell["source"])
        for name, cell in code.items()
        if name == "setup" or (name and cell["metadata"]["nbgrader"]["solution"])
    }


SETUP, KQV, SCORES, HEAD = (solutions(TOPIC)[name] for name in ("setup", "kqv", "attention-scores", "self-attention"))
WRONG_KQV = KQV.replace("return keys, queries, values", "return queries, keys, values")
WRONG_SCORES = SCORES.replace(" / math.sqrt(dh)", "")
HELPER = "def root(x):\n    return x**0.5"
SCORES_BY_HELPER = SCORES.replace("math.sqrt", "root")


class Notebook:
    """A real kernel; each test begins with an empty notebook in an empty folder."""

    def __init__(self):
        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def begin(self, folder: Path):
        self.run("%reset -f", f"import os\nos.chdir({str(folder)!r})\nos.environ.pop('TRANSFORMER_LM_ANSWERS', None)")
        self.run(f"from transformer_lm import mine\nmine.ANSWERS = {{{TOPIC!r}: mine.ANSWERS[{TOPIC!r}]}}")
        self.run(SETUP)

    def run(self, *cells: str, fails: bool = False) -> list[str]:
        """Execute cells and return the lines that the last one prints."""
        for cell in cells:
            printed = []
            reply = self.client.execute_interactive(
                cell,
                timeout=60,
                output_hook=lambda message, printed=printed: printed.append(message["content"].get("text", "")),
            )
            error = "\n".join(reply["content"].get("traceback", []))
            assert (reply["content"]["status"] == "error") is (fails and cell is cells[-1]), error
        return "".join(printed).splitlines()


@pytest.fixture(scope="module")
def kernel():
    kernel = Notebook()
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(kernel, tmp_path):
    kernel.begin(tmp_path)
    return kernel


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Return the folder of answers of a course that this process works in."""
    monkeypatch.delenv("TRANSFORMER_LM_ANSWERS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "my_answers"


def saved(folder: Path) -> str:
    return (folder / f"{TOPIC}.py").read_text(encoding="utf-8")


def write(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{TOPIC}.py").write_text(text, encoding="utf-8")


# Saving


def test_the_model_solution_is_saved_and_does_the_same_in_another_process(notebook, folder):
    lines = notebook.run(KQV, SCORES, HEAD, SAVE)
    assert lines == [*(f"✓ {name}: saved" for name in NAMES), f"Your answers are in {folder / TOPIC}.py"]

    script = f"""
import torch
from transformer_lm import attention, mine, modeling_attention
theirs = {{name: mine.load(name) for name in {NAMES}}}
x = torch.randn(2, 5, 7)
layer = theirs["create_kqv_parameters"](7, 11)
assert (layer.in_features, layer.out_features) == (7, 33)
for mine, other in zip(theirs["kqv"](x, layer), attention.kqv(x, layer), strict=True):
    assert torch.equal(mine, other)
assert torch.equal(theirs["attention_scores"](x, x[:, :3]), attention.attention_scores(x, x[:, :3]))
head, other = theirs["SelfAttention"](7, 11), modeling_attention.SelfAttention(7, 11)
other.load_state_dict(head.state_dict())
torch.testing.assert_close(head(x), other(x))
assert not any(answer.__module__.startswith("transformer_lm") for answer in theirs.values())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=folder.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name}: yours, from my_answers/{TOPIC}.py" for name in NAMES]


def test_the_file_is_readable_python_with_each_cell_once(notebook, folder):
    notebook.run(KQV, SCORES, HEAD, SAVE)
    text = saved(folder)
    assert re.match(r'"""Your answers to 01_self_attention.*"""\n\nimport math\n\nimport torch\n', text)
    for line in ("import math", "import torch", "from torch import Tensor, nn", "from torch.nn import functional as F"):
        assert text.splitlines().count(line) == 1
    for cell in (KQV, SCORES, HEAD):
        assert text.count(cell) == 1  # to the last comment
    assert text.index(KQV) < text.index(SCORES) < text.index(HEAD)
    assert [path.name for path in folder.iterdir()] == [f"{TOPIC}.py"]


def test_a_wrong_answer_is_never_saved_even_if_it_shares_a_cell_with_a_right_one(notebook, folder, capsys):
    lines = notebook.run(WRONG_KQV, WRONG_SCORES, SAVE)
    assert lines[:4] == [
        "✓ create_kqv_parameters: saved",
        "✗ kqv: not saved, its check does not pass yet",
        "✗ attention_scores: not saved, its check does not pass yet",
        "✗ SelfAttention: not saved, it is not defined: run its cell first",
    ]
    assert "def create_kqv_parameters" in saved(folder)
    assert "def kqv" not in saved(folder)
    assert "def attention_scores" not in saved(folder)
    assert mine.load("kqv") is attention.kqv


def test_nothing_is_written_while_no_answer_passes(notebook, folder):
    stub = "def kqv(x, kqv_parameters):\n    raise NotImplementedError"
    leaves = "def attention_scores(queries, keys):\n    raise SystemExit"
    lines = notebook.run(stub, leaves, SAVE)
    assert lines[1:3] == [f"✗ {name}: not saved, its check does not pass yet" for name in ("kqv", "attention_scores")]
    assert lines[-1] == "Nothing is saved."
    assert not folder.exists()


def test_the_package_s_own_is_not_saved_as_an_answer(notebook):
    lines = notebook.run("from transformer_lm.attention import kqv", SAVE)
    assert lines[1] == "✗ kqv: not saved, it is the package's"


def test_an_answer_must_not_need_other_cells(notebook, folder):
    lines = notebook.run(HELPER, SCORES_BY_HELPER, HEAD, SAVE)
    problem = "it needs something outside of its cell: NameError: name 'root' is not defined. Put that into the cell."
    assert lines[2:4] == [
        f"✗ attention_scores: not saved, {problem}",
        "✗ SelfAttention: not saved, it needs attention_scores, which is not saved",
    ]
    assert not folder.exists()

    lines = notebook.run(f"{HELPER}\n\n\n{SCORES_BY_HELPER}", SAVE)
    assert lines[2:4] == ["✓ attention_scores: saved", "✓ SelfAttention: saved"]
    assert saved(folder).count(HELPER) == 1


def test_an_answer_may_use_the_cell_of_another_answer(notebook):
    lines = notebook.run(f"{HELPER}\n\n\n{KQV}", SCORES_BY_HELPER, SAVE)
    assert lines[1:3] == ["✓ kqv: saved", "✓ attention_scores: saved"]


def test_an_answer_that_is_defined_through_another_cell_is_refused(notebook):
    lines = notebook.run(SCORES.replace("attention_scores", "scores"), "attention_scores = scores", SAVE)
    assert "needs something outside of its cell: NameError: name 'attention_scores' is not defined." in lines[2]


def test_an_answer_whose_definition_raises_takes_no_other_along(notebook):
    head = HEAD.replace("hidden: int)", "hidden: int = WIDTH)")
    lines = notebook.run("WIDTH = 8", KQV, SCORES, head, SAVE)
    assert lines[:3] == [f"✓ {name}: saved" for name in NAMES[:3]]
    assert "outside of its cell: NameError: name 'WIDTH' is not defined." in lines[3]


def test_an_answer_that_passes_alone_must_pass_in_the_whole_file_too(notebook, folder):
    kqv = "SCALE = 2\n\n\n" + KQV.replace(
        "    keys, queries", "    if x is None:\n        return SCALE\n    keys, queries"
    )
    scores = SCORES.replace("math.sqrt(dh)", "math.sqrt(dh) * globals().get('SCALE', 1)")
    lines = notebook.run(kqv, "del SCALE", scores, SAVE)
    assert lines[1] == "✓ kqv: saved"
    assert lines[2].startswith("✗ attention_scores: not saved, it needs something outside of its cell")
    assert "def attention_scores" not in saved(folder)


def test_what_a_cell_only_runs_is_left_out(notebook, folder):
    cell = f"""\
"A string that says nothing."
%pwd
from math import sqrt as root  # a root
import asyncio
await asyncio.sleep(0)
files = !ls
tried = torch.zeros(1, 2, 3, device=device); print(tried)
queries = elsewhere

# About the scores.
{SCORES_BY_HELPER}

assert attention_scores(tried, tried).shape == (1, 2, 2)
for _ in range(2):
    print(attention_scores(tried, tried))
!echo shell
%time attention_scores(tried, tried)
attention_scores(tried, tried)
"""
    assert notebook.run("elsewhere = 1", cell, SAVE)[2] == "✓ attention_scores: saved"
    body = saved(folder).split("device = best_device()")[1].strip()
    assert body == f"from math import sqrt as root  # a root\n\n\n# About the scores.\n{SCORES_BY_HELPER}"


def test_comments_decorators_and_shared_lines_stay_with_their_definition(notebook, folder):
    definition = """\
# Above the decorator.
@torch.no_grad  # not yet
def unused(): pass
"""
    kept = f"""\
two = 2; half = 1 / two; print(half)
# Above the decorator.
@staticmethod
# Between.
{SCORES.replace("math.sqrt(dh)", "dh**half")}
    # The last comment of the function."""
    notebook.run(f"{definition}{kept}\n# Below.\nprint(1)", SAVE)
    text = saved(folder)
    assert "unused" not in text
    assert kept.partition("\n")[0] in text
    assert kept.partition("\n")[2] in text
    assert "Below" not in text


def test_a_set_up_device_may_be_used(notebook):
    cell = SCORES.replace("queries @", "queries.to(device) @")
    assert notebook.run(cell, SAVE)[2] == "✓ attention_scores: saved"


def test_a_cell_whose_text_ipython_does_not_keep_is_told(notebook):
    lines = notebook.run(f"%%time\n{SCORES}", SAVE)
    reason = "the text of its cell is not known. Take out a first line that begins with %%"
    assert lines[2] == f"✗ attention_scores: not saved, {reason}"


def test_the_cell_that_ran_last_counts(notebook, folder):
    again = KQV.split("\n\n\n")[0].replace("nn.Linear(input_size, 3 * hidden)", "nn.Linear(input_size, hidden * 3)")
    notebook.run(KQV, again, SAVE)
    assert saved(folder).count("def create_kqv_parameters") == 1
    assert again in saved(folder)
    assert "def kqv" in saved(folder)


def test_saving_prints_nothing_of_the_checks_and_leaves_random_numbers_alone(notebook):
    lines = notebook.run(KQV, SCORES, HEAD, f"torch.manual_seed(1)\n{SAVE}\nprint(torch.rand(1).item())")
    torch.manual_seed(1)
    assert len(lines) == 6
    assert float(lines[-1]) == torch.rand(1).item()


# Saving again


def test_an_answer_that_is_wrong_now_leaves_the_right_one_from_before(notebook, folder):
    notebook.run(KQV, SCORES, SAVE)
    lines = notebook.run(WRONG_KQV, HELPER, SCORES_BY_HELPER, HEAD, SAVE)
    assert lines[:2] == [
        "✓ create_kqv_parameters: saved",
        "✗ kqv: not saved, its check does not pass yet (the one from before stays)",
    ]
    assert lines[2].startswith("✗ attention_scores: not saved, it needs something outside of its cell")
    assert lines[2].endswith("Put that into the cell. (the one from before stays)")
    assert lines[3] == "✓ SelfAttention: saved"
    text = saved(folder)
    for kept in (*KQV.split("\n\n\n"), SCORES, HEAD):
        assert text.count(kept) == 1
    assert text.count("import math") == 1
    for name in NAMES:
        assert "transformer_lm" not in mine.load(name).__module__


def test_a_notebook_that_has_not_run_yet_takes_nothing_away(notebook, folder):
    notebook.run(KQV, SCORES, HEAD, SAVE)
    text = saved(folder)
    notebook.begin(folder.parent)
    lines = notebook.run(SAVE)
    assert lines[3] == "✗ SelfAttention: not saved, it is not defined: run its cell first (the one from before stays)"
    assert saved(folder) == text


def test_a_loaded_answer_can_be_saved_again(notebook, folder):
    notebook.run(KQV, SCORES, SAVE)
    text = saved(folder)
    notebook.begin(folder.parent)
    lines = notebook.run('kqv = mine.load("kqv")', SAVE)
    assert lines[1] == "✓ kqv: saved"
    assert saved(folder) == text


@pytest.mark.parametrize("text", ["def kqv(:", "raise OSError", WRONG_SCORES])
def test_a_broken_file_is_replaced_by_what_passes(notebook, folder, text):
    write(folder, text)
    lines = notebook.run(KQV, SAVE)
    assert lines[1:3] == ["✓ kqv: saved", "✗ attention_scores: not saved, it is not defined: run its cell first"]
    assert "def attention_scores" not in saved(folder)


def test_a_write_that_is_cut_off_leaves_the_old_file(notebook, folder):
    notebook.run(SCORES, SAVE)
    text = saved(folder)
    cut_off = "def cut_off(*paths):\n    raise KeyboardInterrupt\nreplace, os.replace = os.replace, cut_off"
    notebook.run("import os", cut_off)
    assert not any("saved" in line for line in notebook.run(KQV, SAVE, fails=True))
    notebook.run("os.replace = replace")
    assert saved(folder) == text
    assert notebook.run(SAVE)[1] == "✓ kqv: saved"
    assert [path.name for path in folder.iterdir()] == [f"{TOPIC}.py"]


# Later assignments

LATER = """\
def check(answer):
    assert answer(torch.ones(1, 2, 3), torch.ones(1, 2, 3)).sum() > 13
mine.ANSWERS["07_later"] = (mine.Answer("twice", (check,), None),)
attention_scores = mine.load("attention_scores")
"""
TWICE = "def twice(queries, keys, kqv=None):\n    return 2 * attention_scores(queries, keys)"


def test_a_later_assignment_uses_earlier_answers(notebook, folder):
    notebook.run(SCORES, SAVE)
    lines = notebook.run(LATER, TWICE, 'mine.save("07_later", globals())')
    assert lines[0] == "✓ twice: saved"
    text = (folder / "07_later.py").read_text(encoding="utf-8")
    assert 'from transformer_lm import mine\n\nattention_scores = mine.load("attention_scores")\n\n\ndef twice' in text
    assert text.count("mine.load") == 1  # the argument named kqv is not one of the earlier answers

    assert notebook.run('twice = mine.load("twice")') == ["twice: yours, from my_answers/07_later.py"]
    used = "print(twice.__globals__['attention_scores'].__code__.co_filename)"
    assert notebook.run(used) == [str(folder / f"{TOPIC}.py")]
    notebook.run('mine.save("07_later", globals())')
    assert (folder / "07_later.py").read_text(encoding="utf-8") == text


def test_a_later_assignment_can_do_with_the_package_s(notebook, folder):
    assert notebook.run(LATER, TWICE, 'mine.save("07_later", globals())')[0] == "✓ twice: saved"
    assert notebook.run('twice = mine.load("twice")') == ["twice: yours, from my_answers/07_later.py"]


# Loading


def test_the_package_s_answer_stands_in_and_is_not_called(folder, capsys, monkeypatch):
    def hidden(*arguments):
        raise NotImplementedError

    monkeypatch.setattr(mine, "ANSWERS", {TOPIC: (mine.Answer("kqv", (hidden,), hidden),)})
    assert mine.load("kqv") is hidden
    assert capsys.readouterr().out == "kqv: the package's, since my_answers/ holds none of yours.\n"
    assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def attention_scores(:", f"SyntaxError: invalid syntax ({TOPIC}.py, line 1)"),
        ("raise RuntimeError('two\\nlines.')", "RuntimeError: two"),
        ("raise SystemExit", "SystemExit."),
        ("from transformer_lm import gone", "ImportError: cannot import name 'gone' from 'transformer_lm'"),
        ("", "NameError: name 'attention_scores' is not defined"),
        ("attention_scores = 3", "TypeError: 'int' object is not callable"),
        (SCORES, "NameError: name 'Tensor' is not defined"),
        (f"{mine.SETUP}\n\n{WRONG_SCORES}", opening("not-scaled")),
        ("attention_scores = mine.load('attention_scores')", "NameError: name 'mine' is not defined"),
        ("from transformer_lm import mine\nattention_scores = mine.load('attention_scores')", "NameError"),
        ("\0", ""),
        ("\ud800", "UnicodeDecodeError: "),
    ],
)
def test_a_broken_file_never_hurts_and_is_told_in_one_line(folder, capsys, text, why):
    folder.mkdir()
    (folder / f"{TOPIC}.py").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert mine.load("attention_scores") is attention.attention_scores
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"attention_scores: the package's, since my_answers/{TOPIC}.py has none that works: {why}")
    assert line.endswith(".")


def test_loading_prints_its_own_line_alone_and_leaves_random_numbers_alone(folder, capsys):
    write(folder, f"print('loud')\n{mine.SETUP}\n\n{SCORES}")
    torch.manual_seed(1)
    scores = mine.load("attention_scores")
    number = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(number, torch.rand(1))
    assert capsys.readouterr().out == f"attention_scores: yours, from my_answers/{TOPIC}.py\n"
    assert SCORES in cell_source(scores)


def test_a_loaded_class_stays_itself_until_its_file_changes(folder):
    write(folder, f"{mine.SETUP}\n\n{SCORES}\n\n\n{HEAD}")
    head = mine.load("SelfAttention")
    mine.load("attention_scores")
    assert mine.load("SelfAttention") is head
    assert isinstance(pickle.loads(pickle.dumps(head(7, 11))), head)
    assert "changed" not in cell_source(head)
    write(folder, f"{mine.SETUP}\n\n{SCORES}\n\n\n{HEAD}\n# changed")
    assert mine.load("SelfAttention") is not head
    assert "# changed" in cell_source(mine.load("SelfAttention"))


def test_a_loaded_answer_can_be_compiled(folder):
    write(folder, f"{mine.SETUP}\n\n{SCORES}\n\n\n{HEAD}")
    head, x = mine.load("SelfAttention")(7, 11), torch.randn(2, 5, 7)
    assert torch.equal(torch.compile(head, backend="eager", fullgraph=True)(x), head(x))


def test_unknown_names_are_refused_with_the_known_ones(folder):
    with pytest.raises(ValueError, match=r"name must be one of create_kqv_parameters, kqv.*, got 'Attention'\."):
        mine.load("Attention")
    with pytest.raises(ValueError, match=r"assignment must be one of 01_self_attention.*, got '01'\."):
        mine.save("01", {})


# Where


@pytest.mark.parametrize("root", ["notebooks", "my_answers"])
@pytest.mark.parametrize("place", ["", "notebooks", "release/01_self_attention", "a/b/c"])
def test_all_notebooks_of_a_course_share_one_folder(notebook, folder, capsys, monkeypatch, root, place):
    course = folder.parent / "course"
    (course / root).mkdir(parents=True)
    (folder.parent / "notebooks").mkdir()  # of another course, further up
    (course / place).mkdir(parents=True, exist_ok=True)
    notebook.run(f"os.chdir({str(course / place)!r})", SCORES, SAVE)
    assert (course / "my_answers" / f"{TOPIC}.py").exists()
    monkeypatch.chdir(course)
    mine.load("attention_scores")
    assert capsys.readouterr().out == f"attention_scores: yours, from my_answers/{TOPIC}.py\n"


def test_without_a_course_around_it_the_folder_is_here(folder):
    assert mine.folder() == folder


def test_an_environment_variable_names_another_folder(notebook, folder, capsys, monkeypatch):
    other = folder.parent / "far" / "answers"
    lines = notebook.run(f"os.environ['TRANSFORMER_LM_ANSWERS'] = {str(other)!r}", SCORES, SAVE)
    assert lines[-1] == f"Your answers are in {other / TOPIC}.py"
    assert not folder.exists()
    monkeypatch.setenv("TRANSFORMER_LM_ANSWERS", str(other))
    mine.load("attention_scores")
    mine.load("kqv")
    assert capsys.readouterr().out.splitlines() == [
        f"attention_scores: yours, from answers/{TOPIC}.py",
        f"kqv: the package's, since answers/{TOPIC}.py has none that works: NameError: name 'kqv' is not defined.",
    ]


# The table


def test_each_name_stands_in_the_table_once_with_the_package_s_own():
    answers = [answer for answers in mine.ANSWERS.values() for answer in answers]
    assert len({answer.name for answer in answers}) == len(answers)
    for answer in answers:
        assert answer.package.__name__ == answer.name
        assert answer.package.__module__.startswith("transformer_lm.")
    assert [answer.name for answer in mine.ANSWERS[TOPIC]] == NAMES
    assert mine.ANSWERS[TOPIC][-1].package is modeling_attention.SelfAttention
