"""Assignment 03 as a class submits it: answers that attend to padding, and reports of experiments never made."""

import pytest
from sample_class import changed, feedback, gradebook, graded_course, points_of_checks
from sentences import opening

TOPIC = "03_classification"
FULL = points_of_checks(TOPIC)


# What each student changes in the solved notebook, and the points that differ from a full score.
STUDENTS = {
    "perfect": (changed(), {}),
    "reads-padding": (
        changed(
            ("pooled", "x.masked_fill(padding, 0).sum(dim=1) / visible.sum(dim=1, keepdim=True)", "x.mean(dim=1)"),
            ("pooled", "x.masked_fill(padding, -math.inf).amax(dim=1)", "x.amax(dim=1)"),
            ("simple-attention", "scores.masked_fill(~visible[:, None, :], -math.inf)", "scores"),
            ("full-attention", "scores.masked_fill(~visible[:, None, None, :], -math.inf)", "scores"),
        ),
        {
            "mean-pool-check": 0,
            "max-pool-check": 0,
            "simple-attention-padding": 0,
            "full-attention-padding": 0,
        },
    ),
    "wishful": (
        changed(
            ("sequence-classifier", "return self.classify(self.pool(x, visible))",
             "return self.classify(self.pool(x, visible)).softmax(dim=-1)"),
            ("pooled", "return x.masked_fill(padding, -math.inf).amax(dim=1)", "raise NotImplementedError"),
            ("simple-experiment", "[0.75] * 5", "[1.0] * 5"),
            ("full-experiment", '"num_heads": 8', '"num_heads": 1'),
            ("position-embedding", "torch.arange(x.shape[1]", "torch.arange(1, x.shape[1] + 1"),
            ("encoder-block", "self.dropout(thought)", "F.dropout(thought, self.dropout.p)"),
        ),
        {
            "max-pool-check": 0,
            "sequence-classifier-check": 0,
            "simple-experiment-check": 0,
            "full-experiment-check": 0,
            "position-embedding-check": 0,
            "encoder-block-dropout": 0,
        },
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    changes = {student: change for student, (change, _) in STUDENTS.items()}
    return graded_course(tmp_path_factory.mktemp("topic-03"), TOPIC, changes)


@pytest.mark.parametrize("student", STUDENTS)
def test_every_part_gets_what_it_deserves(course, student):
    grades = {name: auto for name, (auto, _, _) in gradebook(course, TOPIC)[student]["grades"].items()}
    questions = dict.fromkeys(("q1-answer", "q2-answer", "q3-answer"))  # they wait for manual grading
    assert grades == FULL | questions | STUDENTS[student][1]


def test_a_blank_submission_gets_nothing(course):
    assert gradebook(course, TOPIC)["blank"]["score"] == 0


@pytest.mark.parametrize(
    ("student", "said"),
    [
        ("perfect", "The settings reach the goal here too, with seeds drawn for this submission."),
        ("wishful", opening("accuracies-too-high")),
        ("wishful", opening("not-reproduced")),
    ],
)
def test_the_feedback_says_why(course, student, said):
    assert said in feedback(course, student, TOPIC)
