"""The judge: draws inputs, compares an answer's outputs with the reference, and gives points with reasons.

It never runs a student's code. It sees arrays that another process has computed from inputs drawn after the submission
was made, so points are earned only by computing the right numbers.
"""

import functools
import random
import secrets
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from grading.isolation.answers import EXERCISE_SECONDS, Answer, AnswerEnded, AnswerServer, Cell
from grading.judging.record import Arrays, Part, Record, ValueRecord, WrongAnswer
from transformer_lm.checks.engine.calling import CALLED_AGAIN, ELSEWHERE, FIRST, Call, Way, calls_of
from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.diagnosis import (
    close,
    compare_gradients,
    general_hint,
    known_mistake,
    require_unchanged,
    tolerance,
)
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.engine.other_device import MADE_HERE
from transformer_lm.checks.engine.verdict import Failure, Mark
from transformer_lm.shapes import in_words
from transformer_lm.test_values import Case

FLOAT32 = 2.0**-24  # largest relative error of a single rounding
ROUNDINGS = 64  # number of such errors, in the worst case, that a right answer may accumulate
TRIALS = 4
TEXT = 2000  # characters of a text that an answer reports
MANY = 1000  # matrix products of a call; no more are counted
WIDEST = 1000  # of a linear layer that an answer reports: larger than any that an exercise asks for
LONGEST = 40  # positions in a case with unpredictable sizes

# The tolerance of each output: one number, or one for each entry.
Tolerances = dict[str, float | np.ndarray]
# Returns whether a part is right, given an answer's outputs, the case, the right outputs and their tolerances.
Rule = Callable[[Arrays, Arrays, Arrays, Tolerances], bool]
# Returns the outputs as a rule gets them, given an answer's outputs, the case and the right outputs.
Reading = Callable[[Arrays, Arrays, Arrays], Arrays]


def of_the_right_shape(outputs: Arrays, case: Arrays, expected: Arrays) -> Arrays:
    """Return the outputs of the right shape; a rule sees no others."""
    return {name: array for name, array in outputs.items() if array.shape == expected[name].shape}


@dataclass(frozen=True)
class PartResult:
    """The points of one part of an exercise, with the reason."""

    name: str
    points: float
    max_points: float
    mark: Mark

    @property
    def message(self) -> str:
        """The message for the student."""
        return self.mark.message

    def as_table(self) -> dict:
        """Return a table that can be stored as JSON."""
        failure = self.mark.failure
        return {
            "name": self.name,
            "points": self.points,
            "max_points": self.max_points,
            "praise": self.mark.praise,
            "failure": failure and failure.as_table(),
            "complete": self.mark.complete,
        }


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
        """The maximum of points."""
        return sum(part.max_points for part in self.parts)

    def as_table(self) -> dict:
        """Return what `python -m grading try --json` prints."""
        return {
            "exercise": self.exercise,
            "points": self.points,
            "max_points": self.max_points,
            "parts": [part.as_table() for part in self.parts],
        }


def judge(
    record: Record,
    cells: list[Cell],
    server: AnswerServer,
    seed: int | None = None,
    solution: int = 0,
    left_out: dict[int, str] | None = None,
    folder: Path | None = None,
    seconds: float = EXERCISE_SECONDS,
    stop_at_loss: bool = False,
) -> ExerciseResult:
    """Return the points for an exercise after running the cells; the cell with the number `solution` answers it.

    The inputs are drawn from `seed`, or from the system's randomness if there is none. `left_out` remembers cells that
    killed their process, from one exercise of a submission to the next. `folder` contains the files that were submitted
    with the notebook. The answer may take `seconds`. With `stop_at_loss`, all parts after the first that loses
    points get none, because no part makes up for another.
    """
    rng = random.Random(secrets.randbits(64) if seed is None else seed)
    results: list[PartResult] = []
    with Answer(server, record.id, cells, record.forbids_attention, left_out, folder, seconds) as answer:
        for part in record.parts:
            if stop_at_loss and any(result.points < result.max_points for result in results):
                mark = Mark(0, "Not judged: a part before it has lost points.", complete=False)
                results.append(PartResult(part.name, 0, part.points, mark))
                continue
            try:
                if part.runs:
                    answer.keep_running()
                    _require_name(answer, part.calls or record.defines, cells, solution)
                mark = part.judge(record, part, answer, rng)
                if isinstance(mark, str):
                    mark = Mark(part.points, mark)
            except CheckFailed as failed:
                mark = Mark(0, failure=failed.failure)
            except AnswerEnded as ended:
                tried, known = f"to call {record.defines}", hint("process-ends")
                ending = CheckFailed(tried, f"it {ended}", "an answer", known, str(ended))
                mark = Mark(0, failure=ending.failure)
            results.append(PartResult(part.name, _possible(part, mark, results), part.points, mark))
    return ExerciseResult(record.id, tuple(results))


