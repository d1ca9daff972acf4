"""The mutants of an answer: each kind of change is made, once, and the result is valid Python."""

import ast

import pytest

from grading.authoring.mutants import mutants
from grading.exercises import records


@pytest.mark.parametrize(
    ("line", "mutant"),
    [
        ("x = a + b", "x = a - b"),  # operators
        ("x = a @ b", "x = b @ a"),
        ("x = a / b", "x = a"),
        ("x += a", "x -= a"),
        ("x += a", "x = a"),
        ("x = a < b", "x = a <= b"),  # comparisons
        ("x = a == b", "x = a != b"),
        ("x = a and b", "x = a or b"),
        ("x = ~a", "x = a"),
        ("x = a if b else c", "x = c"),
        ("x = 2", "x = 3"),  # constants
        ("x = 2", "x = -2"),
        ("x = True", "x = False"),
        ("x = 0.5", "x = 1.0"),
        ("x = float('-inf')", "x = float('inf')"),
        ("x = a.sum(dim=-1)", "x = a.sum(dim=-2)"),
        ("x = torch.einsum('bij,bjd->bid', a, b)", "x = torch.einsum('bij,bjd->bdi', a, b)"),
        ("x = f(a, b)", "x = f(b, a)"),  # arguments
        ("x = f(a, b)", "x = f(a)"),
        ("x = a.sum(dim=1, keepdim=True)", "x = a.sum(dim=1)"),  # keywords
        ("x = a.transpose(1, 2)", "x = a.transpose(1, 3)"),
        ("x = f(a, b)", "x = a"),  # calls
        ("x = a.softmax(dim=-1)", "x = a"),
        ("x = a.softmax(dim=-1)", "x = a.log_softmax(dim=-1)"),  # names of the field
        ("x = torch.tril(a)", "x = torch.triu(a)"),
        ("x = a.sum()", "x = a.mean()"),
        ("x = a.argmax()", "x = a.argmin()"),
        ("x = torch.sin(a)", "x = torch.cos(a)"),
        ("x = F.relu(a)", "x = F.gelu(a)"),
        ("q = k = 1; x = q @ k.T", "q = k = 1; x = q @ q.T"),
        ("x = a[:, 1:]", "x = a[:, :]"),  # slices
        ("x = a[:, 1:]", "x = a[:, 2:]"),
        ("x = a[:n]", "x = a[:n - 1]"),
        ("x = a[:, None]", "x = a[None, :]"),
        ("x = a[0]", "x = a"),
        ("b, n = x.shape", "n, b = x.shape"),
        ("x = [a for a in b if a]", "x = [a for a in b]"),
        ("f(x)", "pass"),  # statements
        ("if a: f()", "if not a: f()"),
        ("if a: f()", "f()"),
        ("for a in b: f(a)", "for a in b:\n f(a)\n break"),
        ("with torch.no_grad(): f()", "f()"),
        ("while a: break", "while a: continue"),
    ],
)
def test_a_line_is_changed_in_each_way_that_might_be_a_mistake(line, mutant):
    found = [each.source for each in mutants([line])]
    assert ast.unparse(ast.parse(mutant)) in found


def test_decorators_are_dropped():
    source = "@torch.no_grad()\ndef f(x):\n    return x\n"
    assert "def f(x):\n    return x" in [mutant.source for mutant in mutants([source])]


def test_a_mutant_tells_its_answer_and_its_line_with_what_it_was_before():
    first, second = "def f(a):\n    return a\n", "def f(a):\n    # a comment\n\n    return a - 1\n"
    (found,) = [mutant for mutant in mutants([first, second]) if mutant.after == "return a + 1"]
    assert (found.answer, found.line, found.before) == (1, 4, "return a - 1")
    assert found.source == "def f(a):\n    return a + 1"


def test_a_change_in_a_function_that_answers_share_is_made_once():
    shared, first, second = (
        "def g(x):\n    return x + 1\n",
        "def f(x):\n    return g(x)\n",
        "def f(x):\n    return -g(x)\n",
    )
    found = [mutant.answer for mutant in mutants([shared + first, shared + second]) if mutant.after == "return x - 1"]
    assert found == [0]


def test_no_mutant_is_an_answer():
    first, second = "def f(a):\n    return a + 1\n", "def f(a):\n    return a - 1\n"
    assert not {ast.unparse(ast.parse(text)) for text in (first, second)} & {
        mutant.source for mutant in mutants([first, second])
    }


def test_docstrings_annotations_and_messages_stay_as_they_are():
    source = 'def f(a: "-1" = None) -> "-2":\n    """-3"""\n    raise ValueError(f"{a + 1}")\n'
    assert list(mutants([source])) == []


@pytest.mark.parametrize("exercise", ["kqv", "greedy-decode"])
def test_every_mutant_is_another_text_of_python(exercise):
    record = records()[exercise]
    found = mutants([record.model_answer, *record.right.values()])
    assert len({mutant.source for mutant in found}) == len(found) > 100
    for mutant in found:
        compile(mutant.source, "<mutant>", "exec")
        assert mutant.before != mutant.after


def test_turns_take_other_mutants_until_all_are_taken():
    source = records()["attention-scores"].model_answer
    every = mutants([source])
    turns = [mutants([source], sample=10, turn=turn) for turn in range(20)]
    assert max(map(len, turns)) <= 19
    assert {mutant.source for turn in turns for mutant in turn} == {mutant.source for mutant in every}
    assert turns[0] == mutants([source], sample=10, turn=0) != turns[1]
