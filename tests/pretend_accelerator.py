"""A simulated accelerator: tensors say that they are on it, and cannot be combined with those of the CPU.

The CPU computes everything, so results stay the same. What would fail on a real accelerator fails here too: an
operation on tensors of two devices, a tensor given to NumPy or matplotlib, a generator of the other device.
"""

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

ACCELERATOR = torch.device("mps")
# Functions that use a layer's weights; filling them at first, or copying them, needs no device.
COMPUTES = {
    "linear", "embedding", "layer_norm", "rms_norm", "matmul", "__matmul__", "__rmatmul__", "einsum", "conv1d",
    "rnn_tanh", "rnn_relu", "lstm", "gru", "multi_head_attention_forward", "scaled_dot_product_attention",
}  # fmt: skip
MAY_MIX = {"_has_compatible_shallow_copy_type", "copy_", "__setitem__", "__set__", "to", "type_as"}


class PretendAccelerator(TorchFunctionMode):
    """While it is active, `.to(ACCELERATOR)` and `device=ACCELERATOR` give tensors that are marked as being there.

    `strays` are the functions that computed with parameters which were left on the CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.strays: list[str] = []
        self.computed = 0  # functions that computed with parameters on the accelerator

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Run one function of torch, and mark its results by the device where they would be."""
        kwargs, name = dict(kwargs or {}), func.__name__
        given = _tensors([args, kwargs])
        there = any(map(is_there, given))
        if getattr(func, "__self__", None) is Tensor.device:
            return ACCELERATOR if there else func(*args)
        if there and name in ("numpy", "__array__"):
            raise TypeError("can't convert a tensor on an accelerator to numpy. Use Tensor.cpu() first.")
        self._look_at(name, args, given)
        if name in ("to", "cpu"):
            return _moved(name, func, args, kwargs)
        if kwargs.get("device") is not None:
            there = torch.device(kwargs.pop("device")).type == ACCELERATOR.type
        if there and kwargs.get("generator") is not None:
            raise RuntimeError(f"{name}: expected a generator of the accelerator, got one of the CPU.")
        result = func(*args, **kwargs)
        if there:
            old = {storage(tensor)._cdata for tensor in given}  # not the address, which is 0 for all empty tensors
            for tensor in _tensors(result):
                if storage(tensor)._cdata not in old or getattr(func, "__self__", None) is Tensor.grad:
                    mark(tensor)
        return result

    def _look_at(self, name: str, args: tuple, given: list[Tensor]) -> None:
        """Refuse tensors of two devices, and note where parameters are used."""
        if name in COMPUTES:
            parameters = [tensor for tensor in given if isinstance(tensor, nn.Parameter)]
            self.computed += any(map(is_there, parameters))
            self.strays += [name for tensor in parameters if not is_there(tensor)]
        ours = [tensor for tensor in given if is_there(tensor)]
        others = [tensor for tensor in given if not is_there(tensor) and tensor.dim()]
        if name == "__getitem__" and is_there(args[0]):  # an index may be on the CPU
            return
        if ours and others and name not in MAY_MIX:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, got {ACCELERATOR} and the CPU.")


def storage(tensor: Tensor) -> torch.UntypedStorage:
    """Return the memory of a tensor, which its views share."""
    return tensor.untyped_storage()


def is_there(tensor: Tensor) -> bool:
    """Return whether a tensor is marked as being on the accelerator."""
    return getattr(storage(tensor), "is_there", False)


def mark(tensor: Tensor) -> Tensor:
    """Mark a tensor, and all that share its memory, as being on the accelerator."""
    storage(tensor).is_there = True
    return tensor


def _tensors(value: object) -> list[Tensor]:
    """Return the tensors in lists, tuples and dictionaries, however deep."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, list | tuple) else []


def _moved(name: str, func, args: tuple, kwargs: dict) -> Tensor:
    """Return a tensor as `to` or `cpu` would: a copy where the device changes."""
    tensor, *rest = args
    target = ACCELERATOR if is_there(tensor) else torch.device("cpu")
    if name == "cpu":
        target = torch.device("cpu")
    elif kwargs.get("device") is not None:
        target = torch.device(kwargs["device"])
    elif rest and isinstance(rest[0], str | torch.device):
        target = torch.device(rest.pop(0))
    elif rest and isinstance(rest[0], Tensor):
        target = ACCELERATOR if is_there(rest[0]) else torch.device("cpu")
        rest = [rest[0].dtype]
    kwargs.pop("device", None)
    rest = [each for each in rest if isinstance(each, torch.dtype)]
    result = tensor.to(*rest, **kwargs) if rest or kwargs else tensor
    wanted = target.type == ACCELERATOR.type
    if wanted == is_there(tensor) and result is tensor:
        return tensor
    result = result.clone() if result is tensor else result
    return mark(result) if wanted else result
