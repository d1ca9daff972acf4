"""Marks for form: points for shape comments, style and length, taken off or added within the points of the answer."""

import re
import time
from pathlib import Path

import nbformat
import pytest

from grading.exercises import records
from grading.isolation.answers import Cell
from grading.isolation.sandbox import missing_walls
from grading.judging.judge import judge
from grading.judging.record import SETUP
from grading.processes.workers import answer_server
from transformer_lm import checks
from transformer_lm.checks.engine.style import length_of_forward, statements, style_findings

REDUCED = bool(missing_walls())  # these answers are our own, so they may be judged everywhere
HEAD = records()["self-attention"]
HEADS = records()["multi-head-attention"]
SHORT = HEAD.right["bmm-in-three-lines"]


def points(record, *sources: str) -> dict[str, float]:
    """Return the points of each part, by the end of its name."""
    cells = [Cell(number, source) for number, source in enumerate([SETUP, *sources])]
    result = judge(record, cells, answer_server("01_self_attention", REDUCED), seed=1, solution=len(sources))
    return {part.name.removeprefix(record.id).removeprefix("-check"): part.points for part in result.parts}


def uncommented(source: str) -> str:
    return (
        "\n".join(line.partition("  #")[0] for line in source.splitlines() if not line.strip().startswith("#")) + "\n"
    )


def test_a_short_and_right_answer_gets_an_extra_point():
    assert points(HEAD, SHORT) == {"-layers": 1, "": 3, "-shapes": 0, "-style": 0, "-length": 1}
    assert points(HEAD, HEAD.model_answer)["-length"] == 0  # four statements


def test_a_short_and_wrong_answer_gets_no_extra_point():
    assert points(HEAD, SHORT.replace("dim=-1", "dim=0"))["-length"] == 0
    assert (
        points(HEAD, SHORT.replace(" = ", "=", 1))["-length"] == 0
    )  # what is taken off for style leaves it less than full


COMPARISON = """

head = SelfAttention(4, 3)
x = torch.randn(2, 5, 4)
expected = F.scaled_dot_product_attention(head.q(x), head.k(x), head.v(x))
print(torch.allclose(head(x), expected, atol=1e-6))
assert torch.allclose(head(x), expected, atol=1e-6)
"""


def test_a_comparison_with_ready_made_attention_below_the_answer_costs_nothing():
    assert points(HEAD, SHORT + COMPARISON) == points(HEAD, SHORT)
    few = SHORT.replace("  # (b, n, hidden)", "", 1)  # would not count as commented if it were not run
    assert points(HEAD, few + COMPARISON) == points(HEAD, few)


def test_what_a_cell_calls_itself_does_not_count_as_a_shape():
    unbatched = COMPARISON.replace("2, 5, 4", "5, 4").replace("F.scaled", "abs(1), F.scaled")
    assert points(HEAD, SHORT + unbatched)["-shapes"] == 0


def test_a_comparison_is_not_part_of_a_short_forward():
    assert statements(SHORT + COMPARISON, "SelfAttention") == statements(SHORT, "SelfAttention") == 3
    called = SHORT.replace("def forward(self, x):", "def forward(self, x):\n        SelfAttention(4, 3)")
    assert statements(called, "SelfAttention") > 5
    for later in ("Again = SelfAttention", "again = lambda: SelfAttention(4, 3)"):  # `__init__` may be called again
        assert statements(f"{SHORT}\n\n{later}\n", "SelfAttention") > 5


@pytest.mark.parametrize(
    "moved",
    [
        "    def rest(self, q, k, v):\n        s = q @ k.mT\n        return s @ v\n",
        "\n\ndef helper(q, k):\n    s = q @ k.mT\n    return s\n",
        "    rest = lambda self, x: x\n    more = lambda self, x: x\n",
    ],
    ids=["method", "function", "lambda"],
)
def test_what_is_moved_out_of_forward_counts(moved):
    assert statements(SHORT, "SelfAttention") == 3
    assert statements(SHORT + moved, "SelfAttention") >= 5


