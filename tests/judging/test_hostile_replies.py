"""The judge trusts no reply: whatever sizes, types and numbers an answer reports, it says what is wrong and goes on."""

import json
import random
import resource
import socket

import numpy as np
import pytest
import torch
from repetition import first_of
from safetensors.numpy import save

from grading.exercises import records
from grading.isolation.answers import AnswerEnded
from grading.isolation.inside.messages import _SIZES, NUMBERS, MalformedMessage, receive
from grading.judging.record import ValueRecord
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.engine.verdict import Mark

# Those whose judges have special rules, or compute with reported numbers; make test-all takes all.
SOME = ("kqv", "multi-head-attention", "simple-attention", "encoder-block", "head-claim", "student-test")
EMPTY = np.zeros((NUMBERS, 0))  # takes no byte
ARRAYS = {
    "empty": EMPTY,
    "no-axis": np.float64(3.0).reshape(()),
    "one-axis": np.zeros(7),
    "column": np.zeros((300_000, 1)),
    "row": np.zeros((1, 300_000)),
    "many-axes": np.zeros((1,) * 12 + (5,)),
    "nan": np.full((2, 3, 4), np.nan),
    "bool": np.ones((3, 2), dtype=bool),
    "bytes": np.full((3, 5, 4), 255, dtype=np.uint8),
    "least": np.full(9, np.iinfo(np.int64).min),
    "half": np.full((2, 2), 60_000, dtype=np.float16),
}
LONGEST_MESSAGE = 20_000  # characters, of four texts that are cut
DEEP = json.loads("[" * 500 + "]" * 500)
TABLES = {
    "text": "right",
    "deep": DEEP,
    "number": 10**400,
    "nan": float("nan"),
    "list": [[1], [2]],
    "long": [1] * 100_000,
    "true": True,
    "nested": {"": {"": {}}, "weight": DEEP, "\0": "\0", "layers": {"k": 3}},
}


ORDER = sorted(records().values(), key=lambda record: record.id not in SOME)
EXERCISES = first_of(ORDER, len(SOME))
VALUE_EXERCISES = first_of(
    [each for each in ORDER if isinstance(each, ValueRecord)],
    sum(isinstance(records()[each], ValueRecord) for each in SOME),
)


class Liar:
    """Replaces an answer that computes the right output, and then reports another value for a part of it."""

    def __init__(self, record, spoil) -> None:
        self.record, self.spoil, self.calls = record, spoil, 0
        self.kept, self.folder, self.errors, self.sources = {}, None, {}, []

    def keep_running(self) -> None:
        pass

    def cells_of(self, name: str) -> tuple:
        return ()

    def ask(self, do: str, arrays=None, **request):
        self.calls += 1
        reply, found = self._truth(arrays, **request) if do == "call" else ({"error": None}, {})
        return self.spoil(self.calls, reply, found)

    def converse(self, do: str, respond, **request):
        for reply, arrays in ({"wants": ["0", "1"]}, dict.fromkeys("01", EMPTY)), ({"wants": DEEP}, {}), ({}, {}):
            respond(reply, arrays)
        return self.spoil(1, {"raised": None}, {})[0]

    def _truth(self, arrays, build: bool = False, evaluate: bool = False, gradients: bool = False, **request):
        public = self.record.public
        leaves = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        for leaf in leaves.values():
            leaf.requires_grad_(leaf.is_floating_point() and gradients)
        given = {name: leaf.clone() for name, leaf in leaves.items()}
        if build:
            self.subject = public.build(self.record.answer(self.record.model_answer), given)
        if isinstance(self.subject, torch.nn.Module):
            self.subject.train(not evaluate)
        outputs = dict(zip(public.axes, public.call(self.subject, given), strict=True))
        found = {f"outputs/{name}": output.detach().numpy() for name, output in outputs.items()}
        found |= {f"after/{name}": tensor.detach().numpy() for name, tensor in given.items()}
        targets = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        for name in public.trains if gradients else ():
            loss = outputs[name].square().sum()
            made = torch.autograd.grad(loss, list(targets.values()), retain_graph=True, materialize_grads=True)
            found |= {f"gradients/{name}/{to}": each.numpy() for to, each in zip(targets, made, strict=True)}
        return {"error": None, "products": public.products, "kinds": {}}, found


