"""The record of an exercise: its reference, its cases, and its wrong and right answers.

An answer is the text of a solution cell. A wrong answer is the model answer with one or two edits, so that only the
mistake differs.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_lm.checks.engine.contract import Contract, PublicExercise

Arrays = dict[str, np.ndarray]

SETUP = """\
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
"""


@dataclass(frozen=True)
class WrongAnswer:
    """A named mistake: the text of an answer that makes it, and the hint for students.

    `fails` names the parts for which it gets no points; the default is the exercise's last part that has points. With
    `costs`, it loses only that many points there. `hint` is the id of the sentence in the catalogue that names the
    mistake; the default is the mistake's own name. `says` is a text that the message also contains.
    """

    name: str
    source: str
    fails: tuple[str, ...] = ()
    costs: float | None = None
    hint: str = ""
    says: str = ""

    def __post_init__(self) -> None:
        if not self.hint:
            object.__setattr__(self, "hint", self.name)


@dataclass(frozen=True)
class Part:
    """A part of an exercise with its own points, named after its check cell.

    `judge` gets the record, the part, the answer and a random generator. It returns praise, for full points, or a
    Mark, or it raises CheckFailed, for no points. `calls` is the name that it calls, if that is not the exercise's;
    `runs` is false if it only reads the answer. A part of 0 points is about the form of an answer, and can take points
    off the other parts or add points.
    """

    name: str
    points: float
    judge: Callable
    calls: str = ""
    runs: bool = True


@dataclass(frozen=True, kw_only=True)
class Record:
    """What all kinds of exercises have in common.

    `defines` is the name that the student's cell must define; `parts` get the points. `cell` is the grade_id of the
    solution cell, if that is not the exercise's id, because several exercises may share a cell. Answers in the package
    are marked there, see transformer_lm/answers.py.

    `wrong` answers compute wrong numbers, by which they are recognised; `misbehaving` ones are wrong in another way.
    """

    public: Contract
    title: str
    defines: str
    parts: tuple[Part, ...]
    model_answer: str
    misbehaving: tuple[WrongAnswer, ...]
    right: dict[str, str]
    wrong: tuple[WrongAnswer, ...] = ()
    cell: str = ""

    @property
    def id(self) -> str:
        """The exercise's id, such as `self-attention`."""
        return self.public.id

    @property
    def forbids_attention(self) -> bool:
        """Whether torch's ready-made attention is taken away from the answer."""
        return getattr(self.public, "forbids_attention", False)

    @property
    def solution_cell(self) -> str:
        """The grade_id of the cell that answers it."""
        return self.cell or self.id

    @property
    def points(self) -> float:
        """The points of all parts together."""
        return sum(part.points for part in self.parts)

    def fails(self, wrong: WrongAnswer) -> tuple[str, ...]:
        """Return the names of the parts in which a wrong answer loses points."""
        return wrong.fails or ([part.name for part in self.parts if part.points][-1],)

    def answer(self, source: str) -> object:
        """Return what the text of a solution cell defines under the exercise's name.

        Only for recorded answers, because the text is executed in this process.
        """
        namespace: dict[str, object] = {"__name__": "answer"}
        exec(compile(SETUP + source, f"<answer to {self.id}>", "exec"), namespace)
        return namespace[self.defines]


@dataclass(frozen=True, kw_only=True)
class FileRecord(Record):
    """An exercise whose answer is a file submitted with the notebook; recorded answers are code that writes it."""

    def write(self, source: str, folder: Path) -> None:
        """Write the file of a recorded answer into a folder; the text is executed in this process."""
        exec(compile(SETUP + source, f"<answer to {self.id}>", "exec"), {"folder": folder})


@dataclass(frozen=True, kw_only=True)
class ValueRecord(Record):
    """An exercise whose answer computes numbers.

    `draw` makes one case from a random generator and a table of sizes and settings. Students check against three cases:
    one of `first_sizes`, one with the same weights and the changes of `other_length`, one of `other_sizes`. If `ones`
    names some sizes, there is a fourth case, in which they are 1. `reference` computes the outputs of a case in float64
    NumPy, independently of torch. `properties` hold for every right answer. If `entrywise`, each number of an output
    depends on few inputs, so rounding is measured for each number separately.
    """

    public: PublicExercise
    properties: tuple
    first_sizes: dict[str, int]
    other_length: dict[str, int]
    other_sizes: dict[str, int]
    draw: Callable[[random.Random, dict[str, int]], Arrays]
    reference: Callable[[Arrays], Arrays]
    ones: tuple[str, ...] = ()
    entrywise: bool = False

    @property
    def smallest_sizes(self) -> dict[str, int]:
        """The sizes of the case in which those of `ones` are 1; empty if there is no such case."""
        return self.first_sizes | dict.fromkeys(self.ones, 1) if self.ones else {}

    def outputs(self, source: str, case: Arrays) -> Arrays:
        """Return what an answer computes for a case, in float64."""
        with _float64():
            return {name: output.detach().numpy() for name, output in self._called(source, _tensors(case)).items()}

    def gradients(self, source: str, case: Arrays) -> dict[str, Arrays]:
        """Return the gradients of each trained output's summed squares with respect to the inputs, in float64."""
        inputs = _tensors(case)
        targets = {name: tensor.requires_grad_() for name, tensor in inputs.items() if tensor.is_floating_point()}
        found = {}
        with _float64():
            outputs = self._called(source, inputs)
            for name in self.public.trains:
                loss = outputs[name].square().sum()
                gradients = torch.autograd.grad(loss, list(targets.values()), retain_graph=True, materialize_grads=True)
                found[name] = {target: tensor.numpy() for target, tensor in zip(targets, gradients, strict=True)}
        return found

    def _called(self, source: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        subject = self.public.build(self.answer(source), inputs)
        return dict(zip(self.public.axes, self.public.called(subject, inputs), strict=True))


def _tensors(case: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in case.items()}


@contextmanager
def _float64() -> Iterator[None]:
    """Create new tensors and layers in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def edited(
    name: str,
    model_answer: str,
    *edits: tuple[str, str],
    fails: tuple[str, ...] = (),
    costs: float | None = None,
    hint: str = "",
    says: str = "",
) -> WrongAnswer:
    """Return the wrong answer that differs from the model answer by these edits, each a pair (old, new).

    Raises ValueError unless each old text occurs there exactly once.
    """
    source = model_answer
    for old, new in edits:
        if source.count(old) != 1:
            raise ValueError(f"an edit of {name!r} must find its text once, got {source.count(old)} times: {old!r}.")
        source = source.replace(old, new)
    return WrongAnswer(name, source, fails, costs, hint, says)


def dyadic(rng: random.Random, *shape: int, bound: float) -> NDArray[np.float64]:
    """Return numbers between -bound and bound that are whole multiples of 1/64.

    Sums of products of such numbers are exact in float64, in any order; a softmax of them is rounded to float32 when
    stored. So the frozen files are the same, byte for byte, whatever the machine's order of summation.
    `random.Random.random` is the generator whose sequence Python promises to keep.
    """
    steps = 2 * int(bound * 64) + 1
    numbers = [int(rng.random() * steps) - steps // 2 for _ in range(int(np.prod(shape)))]
    return np.array(numbers, dtype=np.float64).reshape(shape) / 64


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the softmax over the last axis."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
