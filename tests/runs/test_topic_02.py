"""Assignment 02 as a class submits it: points for parts, points off for form, and what the feedback says."""

import re

import nbformat
import pytest
from sample_class import feedback, gradebook, graded_course, points_of_checks
from sentences import opening

from grading.authoring.demo import edited

TOPIC = "02_multi_head_attention"
SCALED = " / math.sqrt(self.head_size)"
FULL = points_of_checks(TOPIC)


def changed(cell: str, *edits: tuple[str, str]):
    def change(notebook: nbformat.NotebookNode) -> None:
        for old, new in edits:
            edited(cell, old, new)(notebook)

    return change


# What each student changes in the solved notebook, and the points that differ from a full score.
STUDENTS = {
    "perfect": (lambda notebook: None, {}),
    "unscaled": (changed("multi-head-attention", (SCALED, "")), {"multi-head-attention-check-scores": 2}),
    "unmasked": (
        changed("multi-head-attention", ("if self.causal:", "if False:")), {"multi-head-attention-check-mask": 0}
    ),
    "unmixed": (
        changed("multi-head-attention", ("att = self.mix(att)", "att = att * 1")), {"multi-head-attention-check": 0}
    ),
    "unscaled-and-unmixed": (
        changed("multi-head-attention", (SCALED, ""), ("att = self.mix(att)", "att = att * 1")),
        {"multi-head-attention-check-scores": 2, "multi-head-attention-check": 0},
    ),
    "no-comments": (
        lambda notebook: re_edited(notebook, "multi-head-attention", r"  # \[.*|\n +# '.*", ""),
        {"multi-head-attention-check-shapes": -1},
    ),
    "stale-comment": (
        changed("multi-head-attention", ("softmax(dim=-1)  # [b, h, n, n]", "softmax(dim=-1)  # [b, n, n]")),
        {"multi-head-attention-check-shapes": -1},
    ),
    "untidy": (
        changed("multi-head-attention", ("probs = scores", "probs=scores"), ("b, n, _ = x", "b,n,_ = x")),
        {"multi-head-attention-check-style": -0.75},
    ),
    "very-untidy": (
        lambda notebook: re_edited(notebook, "multi-head-attention", " = ", "="),
        {"multi-head-attention-check-style": -1},
    ),
    "poor-test": (
        changed("student-test", ("    assert torch.allclose(scores, products / 2)", "    print(scores)")),
        {"student-test-check": 0.4},
    ),
    "printing-test": (
        lambda notebook: re_edited(notebook, "student-test", "assert (.*)", r"print(torch.tensor(1))"),
        {"student-test-check": 0},
    ),
    "wrong-mask": (  # the layer and the module make no use of it
        changed("causal-mask", (".tril()", ".triu()")),
        {"causal-mask-check": 0},
    ),
    "no-residual": (changed("decoder-block", ("return x + self.mlp", "return self.mlp")), {"decoder-block-check": 0}),
}  # fmt: skip


def re_edited(notebook, cell: str, pattern: str, replacement: str) -> None:
    (answer,) = [each for each in notebook.cells if each.metadata.get("nbgrader", {}).get("grade_id") == cell]
    before, answer.source = answer.source, re.sub(pattern, replacement, answer.source)
    assert answer.source != before


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    changes = {student: change for student, (change, _) in STUDENTS.items()}
    return graded_course(tmp_path_factory.mktemp("topic-02"), TOPIC, changes)


@pytest.mark.parametrize("student", STUDENTS)
def test_every_part_gets_what_it_deserves(course, student):
    grades = {name: auto for name, (auto, _, _) in gradebook(course, TOPIC)[student]["grades"].items()}
    questions = dict.fromkeys(("q3-answer", "q4-answer", "q5-answer"))  # they wait for manual grading
    assert grades == FULL | questions | STUDENTS[student][1]


def test_a_blank_submission_gets_nothing_and_loses_nothing(course):
    known = gradebook(course, TOPIC)["blank"]
    assert known["score"] == 0
    assert {auto for name, (auto, _, _) in known["grades"].items() if name.endswith("check")} == {0}


@pytest.mark.parametrize(
    ("student", "said"),
    [
        ("unscaled", "Graded: 2 of 3 points."),
        ("unscaled", opening("not-scaled")),
        ("unmixed", "This part is correct. See the messages for the other parts."),
        ("no-comments", "`scores` has no shape comment; its shape was (2, 3, 7, 7)"),
        ("stale-comment", "`probs` is said to be [b, n, n], its shape was (2, 3, 7, 7)"),
        ("untidy", "Graded: -0.75 of 0 points."),
        ("untidy", "E225 missing whitespace around operator"),
        ("poor-test", "your test catches 2 of 10 wrong versions; it misses one that does not scale"),
        ("printing-test", opening("test-prints")),
        ("no-residual", "Graded: 0 of 2 points."),
    ],
)
def test_the_feedback_says_why(course, student, said):
    assert " ".join(said.split()) in feedback(course, student, TOPIC)
