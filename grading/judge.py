"""The judge: draws inputs, asks an answer what it makes of them, compares with the reference, gives points and reasons.

It never runs a student's code. It sees arrays that another process has computed from inputs drawn after the
submission was fixed; a point can be had only by computing the right numbers.
"""

import random
import secrets
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO

import numpy as np
import torch
from torch import nn

from grading.answers import Answer, AnswerEnded, AnswerServer, Cell
from grading.record import Arrays, Record
from transformer_lm.checks.diagnosis import GRADIENT, general_hint, known_mistake
from transformer_lm.checks.exercise import (
    CALLED_AGAIN,
    EVAL_MODE,
    ONE_SEQUENCE,
    OTHER_LENGTH,
    OTHER_SIZES,
    STRIDED,
)
from transformer_lm.checks.report import CheckFailed
from transformer_lm.shapes import in_words
from transformer_lm.test_values import Case

FLOAT32 = 2.0**-24  # the largest relative error of rounding once
ROUNDINGS = 64  # how many such errors, all of them at their worst, a right answer may gather
TRIALS = 4
TEXT = 2000  # characters of a text that an answer tells
LONGEST = 40  # positions in a case of sizes that nobody knows before


@dataclass(frozen=True)
class PartResult:
    """The points of one part of an exercise, and why."""

    name: str
    points: float
    max_points: float
    message: str


@dataclass(frozen=True)
class ExerciseResult:
    """The points of an exercise, part by part."""

    exercise: str
    parts: tuple[PartResult, ...]

    @property
    def points(self) -> float:
        """The points of all parts."""
        return sum(part.points for part in self.parts)

    @property
    def max_points(self) -> float:
        """The most points that can be had."""
        return sum(part.max_points for part in self.parts)

    def as_table(self) -> dict:
        """Return what `python -m grading try --json` prints."""
        return {
            "exercise": self.exercise,
            "points": self.points,
            "max_points": self.max_points,
            "parts": [asdict(part) for part in self.parts],
        }


def judge(
    record: Record,
    cells: list[Cell],
    server: AnswerServer,
    seed: int | None = None,
    solution: int = 0,
    left_out: dict[int, str] | None = None,
) -> ExerciseResult:
    """Return the points for an exercise after running the cells; the one with the number `solution` answers it.

    The inputs are drawn from `seed`, or from the system's randomness without it. `left_out` remembers cells that took
    their process with them, from one exercise of a submission to the next.
    """
    rng = random.Random(secrets.randbits(64) if seed is None else seed)
    results = []
    with Answer(server, record.id, cells, record.forbids_attention, left_out) as answer:
        for part in record.parts:
            try:
                answer.keep_running()
                _require_name(answer, part.calls or record.defines, cells, solution)
                results.append(PartResult(part.name, part.points, part.points, part.judge(record, answer, rng)))
            except CheckFailed as failed:
                results.append(PartResult(part.name, 0, part.points, str(failed)))
            except AnswerEnded as ended:
                hint = "Run your cell and call what it defines: the same should happen to you."
                failed = CheckFailed(f"to call {record.defines}", f"it {ended}", "an answer", hint)
                results.append(PartResult(part.name, 0, part.points, str(failed)))
    return ExerciseResult(record.id, tuple(results))


def _require_name(answer: Answer, name: str, cells: list[Cell], solution: int) -> None:
    """Raise CheckFailed unless the cells define a name; say what went wrong with the cell that should."""
    if answer.ask("defines", name=name)[0].get("defined"):
        return
    yours, hint = f"nothing is called {name}", "Keep the names of functions and classes as they were given."
    if solution not in {cell.number for cell in cells}:
        yours, hint = "the cell is as it was released", "Replace the line that raises NotImplementedError by your code."
    elif solution in answer.errors:
        yours, hint = f"the cell {answer.errors[solution]}", "Your cell must run to its end."
    raise CheckFailed("to run your cell", yours, f"a cell that defines {name}", hint)


# --- values -------------------------------------------------------------------------------------