TRIED_BELOW = """

torch.manual_seed(0)
layer = SelfAttention(4, 6)
x = torch.randn(2, 3, 4)
y = layer(x)
assert y.shape == (2, 3, 6)
print(y)
"""
TRIED_IN_A_FUNCTION = """

def test_shape():
    layer = SelfAttention(4, 6)
    y = layer(torch.randn(2, 3, 4))
    assert y.shape == (2, 3, 6)


test_shape()
"""


@pytest.mark.parametrize("below", [TRIED_BELOW, TRIED_IN_A_FUNCTION], ids=["statements", "function"])
def test_a_test_below_the_class_does_not_make_its_forward_longer(below):
    assert statements(SHORT + below, "SelfAttention") == 3


@pytest.mark.parametrize(
    "source",
    [
        SHORT + TRIED_IN_A_FUNCTION + "SelfAttention.test = test_shape\n",
        SHORT + TRIED_IN_A_FUNCTION + "keep = [test_shape]\n",
        SHORT + TRIED_IN_A_FUNCTION + "import sys\n",
        SHORT + TRIED_IN_A_FUNCTION + "print(getattr)\n",
        SHORT + TRIED_IN_A_FUNCTION.replace("\ndef", "\n@torch.no_grad()\ndef"),
        SHORT + TRIED_IN_A_FUNCTION.replace("    layer =", "    other = lambda: 1\n    layer ="),
        SHORT.replace("torch.bmm(", "moved(") + "\n\nmoved = torch.nn.Sequential(torch.bmm)\n",
        SHORT + "\n\nAgain = SelfAttention\n",
        SHORT + "\n\nfor each in range(2):\n    def f(x):\n        y = x\n        return y\n",
    ],
)
def test_what_a_forward_could_reach_counts(source):
    assert statements(source, "SelfAttention") > 3


def test_no_more_is_taken_off_than_there_is():
    untidy = uncommented(HEAD.wrong[-1].source).replace(" = ", "=")
    got = points(HEAD, untidy)
    assert (got["-layers"], got[""]) == (1, 0)
    assert (got["-shapes"], got["-style"]) == (-1, 0)
    assert sum(points(HEADS, "class MultiHeadSelfAttention: pass").values()) == 0


def test_what_is_hidden_from_the_marks_for_form_is_marked_down():
    executed = f"exec({uncommented(HEAD.model_answer)!r})"
    assert points(HEAD, executed) == {"-layers": 1, "": 3, "-shapes": -1, "-style": -1, "-length": 0}
    long = HEAD.model_answer + "# " + "x" * 30_000 + "\n"
    assert points(HEAD, long)["-shapes"] == -1


UNTIDY = """\
class Base(nn.Module):
    def __init__(self,input_size,hidden):
        super().__init__()
        self.k,self.q,self.v=(nn.Linear(input_size,hidden) for _ in range(3))

    def forward(self,x):
        k,q,v=self.k(x),self.q(x),self.v(x)
        s=q@k.mT/k.shape[-1]**.5
        w=s.softmax(-1)
        return w@v
"""
LEAN = 'class SelfAttention(Base):\n    """A head."""  # (b, n, d)\n'


@pytest.mark.parametrize(
    "sources",
    [
        [UNTIDY, LEAN],
        [UNTIDY, LEAN + "\n    def forward(self, x):\n        return super().forward(x)  # (b, n, hidden)\n"],
        [UNTIDY.replace("Base", "SelfAttention"), LEAN.replace("Base", "SelfAttention")],
        [UNTIDY + "\n\ndef swap(other):\n    return Base\n", "@swap\n" + LEAN.replace("Base", "nn.Module")],
    ],
    ids=["base", "super", "same-name", "decorator"],
)
def test_nothing_is_gained_by_writing_an_answer_in_another_cell(sources):
    got = points(HEAD, *sources)
    assert (got[""], got["-shapes"], got["-style"], got["-length"]) == (3, -1, -1, 0)


