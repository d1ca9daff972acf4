"""Assignment 04 as a class submits it: notebooks, and beside them the files of trained models."""

import shutil
from pathlib import Path

import pytest
import torch
from sample_class import changed, feedback, gradebook, graded_course, points_of_checks

from transformer_lm.checks.topic_04_language_model.training_run import TRAINING_RUN
from transformer_lm.texts.corpora import load_toy
from transformer_lm.training.checkpoints import save_model
from transformer_lm.training.loop import train
from transformer_lm.training.presets import preset

TOPIC = "04_language_model"
FULL = points_of_checks(TOPIC)
FULL.pop("training-run-check")  # files are submitted for it, see below


# What each student changes in the solved notebook, and the points that differ from a full score.
STUDENTS = {
    "perfect": (changed(), {}),
    "careless": (
        changed(
            ("labels", "batch[:, :-1], batch[:, 1:]", "batch[:, :-1], batch[:, :-1]"),
            ("loss", "F.cross_entropy(scores, labels, ignore_index=pad)", "F.cross_entropy(scores, labels)"),
            ("language-model", "x = x + mlp(mlp_norm(x))", "x = mlp(mlp_norm(x))"),
            ("next-probabilities", "scores / (temperature or 1.0)", "scores * (temperature or 1.0)"),
        ),
        {
            "labels-check": 0,
            "loss-check": 0,
            "language-model-check": 0,
            "last-position-bits-check": 0,  # built on the labels
            "next-probabilities-check": 0,
            "sampling-check": 0,  # built on the probabilities
        },
    ),
    "from-the-package": (
        changed(
            ("labels", "inputs, labels = batch[:, :-1], batch[:, 1:]",
             "from transformer_lm.lm import batch_to_labeled_samples\n"
             "    inputs, labels = batch_to_labeled_samples(batch)"),
            ("slices", "return tokens[places]",
             "from transformer_lm import lm\n    return lm.random_slices(tokens, b, n)"),
        ),
        {"labels-check": 0, "slices-check": 0, "last-position-bits-check": 0},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    """A model that has learned something, though not all."""
    corpus = load_toy(n=20_000)
    torch.manual_seed(0)
    model = preset("default").make_model(corpus.tokenizer.vocab_size, hidden=64, num_layers=2)
    train(model, corpus, preset("default").make_recipe(steps=60), progress=False)
    path = tmp_path_factory.mktemp("model") / "my_model.safetensors"
    save_model(path, model, corpus.tokenizer)
    return path


@pytest.fixture(scope="module")
def course(tmp_path_factory, model_file) -> Path:
    def hands_in(folder: Path) -> None:
        shutil.copy(model_file, folder / "submitted" / "perfect" / TOPIC)
        (folder / "submitted" / "careless" / TOPIC / "my_model.safetensors").write_bytes(b"no model")

    changes = {student: change for student, (change, _) in STUDENTS.items()}
    return graded_course(tmp_path_factory.mktemp("course"), TOPIC, changes, before=hands_in)


@pytest.mark.parametrize("student", STUDENTS)
def test_each_mistake_costs_the_exercise_that_it_is_about(course, student):
    grades = gradebook(course, TOPIC)[student]["grades"]
    assert {name: grades[name][0] for name in FULL} == FULL | STUDENTS[student][1]


def test_a_model_beside_the_notebook_earns_points_by_its_loss(course, model_file):
    corpus = load_toy()
    loss = TRAINING_RUN.loss(model_file, corpus.tokenizer.decode(corpus.validation))
    assert min(abs(loss - goal) for goal, _ in TRAINING_RUN.goals) > 0.02  # or other sentences may tip the balance
    points = gradebook(course, TOPIC)["perfect"]["grades"]["training-run-check"][0]
    assert points == TRAINING_RUN.points(loss)
    assert 0 < points < 4
    assert "nats per character" in feedback(course, "perfect", TOPIC)


@pytest.mark.parametrize("student", ["careless", "from-the-package", "blank"])
def test_without_a_model_there_are_no_points_for_training(course, student):
    assert gradebook(course, TOPIC)[student]["grades"]["training-run-check"][0] == 0


def test_the_feedback_says_what_is_wrong_with_the_file(course):
    assert "cut short or of another kind" in feedback(course, "careless", TOPIC)
    assert "no such file" in feedback(course, "from-the-package", TOPIC)


def test_the_feedback_names_the_mistakes(course):
    page = feedback(course, "careless", TOPIC)
    assert "temperature" in page
    assert "would give away exercise labels" in feedback(course, "from-the-package", TOPIC)


def test_a_blank_earns_nothing_and_the_report_waits_for_a_person(course):
    blank = gradebook(course, TOPIC)["blank"]
    assert blank["score"] == 0
    report = {name: grade for name, grade in gradebook(course, TOPIC)["perfect"]["grades"].items() if name[0] == "r"}
    assert set(report) == {f"r{part}-answer" for part in range(1, 5)}
    assert all(needs_a_person for _, _, needs_a_person in report.values())
