"""Runs one answer: its cells as in a notebook, then the computations that the judge asks for."""

import socket
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forbid import forbid_ready_made_attention
from IPython.core.interactiveshell import InteractiveShell
from messages import NUMBERS, receive, send
from torch import Tensor, nn
from traitlets.config import Config

from transformer_lm.checks import EXERCISES
from transformer_lm.checks.engine.calling import Caller, Way
from transformer_lm.checks.engine.contract import Contract, PublicExercise
from transformer_lm.checks.engine.failure import NOT_THEIRS, CheckFailed, described, described_errors, kind
from transformer_lm.checks.engine.observed_shapes import observe
from transformer_lm.checks.engine.reported_values import plain
from transformer_lm.checks.engine.shape_comments import findings
from transformer_lm.checks.engine.style import style_findings
from transformer_lm.checks.engine.written_tests import outcome_of
from transformer_lm.shapes import ShapeError

NOT_THEIRS.add(Path(__file__).resolve().parent)  # no line in this folder is the student's
TEXT = 2000  # characters of a text about an answer
ERRORS = {error.__name__: error for error in (IndexError, ShapeError, TypeError, ValueError)}


class _KeepsNothing(dict):
    """A dictionary of cell outputs that stays empty, for a shell that should not remember outputs."""

    def __missing__(self, number: int) -> list:
        return []


def _show_nothing(*arguments: object, **options: object) -> None:
    pass


