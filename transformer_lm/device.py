"""The device for tensors: the fastest one that computes the same numbers as the CPU."""

import functools
import os
import warnings

import torch
from torch import Tensor
from torch.nn import functional as F

VARIABLE = "TRANSFORMER_LM_DEVICE"
TOLERANCE = 1e-3  # float32 kernels differ by about 1e-6 here; a broken one is off by far more


def best_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device to compute on: CUDA, else Apple's MPS, else the CPU.

    `device`, or else the environment variable TRANSFORMER_LM_DEVICE, overrides the choice. An accelerator whose results
    differ from the CPU's is not used: a warning says why, and the CPU is returned.

    Raises ValueError if the requested device is unknown or absent.
    """
    wanted = device if device is not None else os.environ.get(VARIABLE) or None
    chosen = _fastest_present() if wanted is None else _present(wanted)
    fault = None if chosen.type == "cpu" else accelerator_fault(chosen)
    if fault is None:
        return chosen
    warnings.warn(f"{chosen} is not used, the CPU is: {fault}", RuntimeWarning, stacklevel=2)
    return torch.device("cpu")


def _fastest_present() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _present(wanted: str | torch.device) -> torch.device:
    """Return the requested device, or refuse it in one sentence."""
    try:
        device = torch.device(wanted)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device must be cpu, cuda, cuda:0 (or another number) or mps, got {str(wanted)!r}.")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[device.type]
    if (device.index or 0) >= count:
        present = "none" if count == 0 else f"only {count} of its kind"
        raise ValueError(f"device must be present on this machine, got {str(device)!r} where there is {present}.")
    return device


@functools.cache
def accelerator_fault(device: torch.device) -> str | None:
    """Return what is wrong with a device's numbers, or None if they match the CPU's."""
    try:
        ours = [result.cpu() for result in _loss_with_gradients(device)]
    except Exception as error:  # whatever a broken driver raises, the course continues without it
        return f"its self-test stopped with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for name, mine, cpu in zip(("loss", "gradient"), ours, _loss_with_gradients(torch.device("cpu")), strict=True):
        difference = (mine - cpu).abs().max().item()
        if not difference <= TOLERANCE:  # NaN must fail too
            return f"the {name} of its self-test differs from the CPU's by {difference:.2g}."
    return None


def _loss_with_gradients(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the loss of a small computation and the gradient of its input.

    It covers the operations where accelerators have been wrong: non-contiguous operands, a softmax over -inf,
    indexing by integers, and the backward pass of all of them. It runs in float32 with gradients, whatever the caller
    has set.
    """
    b, n, d = 3, 9, 8
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        x = torch.linspace(-2, 2, b * n * d, dtype=torch.float32).sin().view(b, d, n).to(device).requires_grad_()
        turned = x.transpose(1, 2)  # (b, n, d), not contiguous
        odd = torch.arange(n, device=device) % 2 == 1
        shares = x.masked_fill(odd, float("-inf")).softmax(dim=-1)  # (b, d, n)
        logits = F.layer_norm(turned @ shares, (n,))  # (b, n, n)
        targets = torch.arange(b * n, device=device) % n
        loss = F.cross_entropy(logits.reshape(b * n, n), targets)
        (gradient,) = torch.autograd.grad(loss, x)
    return loss.detach(), gradient
