"""Assignment 06 as a class submits it: the parts of a translator, each mistake charged to the exercise it is about."""

from pathlib import Path

import pytest
from sample_class import changed, feedback, gradebook, graded_course, points_of_checks
from sentences import opening

TOPIC = "06_encoder_decoder"
FULL = points_of_checks(TOPIC)

# What each student changes in the solved notebook, and the points that differ from a full score.
STUDENTS = {
    "perfect": (changed(), {}),
    "careless": (
        changed(
            ("sinusoids", "turned.cos()", "turned.sin()"),
            ("shift-target", "said.scatter(1, words, end)", "said"),
            ("cross-attention", "(self.k, memory)", "(self.k, x)"),
            ("beam-search", "reverse=True)[:beams]", "reverse=True)[:1]"),
        ),
        {"sinusoids-check": 0, "shift-target-check": 0, "cross-attention-check": 0, "beam-search-check": 0},
    ),
    "looks-ahead-in-training": (
        changed(
            ("cross-block", "self.attention_norm(x), target_visible)",
             "self.attention_norm(x), torch.ones_like(target_visible) if self.training else target_visible)"),
            ("target-mask", ".tril()", ""),
        ),
        {"cross-block-check": 0, "target-mask-check": 0},
    ),
    "from-the-package": (
        changed(
            ("greedy-decode", "    written = torch.full_like",
             "    from transformer_lm.translation import decoding\n"
             "    return decoding.greedy_decode(model, source, start, end, pad, max_len)\n"
             "    written = torch.full_like"),
            ("sinusoids", "    row = torch.arange",
             "    from transformer_lm.positions import sinusoids\n    return sinusoids(max_len, hidden)\n"
             "    row = torch.arange"),
        ),
        {"greedy-decode-check": 0, "sinusoids-check": 0},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    changes = {student: change for student, (change, _) in STUDENTS.items()}
    return graded_course(tmp_path_factory.mktemp("course"), TOPIC, changes)


@pytest.mark.parametrize("student", STUDENTS)
def test_each_mistake_costs_the_exercise_that_it_is_about(course, student):
    grades = {name: grade[0] for name, grade in gradebook(course, TOPIC)[student]["grades"].items() if name in FULL}
    assert grades == FULL | STUDENTS[student][1]


def test_the_feedback_names_the_mistakes(course):
    careless = feedback(course, "careless", TOPIC)
    for mistake in (
        opening("sines-only", "sinusoids"),
        opening("no-end", "shift-target"),
        opening("greedy", "beam-search"),
    ):
        assert mistake in careless
    assert opening("eval-mode") in feedback(course, "looks-ahead-in-training", TOPIC)
    assert "would give away exercise greedy-decode" in feedback(course, "from-the-package", TOPIC)


def test_a_blank_earns_nothing_and_the_questions_wait_for_a_person(course):
    assert gradebook(course, TOPIC)["blank"]["score"] == 0
    for question in ("one-pass", "beam", "bottleneck"):
        points, _, needs_a_person = gradebook(course, TOPIC)["perfect"]["grades"][question]
        assert points is None
        assert needs_a_person