def _new_shell() -> InteractiveShell:
    """Return the shell that runs cells, without history and tracebacks."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    assert shell.history_manager is not None
    shell.history_manager.outputs = _KeepsNothing()  # otherwise endless printing uses up memory before time
    shell.showtraceback = shell.showsyntaxerror = _show_nothing  # type: ignore[method-assign]  # how a shell is quiet
    return shell


SHELL = _new_shell()  # made before the fork


def _leave_as_it_is(model: object = None, *arguments: object, **options: object) -> object:
    return model if model is not None else _leave_as_it_is


# There is no compiler in the sandbox; uncompiled code gives the same results.
torch.compile = torch.jit.script = _leave_as_it_is  # type: ignore[assignment]  # takes any model


def serve(connection: socket.socket) -> None:
    """Run the cells of a job, report on each, and then answer requests forever."""
    job, _ = receive(connection)
    if job["forbids_attention"]:
        forbid_ready_made_attention()
    for number, source in job["cells"]:
        send(connection, {"starts": number})
        send(connection, {"ran": number, "error": _run(source)})
    send(connection, {"ready": True})
    answer = Answer(EXERCISES.get(job["exercise"]), connection)
    while True:
        request, arrays = receive(connection)
        tried = f"to {request['do']} what the cell defines"
        # Settings that an earlier cell has changed should not cost points here.
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        try:
            with described_errors(tried, "tensors of real numbers"):
                send(connection, *getattr(answer, request.pop("do"))(arrays, **request))
        except CheckFailed as failed:
            send(connection, {"error": failed.failure.as_table()})


def _run(source: str) -> str | None:
    """Run a cell; return the error that it raised, in words."""
    result = SHELL.run_cell(source)
    error = result.error_before_exec or result.error_in_exec
    return None if error is None else described(error)[0][:TEXT]


class Answer:
    """The names that the student's cells have defined, ready to be called; each method answers one kind of request."""

    def __init__(self, exercise: Contract | None, connection: socket.socket) -> None:
        self.exercise, self.connection = exercise, connection
        self.caller = Caller(exercise) if isinstance(exercise, PublicExercise) else None

    def defines(self, arrays: dict, name: str) -> tuple[dict, dict]:
        """Report whether the cells define a name."""
        return {"defined": name in SHELL.user_ns}, {}

    def layers(self, arrays: dict, name: str, arguments: list[int], attributes: list[str]) -> tuple[dict, dict]:
        """Call `name(*arguments)` and describe what it returns, or its attributes, as linear layers."""
        facts: dict = {"error": None, "layers": {}}
        results: dict = {}
        try:
            with described_errors(f"{name}({', '.join(map(str, arguments))})", "linear layers"):
                made = SHELL.user_ns[name](*arguments)
                facts |= {"is_module": isinstance(made, nn.Module), "type": type(made).__name__}
                for attribute in attributes:
                    if not attribute or hasattr(made, attribute):
                        layer = getattr(made, attribute) if attribute else made
                        fact, found = _layer_facts(layer, torch.from_numpy(arrays["probe"].copy()))
                        facts["layers"][attribute] = fact
                        results |= {f"{attribute}/{part}": array for part, array in found.items()}
        except CheckFailed as failed:
            facts["error"] = failed.failure.as_table()
        return facts, results

    def call_as(self, arrays: dict, exercise: str, **request: Any) -> tuple[dict, dict]:
        """Build and call the answer as another exercise specifies."""
        return Answer(EXERCISES[exercise], self.connection).call(arrays, build=True, **request)

    def call(self, arrays: dict, name: str, **way: bool) -> tuple[dict, dict]:
        """Call the answer on these inputs, after building it if asked to; return its outputs, and the inputs."""
        inputs = {key: torch.from_numpy(array.copy()) for key, array in arrays.items()}
        assert self.caller is not None
        outcome = self.caller.call(SHELL.user_ns.get(name), inputs, Way(**way))
        failed = outcome.failed and outcome.failed.failure.as_table()
        reply: dict = {"error": failed, "kinds": {}, "tensors": {}, "products": outcome.products}
        results = {f"after/{key}": _array(tensor) for key, tensor in outcome.after.items()}
        for output, gradients in outcome.gradients.items():
            results |= {f"gradients/{output}/{key}": _array(gradient) for key, gradient in gradients.items()}
        for output, value in outcome.outputs.items():
            if isinstance(value, Tensor) and not value.is_complex() and value.numel() <= NUMBERS:
                results[f"outputs/{output}"] = _array(value)
            else:
                dtype = f" and dtype {value.dtype}" if isinstance(value, Tensor) else ""
                reply["kinds"][output] = f"{kind(value)}{dtype}"[:TEXT]
                reply["tensors"][output] = isinstance(value, Tensor)
        return reply, results

    def shapes(self, arrays: dict, name: str, source: str) -> tuple[dict, dict]:
        """Run a traced copy of the cell that defines the answer; report the shapes that its lines produce."""
        given = {key: torch.from_numpy(array.copy()) for key, array in arrays.items()}

        def run(answer: object) -> None:
            assert isinstance(self.exercise, PublicExercise)
            for _ in self.exercise.called(self.exercise.build(answer, given), given):
                pass

        return {"observations": observe(source, name, SHELL.user_ns, run)}, {}

    def read(self, arrays: dict, source: str, observations: list[dict]) -> tuple[dict, dict]:
        """Report what is wrong with the shape comments of a cell; for a process that has run no cell."""
        return {
            "findings": [[finding.line, finding.kind, finding.text] for finding in findings(source, observations)]
        }, {}

    def style(self, arrays: dict, sources: list[str]) -> tuple[dict, dict]:
        """Report the PEP 8 findings in each cell; for a process that has run no cell."""
        return {"findings": [style_findings(source) for source in sources]}, {}

    def test(self, arrays: dict, name: str) -> tuple[dict, dict]:
        """Run a student's test on a function that the judge computes; report the outcome."""
        return outcome_of(SHELL.user_ns[name], self._computed), {}

    def report(self, arrays: dict, name: str, texts: int = 0) -> tuple[dict, dict]:
        """Report a dictionary's numbers, as plain ones, and its texts that are short enough."""
        return {"error": None, "report": plain(SHELL.user_ns[name], texts=texts)}, {}

    def _computed(self, *arguments: Tensor, **options: Tensor) -> Tensor:
        """Return the judge's result for the arguments, or raise its error."""
        given = {str(place): argument for place, argument in enumerate(arguments)} | options
        for place, tensor in given.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(f"argument {place} must be a tensor, got {type(tensor).__name__}.")
        # Types that NumPy lacks are sent as float32 and converted back.
        coarse = any(tensor.dtype == torch.bfloat16 for tensor in given.values())
        plain = {name: tensor.float() if coarse else tensor for name, tensor in given.items()}
        send(
            self.connection, {"wants": list(plain)}, {name: each.detach().cpu().numpy() for name, each in plain.items()}
        )
        reply, found = receive(self.connection)
        if reply["error"]:
            kind_of_error, message = reply["error"]
            raise ERRORS.get(kind_of_error, RuntimeError)(message)
        result = torch.from_numpy(found["result"])
        return result.bfloat16() if coarse else result


def _layer_facts(layer: object, probe: Tensor) -> tuple[dict, dict[str, np.ndarray]]:
    """Return facts about a linear layer, and its weights with its output for a probe."""
    if not isinstance(layer, nn.Linear):
        return {"linear": False, "type": type(layer).__name__[:TEXT]}, {}
    parameters = {part: getattr(layer, part) for part in ("weight", "bias") if getattr(layer, part, None) is not None}
    facts = {
        "linear": True,
        "trains": all(parameter.requires_grad for parameter in parameters.values()),
        "identity": {part: id(parameter) for part, parameter in parameters.items()},
    }
    found = {part: _array(parameter) for part, parameter in parameters.items()}
    if layer.weight.shape[1] <= probe.shape[-1]:
        found["output"] = _array(layer(probe[..., : layer.weight.shape[1]]))
    return facts, found


def _array(tensor: Tensor) -> np.ndarray:
    plain = tensor.detach().cpu()
    return (plain.double() if plain.is_floating_point() else plain).numpy()
