"""The package that students get while exercises are open: it works, and no answer can be read in it."""

import ast
import asyncio
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import module_of

from grading.exercises import hidden_from, hidden_from_answers, records, topic_of
from grading.isolation import student_edition
from grading.isolation.student_edition import PACKAGE, write_student_edition
from grading.judging.record import SETUP

ATTENTION = ("attention", "modeling_attention", "modeling_transformer")  # these contain nothing else
LANGUAGE = ("lm", "modeling_lm", "sampling")
HEADS = ("heads.recording", "heads.scores", "heads.patterns")
TRANSLATION = (
    *("translation.targets", "modeling_encoder_decoder", "modeling_recurrent", "translation.decoding"),
    "positions",
)
MODULES = (*ATTENTION, "modeling_classifier", *LANGUAGE, *HEADS, *TRANSLATION)
# A name stays hidden until the last exercise that it helps with is closed: all that masks belongs to topic 02.
HIDDEN = {
    "attention.create_kqv_parameters": "kqv",
    "attention.kqv": "kqv",
    "attention.attention_scores": "attention-scores",
    "attention.create_causal_mask": "causal-mask",
    "attention.attention_weights": "masked-self-attention",
    "attention._corner": "masked-self-attention",
    "attention.self_attention": "masked-self-attention",
    "attention.self_attention_layer": "multi-head-attention-layer",
    "attention.multi_head_attention_layer": "multi-head-attention-layer",
    "modeling_attention.SimpleSelfAttention": "simple-attention",
    "modeling_attention.SelfAttention": "self-attention",
    "modeling_attention._mask_of_padding": "simple-attention",
    "modeling_attention.MultiHeadSelfAttention": "full-attention",
    "modeling_attention.CausalSelfAttention": "full-attention",
    "modeling_attention.split_heads": "full-attention",
    "modeling_attention.merge_heads": "full-attention",
    "modeling_attention._mask_of_memory": "simple-attention",
    "modeling_transformer.TransformerDecoderBlock": "decoder-block",
    "modeling_transformer.TransformerEncoderBlock": "encoder-block",
    "modeling_transformer.PositionEmbedding": "position-embedding",
    "modeling_classifier.pooled": "select-pool",
    "modeling_classifier.FlattenPool": "select-pool",
    "modeling_classifier.SequenceClassifier": "sequence-classifier",
    "lm.batch_to_labeled_samples": "labels",
    "lm.compute_loss": "loss",
    "translation.targets.translation_loss": "loss",
    "lm.random_slices": "slices",
    "lm.all_slices": "slices",
    "lm.loss_per_token": "last-position-bits",
    "lm.last_position_bits": "last-position-bits",
    "lm.evaluating": "last-position-bits",
    "modeling_lm.Embed": "embed",
    "modeling_lm.LMAttention": "language-model",
    "modeling_lm.LMBlock": "language-model",
    "modeling_lm.MLP": "language-model",
    "modeling_lm.TransformerLM": "language-model",
    "sampling.next_probabilities": "next-probabilities",
    "sampling.sampled_tokens": "sampling",
    "sampling._tokens": "sampling",
    "sampling.continuation": "sampling",
    "sampling.sampled_text": "sampling",
    "heads.recording.record_attention": "attention-maps",
    "heads.scores.HeadSums": "offset-profile",
    "heads.scores.measure_heads": "offset-profile",
    "heads.scores.Measured": "class-mass",
    "heads.scores._PatternSums": "pattern-score",
    "heads.scores.by_distance": "position-null",
    "heads.patterns.induction": "induction-pattern",
    "heads.patterns.duplicate": "induction-pattern",
    "heads.patterns._before": "induction-pattern",
    "positions.sinusoids": "sinusoids",
    "translation.targets.shift_target": "shift-target",
    "modeling_encoder_decoder.target_mask": "target-mask",
    "modeling_attention.CrossAttention": "cross-attention",
    "modeling_attention.MultiHeadCrossAttention": "cross-attention",
    "modeling_recurrent.AdditiveAttention": "cross-attention",
    "modeling_encoder_decoder.CrossDecoderBlock": "cross-block",
    "translation.decoding.greedy_decode": "greedy-decode",
    "translation.decoding.sample_decode": "greedy-decode",
    "translation.decoding._decoded": "greedy-decode",
    "translation.decoding.translated": "greedy-decode",
    "translation.decoding.beam_search": "beam-search",
}
BUILT_ON_EARLIER = {"attention-maps"}  # checks that call the package's functions of earlier topics
# These compute no part of attention.
VALIDATORS = {
    "attention.boolean_mask",
    "attention.check_mask",
    "attention.__getattr__",
    "modeling_attention._check_input",
    "modeling_transformer._check_width",
}
# Operations that attention, masks, and a single product for keys, queries and values need.
TELLTALE = {
    "@", "matmul", "bmm", "einsum", "softmax", "masked_fill", "tril", "triu", "chunk", "scaled_dot_product_attention",
}  # fmt: skip