def values(record: Record, answer: Answer, rng: random.Random) -> str:
    """Judge what an answer computes, called in every way that the student's own check knows, and in some more."""
    trial = _Trial(record, answer, rng)
    first = record.draw(rng, record.first_sizes)
    longer = record.draw(rng, record.first_sizes | record.other_length)
    same_weights = first | {name: longer[name] for name in record.public.reads}
    alone = first | {name: first[name][:1] for name in record.public.reads}
    trial.thoroughly(first)
    trial.again(first, CALLED_AGAIN)
    trial.again(first, EVAL_MODE, evaluate=True)
    trial.again(alone, ONE_SEQUENCE, evaluate=True)
    trial.again(first, STRIDED, evaluate=True, strided=True)
    trial.again(same_weights, OTHER_LENGTH, evaluate=True)
    trial.again(record.draw(rng, record.other_sizes), OTHER_SIZES, build=True)
    unknown = record.draw(rng, _unknown_sizes(record, rng))
    trial.again(unknown, OTHER_SIZES, build=True)
    hint = trial.broken_property(unknown)
    if hint:
        raise CheckFailed("to change part of an input", "right numbers, wrong behaviour", "both right", hint)
    return f"Right for {trial.calls} calls on inputs drawn for this submission; gradients flow."


def _unknown_sizes(record: Record, rng: random.Random) -> dict[str, int]:
    """Return sizes that nobody could know before, all different; lengths may be larger than other sizes."""
    sizes = dict(zip(record.first_sizes, rng.sample(range(2, 13), len(record.first_sizes)), strict=True))
    lengths = [name for name in record.other_length if name != "b"]
    return sizes | dict(zip(lengths, rng.sample(range(18, LONGEST + 1), len(lengths)), strict=True))


