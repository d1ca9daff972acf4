"""Measure what the fused kernel saves: attention without returned weights against attention with them.

`MultiHeadSelfAttention` uses torch's fused kernel when `return_attention` is False and the formula when it is True. The
forward and backward passes of both are timed alternately on the best device, and the medians are compared.

    python bench/fused_attention.py
"""

import statistics
import time

import torch

from transformer_lm import MultiHeadSelfAttention, best_device

ROUNDS = 15
BATCH, POSITIONS, HIDDEN, HEADS = 8, 256, 192, 6


def seconds_of_one_step(module: MultiHeadSelfAttention, x: torch.Tensor, return_attention: bool) -> float:
    """Return the seconds of one forward and backward pass."""
    start = time.perf_counter()
    results = module(x, return_attention=return_attention)
    output = results[0] if return_attention else results
    (gradient,) = torch.autograd.grad(output.sum(), x)
    gradient.sum().item()  # waits until an accelerator has finished
    return time.perf_counter() - start


def main() -> None:
    """Print the median of each path and their ratio, without and with a causal mask."""
    device = best_device()
    x = torch.randn(BATCH, POSITIONS, HIDDEN, device=device, requires_grad=True)
    for causal in (False, True):
        module = MultiHeadSelfAttention(HIDDEN, HIDDEN, HEADS, causal=causal).to(device)
        rounds = [[seconds_of_one_step(module, x, weights) for weights in (False, True)] for _ in range(ROUNDS + 1)]
        fused, formula = (statistics.median(times) for times in zip(*rounds[1:], strict=True))  # round 0 warms up
        print(f"causal={causal}: fused {fused * 1e3:.1f} ms, formula {formula * 1e3:.1f} ms on {device}")
        print(f"return_attention=False / return_attention=True = {fused / formula:.2f}")


if __name__ == "__main__":
    main()