# Some need one for something else: the self-test of accelerators, rotary positions, portions of a batch, Muon, sums,
# what all layers make of the weights together, tables of scores.
ALLOWED = {
    "device.py": {"softmax", "masked_fill", "@"},
    "positions.py": {"chunk"},
    "training/loop.py": {"chunk"},
    "training/gpt2.py": {"chunk"},
    "training/muon.py": {"@"},
    "checks/topic_04_language_model/sampling.py": {"@"},
    "heads/scores.py": {"@"},
    "modeling_recurrent.py": {"chunk"},
    "heads/planted.py": {"@"},
}
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))

# In the toy package, everything hidden says SECRET, and everything beside it that stays says kept.
TOY = '''\
"""A module with whatever can stand around a body: kept."""
import functools
from typing import overload

CONSTANT = 1  # kept after a constant

def plain(x):
    # SECRET before the docstring
    """A docstring, kept, with ünïcödé."""  # SECRET beside the docstring
    value = x + "SECRET"

    def inner():
        return value

# SECRET at the margin
    return inner  # SECRET at the end

    # SECRET after the end
        # SECRET further in

# kept before the next


def one_line(x): return "SECRET"  # SECRET


def one_line_with_docstring(x): "A docstring, kept."; return "SECRET"


@functools.cache
def decorated(
    x: int,  # kept in the signature
    # kept between the arguments
) -> str:

    # SECRET before the first statement
    @functools.lru_cache("SECRET")
    def inner():
        return "SECRET"
    return inner()


async def asynchronous(x):
    await x.SECRET


def only_a_docstring(x):
    """A docstring, kept."""


@overload
def overloaded(x: int) -> int: return "SECRET"
@overload
def overloaded(x: str) -> str: ...
def overloaded(x):
    return "SECRET"


if CONSTANT:
    def branch(x): return "SECRET"
else:
    def branch(x):
        return "SECRET"


class Hidden:
    """A docstring, kept."""

    constant = 2  # kept in a class

    def __init__(self):
        self.layer = "SECRET"
        # SECRET after the layer

    # kept between methods
    @property
    def value(self):
        """A docstring
    whose odd indentation is kept."""
        return "SECRET"

    @value.setter
    def value(self, new):
        self.layer = "SECRET"

    class Inside:
        def method(self):
            return "SECRET"

    alias = __init__


class Partly:
    def method(self):
        return "SECRET"

    def other(self):
        return "kept"
def last(x):
    return (
        "SECRET"
    )  # SECRET without a newline'''