LONG = "# " + "x" * 10_000 + "\n"
IN_INIT = """\
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.k, self.q, self.v = (nn.Linear(input_size, hidden) for _ in range(3))

        def forward(x):
            k, q, v = self.k(x), self.q(x), self.v(x)  # (b, n, hidden)
            scores = q @ k.mT  # (b, n, n)
            scores = scores / k.shape[-1] ** 0.5  # (b, n, n)
            weights = scores.softmax(dim=-1)  # (b, n, n)
            return weights @ v  # (b, n, hidden)

        self.forward = forward
"""
CALLED_AGAIN = """\
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden=None):
        if hidden is not None:
            super().__init__()
            self.k, self.q, self.v = (nn.Linear(input_size, hidden) for _ in range(3))
            return
        x = input_size
        k, q, v = self.k(x), self.q(x), self.v(x)  # (b, n, hidden)
        scores = q @ k.mT / k.shape[-1] ** 0.5  # (b, n, n)
        weights = scores.softmax(dim=-1)  # (b, n, n)
        self.result = weights @ v  # (b, n, hidden)

    def forward(self, x):
        self.__init__(x)
        return self.result
"""
IN_A_LIST = """\
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.k, self.q, self.v = (nn.Linear(input_size, hidden) for _ in range(3))

    def forward(self, x):
        return [
            weights @ self.v(x)
            for k in [self.k(x)]
            for q in [self.q(x)]
            for scores in [q @ k.mT / k.shape[-1] ** 0.5]
            for weights in [scores.softmax(dim=-1)]
        ][0]
"""
AS_TEXT = f"""\
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        namespace = {{"nn": nn}}
        exec({UNTIDY.replace("Base", "Hidden")!r}, namespace)
        self.__class__ = namespace["Hidden"]
        self.k, self.q, self.v = (nn.Linear(input_size, hidden) for _ in range(3))
"""


@pytest.mark.parametrize(
    "sources",
    [
        [IN_INIT],
        [CALLED_AGAIN],
        [IN_A_LIST],
        [AS_TEXT],
        [SHORT, "Base = 3\n" + UNTIDY + "\n\nSelfAttention = Base\n"],
        [SHORT, UNTIDY, "SelfAttention = Base\n"],
        [SHORT, UNTIDY.replace("Base", "SelfAttention") + LONG],
        ["exec(" + repr(UNTIDY) + ")", LEAN],
    ],
    ids=[
        "in-init",
        "called-again",
        "in-a-list",
        "as-text",
        "renamed",
        "renamed-later",
        "decoy-before-a-long-cell",
        "base-as-text",
    ],
)
def test_a_long_forward_that_is_hidden_earns_no_extra_point(sources):
    got = points(HEAD, *sources)
    assert got[""] == 3  # it is right
    assert got["-length"] == 0


def test_a_decoy_before_a_cell_that_is_too_long_does_not_save_its_form():
    got = points(HEAD, SHORT, UNTIDY.replace("Base", "SelfAttention") + LONG)
    assert (got["-shapes"], got["-style"]) == (-1, -1)


def test_exceptions_that_a_cell_grants_itself_do_not_count():
    long = f"x = '{'a' * 120}'"
    assert style_findings(f"{long}  # noqa\n") == style_findings(f"{long}  # none\n")
    assert style_findings(f"{long}  # NoPEP8\n") != []
    assert style_findings(f'text = """  # noqa\n{long}\n"""\n') != []


HELPER = """\
def attend(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5  # (b, n, n)
    return scores.softmax(-1) @ v  # (b, n, hidden)
"""
USES_HELPER = HEAD.model_answer[: HEAD.model_answer.index("    def forward")] + (
    "    def forward(self, x):\n        return attend(self.q(x), self.k(x), self.v(x))  # (b, n, hidden)\n"
)


@pytest.mark.parametrize(
    ("helper", "answer"),
    [
        (HELPER + "\n\n", USES_HELPER),
        (HELPER + "\n\n\n\n", "\n\n\n\n" + USES_HELPER),
        (HELPER, "import math\n\n\n" + USES_HELPER),
        (HELPER + "\n\nprint('done')\n", "from math import pi\n\n\n" + USES_HELPER),
    ],
    ids=["empty-lines-at-the-end", "empty-lines-between", "import", "import-after-a-call"],
)
def test_cells_that_are_tidy_each_by_itself_cost_nothing_together(helper, answer):
    got = points(HEAD, helper, answer)
    assert (got[""], got["-shapes"], got["-style"]) == (3, 0, 0)