def _possible(part: Part, mark: Mark, before: list[PartResult]) -> float:
    """Return the points of a part: deductions never exceed the points so far, and extra points need a full score."""
    points, full = sum(part.points for part in before), sum(part.max_points for part in before)
    if mark.points > part.points and points < full:
        return part.points
    return max(mark.points, -points)


def _require_name(answer: Answer, name: str, cells: list[Cell], solution: int) -> None:
    """Raise CheckFailed unless the cells define a name; the message says what went wrong with the cell that should."""
    if answer.ask("defines", name=name)[0].get("defined"):
        return
    yours, known, error = f"nothing is called {name}", hint("name-changed"), ""
    if solution not in {cell.number for cell in cells}:
        yours, known = "the cell is as it was released", hint("cell-as-released")
    elif solution in answer.errors:
        yours, known, error = f"the cell {answer.errors[solution]}", hint("cell-fails"), answer.errors[solution]
    raise CheckFailed("to run your cell", yours, f"a cell that defines {name}", known, error)


# --- values -------------------------------------------------------------------------------------


def values(
    record: ValueRecord,
    part: Part,
    answer: Answer,
    rng: random.Random,
    rule: Rule | None = None,
    reading: Reading = of_the_right_shape,
) -> Mark:
    """Judge what an answer computes, called in every way that the student's own check uses, and a few more.

    Every output must be right or, with a `rule`, satisfy the rule. A known mistake that costs some of the points costs
    just these, whatever else is wrong. A known mistake that belongs to another part costs nothing here; then everything
    must be as that mistake makes it. The last part of an exercise covers all that the others leave out: gradients,
    changed inputs, single sequences, sizes of 1, and inputs that are not contiguous.
    """
    if "mistakes" not in answer.kept:
        answer.kept["mistakes"] = _Mistakes(record, record.draw(rng, record.first_sizes))
    mistakes: _Mistakes = answer.kept["mistakes"]
    trial = _Trial(record, part, answer, rng, rule, reading, mistakes)
    cases = _Cases(record, mistakes.case, rng)
    for call in calls_of(record.public):
        if trial.asks(call):
            trial.again(cases[call.case], call)
    if trial.is_last:
        trial.on_other_device(cases["fresh sizes"])
    broken = trial.broken_property(cases["fresh sizes"]) if trial.everything_is_right else None
    if broken:
        raise CheckFailed("to change part of an input", "right numbers, wrong behaviour", "both right", broken)
    return trial.mark()


def part_values(
    rule: Rule, reading: Reading = of_the_right_shape
) -> Callable[[ValueRecord, Part, Answer, random.Random], Mark]:
    """Return the judge of a part that needs only some of the outputs to be right, according to the rule."""
    return functools.partial(values, rule=rule, reading=reading)


def right(name: str, outputs: Arrays, expected: Arrays, allowed: Tolerances) -> bool:
    """Return whether an output is present and right."""
    if name not in outputs or outputs[name].shape != expected[name].shape:
        return False
    return bool((_differences(outputs[name], expected[name]) <= allowed[name]).all())


