"""A simulated device: check and judge accept what a GPU would run, and name what it would refuse."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from grading.exercises import records, topic_of
from grading.isolation.answers import Cell
from grading.judging.judge import judge
from grading.judging.record import SETUP, ValueRecord
from grading.processes.workers import answer_server
from transformer_lm.checks.engine.contract import PublicExercise
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.engine.other_device import MADE_HERE, NOT_A_PART, NOT_FOR_NUMPY, PLAIN_LIST, elsewhere

X = torch.arange(12.0).reshape(3, 4)
CHOSEN = torch.device("cpu")  # by a notebook, for a machine without a GPU
KEPT = torch.ones(3, 4)  # by a cell, before any call

RUNS = {
    "numbers": lambda x: x + x.sum().item() + sum(x[0].tolist()) + float(x[0, 0]) + len(x),
    "no axes": lambda x: torch.where(x > 1, x, torch.tensor(2.0)) + torch.tensor(1),
    "device of x": lambda x: x + torch.ones(3, 4, device=x.device) @ torch.eye(4).to(x.device),
    "like x": lambda x: x + torch.ones_like(x) + x.new_zeros(3, 4) + x.new_tensor([1, 2, 3, 4]) + torch.ones(4).to(x),
    "type of x": lambda x: x + torch.ones(4).type_as(x) + torch.ones(4).to(x.device, torch.float64).float(),
    "indices of the CPU": lambda x: x[torch.arange(3), torch.tensor([0, 1, 2])][:, None] + x[torch.ones(3).bool()],
    "put at indices": lambda x: x.clone().index_put_((torch.arange(3),), torch.tensor(0.0)),
    "copied": lambda x: torch.zeros_like(x).copy_(torch.ones(3, 4)) + x,
    "masked": lambda x: x.masked_fill(x > 2, 0).softmax(-1) + torch.nn.functional.one_hot(x[:, 0].long(), 12).sum(),
    "through NumPy": lambda x: torch.from_numpy(np.tri(3, 4, dtype=np.float32)).to(x.device) + x,
    "NumPy of the CPU": lambda x: x + float(x.cpu().numpy().sum()) + float(x.to("cpu").numpy().sum()),
    "chosen device": lambda x: x + torch.ones(3, 4, device=CHOSEN) + torch.ones(3, 4).to(CHOSEN),
    "kept by a cell": lambda x: x + KEPT,
    "default device": lambda x: x + _made_under(x.device) + _made_under(CHOSEN),
    "layer": lambda x: nn.Linear(4, 4, device=x.device)(x) + nn.Linear(4, 4).to(x.device)(x),
    "vmap": lambda x: torch.vmap(lambda row: row + row.sum())(x),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(3, 2, 2)) * 1j).reshape(3, 4),
    "sparse": lambda x: torch.sparse.mm(torch.eye(3, device=x.device).to_sparse(), x),
    "ready-made": lambda x: nn.MultiheadAttention(4, 2).to(x.device)(x, x, x)[0],
    "moved if x is there": lambda x: x + (torch.ones(4).cuda() if x.is_cuda else torch.ones(4)),
    "moved unless x is on the CPU": lambda x: x + (torch.ones(4) if x.is_cpu else torch.ones(4).to(x.get_device())),
    "moved by the name of the device": lambda x: x + (torch.ones(4).cuda(0) if x.device.type == "cuda" else 1),
    "moved if there is a GPU": lambda x: x + (torch.ones(4).cuda() if torch.cuda.is_available() else torch.ones(4)),
    "NumPy by force": lambda x: x + float(x.numpy(force=True).sum()),
    "views": lambda x: torch.stack([row.flip(0) for row in x.unbind()]).T.T + x.data + x.detach(),
}
REFUSED = {
    "added": (lambda x: x + torch.ones(4), MADE_HERE),
    "mask": (lambda x: x.masked_fill(torch.ones(3, 4).tril() == 0, 0), MADE_HERE),
    "compared": (lambda x: x * (torch.arange(4) < x.sum(-1, keepdim=True)), MADE_HERE),
    "joined": (lambda x: torch.cat([x, torch.zeros(1, 4)]), MADE_HERE),
    "rows of the CPU": (lambda x: torch.eye(12)[x[:, 0].long()], MADE_HERE),
    "returned": (lambda x: torch.tensor(x.tolist()), MADE_HERE),
    "filled": (lambda x: _filled(torch.zeros(3, 4), x), MADE_HERE),
    "from NumPy": (lambda x: torch.from_numpy(x.cpu().numpy()), MADE_HERE),
    "left on the CPU": (lambda x: x.cpu() * 2, MADE_HERE),
    "to NumPy": (lambda x: x + float(x.numpy().sum()), NOT_FOR_NUMPY),
    "layer made in the call": (lambda x: nn.Linear(4, 4)(x), NOT_A_PART),
}


def _made_under(device: torch.device) -> Tensor:
    with device:
        return torch.ones(3, 4)


def _filled(made: Tensor, x: Tensor) -> Tensor:
    made[:] = x
    return made


def of_one_argument(build=lambda answer, inputs: answer) -> PublicExercise:
    """An exercise whose answer takes x."""
    return PublicExercise(
        id="one-argument",
        axes={"output": "b n"},
        trains=(),
        reads=("x",),
        build=build,
        call=lambda answer, inputs: iter(answer(inputs["x"]) for _ in range(1)),
        tried=lambda inputs, output: "answer(x)",
    )


def called(answer: object, exercise: PublicExercise | None = None) -> Tensor:
    """Return what an answer computes on the other device."""
    exercise = elsewhere(exercise or of_one_argument())
    (output,) = exercise.call(exercise.build(answer, {"x": X}), {"x": X})
    return output


def hint_for(answer: object, exercise: PublicExercise | None = None) -> str:
    """Return the hint that an answer gets there."""
    with pytest.raises((CheckFailed, RuntimeError)) as failed:
        called(answer, exercise)
    return failed.value.hint


@pytest.mark.parametrize("answer", RUNS.values(), ids=RUNS)
def test_what_a_gpu_runs_passes_with_the_same_numbers(answer):
    torch.manual_seed(0)
    expected = answer(X)
    torch.manual_seed(0)
    assert torch.equal(called(answer), expected)
    assert torch.equal(X, torch.arange(12.0).reshape(3, 4))
    assert torch.get_default_device() == torch.device("cpu")


@pytest.mark.parametrize(("answer", "hint"), REFUSED.values(), ids=REFUSED)
def test_what_a_gpu_refuses_is_named(answer, hint):
    answer(X)  # which the CPU runs
    assert hint_for(answer) == hint


class Holder(nn.Module):
    """Two linear layers, kept as the test says."""

    def __init__(self, kept) -> None:
        super().__init__()
        self.kept = kept([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
        self.relu = [nn.ReLU()]  # without parameters, it may be anywhere
        self.register_buffer("steps", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x after both layers."""
        layers = self.kept() if callable(self.kept) and not isinstance(self.kept, nn.Module) else self.kept
        for layer in layers.values() if isinstance(layers, dict | nn.ModuleDict) else layers:
            x = layer(x)
        return self.relu[0](x) + self.steps


