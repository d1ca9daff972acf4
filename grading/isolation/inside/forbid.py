"""Takes torch's ready-made attention away from an answer that must compute attention itself.

It is blocked where it is called, not where it is named. Torch's own kernels are replaced in the dispatcher, so that
every alias and every way to reach them ends in the same error, and the Python code of the ready-made layers is removed.
"""

import ctypes
import functools
import importlib
import warnings
from pathlib import Path
from types import FunctionType

import torch
import torch.ao.nn.quantizable
import torch.ao.nn.quantized

from transformer_lm.checks.engine.ready_made import LAYERS, OPERATORS, READY_MADE

ALL_LAYERS = (*LAYERS, torch.ao.nn.quantizable.MultiheadAttention, torch.ao.nn.quantized.MultiheadAttention)
# Python functions that compute attention, as "module:function".
FUNCTIONS = (
    "torch.nn.functional:multi_head_attention_forward",
    "torch._higher_order_ops.flex_attention:math_attention",
    "torch._decomp.decompositions:scaled_dot_product_flash_attention_for_cpu",
)
TORCH = Path(torch.__file__).parent
# Source files of attention in torch, for itself or for tests, which are covered so that none can be loaded again.
SOURCES = [
    *(TORCH / "nn" / name for name in ("functional.py", "modules/activation.py", "modules/transformer.py")),
    *(TORCH / name for name in ("_higher_order_ops/flex_attention.py", "_decomp/decompositions.py")),
    *(TORCH / name for name in ("sparse/_triton_ops.py", "distributed/tensor/experimental")),
    *(TORCH / name / "__pycache__" for name in ("nn", "nn/modules", "_higher_order_ops", "_decomp", "sparse")),
    *(TORCH / name for name in ("nn/attention", "_inductor", "onnx", "testing", "ao")),
]
KEYS = (
    *("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CPU", "AutogradCPU", "NestedTensorCPU"),
    *("FuncTorchBatched", "FuncTorchBatchedDecomposition", "FuncTorchVmapMode", "AutocastCPU"),
)


KERNELS = [
    (operator, key)
    for operator in torch._C._dispatch_get_all_op_names()
    if operator.startswith("aten::") and any(part in operator for part in OPERATORS)
    for key in KEYS
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)
]


def forbid_ready_made_attention() -> None:
    """Make every ready-made attention of torch raise RuntimeError, in this process and for good."""
    for name in FUNCTIONS:
        module, _, function = name.partition(":")
        _empty(getattr(importlib.import_module(module), function))
    for layer in ALL_LAYERS:
        for method in list(vars(layer).values()):
            if isinstance(method, FunctionType):
                _empty(method)
    with warnings.catch_warnings(action="ignore"):  # torch warns of each kernel that is replaced
        _replace_kernels()


def _empty(function: FunctionType) -> None:
    """Replace the code of a function, under all its names, with a refusal."""
    function.__code__ = _refusal(function.__code__.co_freevars).__code__


def _replace_kernels() -> None:
    library = torch._C._dispatch_library("IMPL", "aten", "", __file__, 1)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # kept forever, where no answer can find and release it
    for operator, key in KERNELS:
        library.impl(operator.removeprefix("aten::"), key, _refusal())


@functools.cache
def _refusal(variables: tuple[str, ...] = ()) -> FunctionType:
    """Return a function that takes any arguments and raises, without looking up names that an answer could change.

    It closes over variables of these names, because a function's code can only be replaced by code that does so.
    """
    namespace: dict = {}
    lines = (
        f"def outer({', '.join(variables)}):",
        "    def refuse(*arguments, **options):",
        f"        raise RuntimeError({READY_MADE!r})",
        *(f"        {variable}" for variable in variables),
        "    return refuse",
    )
    exec(compile("\n".join(lines), __file__, "exec"), namespace)  # so that no line of it is taken for the student's
    return namespace["outer"](*variables)