def test_a_finding_names_its_line_and_its_cell():
    cells = [Cell(0, SETUP), Cell(1, "\n\n" + HELPER.replace("q, k, v", "q,k,v")), Cell(2, USES_HELPER)]
    result = judge(HEAD, cells, answer_server("01_self_attention", REDUCED), seed=1, solution=2)
    (said,) = [part.message for part in result.parts if part.name.endswith("-style")]
    assert "line 3: E231 missing whitespace after ',' (in the cell that begins `def attend(q,k,v):`)" in said


def test_a_cell_that_takes_for_ever_to_judge_for_style_is_marked_down_in_time():
    blanks = "flag = not" + "\t" * 5000 + "True\n\n\n"  # pycodestyle takes the cube of their number
    start = time.monotonic()
    assert points(HEAD, blanks + HEAD.model_answer)["-style"] == -1
    assert time.monotonic() - start < 60  # it has ten seconds; all of them took minutes


def test_helpers_in_another_cell_are_looked_at_too():
    helper = """\
def attend(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5{comment}
    weights = scores.softmax(-1){comment}
    return weights @ v  # (b, n, hidden)
"""
    answer = HEAD.model_answer[: HEAD.model_answer.index("    def forward")] + (
        "    def forward(self, x):\n        return attend(self.q(x), self.k(x), self.v(x))  # (b, n, hidden)\n"
    )
    assert points(HEAD, helper.format(comment="  # (b, n, n)"), answer)["-shapes"] == 0
    got = points(HEAD, helper.format(comment=""), answer)
    assert (got[""], got["-shapes"], got["-length"]) == (3, -1, 0)


def test_what_other_exercises_ask_for_is_no_helper():
    cells = [
        Cell(0, SETUP),
        Cell(1, "def attention_scores(q,k): return q@k.mT/q.shape[-1]**.5", frozenset({"attention_scores"})),
    ]
    answer = SHORT.replace("torch.bmm(q, k.mT) / q.shape[-1] ** 0.5", "attention_scores(q, k)")
    result = judge(HEAD, [*cells, Cell(2, answer)], answer_server("01_self_attention", REDUCED), seed=1, solution=2)
    assert result.points == 5


def test_a_cell_that_is_too_long_costs_nobody_else_a_point():
    for long in ("# " + "x" * 5_000_000, "x=1\n" * 900_000, "%a\n" * 20_000):
        assert points(HEAD, long, HEAD.model_answer)[""] == 3


def test_comments_that_take_for_ever_to_read_are_marked_down_in_time():
    groups = " ".join(f"(q*q+{i}, q*q+{i + 1}, q*q+{i + 2})" for i in range(20))
    line = f"        y = torch.empty(1).expand([9999] * 3)  # {groups}\n        k, q, v ="
    start = time.monotonic()
    points(HEAD, HEAD.model_answer.replace("        k, q, v =", line))
    assert time.monotonic() - start < 60  # it has ten seconds


@pytest.mark.parametrize(
    "trick",
    [
        "import ast\nast.parse = None",
        "import sys\nsys.modules['answering'].observe = lambda *arguments: []",
        "import sys\nsys.modules['answering'].observe = lambda *arguments: 7",
        "import sys\nsys.modules['answering'].observe = lambda *arguments: [{'function': 1}] * 9",
    ],
)
def test_nobody_is_spared_comments_by_breaking_what_watches_shapes(trick):
    assert points(HEAD, trick, uncommented(HEAD.model_answer))["-shapes"] == -1


def test_comments_that_are_right_are_not_marked_down_because_of_other_cells():
    habits = "%matplotlib inline\ntorch.set_default_dtype(torch.float64)\nx = 3"
    assert points(HEAD, habits, "%time\n\n" + HEAD.model_answer) == points(HEAD, HEAD.model_answer)