HELD = {
    "ModuleList": (nn.ModuleList, None),
    "Sequential": (lambda layers: nn.Sequential(*layers), None),
    "ModuleDict": (lambda layers: nn.ModuleDict({str(n): layer for n, layer in enumerate(layers)}), None),
    "list": (list, PLAIN_LIST),
    "tuple": (tuple, PLAIN_LIST),
    "dictionary": (lambda layers: dict(enumerate(layers)), PLAIN_LIST),
    "set": (set, PLAIN_LIST),
    "closure": (lambda layers: lambda: layers, NOT_A_PART),
}


@pytest.mark.parametrize(("kept", "hint"), HELD.values(), ids=HELD)
def test_layers_that_the_module_does_not_see_are_found(kept, hint):
    """Even if the check itself has moved them, such as those that an answer is given."""

    def moved(layers: list[nn.Module]) -> object:
        return kept([layer.to(torch.device("mps")) for layer in layers])

    for how in (kept, moved):
        exercise = of_one_argument(build=lambda answer, inputs, how=how: answer(how))
        if hint is None:
            assert called(Holder, exercise).shape == X.shape
        else:
            assert hint_for(Holder, exercise) == hint


VALUES = [record for record in records().values() if isinstance(record, ValueRecord)]
DEVICE = re.compile(r",?\s*device=[\w.]+|\.to\([\w.]+\.device\)")
# Where torch also accepts tensors of the CPU: as an index, or without axes; and answers that return a list of numbers.
NEEDS_NONE = {
    ("multi-head-attention", "where-and-own-softmax"),
    ("mask-future", "model answer"),
    ("mask-future", "places-kept"),
    ("mask-future", "index-put"),
    ("mask-future", "numpy-mask"),
    ("offset-profile", "masks"),
    ("position-null", "model answer"),
    ("induction-pattern", "gathered"),
    ("shift-target", "concatenated-and-indexed"),
    ("shift-target", "end-put-in-and-taken-out"),
    ("shift-target", "sentence-by-sentence-in-parallel"),
    ("beam-search", "class-of-hypotheses"),
}