class _Cases:
    """The cases of an answer by their names in CALLS, each drawn on first use."""

    def __init__(self, record: ValueRecord, first: Arrays, rng: random.Random) -> None:
        reads = record.public.reads
        longer = record.draw(rng, record.first_sizes | record.other_length)
        self._known = {"first": first, "other length": first | {name: longer[name] for name in reads}}
        self._draw = {
            "one sequence": lambda: first | {name: first[name][:1] for name in reads},
            "other sizes": lambda: record.draw(rng, record.other_sizes),
            "size one": lambda: record.draw(rng, record.smallest_sizes),
            "fresh sizes": lambda: record.draw(rng, _fresh_sizes(record, rng)),
        }

    def __getitem__(self, name: str) -> Arrays:
        if name not in self._known:
            self._known[name] = self._draw[name]()
        return self._known[name]


def _fresh_sizes(record: ValueRecord, rng: random.Random) -> dict[str, int]:
    """Return unpredictable sizes, all different; lengths may be larger than other sizes."""
    sizes = dict(zip(record.first_sizes, rng.sample(range(2, 13), len(record.first_sizes)), strict=True))
    lengths = [name for name in record.other_length if name != "b"]
    return sizes | dict(zip(lengths, rng.sample(range(18, LONGEST + 1), len(lengths)), strict=True))


class _Mistakes:
    """The outputs of known mistakes for the first case, computed on demand and shared by the parts of an exercise."""

    def __init__(self, record: ValueRecord, case: Arrays) -> None:
        self.record, self.case = record, case
        self._made: dict[str, dict[str, torch.Tensor]] = {}

    def made(self, wrong: WrongAnswer) -> dict[str, torch.Tensor]:
        """Return the outputs of the case with this mistake."""
        if wrong.name not in self._made:
            self._made[wrong.name] = tensors(self.record.outputs(wrong.source, self.case))
        return self._made[wrong.name]

    def behind(self, outputs: Arrays) -> WrongAnswer | None:
        """Return the first known mistake that explains all outputs."""
        theirs = tensors(outputs)
        for wrong in self.record.wrong:
            made = self.made(wrong)
            if theirs.keys() == made.keys() and all(close(theirs[name], made[name]) for name in made):
                return wrong
        return None


