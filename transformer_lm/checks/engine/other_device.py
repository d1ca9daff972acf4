"""A simulated GPU: an answer that would fail on a real one, because it mixes in tensors on the CPU, fails here too.

The CPU computes everything, so the numbers stay the same. Each tensor is marked with the device where it would be, and
an operation on tensors of two devices is refused, as in torch. A tensor created without a device is on the CPU; one
from outside, or on a device that the answer names itself, may be used anywhere.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.failure import CheckFailed

THERE = torch.device("cuda", 0)  # what tensors on it return as their device
HERE = torch.device("cpu")

MADE_HERE = hint("always-on-the-cpu")
NOT_FOR_NUMPY = hint("numpy-on-a-gpu")
PLAIN_LIST = hint("layers-in-a-plain-list")
NOT_A_PART = hint("layer-not-an-attribute")

MOVES = {"to", "cpu", "cuda", "type_as"}
# The attributes by which a tensor reports its device, with their values on the other device.
ANSWERS = {Tensor.device: THERE, Tensor.is_cuda: True, Tensor.is_cpu: False}
# An index may be on the CPU; copying works between any two devices.
MAY_MIX = {"_has_compatible_shallow_copy_type", "copy_", "__setitem__", "index_put_", "__set__", "tensor_split"}


def _refusal(message: str, hint: str) -> RuntimeError:
    """Return the error that torch raises, with a hint that names the mistake."""
    error = RuntimeError(message)
    error.hint = hint  # type: ignore[attr-defined]  # torch's own class, which students know
    return error


class OtherDevice(TorchFunctionMode):
    """While it is active, `.to(THERE)` and `device=THERE` return tensors that are marked as being there."""

    def __init__(self) -> None:
        super().__init__()
        self.answer_chooses = False  # it has asked whether a GPU is present: its behaviour without one proves nothing

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Run one function of torch, and mark its results with the device where they would be."""
        kwargs, name, given = dict(kwargs or {}), function.__name__, tensors_in([args, kwargs])
        places = [place_of(tensor) for tensor in given]
        asked = getattr(function, "__self__", None)
        if THERE in places and name == "__get__" and asked in ANSWERS:
            return ANSWERS[asked]
        if THERE in places and name == "get_device":
            return THERE.index
        if not kwargs.get("force"):  # NumPy gets a copy on the CPU
            self.look_at(name, args, given)
        if name in MOVES:
            return _moved(function, args, kwargs)
        if name in ("tensor", "as_tensor") and not isinstance(args[0] if args else None, Tensor):
            places = []  # plain numbers, whatever their device was
        place = THERE if THERE in places else HERE if HERE in places or not places else None
        if kwargs.get("device") is None and function in _device._device_constructors():
            kwargs["device"] = _device.CURRENT_DEVICE  # set by torch.set_default_device, or None
        if kwargs.get("device") is not None:
            place = _named(kwargs["device"])
            kwargs["device"] = HERE  # which really computes it
        result = function(*args, **kwargs)
        known = [_memory(tensor) for tensor in given]
        for tensor in tensors_in(result):
            if not any(_memory(tensor) is memory for memory in known):
                mark(tensor, place)
        return result

    def look_at(self, name: str, args: tuple, given: list[Tensor]) -> None:
        """Raise RuntimeError if torch would not run a function on these tensors."""
        places = {place_of(tensor) for tensor in given if tensor.dim() or place_of(tensor) is THERE}
        if name in ("numpy", "__array__") and THERE in places:
            raise _refusal("can't convert a tensor that is not on the CPU to numpy", NOT_FOR_NUMPY)
        if name == "__getitem__" and place_of(args[0]) is THERE:
            return
        if {HERE, THERE} <= places and not self.answer_chooses and name not in MAY_MIX | MOVES:
            stray = [tensor for tensor in given if isinstance(tensor, nn.Parameter) and place_of(tensor) is HERE]
            message = "expected all tensors to be on the same device, but some are on the CPU"
            raise _refusal(message, NOT_A_PART if stray else MADE_HERE)


@contextmanager
def other_device(mode: OtherDevice) -> Iterator[None]:
    """Simulate another device; `torch.from_numpy`, which no mode intercepts, makes tensors on the CPU."""
    from_numpy, is_available = torch.from_numpy, torch.cuda.is_available

    def asked() -> bool:
        mode.answer_chooses = True
        return is_available()

    made_here = mock.patch.object(torch, "from_numpy", lambda array: mark(from_numpy(array), HERE))
    with made_here, mock.patch.object(torch.cuda, "is_available", asked), mode:
        yield


def place_of(tensor: Tensor) -> torch.device | None:
    """Return the device where a tensor would be, None if it was never marked."""
    return getattr(_memory(tensor), "place", None)


def mark(tensor: Tensor, place: torch.device | None) -> Tensor:
    """Mark a tensor, and all that share its memory, as being on a device."""
    memory = _memory(tensor)
    if memory is not None:
        memory.place = place  # type: ignore[attr-defined]  # our mark
    return tensor