@pytest.mark.parametrize("record", [HEAD, HEADS], ids=["one-head", "several-heads"])
def test_a_forward_that_raises_keeps_the_point_for_its_comments(record):
    raises = record.model_answer.replace("scores.softmax(dim=-1)", "scores.softmax(dim=9)")
    assert points(record, raises)["-shapes"] == 0
    assert shapes_told(record, raises).startswith("Nothing is taken off")
    few = uncommented(raises).replace("scores.softmax(dim=9)", "scores.softmax(dim=9)  # (b, n, n)")
    assert "1 of " in shapes_told(record, few)
    assert "there are no such comments" in shapes_told(record, uncommented(raises))


def test_comments_that_are_not_understood_cost_nothing_beside_right_ones_and_are_named():
    in_words = HEAD.model_answer.replace("dim=-1)  # (b, n, n)", "dim=-1)  # [b n n]")
    line = HEAD.model_answer[: HEAD.model_answer.index("dim=-1)  # (b, n, n)")].count("\n") + 1
    assert points(HEAD, in_words)["-shapes"] == 0
    assert shapes_told(HEAD, in_words).endswith(f"(not understood, and not judged: line {line}).")
    pretended = re.sub(r"# \(b, .*", "# [as above, of course]", HEAD.model_answer)
    assert points(HEAD, pretended)["-shapes"] == -1


def shapes_told(record, source: str) -> str:
    cells = [Cell(0, SETUP), Cell(1, source)]
    result = judge(record, cells, answer_server("01_self_attention", REDUCED), seed=1, solution=1)
    return next(part.message for part in result.parts if part.name.endswith("-shapes"))


def test_a_stub_as_it_is_released_follows_pep_8():
    for topic in ("01_self_attention", "02_multi_head_attention"):
        notebook = nbformat.read(f"release/{topic}/{topic}.ipynb", as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                assert style_findings(cell.source) == [], cell.id


def test_the_lines_by_which_nbgrader_marks_a_solution_are_no_mistake_of_style():
    marked = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION"
    assert style_findings(marked) == []
    for other in ("### BEGIN SOLUTION here", "### BEGIN HINT", "#### END SOLUTION", "###END SOLUTION"):
        assert [line for line, _ in style_findings(marked.replace("### END SOLUTION", other))] == [4], other


def test_a_style_finding_has_its_line_and_its_code():
    assert style_findings("x=1\n\ny = [1,2]\n") == [
        (1, "E225 missing whitespace around operator"),
        (3, "E231 missing whitespace after ','"),
    ]
    assert style_findings("%time\nx = 1\n!ls\n# a comment") == []
    assert style_findings(f"x = '{'a' * 113}'\n") == []
    assert style_findings(f"x = '{'a' * 115}'\n") == [(1, "E501 line too long (121 > 120 characters)")]
    assert style_findings("def broken(:\n") != []


def written(folder: Path, text: str) -> type:
    """Return the class `Tidy` as a cell with that text would define it."""
    path = folder / f"cell_{len(text)}.py"
    path.write_text(text)
    namespace: dict = {}
    exec(compile(text, path, "exec"), namespace)
    return namespace["Tidy"]


TIDY = "class Tidy:\n    def forward(self, x):\n        return x\n"


def test_the_check_of_style_says_what_to_mend(tmp_path, capsys):
    checks.style(written(tmp_path, TIDY))
    assert capsys.readouterr().out == "✓ style: the cell follows PEP 8.\n"
    with pytest.raises(checks.CheckFailed) as caught:
        checks.style(written(tmp_path, "x=1\n" * 6 + TIDY))
    assert caught.value.yours.startswith("line 1: E225 missing whitespace around operator; line 2: ")
    assert caught.value.yours.endswith("; and 3 more")


def test_the_check_of_length_tells_and_never_fails(tmp_path, capsys):
    length_of_forward(written(tmp_path, TIDY))
    assert capsys.readouterr().out == "✓ short forward: 1 statement, worth an extra point if all the rest is right.\n"
    length_of_forward(written(tmp_path, TIDY.replace("return x", "x = x\n        " * 3 + "return x")))
    assert capsys.readouterr().out == "Your forward is 4 statements long; the extra point is for 3 or fewer.\n"