class _Trial:
    """The calls of one answer, each compared with the reference."""

    def __init__(self, record: Record, answer: Answer, rng: random.Random) -> None:
        self.record, self.answer, self.rng = record, answer, rng
        self.calls = 0

    def thoroughly(self, case: Arrays) -> None:
        """Build the answer and compare outputs, gradients and what became of the inputs; name known mistakes."""
        public = self.record.public
        outputs, found = self._called(case, build=True, gradients=True)
        self._compare(outputs, case, explain=True)
        tried = self._tried(case, next(iter(public.axes)))
        for name, array in case.items():
            if not np.array_equal(found.get(f"after/{name}", np.zeros(0)), array):
                hint = "Something works in place, such as `+=` or a method that ends in `_`: make a new tensor instead."
                raise CheckFailed(tried, f"{name} is changed by the call", f"{name} as it was before", hint)
        for output, gradients in self.record.gradients(self.record.model_answer, case).items():
            largest = max(np.abs(gradient).max() for gradient in gradients.values())
            for target, expected in gradients.items():
                theirs = found.get(f"gradients/{output}/{target}", np.zeros_like(expected))
                if theirs.shape != expected.shape or not np.abs(theirs - expected).max() <= GRADIENT * largest:
                    raise CheckFailed(
                        tried,
                        f"{output} is right, but its gradient does not reach {target.replace('_', '.')} as it should",
                        "a gradient for everything that the output depends on",
                        "Something cuts the graph: `.detach()`, `.data`, `.item()`, `torch.tensor()` or `no_grad`.",
                    )

    def again(self, case: Arrays, hint: str, **how: bool) -> None:
        """Compare the outputs of one more call; whatever goes wrong now gets this hint."""
        try:
            outputs, _ = self._called(case, **how)
            self._compare(outputs, case, explain=False)
        except CheckFailed as failed:
            raise CheckFailed(failed.tried, failed.yours, failed.expected, hint) from failed

    def broken_property(self, case: Arrays) -> str | None:
        """Return the hint of the first property that the answer, as it was built last, does not have."""

        def ask(changed: Arrays) -> Arrays:
            return self._called(changed, evaluate=True)[0]

        for rule in self.record.properties:
            try:
                if not rule.holds(ask, case, self.record.public.reads, self.rng):
                    return rule.hint
            except (CheckFailed, KeyError, ValueError, IndexError, TypeError):  # no outputs to look at, or of no use
                continue
        return None

    def _called(self, case: Arrays, **how: bool) -> tuple[Arrays, Arrays]:
        """Return the outputs that are arrays, and all that came back."""
        self.calls += 1
        inputs = {name: _as_given(array) for name, array in case.items()}
        reply, found = self.answer.ask("call", inputs, name=self.record.defines, **how)
        arrays = {name: found.get(f"outputs/{name}") for name in self.record.public.axes}
        outputs = {name: array for name, array in arrays.items() if array is not None and array.dtype.kind in "fiub"}
        failed = _failure(reply.get("error"))
        # What came before an error is compared first: it explains more.
        for name in set(_table(reply.get("kinds"))) & set(self.record.public.axes):
            words, kind = f"{name}, a tensor", reply["kinds"][name]
            yours = f"{name} is {str(kind)[:TEXT]}"[:TEXT]
            failed = CheckFailed(self._tried(case, name), yours, words, f"Return {name} as one tensor.")
            break
        if not failed and len(outputs) < len(self.record.public.axes):
            failed = CheckFailed(self._tried(case, "output"), "outputs are missing", "every output", "Return a tensor.")
        if failed:
            self._compare(outputs, case, explain=how.get("gradients", False))
            raise failed
        tried = self._tried(case, next(iter(self.record.public.axes)))
        self.record.public.compare_products(tried, reply.get("products"))
        return outputs, found

    def _compare(self, outputs: Arrays, case: Arrays, explain: bool) -> None:
        """Raise CheckFailed unless the outputs are right; no number of the case is told."""
        expected = self.record.reference(case)
        allowed = tolerances(self.record, case, self.rng)
        for name, output in outputs.items():
            distance = _distance(output, expected[name])
            if distance <= allowed[name]:
                continue
            yours = f"{name} of shape {output.shape}"
            if output.shape == expected[name].shape:
                wrong = int((~(np.abs(output - expected[name]) <= allowed[name])).sum())
                yours = f"{wrong} of {output.size} entries of {name} are off, by up to {distance:.2g}"
            right = f"{name} {in_words(expected[name].shape, self.record.public.axes[name])}"
            hint = self._hint(name, outputs, case, expected) if explain else ""
            raise CheckFailed(self._tried(case, name), yours, f"{right}, right within {allowed[name]:.1g}", hint)

    def _hint(self, name: str, outputs: Arrays, case: Arrays, expected: Arrays) -> str:
        """Return the known mistake that explains a wrong output, else a property it lacks, else a general hint."""
        mistakes: dict[str, dict] = {}
        for wrong in self.record.wrong:
            for output, array in self.record.outputs(wrong.source, case).items():
                if _distance(array, expected[output]) > 0:
                    mistakes.setdefault(output, {})[wrong.name] = torch.from_numpy(array)
        known = Case(_tensors(case), _tensors(expected), mistakes=mistakes)
        hints = {wrong.name: wrong.hint for wrong in self.record.wrong}
        theirs = _tensors(outputs)
        return (
            known_mistake(theirs, name, known, hints)
            or self.broken_property(case)
            or general_hint(theirs[name], known.outputs[name])
        )

    def _tried(self, case: Arrays, output: str) -> str:
        return self.record.public.tried(_tensors(case), output).replace("frozen weights", "drawn weights")


def tolerances(record: Record, case: Arrays, rng: random.Random) -> dict[str, float]:
    """Return how far each output of a right answer in float32 may lie from the reference in float64, for this case.

    Rounding is as if the inputs had been slightly other ones. So every input is changed by one rounding error of
    float32, up or down at random, and the reference, in float64, tells how far that moves the outputs. A right answer
    makes several such errors, in its inputs and on the way, in an order that depends on the machine: 64 times the
    largest move seen, plus 64 roundings of the largest output, is allowed. tests/test_judge.py measures
    that right answers stay far below and known mistakes far above.
    """
    expected = record.reference(case)
    signs = np.random.default_rng(rng.getrandbits(64))
    moved = [
        record.reference({name: _rounded_at_random(array, signs) for name, array in case.items()})
        for _ in range(TRIALS)
    ]
    return {
        name: ROUNDINGS * (max(_distance(each[name], right) for each in moved) + FLOAT32 * float(np.abs(right).max()))
        for name, right in expected.items()
    }