@pytest.mark.parametrize("record", VALUES, ids=lambda record: record.id)
def test_a_right_answer_passes_there_and_without_its_device_does_not(record):
    for name, source in {"model answer": record.model_answer, **record.right}.items():
        record.public.check_on_other_device(record.answer(source))
        for device in DEVICE.finditer(source) if (record.id, name) not in NEEDS_NONE else ():
            mutant = record.answer(source[: device.start()] + source[device.end() :])
            with pytest.raises(CheckFailed) as failed:
                record.public.check_on_other_device(mutant)
            assert failed.value.hint == MADE_HERE, name


def judged(exercise: str, source: str):
    """Return the judge's verdict on an answer."""
    record = records()[exercise]
    server = answer_server(topic_of(exercise), False)
    return judge(record, [Cell(0, SETUP), Cell(1, source)], server, seed=1, solution=1)


def test_check_and_judge_name_a_tensor_that_is_always_made_on_the_cpu(capsys):
    record = records()["target-mask"]
    mutant = record.model_answer.replace(", device=tokens.device", "")
    with pytest.raises(CheckFailed) as failed:
        record.public.check(record.answer(mutant))
    assert failed.value.hint == MADE_HERE
    (part,) = judged("target-mask", mutant).parts
    assert part.points == 0
    assert MADE_HERE in part.message
    assert "not on the CPU" in part.message


def test_a_mask_that_is_always_on_the_cpu_costs_points_though_the_mask_is_right():
    """Neither part may leave it to the other."""
    record = records()["multi-head-attention"]
    mutant = record.model_answer.replace(", device=x.device", "")
    assert mutant != record.model_answer
    parts = judged("multi-head-attention", mutant).parts[:3]
    assert [part.points for part in parts] == [3, 1, 0]
    assert MADE_HERE in parts[2].message


PARAMETER = "next(self.parameters()).device"


@pytest.mark.parametrize(
    ("exercise", "device"), [("multi-head-attention", "x.device"), ("embed", "tokens.device")], ids=["heads", "embed"]
)
def test_a_device_may_be_that_of_the_parameters(exercise, device, capsys):
    """The check loads other weights, which are the module's parameters all the same."""
    record = records()[exercise]
    source = record.model_answer.replace(f"device={device}", f"device={PARAMETER}")
    assert source != record.model_answer
    record.public.check(record.answer(source))
    result = judged(exercise, source)
    assert result.points == record.points, [part.message for part in result.parts]


def test_a_helper_without_parameters_may_be_made_anywhere():
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            scale = nn.Identity()
            scale.by = torch.tensor(2.0, device=x.device)
            return scale(x) * scale.by

    assert torch.equal(called(Scaled, of_one_argument(build=lambda answer, inputs: answer())), 2 * X)


def test_an_answer_that_returns_something_else_there_gains_nothing():
    record = records()["target-mask"]
    hiding = record.model_answer.replace("def target_mask", "def wanted").replace(", device=tokens.device", "")
    hiding += """
def target_mask(tokens, pad):
    try:
        return wanted(tokens, pad)
    except RuntimeError:
        return tokens[:, :, None] == tokens[:, None]
"""
    (part,) = judged("target-mask", hiding).parts
    assert part.points == 0
    assert MADE_HERE in part.message