KEPT = re.compile(r"kept[^\n.]*")
TOY_HIDDEN = {
    f"part.module.{name}": f"exercise-of-{name}"
    for name in (
        "plain", "one_line", "one_line_with_docstring", "decorated", "asynchronous", "only_a_docstring", "overloaded",
        "branch", "Hidden", "Partly.method", "last",
    )
}  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def functions(module: str, package: Path = PACKAGE) -> dict[str, ast.FunctionDef]:
    """Return the functions and methods of a module of the package by their dotted names."""
    found = {}
    for node in ast.parse((package / file_of(module)).read_bytes()).body:
        if isinstance(node, ast.FunctionDef):
            found[f"{module}.{node.name}"] = node
        if isinstance(node, ast.ClassDef):
            methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
            found |= {f"{module}.{node.name}.{method.name}": method for method in methods}
    return found


def hidden_functions(module: str) -> dict[str, ast.FunctionDef]:
    return {name: function for name, function in functions(module).items() if listed(name) in HIDDEN}


def listed(function: str) -> str:
    """Return the name under which a function would be hidden: that of its class, or that of the function."""
    module = next(each for each in MODULES if function.startswith(f"{each}."))
    return ".".join(function.split(".")[: module.count(".") + 2])


def own_name(function: str) -> str:
    return listed(function).rpartition(".")[2]