class _Trial:
    """The calls of one answer, each compared with the reference or with a known mistake."""

    def __init__(
        self,
        record: ValueRecord,
        part: Part,
        answer: Answer,
        rng: random.Random,
        rule: Rule | None,
        reading: Reading,
        mistakes: _Mistakes,
    ) -> None:
        self.record, self.part, self.answer, self.rng, self.rule = record, part, answer, rng, rule
        self.reading, self.mistakes = reading, mistakes
        self.is_last = part == [part for part in record.parts if part.points][-1]
        self.calls = 0
        self.everything_is_right = True  # so far
        self.mistake: WrongAnswer | None = None  # the mistake that explains everything
        self.lesser: WrongAnswer | None = None  # a mistake that the rule accepts, for some of the points
        self.failure: Failure | None = None  # the first finding, if a known mistake explains it

    def mark(self) -> Mark:
        """Return the points and the message after all calls."""
        mistake = self.lesser or self.mistake
        if mistake and self.part.name in self.record.fails(mistake):
            assert mistake.costs is not None
            return Mark(self.part.points - mistake.costs, failure=self.failure)
        if not self.everything_is_right:
            praise = "This part is correct. See the messages for the other parts."
            return Mark(self.part.points, praise, complete=False)
        flow = "; gradients flow" if self.record.public.trains else ""
        praise = f"Right for {self.calls} calls on inputs drawn for this submission{flow}."
        return Mark(self.part.points, praise)

    def asks(self, call: Call) -> bool:
        """Return whether a call is about this part and is informative for this answer."""
        if call.case == "size one":  # for example, with one position nothing is masked
            return bool(self.record.ones) and (self.rule is None or self.is_last)
        if call.case == "other sizes":  # with such large numbers, a mistake may overflow
            return not self.mistake and not self.lesser
        return self.is_last or not call.whole

    def compare_the_rest(self, found: Arrays, case: Arrays) -> None:
        """Raise CheckFailed unless gradients are right and inputs unchanged, which is the last part's business."""
        public = self.record.public
        tried = self._tried(case, next(iter(public.axes)))
        require_unchanged(tried, case, inputs_after(found))
        if not self.everything_is_right and not self.mistake:
            return
        source = self.mistake.source if self.mistake else self.record.model_answer
        for output, expected in self.record.gradients(source, case).items():
            if not any(np.isnan(gradient).any() for gradient in expected.values()):  # a mistake may have NaN
                compare_gradients(tried, output, gradients_of(output, found), tensors(expected))

    def again(self, case: Arrays, call: Call) -> None:
        """Compare the outputs of a call; the first call names known mistakes, the others have their own hint."""
        try:
            found = self._called(case, call.way, first=call == FIRST)
            if call.way.gradients and self.is_last:
                self.compare_the_rest(found, case)
        except CheckFailed as failed:
            raise failed.with_hint(call.known or failed.hint) from failed

    def on_other_device(self, case: Arrays) -> None:
        """Compare the outputs of a call with everything on a device other than the CPU."""
        if self.everything_is_right:
            self.rule = None  # what is wrong now is caused by the device, and does not count in other parts
        try:
            self._called(case, ELSEWHERE)
        except CheckFailed as failed:
            raise failed.with_hint(failed.hint or MADE_HERE) from failed

    def broken_property(self, case: Arrays, output: str = "") -> str | None:
        """Return the hint of the first property that the answer, as it was last built, or one of its outputs, lacks."""

        def ask(changed: Arrays) -> Arrays:
            found = self._outputs(changed, Way(evaluate=True))[0]
            return {output: found[output]} if output else found

        for rule in self.record.properties:
            try:
                if not rule.holds(ask, case, self.record.public.reads, self.rng):
                    return hint(rule.hint, self.record.id)
            except (CheckFailed, KeyError, ValueError, IndexError, TypeError):  # no outputs, or useless ones
                continue
        return None

    def _called(self, case: Arrays, way: Way, first: bool = False) -> Arrays:
        """Call the answer and raise CheckFailed unless its outputs are right; return the whole reply."""
        outputs, found, failed = self._outputs(case, way)
        expected, allowed = self._expected(case, self.mistake)
        off = [name for name in outputs if not right(name, outputs, expected, allowed)]
        if not off and not failed:
            return found
        mistake = self.mistakes.behind(outputs) if first and off else None
        if mistake:
            accepted = mistake.costs is not None or self.part.name not in self.record.fails(mistake)
        else:
            # If no output is wrong or missing, the gradients have failed, and the last part is about them.
            is_about_others = bool(off) or len(outputs) < len(expected) or not self.is_last
            accepted = is_about_others and self._accepts(outputs, case, first)
        # Findings from before an error are reported first, because they explain more.
        if off:
            name, known, named = off[0], "", mistake or self.lesser
            if named:
                known = hint(named.hint, self.record.id)
            elif first:
                name, known = self._explained(off, outputs, case, expected)
            failed = self._wrong(name, outputs, case, expected, allowed, known)
        assert failed is not None
        if not accepted:
            raise failed
        self.everything_is_right, self.mistake, self.failure = False, mistake or self.mistake, failed.failure
        return found

    def _accepts(self, outputs: Arrays, case: Arrays, first: bool) -> bool:
        """Return whether everything in this part is right, or is as the same lesser mistake makes it in every call."""
        if not self.rule or self.mistake:
            return False
        lesser = [wrong for wrong in self.record.wrong if wrong.costs and self.part.name in self.record.fails(wrong)]
        for mistake in (None, *lesser) if first else (self.lesser,):
            expected, allowed = self._expected(case, mistake)
            if self.rule(self.reading(outputs, case, expected), case, expected, allowed):
                self.lesser = mistake
                return True
        return False

    def _expected(self, case: Arrays, mistake: WrongAnswer | None) -> tuple[Arrays, Tolerances]:
        """Return the expected outputs, or those of a mistake, and their tolerances."""
        if not mistake:
            return self.record.reference(case), tolerances(self.record, case, self.rng)
        made = self.record.outputs(mistake.source, case)
        return made, {name: 10 * tolerance(tensor) for name, tensor in tensors(made).items()}

    def _outputs(self, case: Arrays, way: Way) -> tuple[Arrays, Arrays, CheckFailed | None]:
        """Return the outputs that are arrays, the whole reply, and the failure."""
        self.calls += 1
        inputs = {name: as_given(array) for name, array in case.items()}
        reply, found = self.answer.ask("call", inputs, name=self.record.defines, **asdict(way))
        axes = self.record.public.axes
        arrays = {name: found.get(f"outputs/{name}") for name in axes}
        outputs = {name: array for name, array in arrays.items() if array is not None and array.dtype.kind in "fiub"}
        failed, tried = failure_told(reply), self._tried(case, next(iter(axes)))
        for name in [name for name in axes if name in _table(reply.get("kinds"))][:1]:
            yours = f"{name} is {str(reply['kinds'][name])[:TEXT]}"[:TEXT]
            is_tensor = _table(reply.get("tensors")).get(name) is True
            known = hint("not-real-numbers" if is_tensor else "not-a-tensor", name=name)
            failed = CheckFailed(self._tried(case, name), yours, f"{name}, a tensor", known)
        if not failed and len(outputs) < len(axes):
            failed = CheckFailed(tried, "outputs are missing", "every output", hint("outputs-missing"))
        if not failed:
            try:
                told = reply.get("products")
                self.record.public.compare_products(tried, told if type(told) is int and told < MANY else MANY)
            except CheckFailed as products:
                failed = products
        return outputs, found, failed

    def _wrong(
        self, name: str, outputs: Arrays, case: Arrays, expected: Arrays, allowed: Tolerances, known: str
    ) -> CheckFailed:
        """Return the failure for a wrong output, which reveals no number of the case."""
        output, wanted = outputs[name], expected[name]
        yours = f"{name} of shape {output.shape}"
        if output.shape == wanted.shape:
            wrong = int((~(np.abs(output - wanted) <= allowed[name])).sum())
            yours = f"{wrong} of {output.size} entries of {name} are off, by up to {_distance(output, wanted):.2g}"
        words = f"{name} {in_words(wanted.shape, self.record.public.axes[name])}"
        return CheckFailed(self._tried(case, name), yours, f"{words}, right within {np.max(allowed[name]):.1g}", known)

    def _explained(self, off: list[str], outputs: Arrays, case: Arrays, expected: Arrays) -> tuple[str, str]:
        """Return the wrong output to report, and the hint; one of several parts prefers a mistake that it is about."""
        own = [wrong for wrong in self.record.wrong if self.part.name in self.record.fails(wrong)]
        theirs, wanted = tensors(outputs), tensors(expected)

        def alike(wrong: WrongAnswer) -> int:
            return sum(close(theirs[name], made) for name, made in self.mistakes.made(wrong).items() if name in theirs)

        for name in off if self.rule else ():
            made = {wrong: self.mistakes.made(wrong)[name] for wrong in own}
            fitting = [wrong for wrong in own if close(theirs[name], made[wrong]) and made[wrong].isfinite().all()]
            fitting = [wrong for wrong in fitting if not close(made[wrong], wanted[name])]
            if fitting:
                return name, hint(max(fitting, key=alike).hint, self.record.id)
        return off[0], self._hint(off[0], outputs, case, expected)

    def _hint(self, name: str, outputs: Arrays, case: Arrays, expected: Arrays) -> str:
        """Return the known mistake that explains a wrong output, else a property it lacks, else a general hint."""
        mistakes: dict[str, dict] = {}
        for wrong in self.record.wrong:
            for output, made in self.mistakes.made(wrong).items():
                if _distance(made.numpy(), expected[output]) > 0:
                    mistakes.setdefault(output, {})[wrong.name] = made
        known = Case(tensors(case), tensors(expected), mistakes=mistakes)
        hints = {wrong.name: hint(wrong.hint, self.record.id) for wrong in self.record.wrong}
        theirs = tensors(outputs)
        return (
            known_mistake(theirs, name, known, hints, self.record.public.together(name))
            or self._differs_again(outputs, case)
            or self.broken_property(case, name)
            or general_hint(theirs[name], known.outputs[name])
        )

    def _differs_again(self, outputs: Arrays, case: Arrays) -> str | None:
        """Return the failure if the same call gives something else; then no other property means anything."""
        again, _, _ = self._outputs(case, Way())
        return (
            None
            if all(_distance(again.get(name, np.zeros(0)), outputs[name]) == 0 for name in outputs)
            else CALLED_AGAIN
        )

    def _tried(self, case: Arrays, output: str) -> str:
        return self.record.public.tried(tensors(case), output)