def _memory(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return the memory of a tensor, which its views share; None for a kind of tensor that has no storage."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # inside torch.vmap, or a sparse one
        return None


def tensors_in(value: object) -> list[Tensor]:
    """Return the tensors in lists, tuples and dictionaries, however deeply nested."""
    return [each for each in _unpacked(value) if isinstance(each, Tensor)]


def _named(device: str | int | torch.device) -> torch.device | None:
    """Return the device that an answer names; any other, such as one that it chose itself, is unknown."""
    return THERE if isinstance(device, int) or torch.device(device).type == THERE.type else None


def _moved(function: Callable, args: tuple, kwargs: dict) -> Tensor:
    """Return a tensor as `to`, `cpu` or `type_as` would: a copy if the device changes."""
    tensor, *rest = args
    place = place_of(tensor)
    target = kwargs.pop("device", None) or kwargs.pop("other", None)
    if target is None and rest and not isinstance(rest[0], torch.dtype):
        target = rest.pop(0)
    if function.__name__ in ("cpu", "cuda"):
        place, rest = HERE if function.__name__ == "cpu" else THERE, []
    elif isinstance(target, Tensor):
        place, rest = place_of(target), [target.dtype]
    elif target is not None:
        place = _named(target)
    rest = [each for each in rest if isinstance(each, torch.dtype)]
    result = tensor.to(*rest, **kwargs) if rest or kwargs else tensor
    if place is place_of(tensor) and result is tensor:
        return tensor
    return mark(result.clone() if result is tensor else result, place)


# --- an exercise on that device -----------------------------------------------------------------


def elsewhere(exercise):
    """Return a PublicExercise that moves its inputs to the other device before it builds or calls an answer.

    Its outputs must be on that device too, and every layer that is called must be part of the module that was built.
    """

    mode = OtherDevice()

    def tried(inputs: dict[str, Tensor], output: str) -> str:
        return f"{exercise.tried(inputs, output)}, not on the CPU"

    def build(answer: object, inputs: dict[str, Tensor]) -> object:
        with other_device(mode):
            subject = exercise.build(answer, _there(inputs))
            return subject.to(THERE) if isinstance(subject, nn.Module) else subject

    def call(subject: object, inputs: dict[str, Tensor]) -> Iterator[Tensor]:
        calls = exercise.call(subject, _there(inputs))
        for name in exercise.axes:
            with other_device(mode), _only_parts_of(subject, tried(inputs, name)):
                output = next(calls)
            is_here = any(place_of(tensor) is HERE for tensor in tensors_in(output))
            if exercise.keeps_device and is_here and not mode.answer_chooses:
                expected = f"{name} on the device of the inputs"
                raise CheckFailed(tried(inputs, name), f"{name} is on the CPU", expected, MADE_HERE)
            yield output

    return replace(exercise, tried=tried, build=build, call=call)


def _there(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: mark(tensor.clone(), THERE) for name, tensor in inputs.items()}


@contextmanager
def _only_parts_of(subject: object, tried: str) -> Iterator[None]:
    """Raise CheckFailed if a layer with parameters is called that is not part of the module."""
    called: list[nn.Module] = []
    with register_module_forward_pre_hook(lambda module, given: called.append(module)):
        try:
            yield
        finally:  # a stray layer explains the error that it has raised
            if isinstance(subject, nn.Module):
                _require_parts(subject, called, tried)


def _require_parts(module: nn.Module, called: list[nn.Module], tried: str) -> None:
    """Raise CheckFailed if one of the layers has parameters and is not part of the module."""
    parts = set(module.modules())
    strays = [layer for layer in called if any(map(_has_parameters, set(layer.modules()) - parts))]
    places = [(name, stray) for stray in strays for part in parts for name in vars(part) if _holds(part, name, stray)]
    for name, stray in places[:1] or [("", stray) for stray in strays[:1]]:
        layer = f"nn.{type(stray).__name__}" if type(stray).__module__.startswith("torch.") else type(stray).__name__
        yours = f"self.{name} holds {layer}, which" if name else f"{layer} is called, and"
        yours += " is not a part of the module"
        raise CheckFailed(tried, yours, f"{layer} as a part of the module", PLAIN_LIST if name else NOT_A_PART)


def _has_parameters(layer: nn.Module) -> bool:
    """Return whether a layer itself has parameters."""
    return any(parameter is not None for parameter in layer._parameters.values())


def _holds(part: nn.Module, name: str, layer: nn.Module) -> bool:
    """Return whether an attribute is a list, tuple, set or dictionary that holds a layer, however deeply nested."""
    return name not in vars(nn.Module()) and any(each is layer for each in _unpacked(getattr(part, name)))


def _unpacked(value: object) -> list:
    """Return the items of lists, tuples, sets and dictionaries, however deeply nested."""
    if isinstance(value, dict):
        value = list(value.values())
    return [inner for each in value for inner in _unpacked(each)] if isinstance(value, list | tuple | set) else [value]