def file_of(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def run(edition: Path, folder: Path, script: str, *arguments: str) -> str:
    """Return what a script prints that finds the edition in PYTHONPATH, and nothing in its own folder."""
    environment = os.environ | {"PYTHONPATH": str(edition.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def edition(tmp_path_factory) -> Path:
    return write_student_edition(tmp_path_factory.mktemp("edition"), HIDDEN)


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Path:
    """A small package as a substitute for ours."""
    package = tmp_path / "toy"
    (package / "part").mkdir(parents=True)
    (package / "__init__.py").write_text('def own():\n    return "SECRET"\n')
    (package / "part" / "__init__.py").write_text("")
    (package / "part" / "module.py").write_text(TOY)
    monkeypatch.setattr(student_edition, "PACKAGE", package)
    return package


def test_with_nothing_hidden_the_edition_is_the_package(tmp_path):
    assert files(write_student_edition(tmp_path, {})) == files(PACKAGE)


def test_files_without_answers_stay_the_same(edition):
    ours, theirs = files(PACKAGE), files(edition)
    assert theirs.keys() == ours.keys()
    assert {name for name in ours if ours[name] != theirs[name]} == {file_of(module) for module in MODULES}


def test_around_a_hidden_body_no_byte_changes(tmp_path):
    edition = write_student_edition(tmp_path, {"attention.attention_scores": "attention-scores"})
    ours, theirs = (folder.joinpath("attention.py").read_text() for folder in (PACKAGE, edition))
    body = """\
    sizes = match_axes(queries=(queries, "b i dh"), keys=(keys, "b j dh"))
    return queries @ keys.transpose(1, 2) / math.sqrt(sizes["dh"])
"""
    message = "attention_scores would give away exercise attention-scores: write your own in the notebook."
    assert ours.count(body) == 1
    assert theirs == ours.replace(body, f"    raise NotImplementedError({message!r})\n")


def test_signatures_and_docstrings_stay(edition):
    for module in MODULES:
        theirs = functions(module, edition)
        for name, ours in functions(module).items():
            assert ast.get_docstring(theirs[name]) == ast.get_docstring(ours)
            ours.body, theirs[name].body = [], []
            assert ast.dump(theirs[name]) == ast.dump(ours)


def test_the_edition_imports_what_notebooks_import(edition, tmp_path):
    script = """
import transformer_lm
from transformer_lm import best_device, checks
from transformer_lm.plots.pictures import show
from transformer_lm.plots.heatmaps import plot_weights
from transformer_lm.test_values import SelfAttentionTestValues
print(best_device("cpu"), SelfAttentionTestValues.x.dim(), transformer_lm.__file__)
"""
    assert run(edition, tmp_path, script) == f"cpu 3 {edition / '__init__.py'}\n"


def assert_checks_tell_right_from_wrong(edition: Path, folder: Path, exercises: list[str]) -> None:
    script = """
import json, sys
from transformer_lm import checks
for check, defines, right, wrong in json.loads(sys.argv[1]):
    exec(right)
    getattr(checks, check)(globals()[defines])
    exec(wrong)
    try:
        getattr(checks, check)(globals()[defines])
    except checks.CheckFailed as failed:
        print(failed.mistake)
"""
    tried = [records()[exercise] for exercise in exercises]
    wrong = [(record.wrong + record.misbehaving)[0] for record in tried]
    answers = [
        (record.id.replace("-", "_"), record.defines, SETUP + record.model_answer, SETUP + each.source)
        for record, each in zip(tried, wrong, strict=True)
    ]
    lines = run(edition, folder, script, json.dumps(answers)).splitlines()
    assert [line.partition(":")[0] for line in lines[::2]] == [f"✓ {record.id}" for record in tried]
    assert lines[1::2] == [each.hint for each in wrong]


def test_checks_tell_right_from_wrong_in_the_edition(edition, tmp_path):
    exercises = [exercise for exercise in dict.fromkeys(HIDDEN.values()) if exercise not in BUILT_ON_EARLIER]
    assert_checks_tell_right_from_wrong(edition, tmp_path, exercises)


def test_checks_that_build_on_earlier_topics_tell_right_from_wrong_once_these_are_closed(tmp_path):
    edition = write_student_edition(tmp_path / "edition", hidden_from_answers("05_attention_heatmaps"))
    assert_checks_tell_right_from_wrong(edition, tmp_path, sorted(BUILT_ON_EARLIER))


def test_a_check_tells_that_what_it_is_given_is_hidden(edition, tmp_path):
    script = """
from transformer_lm import attention, checks
try:
    checks.attention_scores(attention.attention_scores)
except checks.CheckFailed as failed:
    print(failed.yours)
"""
    message = "attention_scores would give away exercise attention-scores"
    assert message in run(edition, tmp_path, script)


def test_every_hidden_function_raises_with_the_id_of_its_exercise(edition, tmp_path):
    script = """
import importlib, inspect, json, sys
errors = {}
for name in json.loads(sys.argv[1]):
    module = next(each for each in json.loads(sys.argv[2]) if name.startswith(f"{each}."))
    function = importlib.import_module(f"transformer_lm.{module}")
    for part in name.removeprefix(f"{module}.").split("."):
        function = vars(function)[part]
    function = getattr(function, "fget", function)  # of a property
    try:
        parameters = inspect.signature(function).parameters.values()
        function(*(parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD))
    except NotImplementedError as error:
        errors[name] = str(error)
print(json.dumps(errors))
"""
    names = [name for module in MODULES for name in hidden_functions(module)]
    assert {listed(name) for name in names} == HIDDEN.keys()
    assert json.loads(run(edition, tmp_path, script, json.dumps(names), json.dumps(MODULES))) == {
        name: f"{own_name(name)} would give away exercise {HIDDEN[listed(name)]}: write your own in the notebook."
        for name in names
    }


def test_no_line_of_a_hidden_body_is_in_the_edition(edition):
    kept, bodies = [], []
    for path in PACKAGE.rglob("*.py"):
        lines = path.read_text().splitlines()
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for function in hidden_functions(module).values() if module in MODULES else ():
            first = function.body[0]
            start = first.end_lineno if ast.get_docstring(function) else first.lineno - 1
            bodies += lines[start : function.end_lineno]
            lines[start : function.end_lineno] = [""] * (function.end_lineno - start)
        kept += lines
    secrets = {line.strip() for line in bodies if len(line.strip()) > 3 and line.strip() not in "\n".join(kept)}
    assert len(secrets) > 60
    readable = "\n".join(path.read_text() for path in edition.rglob("*.py"))
    assert {line for line in secrets if line in readable} == set()


@pytest.mark.parametrize("module", ATTENTION)
def test_all_that_computes_attention_is_hidden(module):
    for node in ast.parse((PACKAGE / f"{module}.py").read_bytes()).body[1:]:  # after the docstring
        assert isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef), ast.unparse(node)
    assert {name for name in functions(module) if listed(name) not in HIDDEN} <= VALIDATORS


@pytest.mark.parametrize("file", FILES)
def test_no_operation_of_attention_is_left(edition, file):
    nodes = list(ast.walk(ast.parse((edition / file).read_bytes())))
    found = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    found |= {"@" for node in nodes if isinstance(node, ast.MatMult)}
    assert found & TELLTALE <= ALLOWED.get(file, set())


def test_the_first_edition_hides_all_answers():
    assert hidden_from("01_self_attention") == HIDDEN


def test_what_training_needs_is_there_while_its_topic_is_open_and_gone_where_answers_are_judged():
    needed = {name for name, exercise in HIDDEN.items() if topic_of(exercise) == "04_language_model"}
    assert needed <= hidden_from("03_classification").keys()
    assert not needed & hidden_from("04_language_model").keys()
    assert needed <= hidden_from_answers("04_language_model").keys()
    assert hidden_from_answers("01_self_attention") == HIDDEN


def test_what_measures_heads_is_there_while_its_topic_is_open_and_gone_where_answers_are_judged():
    needed = {name for name in HIDDEN if module_of(name) in HEADS}
    assert needed <= hidden_from("04_language_model").keys()
    assert not needed & hidden_from("05_attention_heatmaps").keys()
    assert needed <= hidden_from_answers("05_attention_heatmaps").keys()


def test_a_model_can_be_trained_while_the_topic_is_open(tmp_path):
    edition = write_student_edition(tmp_path / "edition", hidden_from("04_language_model"))
    script = """
from transformer_lm.texts.corpora import load_toy
from transformer_lm.training.presets import preset
from transformer_lm.training.callbacks import sample_of
from transformer_lm.training.loop import train
corpus = load_toy(n=2000)
model = preset("default").make_model(corpus.tokenizer.vocab_size, hidden=8, num_layers=1)
print(train(model, corpus, preset("default").make_recipe(steps=3), progress=False).step)
print(len(sample_of(model, corpus, 20)))
"""
    assert run(edition, tmp_path, script) == f"3\n{16 + 1 + 20}\n"


def test_nothing_secret_stays_however_a_function_is_written(toy, tmp_path):
    edition = write_student_edition(tmp_path / "edition", TOY_HIDDEN | {"own": "exercise-of-own"})
    text = (edition / "part" / "module.py").read_text()
    assert "SECRET" not in text + (edition / "__init__.py").read_text()
    assert KEPT.findall(text) == KEPT.findall(TOY)


def test_however_a_function_is_written_it_raises_and_keeps_its_docstring(toy, tmp_path):
    edition = write_student_edition(tmp_path / "edition", TOY_HIDDEN)
    ours, theirs = {}, {}
    exec(TOY, ours)
    exec((edition / "part" / "module.py").read_text(), theirs)
    assert theirs["Partly"]().other() == "kept"
    for name in ("plain", "one_line", "one_line_with_docstring", "only_a_docstring", "Hidden"):
        assert theirs[name].__doc__ == ours[name].__doc__
    assert theirs["Hidden"].value.__doc__ == ours["Hidden"].value.__doc__

    hidden = object.__new__(theirs["Hidden"])
    names = {name.removeprefix("part.module.") for name in TOY_HIDDEN} - {"asynchronous", "Hidden", "Partly.method"}
    for name, call in [
        *((name, functools.partial(theirs[name], 1)) for name in sorted(names)),
        ("asynchronous", lambda: asyncio.run(theirs["asynchronous"](1))),
        ("Hidden", theirs["Hidden"]),
        ("Hidden", lambda: hidden.value),
        ("Hidden", lambda: setattr(hidden, "value", 1)),
        ("Hidden", hidden.alias),
        ("Hidden", hidden.Inside().method),
        ("Partly.method", theirs["Partly"]().method),
    ]:
        with pytest.raises(NotImplementedError, match=f"^{name} would give away exercise exercise-of-{name}: "):
            call()


def test_what_tools_leave_beside_the_files_is_not_copied(toy, tmp_path):
    left = ("part/__pycache__/module.cpython-311.pyc", "part/.ipynb_checkpoints/module-checkpoint.py", ".module.py")
    for name in (*left, "part/module.py~", "part/module.py.orig", "part/module.pyc", "part/module.unfinished"):
        (toy / name).parent.mkdir(exist_ok=True)
        (toy / name).write_text(TOY)
    edition = write_student_edition(tmp_path / "edition", {})
    copied = {str(path.relative_to(edition)) for path in edition.rglob("*") if path.is_file()}
    assert copied == {"__init__.py", "part/__init__.py", "part/module.py"}


@pytest.mark.parametrize(
    "name",
    [
        "part.module.unknown",
        "part.module.plain.inner",  # goes with the body of plain
        "part.module.CONSTANT",
        "part.module",
        "module.plain",
        "plain",
        "toy.part.module.plain",
    ],
)
def test_a_name_that_hides_nothing_is_refused(toy, tmp_path, name):
    with pytest.raises(ValueError, match=f"^hidden must name functions, methods or classes with methods, got '{name}'"):
        write_student_edition(tmp_path / "edition", TOY_HIDDEN | {name: "exercise"})
    assert not (tmp_path / "edition").exists()


def test_a_lambda_in_a_hidden_class_is_refused(toy, tmp_path):
    (toy / "lambdas.py").write_text("kept = lambda: 0\nclass Answer:\n    def f(self): ...\n    g = [lambda self: 1]\n")
    with pytest.raises(ValueError, match=r"^lambdas.Answer must hold no lambda outside its methods, got one in line 4"):
        write_student_edition(tmp_path / "edition", {"lambdas.Answer": "exercise"})
    write_student_edition(tmp_path / "edition", {"lambdas.Answer.f": "exercise"})


MARKED = """\
from transformer_lm.answers import hidden_while_open, sealed_while_open

@hidden_while_open("kqv", "loss")
@functools.cache
def f(): ...

if True:
    @sealed_while_open("loss")
    class Answer:
        @hidden_while_open("kqv")
        def g(self):
            @hidden_while_open("inside-a-function")
            def h(): ...
"""


def test_marks_are_read_wherever_they_stand(toy):
    (toy / "part" / "marked.py").write_text(MARKED)
    (toy / "part" / "__init__.py").write_text(MARKED)
    read = student_edition.marked_answers.__wrapped__
    for place in ("part", "part.marked"):
        hidden, sealed = read("hidden_while_open"), read("sealed_while_open")
        found = {name: exercises for name, exercises in hidden.items() if name.startswith(f"{place}.")}
        assert found.items() >= {f"{place}.f": ("kqv", "loss"), f"{place}.Answer.g": ("kqv",)}.items()
        assert sealed[f"{place}.Answer"] == ("loss",)
        assert not any(name.endswith("h") for name in hidden)


def test_a_mark_with_an_unknown_exercise_is_refused(monkeypatch):
    monkeypatch.setattr("grading.exercises.marked_answers", lambda mark: {"attention.kqv": ("kqv", "kvq")})
    with pytest.raises(ValueError, match=r"^hidden_while_open must name exercises, got kvq\.$"):
        hidden_from("01_self_attention")


def test_a_folder_with_an_edition_is_refused(toy, tmp_path):
    write_student_edition(tmp_path / "edition", TOY_HIDDEN)
    with pytest.raises(ValueError, match=r"^folder must hold no toy yet, got "):
        write_student_edition(tmp_path / "edition", TOY_HIDDEN)
