"""Nothing in the students' zip earns a point by being copied into the notebook while its exercise is open."""

import zipfile

import pytest
from checkout import ROOT, module_of
from pasting import Text, each_once, earning, texts_to_paste

from grading.authoring.bundle import write_bundle
from grading.exercises import hidden_from, records, sealed_in, topic_of, topics
from grading.isolation.student_edition import write_student_edition
from transformer_lm.checks.engine.contract import PublicExercise
from transformer_lm.checks.engine.written_tests import TestExercise

TOPICS = list(topics())
WITH_SEALS = [topic for topic in TOPICS if sealed_in(topic)]
# Answers to the others are not functions: settings, a claim, a file.
CALLED = [name for name, record in records().items() if isinstance(record.public, PublicExercise | TestExercise)]
# Code that the package itself needs, and that is word for word what an exercise asks for.
ANSWERS = {
    "labels": "lm.batch_to_labeled_samples",
    "loss": "lm.compute_loss",
    "slices": "lm.random_slices",
    "last-position-bits": "lm.last_position_bits",
    "next-probabilities": "sampling.next_probabilities",
    "embed": "modeling_lm.Embed",
    "sinusoids": "positions.sinusoids",
    "shift-target": "translation.targets.shift_target",
    "target-mask": "modeling_encoder_decoder.target_mask",
    "greedy-decode": "translation.decoding.greedy_decode",
    "cross-block": "modeling_encoder_decoder.CrossDecoderBlock",
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> dict[str, list[Text]]:
    """What can be copied out of the zip of each topic."""
    found = {}
    for topic in TOPICS:
        folder = tmp_path_factory.mktemp(topic)
        write_bundle(ROOT, topic, folder / "course.zip")
        with zipfile.ZipFile(folder / "course.zip") as archive:
            archive.extractall(folder)
        found[topic] = [
            Text(f"{topic}: {text.place}", text.source, text.names)
            for text in texts_to_paste(folder / f"transformers-{topic}")
        ]
    return found


@pytest.mark.parametrize("topic", WITH_SEALS)
def test_nothing_in_a_module_with_sealed_answers_earns_a_point(texts, topic):
    modules = {f"{topic}: transformer_lm/{module_of(name).replace('.', '/')}.py" for name in sealed_in(topic)}
    sealed = [text for text in texts[topic] if text.place in modules]
    assert len(sealed) == len(modules)
    for exercise in [record.id for record in topics()[topic] if record.id in CALLED]:
        assert earning(exercise, sealed) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("exercise", CALLED)
def test_nothing_in_any_zip_earns_a_point_for_an_open_exercise(texts, exercise):
    open_in = TOPICS[: TOPICS.index(topic_of(exercise)) + 1]
    everything = each_once(text for topic in open_in for text in texts[topic])
    assert sum(len(text.names) for text in everything) > 1000
    assert earning(exercise, everything) == {}


@pytest.mark.parametrize("topic", ["04_language_model", "06_encoder_decoder"])
def test_without_the_seal_each_of_them_would_earn_all_points(topic, tmp_path):
    edition = write_student_edition(tmp_path, hidden_from(topic))
    for exercise in [record.id for record in topics()[topic] if record.id in ANSWERS]:
        module, _, name = ANSWERS[exercise].rpartition(".")
        source = (edition / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert earning(exercise, [Text("the package", source, (name,))]) == {
            f"the package: {name}": records()[exercise].points
        }


def test_what_is_tried_are_functions_classes_methods_and_inner_functions(tmp_path):
    (tmp_path / "module.py").write_text(
        "class A:\n    def f(self):\n        def inner(x): return x\n        return inner\n\n"
        "if True:\n    async def g(): ...\n"
    )
    (text,) = texts_to_paste(tmp_path)
    assert text.names == ("A", "A.f", "g", "inner")
    namespace = {}
    exec(text.source, namespace)
    assert namespace["inner"](3) == 3


def test_what_is_made_of_the_same_statements_is_tried_once():
    first = Text("first", "def f(): return g()\n\ndef g(): return 1\n\ndef h(): return 2", ("f", "g", "h"))
    second = Text("second", "def f(): return g()\n\ndef g(): return 3\n\ndef h(): return 2", ("f", "g", "h"))
    assert [text.names for text in each_once([first, second, first])] == [("f", "g", "h"), ("f", "g")]
