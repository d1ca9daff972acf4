"""Assignment 05 as a class submits it: detectors tried on unseen heads, claims measured again."""

from pathlib import Path

import pytest
from sample_class import changed, feedback, gradebook, graded_course, points_of_checks
from sentences import opening

TOPIC = "05_attention_heatmaps"
FULL = points_of_checks(TOPIC)

# What each student changes in the solved notebook, and the points that differ from a full score.
STUDENTS = {
    "perfect": (changed(), {}),
    "careless": (
        changed(
            ("attention-maps", "x = each(x)", "pass"),
            ("class-mass", "biq,bhij,bjk->hqk", "bjq,bhij,bik->hqk"),
            ("induction-pattern", "pattern.tril(-1)", "pattern.tril()"),
            ("head-claim", '"layer": 1, "head": 1', '"layer": 1, "head": 2'),
        ),
        {
            "attention-maps-check": 0,
            "class-mass-check": 0,
            "induction-pattern-check": 0,
            "head-claim-numbers": 0,
            "head-claim-pattern": 0,
            "head-claim-ablation": 0,
        },
    ),
    "believes-everything": (
        changed(
            ("find-heads", "(score >= 0.35) & (excess >= 0.2)", "score >= 0"),
            ("head-claim", '"loss_change"] = 4.4', '"loss_change"] = -4.4'),
        ),
        {"find-heads-check": 0, "head-claim-ablation": 0},
    ),
    "from-the-package": (
        changed(
            ("attention-maps", "    found = []\n",
             "    from transformer_lm.heads.recording import record_attention\n"
             "    return list(record_attention(nn.Sequential(*blocks), x).values())\n    found = []\n"),
            ("position-null", "profile = offset_profile(weights)  # (h, n)",
             "from transformer_lm.heads.scores import by_distance\n    return by_distance(offset_profile(weights))"),
        ),
        {
            "attention-maps-check": 0,
            "position-null-check": 0,
            "find-heads-check": 0,  # built on the null model
            "find-heads-unseen": 0,
        },
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    changes = {student: change for student, (change, _) in STUDENTS.items()}
    return graded_course(tmp_path_factory.mktemp("course"), TOPIC, changes)


@pytest.mark.parametrize("student", STUDENTS)
def test_each_mistake_costs_the_exercise_that_it_is_about(course, student):
    grades = {name: grade[0] for name, grade in gradebook(course, TOPIC)[student]["grades"].items() if name in FULL}
    expected = FULL | STUDENTS[student][1]
    if student == "believes-everything":  # heads that do something are found, and so are heads that do nothing
        assert 0 <= grades.pop("find-heads-unseen") < expected.pop("find-heads-unseen")
    assert grades == expected


def test_the_feedback_names_the_mistakes(course):
    assert opening("numbers-of-another-head", "head-claim") in feedback(course, "careless", TOPIC)
    assert opening("wrong-sign", "head-claim") in feedback(course, "believes-everything", TOPIC)
    assert "would give away exercise attention-maps" in feedback(course, "from-the-package", TOPIC)


def test_a_blank_earns_nothing_and_the_explanation_waits_for_a_person(course):
    assert gradebook(course, TOPIC)["blank"]["score"] == 0
    points, _, needs_a_person = gradebook(course, TOPIC)["perfect"]["grades"]["head-explanation"]
    assert points is None
    assert needs_a_person
