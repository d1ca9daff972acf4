"""Calling an answer: a student's check and the judge make the same calls, in the same order.

The two differ in where the answer runs, in the inputs and in the tolerance. They share the rest.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_lm.checks.engine.catalogue import Hint, hint
from transformer_lm.checks.engine.failure import CheckFailed, described_errors
from transformer_lm.checks.engine.other_device import elsewhere

Inputs = dict[str, Tensor]

CALLED_AGAIN = hint("called-again")
EVAL_MODE = hint("eval-mode")
ONE_SEQUENCE = hint("one-sequence")
STRIDED = hint("strided")
OTHER_LENGTH = hint("other-length")
OTHER_SIZES = hint("other-sizes")
SIZE_ONE = hint("size-one")


@dataclass(frozen=True, match_args=False)
class CallContract(Protocol):
    """The facts about an exercise that are needed to call its answers; see `PublicExercise`."""

    axes: dict[str, str]
    trains: tuple[str, ...]
    reads: tuple[str, ...]
    build: Callable[[Any, Inputs], Any]
    call: Callable[[Any, Inputs], Iterator[object]]
    tried: Callable[[Inputs, str], str]
    products: int | None
    batched: bool


@dataclass(frozen=True)
class Way:
    """How a call is made: with a newly built answer, in eval mode, with non-contiguous inputs, ...

    With `gradients`, the gradients of the trainable outputs are computed too. With `other_device`, nothing is on the
    CPU.
    """

    build: bool = False
    evaluate: bool = False
    strided: bool = False
    gradients: bool = False
    other_device: bool = False


@dataclass(frozen=True)
class Call:
    """One call of an answer: the name of its case, how it is made, and the hint if this call is the first to fail.

    A call about the `whole` exercise concerns all of its parts alike. A check cannot make a call with `fresh` sizes,
    because those must not be known in advance.
    """

    case: str
    way: Way
    known: Hint | None = None
    whole: bool = False
    fresh: bool = False


# In this order. Each has a separate case, which the judge draws at random and a check takes from the frozen values.
FIRST = Call("first", Way(build=True, gradients=True))
CALLS = (
    FIRST,
    Call("first", Way(), CALLED_AGAIN),
    Call("first", Way(evaluate=True), EVAL_MODE),
    Call("one sequence", Way(evaluate=True), ONE_SEQUENCE, whole=True),
    Call("first", Way(evaluate=True, strided=True), STRIDED, whole=True),
    Call("other length", Way(evaluate=True), OTHER_LENGTH),
    Call("other sizes", Way(build=True), OTHER_SIZES),
    Call("size one", Way(build=True), SIZE_ONE),
    Call("fresh sizes", Way(build=True), OTHER_SIZES, fresh=True),
)
ELSEWHERE = Way(build=True, other_device=True)  # the last call of all


def calls_of(exercise: CallContract) -> list[Call]:
    """Return the calls that an exercise allows: without a batch, no sequence can be tried alone."""
    return [call for call in CALLS if exercise.batched or not call.whole]


@dataclass
class Outcome:
    """The result of a call.

    It holds the outputs, whatever they are; the gradients of each with respect to the inputs; the inputs after the
    call; the number of matrix products, if that is checked; and the first error.
    """

    outputs: dict[str, object] = field(default_factory=dict)
    gradients: dict[str, Inputs] = field(default_factory=dict)
    after: Inputs = field(default_factory=dict)
    products: int = 0
    failed: CheckFailed | None = None


class Caller:
    """Builds an answer and calls it as its exercise says, and keeps what it has built for the next call.

    `rules` returns the context manager in which the answer is called.
    """

    def __init__(self, exercise: CallContract, rules: Callable[[], AbstractContextManager] = nullcontext) -> None:
        self.exercise, self.rules = exercise, rules
        self.subject: object = None

    def call(self, answer: object, inputs: Inputs, way: Way, expected: dict[str, str] | None = None) -> Outcome:
        """Return the result of a call on these inputs. `expected` describes in words what each output should be."""
        exercise = elsewhere(self.exercise) if way.other_device else self.exercise
        leaves = {name: tensor.clone() for name, tensor in inputs.items()}
        if way.gradients:
            for leaf in leaves.values():
                leaf.requires_grad_(leaf.is_floating_point())
        given = {name: leaf.clone() for name, leaf in leaves.items()}
        if way.strided:
            given |= {name: given[name].mT.contiguous().mT for name in exercise.reads}
        outcome = Outcome(after=given)
        try:
            with self.rules(), described_errors(exercise.tried(given, next(iter(exercise.axes))), "something to call"):
                if way.build:
                    self.subject = exercise.build(answer, given)
                if isinstance(self.subject, nn.Module):
                    self.subject.train(not way.evaluate)
            self._keep_outputs(exercise, outcome, expected or {})
            if way.gradients and not outcome.failed:
                self._keep_gradients(outcome, leaves)
        except CheckFailed as failed:
            outcome.failed = failed
        return outcome

    def _keep_outputs(self, exercise: CallContract, outcome: Outcome, expected: dict[str, str]) -> None:
        """Keep every output and the first error, which may concern only one part of an exercise."""
        given, outputs, counter = outcome.after, exercise.call(self.subject, outcome.after), ProductCounter()
        counting = counter if exercise.products is not None else nullcontext()  # counting slows every operation down
        with self.rules(), counting:
            for name in exercise.axes:
                try:
                    with described_errors(exercise.tried(given, name), expected.get(name, f"{name}, a tensor")):
                        output = next(outputs)
                        if isinstance(output, Exception):
                            raise output
                    outcome.outputs[name] = output
                except CheckFailed as failed:
                    outcome.failed = outcome.failed or failed
        if exercise.products is not None:
            outcome.products = max(counter.count, _products_behind(outcome.outputs))

    def _keep_gradients(self, outcome: Outcome, leaves: Inputs) -> None:
        """Keep the gradients of each trainable output's sum of squares with respect to the inputs that have any."""
        targets = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        for output in self.exercise.trains:
            value = outcome.outputs[output]
            if isinstance(value, Tensor) and value.requires_grad:
                with described_errors(self.exercise.tried(leaves, output), "outputs from which gradients flow back"):
                    found = torch.autograd.grad(
                        value.square().sum(), list(targets.values()), retain_graph=True, materialize_grads=True
                    )
                outcome.gradients[output] = dict(zip(targets, found, strict=True))


class ProductCounter(TorchDispatchMode):
    """Counts the matrix products that torch really computes, however they were written."""

    PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "mv", "addmv", "dot", "convolution"})

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket.__name__ in self.PRODUCTS
        return function(*args, **(kwargs or {}))


def _products_behind(outputs: Mapping[str, object]) -> int:
    """Return the number of matrix products in the autograd graph of the outputs, whatever the counter has seen."""
    seen, waiting = set(), [value.grad_fn for value in outputs.values() if isinstance(value, Tensor)]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    names = [type(node).__name__.partition("Backward")[0].lower() for node in seen]
    return sum(name in ProductCounter.PRODUCTS for name in names)


def attempt(call: Callable, *arguments: object) -> object:
    """Return the result of a call, or the error that it raises, so that later outputs can still be examined."""
    try:
        return call(*arguments)
    except Exception as error:
        return error