def complaints(record, spoil) -> list[str]:
    """Judge a liar; return which parts get neither points nor a short reason, and whether it takes too much memory."""
    liar, found = Liar(record, spoil), []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for part in record.parts:
        try:
            said = part.judge(record, part, liar, random.Random(1))
        except (CheckFailed, AnswerEnded) as failed:
            said = failed
        if not isinstance(said, str | Mark | CheckFailed | AnswerEnded):
            found.append(f"{part.name} returns {type(said)}")
        if len(str(said)) >= LONGEST_MESSAGE:
            found.append(f"{part.name} says {len(str(said))} characters")
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return [*found, f"{taken} kilobytes"] if taken >= 500_000 else found


def arrays_from(call: int, array: np.ndarray, which: slice):
    """Return a function that replaces some outputs with an array, from a given call on."""

    def spoil(calls: int, reply: dict, found: dict) -> tuple[dict, dict]:
        spoiled = list(found)[which] if calls >= call else []
        return reply, found | dict.fromkeys(spoiled, array)

    return spoil


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("record", VALUE_EXERCISES, ids=lambda record: record.id)
def test_no_array_is_too_strange(record, array):
    outputs = len(record.public.axes)
    for which in (slice(outputs), slice(1), slice(outputs - 1, outputs), slice(outputs, None)):
        assert complaints(record, arrays_from(1, array, which)) == []
    if record.properties:
        assert complaints(record, arrays_from(9, array, slice(outputs))) == []  # where properties are tried


@pytest.mark.parametrize("value", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("record", EXERCISES, ids=lambda record: record.id)
def test_no_table_is_too_strange(record, value):
    keys = ("error", "kinds", "products", "layers", "is_module", "kind", "report", "observations", "raised", "wants")

    def all_of_it(calls: int, reply: dict, found: dict) -> tuple[dict, dict]:
        return dict.fromkeys(keys, value) | {"error": None}, found

    def errors(calls: int, reply: dict, found: dict) -> tuple[dict, dict]:
        return reply | {"error": value}, found

    for spoil in (all_of_it, errors):
        assert complaints(record, spoil) == []


LAYER = {"linear": True, "trains": True, "identity": {"weight": 1, "bias": 2}}
WEIGHTS = {
    "no-byte": (np.zeros((NUMBERS, 0)), np.zeros(NUMBERS)),
    "wide": (np.zeros((2, 500_000)), np.zeros(2)),
    "tall": (np.zeros((500_000, 2)), np.zeros(500_000)),
    "wider-than-the-probe": (np.zeros((5, 361)), np.zeros(5)),
    "bias-of-another-shape": (np.zeros((5, 3)), np.zeros((200_000, 1, 1))),
    "no-bias": (np.zeros((5, 3)), None),
    "texts": (np.zeros((5, 3), dtype=np.uint8), np.zeros(5, dtype=bool)),
}


@pytest.mark.parametrize("exercise", ["kqv", "self-attention"])
@pytest.mark.parametrize(("weight", "bias"), WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("fact", [LAYER, LAYER | {"identity": DEEP}, {"linear": 1, "kind": "a\0b" * 90}, DEEP, {}])
def test_no_layer_is_too_strange(exercise, weight, bias, fact):
    def spoil(calls: int, reply: dict, found: dict) -> tuple[dict, dict]:
        told = {"is_module": True, "layers": dict.fromkeys(("", "k", "q", "v"), fact)}
        arrays = {f"{name}/weight": weight for name in ("", "k", "q", "v")}
        arrays |= {} if bias is None else {f"{name}/bias": bias for name in ("", "k", "q", "v")}
        return reply | told, found | arrays

    assert complaints(records()[exercise], spoil) == []


def test_an_array_that_takes_no_byte_is_refused_if_its_sides_are_long():
    """One of (3 * 10**8, 0) once made the judge multiply by it, and the system stop it."""

    def received(array: np.ndarray) -> dict:
        ours, theirs = socket.socketpair()
        data = save({"k": array})
        theirs.sendall(_SIZES.pack(2, len(data)) + b"{}" + data)
        return receive(ours)[1]

    assert received(np.zeros((3, 0, 5)))["k"].shape == (3, 0, 5)
    with pytest.raises(MalformedMessage, match="short sides"):
        received(np.zeros((3 * 10**8, 0), dtype=np.float32))