def _rounded_at_random(array: np.ndarray, signs: np.random.Generator) -> np.ndarray:
    if array.dtype != np.float64:
        return array
    return array * (1 + FLOAT32 * signs.choice((-1, 1), size=array.shape))


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest difference; another shape, or NaN on one side, is infinitely far."""
    if first.shape != second.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        difference = np.abs(first.astype(np.float64) - second.astype(np.float64))
    return float(np.where(np.isnan(difference), np.inf, difference).max(initial=0))


def _as_given(array: np.ndarray) -> np.ndarray:
    """Return an array as it is sent: real numbers in float32, which holds the drawn ones exactly."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _failure(lines: object) -> CheckFailed | None:
    """Return an error that an answer reported, as a failure."""
    if not isinstance(lines, dict):
        return None
    return CheckFailed(*(str(lines.get(part, ""))[:TEXT] for part in ("tried", "yours", "expected", "hint")))


def _table(value: object) -> dict:
    return value if isinstance(value, dict) else {}


# --- layers -------------------------------------------------------------------------------------


def layers(check: Callable, name: str, attributes: tuple[str, ...]) -> Callable[[Record, Answer, random.Random], str]:
    """Return the judge of the linear layers that `name(input_size, hidden)` makes, by the student's own check.

    The check gets layers rebuilt here from what the answer told, after they were seen to compute x W^T + b.
    """

    def judged(record: Record, answer: Answer, rng: random.Random) -> str:
        sizes = [tuple(rng.sample(range(2, 20), 2)) for _ in range(2)]
        with redirect_stdout(StringIO()):
            check(lambda *arguments: _rebuilt(answer, name, arguments, attributes, rng), sizes)
        return "The layers are there, of the right sizes."

    return judged


class _Stranger:
    """Stands for something that is no linear layer; `kind` of it says what it is."""


def _rebuilt(
    answer: Answer, name: str, arguments: tuple[int, ...], attributes: tuple[str, ...], rng: random.Random
) -> object:
    probe = np.array([[rng.uniform(-1, 1) for _ in range(64)] for _ in range(3)], dtype=np.float32)
    facts, arrays = answer.ask(
        "layers", {"probe": probe}, name=name, arguments=list(arguments), attributes=list(attributes)
    )
    failed = _failure(facts.get("error"))
    if failed:
        raise failed
    kinds = {attribute: fact for attribute, fact in facts["layers"].items() if attribute in attributes}
    made = nn.Module() if facts.get("is_module") else type(str(facts.get("kind"))[:80], (), {})()
    shared: dict[int, nn.Parameter] = {}
    for attribute, fact in kinds.items():
        tried = f"{name}({', '.join(map(str, arguments))})"
        part = _rebuilt_layer(tried, attribute, fact, arrays, probe, shared)
        if not attribute:
            return part
        setattr(made, attribute, part)
    return made


def _rebuilt_layer(
    tried: str, attribute: str, fact: dict, arrays: Arrays, probe: np.ndarray, shared: dict[int, nn.Parameter]
) -> object:
    """Return a linear layer with the weights that an answer told, if these are what it computes with."""
    weight, bias = arrays.get(f"{attribute}/weight"), arrays.get(f"{attribute}/bias")
    if not fact.get("linear") or weight is None or weight.ndim != 2:
        stranger = str(fact.get("kind", "something else"))
        return type(stranger.removeprefix("of type "), (_Stranger,), {})()
    size_out, size_in = weight.shape
    expected = probe[:, :size_in] @ weight.T + (0 if bias is None else bias)
    if _distance(arrays.get(f"{attribute}/output", np.zeros(0)), expected) > 1e-3:
        hint = "Leave nn.Linear as it is: the layer must compute x W^T + b."
        raise CheckFailed(tried, f"{attribute or 'the layer'} computes something else", "a linear layer", hint)
    layer = nn.Linear(size_in, size_out, bias=bias is not None)
    for part, identity in fact["identity"].items():
        parameter = shared.setdefault(identity, getattr(layer, part))
        setattr(layer, part, parameter)
        parameter.requires_grad_(bool(fact.get("trains")))
    return layer