def tolerances(record: ValueRecord, case: Arrays, rng: random.Random) -> Tolerances:
    """Return how far each output of a right answer in float32 may be from the reference in float64, for this case.

    Rounding has the effect of slightly different inputs. So every input is changed by one rounding error of float32, up
    or down at random, and the reference, in float64, shows how far that moves the outputs. A right answer makes several
    such errors, in its inputs and on the way, in an order that depends on the machine. The tolerance is 64 times the
    largest move seen, or that of each entry in an `entrywise` record, plus 64 roundings of the largest output.
    tests/judging/test_judge.py measures that right answers stay far below and known mistakes far above.
    """
    expected = record.reference(case)
    signs = np.random.default_rng(rng.getrandbits(64))
    moved = [
        record.reference({name: _rounded_at_random(array, signs) for name, array in case.items()})
        for _ in range(TRIALS)
    ]
    apart: Callable[[np.ndarray, np.ndarray], Any] = _differences if record.entrywise else _distance
    return {
        name: ROUNDINGS * (np.max([apart(each[name], right) for each in moved], axis=0) + FLOAT32 * np.abs(right).max())
        for name, right in expected.items()
    }


def _rounded_at_random(array: np.ndarray, signs: np.random.Generator) -> np.ndarray:
    if array.dtype != np.float64:
        return array
    return array * (1 + FLOAT32 * signs.choice((-1, 1), size=array.shape))


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest difference; infinity if the shapes differ or only one side is NaN."""
    return float(_differences(first, second).max(initial=0)) if first.shape == second.shape else np.inf


def _differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the differences of the entries; infinity where only one side is NaN."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0, np.abs(first - second))
    return np.where(np.isnan(difference), np.inf, difference)


def as_given(array: np.ndarray) -> np.ndarray:
    """Return an array as it is sent: real numbers in float32, which holds the drawn ones exactly."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def inputs_after(found: Arrays) -> Arrays:
    """Return the inputs as they are after a call, from the whole reply."""
    return _below("after/", found)


