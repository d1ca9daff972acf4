"""How an answer is called and checked: build it, give it weights, call it in several ways, and compare.

This module and the modules of the topics hold everything that a student's check, the writing of the frozen values and
the grading must agree on: names, sizes, weights, order of arguments. They contain no solution.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from transformer_lm.checks.engine.calling import ELSEWHERE, FIRST, Call, Caller, Inputs, Outcome, calls_of
from transformer_lm.checks.engine.catalogue import Hint, hint
from transformer_lm.checks.engine.diagnosis import compare, compare_gradients, require_unchanged
from transformer_lm.checks.engine.failure import CheckFailed, described, described_errors, passed
from transformer_lm.checks.engine.other_device import elsewhere
from transformer_lm.checks.engine.ready_made import READY_MADE, refused_attention
from transformer_lm.device import best_device
from transformer_lm.shapes import in_words
from transformer_lm.test_values import Case, load_frozen

AHEAD = hint("future-has-weight")
NOT_YOURS = hint("not-yours")

Module = TypeVar("Module")


@runtime_checkable
class Contract(Protocol):
    """The public part of an exercise of any kind: it has an id, and it checks an answer."""

    @property
    def id(self) -> str:
        """The id of the exercise, such as `self-attention`."""

    @property
    def check(self) -> Callable:
        """The check of an answer."""


@dataclass(frozen=True)
class PublicExercise:
    """The public part of an exercise.

    `axes` holds the names of the outputs, in order, and the names of their axes; `trains` names the outputs whose
    gradients are checked. `reads` names the inputs that are passed to each call, batch first unless the exercise is not
    `batched`; the other inputs are weights. `build` makes the object to call from an answer and the inputs, usually a
    module with those weights; `call` yields its outputs in order, or the error that was raised instead of one (see
    `attempt`); `tried` describes in words how an output was made. `products` is the number of matrix products
    that one call may take, if the exercise limits it. With `keeps_device`, outputs must be on the device of the inputs;
    it is off where an answer gets Python numbers, or may return them. `about` names what is checked, if not everything.
    If the exercise `forbids_attention`, torch's ready-made attention is not accepted. The `causal` outputs, (..., i,
    j), are exactly 0 where a key comes after its query. `returned_together` names outputs that come from one call,
    where that matters: then a mistake is named only if it fits all of them.
    """

    id: str
    axes: dict[str, str]
    trains: tuple[str, ...]
    reads: tuple[str, ...]
    build: Callable[[Any, Inputs], Any]
    call: Callable[[Any, Inputs], Iterator[object]]
    tried: Callable[[Inputs, str], str]
    products: int | None = None
    batched: bool = True
    keeps_device: bool = True
    about: str = ""
    forbids_attention: bool = False
    causal: tuple[str, ...] = ()
    returned_together: tuple[tuple[str, ...], ...] = ()

    def together(self, output: str) -> tuple[str, ...]:
        """Return the outputs that come from the same call as this one."""
        return next((names for names in self.returned_together if output in names), (output,))

    def called(self, subject: object, inputs: Inputs) -> Iterator[Any]:
        """Yield the outputs in order, up to the first error, which is raised."""
        for output in self.call(subject, inputs):
            if isinstance(output, Exception):
                raise output
            yield output

    def rules(self) -> AbstractContextManager:
        """Return the context manager in which a check calls an answer; it refuses what the exercise forbids."""
        return refused_attention() if self.forbids_attention else nullcontext()

    def calls_ready_made(self, answer: object) -> bool:
        """Return whether an answer calls torch's ready-made attention where the exercise forbids it."""
        given = on_device(load_frozen(self.id).cases[0].inputs)
        try:
            with self.rules():
                for _ in self.called(self.build(answer, given), given):
                    pass
        except Exception as error:  # the check itself reports any other error
            return described(error)[1] == READY_MADE
        return False

    def only(self, about: str, *outputs: str) -> "PublicExercise":
        """Return the exercise restricted to some of its outputs; `about` describes them in words."""

        def call(subject: object, inputs: Inputs) -> Iterator[object]:
            found = zip(self.axes, self.call(subject, inputs), strict=False)
            yield from (value for name, value in found if name in outputs)

        trains = tuple(name for name in self.trains if name in outputs)
        return replace(self, axes={name: self.axes[name] for name in outputs}, trains=trains, call=call, about=about)

    def check(self, answer: object, *more: Callable[[Any], None]) -> None:
        """Print one line if the answer is right in every call and passes all of `more`, else raise CheckFailed."""
        frozen, caller = load_frozen(self.id), Caller(self, self.rules)
        hints = {mistake: hint(id, self.id) for mistake, id in frozen.hints.items()}
        cases = self._cases(frozen.cases)
        for call in calls_of(self):
            if call.case in cases:
                self._check_call(caller, answer, call, cases[call.case], hints if call == FIRST else {})
        for check in more:
            with self.rules():
                check(answer)
        if not self.about:
            self.check_on_other_device(answer)
        right = f"{self.about} right for every size tried".strip()
        passed(self.id, f"{right}, and gradients flow." if self.trains else f"{right}.")

    def _cases(self, frozen: tuple[Case, ...]) -> dict[str, Case]:
        """Return the cases of a check by their names in CALLS, without those of fresh sizes, which stay secret."""
        first, other_length, other_sizes, *smallest = frozen
        cases = {"first": first, "other length": other_length, "other sizes": other_sizes}
        if self.batched:
            b = len(first.inputs[self.reads[0]])
            inputs = {name: tensor[: len(tensor) // b] for name, tensor in first.inputs.items() if name in self.reads}
            outputs = {name: tensor[: len(tensor) // b] for name, tensor in first.outputs.items()}
            cases["one sequence"] = Case(first.inputs | inputs, outputs)
        if smallest:
            (cases["size one"],) = smallest
        return cases

    def _check_call(self, caller: Caller, answer: object, call: Call, case: Case, hints: dict[str, Hint]) -> None:
        """Raise CheckFailed unless a call gives the expected result."""
        given = on_device(case.inputs)
        outcome = caller.call(answer, given, call.way, self._expected(case))
        try:
            self._compare_outputs(outcome, given, case, hints)
            if call.way.gradients:
                self._compare_the_rest(outcome, given, case)
        except CheckFailed as failed:
            raise failed.with_hint(call.known or failed.hint) from failed

    def _expected(self, case: Case) -> dict[str, str]:
        return {name: f"{name} {in_words(case.outputs[name].shape, axes)}" for name, axes in self.axes.items()}

    def _compare_outputs(self, outcome: Outcome, given: Inputs, case: Case, hints: dict[str, Hint]) -> None:
        """Raise CheckFailed unless all outputs are there and right. A wrong output explains more than an error."""
        for name in outcome.outputs:
            with described_errors(self.tried(given, name), f"{name}, a tensor of numbers"):
                tried, together = self.tried(given, name), self.together(name)
                compare(tried, name, self.axes[name], outcome.outputs, case, hints, together)
        if len(outcome.outputs) < len(self.axes):
            assert outcome.failed is not None
            raise outcome.failed
        self.compare_products(self.tried(given, next(iter(self.axes))), outcome.products)

    def _compare_the_rest(self, outcome: Outcome, given: Inputs, case: Case) -> None:
        """Raise CheckFailed unless the future has no weight, the inputs are unchanged, and the gradients are right."""
        for name in self.causal:
            weights = outcome.outputs[name]
            assert isinstance(weights, Tensor)
            if any(row[..., i + 1 :].any() for i, row in enumerate(weights.unbind(-2))):
                raise CheckFailed(self.tried(given, name), f"{name} has small weights there", "exactly 0", AHEAD)
        tried = self.tried(given, next(iter(self.axes)))
        require_unchanged(tried, given, outcome.after)
        if outcome.failed:
            raise outcome.failed
        for name in self.trains:
            compare_gradients(tried, name, outcome.gradients.get(name, {}), case.gradients[name])

    def check_on_other_device(self, answer: object) -> None:
        """Raise CheckFailed unless the outputs are right with everything on a device that is not the CPU."""
        case = load_frozen(self.id).cases[2]
        outcome = Caller(self, self.rules).call(answer, case.inputs, ELSEWHERE, self._expected(case))
        elsewhere(self)._compare_outputs(outcome, case.inputs, case, {})

    def compare_products(self, tried: str, count: int) -> None:
        """Raise CheckFailed if a call took a different number of matrix products than the exercise asks for."""
        if self.products is not None and count != self.products:
            yours, expected = f"{count} matrix products", f"{self.products} matrix product"
            raise CheckFailed(tried, yours, expected, hint("too-many-products"))


def require_own(answer: object) -> None:
    """Raise CheckFailed if an answer comes from the package, which does not contain it where answers are graded."""
    home = str(getattr(answer, "__module__", ""))
    if home.startswith("transformer_lm."):
        tried = f"to find where {getattr(answer, '__name__', 'the answer')} is written"
        raise CheckFailed(tried, f"it is written in {home}", "it is written in your cell", NOT_YOURS)


def on_device(inputs: Inputs) -> Inputs:
    """Return copies of the inputs on the device that checks use."""
    device = best_device()
    return {name: tensor.to(device, copy=True) for name, tensor in inputs.items()}


def load_parameters(module: Module, weights: Inputs, tried: str) -> Module:
    """Replace a module's parameters by tensors, by name, such as `q.weight`; gradients flow to the tensors.

    Raises CheckFailed if the object is not a module, or a parameter is missing or has another shape.
    """
    if not isinstance(module, nn.Module):
        yours = f"an object of type {type(module).__name__}"
        raise CheckFailed(tried, yours, "an nn.Module", hint("not-a-module"))
    fixed = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    for name, weight in weights.items():
        layer, _, part = name.rpartition(".")
        owner: Any = getattr(module, layer, None) if layer else module
        theirs = getattr(owner, part, None)
        if not isinstance(theirs, Tensor):
            yours, expected = f"parameter {name} is missing", f"{name} of shape {tuple(weight.shape)}"
            raise CheckFailed(tried, yours, expected, hint("no-such-parameter", layer=layer))
        if theirs.shape != weight.shape:
            yours, expected = f"{name} of shape {tuple(theirs.shape)}", f"{name} of shape {tuple(weight.shape)}"
            raise CheckFailed(tried, yours, expected, hint("layer-of-other-sizes", layer=layer))
        if name in fixed:
            expected = f"{name}, a parameter that is learned"
            raise CheckFailed(tried, f"{name} gets no gradient", expected, hint("does-not-learn"))
        delattr(owner, part)
        owner._parameters[part] = weight.to(theirs.dtype)  # so that parameters() returns it
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # we do not read .grad
        return module.to(weight.device)