def gradients_of(output: str, found: Arrays) -> dict[str, torch.Tensor]:
    """Return the gradients of an output with respect to the inputs, from the whole reply."""
    return tensors(_below(f"gradients/{output}/", found))


def _below(start: str, found: Arrays) -> Arrays:
    return {name.removeprefix(start): array for name, array in found.items() if name.startswith(start)}


def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    """Return arrays as tensors."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def failure_told(reply: dict) -> CheckFailed | None:
    """Return the error that an answer reports in its reply, if any."""
    error = reply.get("error")
    return CheckFailed.of(Failure.from_table(error)) if isinstance(error, dict) else None


def _table(value: object) -> dict:
    return value if isinstance(value, dict) else {}


# --- layers -------------------------------------------------------------------------------------


def layers(
    check: Callable, name: str, attributes: tuple[str, ...]
) -> Callable[[Record, Part, Answer, random.Random], str]:
    """Return the judge of the linear layers that `name(input_size, hidden)` makes, by the student's own check.

    The check gets layers rebuilt here from what the answer reported, once they are seen to compute x W^T + b.
    """

    def judged(record: Record, part: Part, answer: Answer, rng: random.Random) -> str:
        sizes = [tuple(rng.sample(range(2, 20), 2)) for _ in range(2)]
        with redirect_stdout(StringIO()):
            check(lambda *arguments: _rebuilt(answer, name, arguments, attributes, rng), sizes)
        return "The layers are there, of the right sizes."

    return judged


class _Stranger:
    """Represents something that is not a linear layer; `kind` says what it is."""


def _rebuilt(
    answer: Answer, name: str, arguments: tuple[int, ...], attributes: tuple[str, ...], rng: random.Random
) -> object:
    probe = np.array([[rng.uniform(-1, 1) for _ in range(64)] for _ in range(3)], dtype=np.float32)
    facts, arrays = answer.ask(
        "layers", {"probe": probe}, name=name, arguments=list(arguments), attributes=list(attributes)
    )
    failed = failure_told(facts)
    if failed:
        raise failed
    facts_of = {each: fact for each, fact in _table(facts.get("layers")).items() if each in attributes}
    made = nn.Module() if facts.get("is_module") else _stranger(facts.get("type"))
    shared: dict[str, nn.Parameter] = {}
    for attribute, fact in facts_of.items():
        tried = f"{name}({', '.join(map(str, arguments))})"
        part = _rebuilt_layer(tried, attribute, _table(fact), arrays, probe, shared)
        if not attribute:
            return part
        setattr(made, attribute, part)
    return made


def _stranger(name: object) -> _Stranger | None:
    """Return an object whose type has this name."""
    return None if name == "NoneType" else type(str(name).replace("\0", "")[:80], (_Stranger,), {})()


def _rebuilt_layer(
    tried: str, attribute: str, fact: dict, arrays: Arrays, probe: np.ndarray, shared: dict[str, nn.Parameter]
) -> object:
    """Return a linear layer with the weights that an answer reported, if it computes with these."""
    weight, bias = arrays.get(f"{attribute}/weight"), arrays.get(f"{attribute}/bias")
    if not fact.get("linear") or weight is None or weight.ndim != 2:
        return _stranger(fact.get("type", "something else"))
    size_out, size_in = weight.shape
    layer = attribute or "the layer"
    # Nothing is computed with sizes that an answer has made up.
    if max(weight.shape) > WIDEST or (bias is not None and bias.shape != (size_out,)):
        yours = f"{layer} has weights of shape {weight.shape}" + ("" if bias is None else f" and {bias.shape}")
        raise CheckFailed(tried, yours, "a linear layer of the right sizes", hint("layer-sizes-made-up"))
    if size_in <= probe.shape[1]:  # a wider one is wrong anyway
        expected = probe[:, :size_in] @ weight.T + (0 if bias is None else bias)
        if _distance(arrays.get(f"{attribute}/output", np.zeros(0)), expected) > 1e-3:
            known = hint("layer-computes-something-else")
            raise CheckFailed(tried, f"{layer} computes something else", "a linear layer", known)
    rebuilt = nn.Linear(size_in, size_out, bias=bias is not None)
    for part in ("weight",) if bias is None else ("weight", "bias"):
        identity = str(_table(fact.get("identity")).get(part, f"{attribute}/{part}"))
        told = nn.Parameter(torch.from_numpy(arrays[f"{attribute}/{part}"].astype(np.float32)))
        setattr(rebuilt, part, shared.setdefault(identity, told))
        getattr(rebuilt, part).requires_grad_(bool(fact.get("trains")))
    return rebuilt
