"""Checks of topic 02: several heads, with and without a causal mask."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from transformer_lm.checks.engine.calling import attempt
from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters, on_device
from transformer_lm.checks.engine.diagnosis import close
from transformer_lm.checks.engine.failure import CheckFailed, described_errors, kind
from transformer_lm.checks.engine.halved import CLOSE, EXPECTED, dropped_shares, is_halved
from transformer_lm.shapes import describe, in_words

__all__ = ["multi_head_attention", "multi_head_mask", "multi_head_scores"]

ALMOST_ALL = 1 - 2**-30  # a dropout rate that leaves nothing; exactly 1 could cause a division by 0


def _sizes(inputs: Inputs) -> tuple[int, int, int]:
    hidden, input_size = inputs["q_weight"].shape
    return input_size, hidden, int(inputs["num_heads"])


def _tried(inputs: Inputs, output: str) -> str:
    name, _, suffix = output.partition("_")
    options = {"causal": ", causal=True", "dropped": ", dropout=1", "undropped": ", dropout=1", "half": ", dropout=0.5"}
    mode = {"dropped": " in train mode", "undropped": " in eval mode", "half": " in train mode"}
    sizes = ", ".join(map(str, _sizes(inputs)))
    x = describe("x", inputs["x"], "b n input_size") + (", return_attention=True" if name == "weights" else "")
    made = f"MultiHeadSelfAttention({sizes}{options.get(suffix, '')}){mode.get(suffix, '')}"
    return f"{made} with given weights on {x}"


def _weights_by_name(inputs: Inputs) -> Inputs:
    layers = ("k", "q", "v", "mix")
    return {f"{layer}.{part}": inputs[f"{layer}_{part}"] for layer in layers for part in ("weight", "bias")}


def _build(answer: Callable, inputs: Inputs) -> nn.ModuleDict:
    """Return three modules with the same weights: one without a mask, a causal one, and one with dropout."""
    weights = _weights_by_name(inputs)
    options: dict[str, dict[str, Any]] = {"full": {}, "causal": {"causal": True}, "dropped": {"dropout": ALMOST_ALL}}
    modules = {
        name: load_parameters(answer(*_sizes(inputs), **given), weights, _tried(inputs, f"output_{name}"))
        for name, given in options.items()
    }
    return _without_others(nn.ModuleDict(modules))


def _without_others(module: nn.ModuleDict) -> nn.ModuleDict:
    """Return a module in which linear layers unknown to the check return 0, so that their use becomes visible."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and isinstance(layer.weight, nn.Parameter):
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)
    return module


def _call(subject: nn.ModuleDict, inputs: Inputs) -> Iterator[object]:
    for name, suffix in (("full", ""), ("causal", "_causal")):
        plain = attempt(subject[name], inputs["x"])
        yield plain
        yield attempt(_weights, subject[name], plain, inputs, f"weights{suffix}")
    dropped, mode = subject["dropped"], subject.training
    yield attempt(dropped.train(), inputs["x"])
    yield attempt(dropped.eval(), inputs["x"])
    dropped.train(mode)


def _weights(module: nn.Module, plain: object, inputs: Inputs, output: str) -> Tensor:
    """Return the weights, after checking that the output is the same with and without them."""
    returned = module(inputs["x"], return_attention=True)
    known = hint("weights-not-returned", "multi-head-attention")
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise CheckFailed(_tried(inputs, output), f"the return value is {kind(returned)}", "a tuple of 2 values", known)
    if not isinstance(returned[0], Tensor) or (isinstance(plain, Tensor) and not close(returned[0], plain)):
        raise CheckFailed(_tried(inputs, output), "another output than without the weights", "the same output", known)
    return returned[1]


MULTI_HEAD_ATTENTION = PublicExercise(
    id="multi-head-attention",
    axes={
        "output": "b n hidden",
        "weights": "b*h i j",
        "output_causal": "b n hidden",
        "weights_causal": "b*h i j",
        "output_dropped": "b n hidden",
        "output_undropped": "b n hidden",
    },
    trains=("output", "output_causal"),  # weights are only for inspection and may be detached
    reads=("x",),
    build=_build,
    call=_call,
    tried=_tried,
    forbids_attention=True,
)


HALVED = hint("not-halved", "multi-head-attention")


def _build_half(answer: Callable, inputs: Inputs) -> nn.Module:
    tried = _tried(inputs, "output_half")
    return load_parameters(answer(*_sizes(inputs), dropout=0.5), _weights_by_name(inputs), tried)


def _call_half(module: nn.Module, inputs: Inputs) -> Iterator[Tensor]:
    yield module.train()(inputs["x"])


# Its output is random, but with the inputs of `dropout_inputs` it reveals the weights.
MULTI_HEAD_DROPOUT = replace(
    MULTI_HEAD_ATTENTION,
    id="multi-head-dropout",
    axes={"output_half": "b n hidden"},
    trains=(),
    build=_build_half,
    call=_call_half,
)


def dropout_inputs(generator: torch.Generator) -> Inputs:
    """Return a case whose output shows the weights of each head, twice: the values of the keys are one-hot, repeated.

    The last n features of x encode the position, and the others are random; the last layer is the identity.
    """
    b, n, random_size, num_heads = 12, 3, 5, 2
    hidden = num_heads * 2 * n
    layers = {
        "k": torch.rand(hidden, random_size + n, generator=generator) - 0.5,
        "q": torch.rand(hidden, random_size + n, generator=generator) - 0.5,
        "v": torch.cat([torch.zeros(hidden, random_size), torch.eye(n).repeat(num_heads * 2, 1)], dim=1),
        "mix": torch.eye(hidden),
    }
    x = torch.rand(b, n, random_size, generator=generator) - 0.5
    inputs = {"x": torch.cat([x, torch.eye(n).expand(b, n, n)], dim=2), "num_heads": torch.tensor(num_heads)}
    inputs |= {f"{layer}_weight": weight for layer, weight in layers.items()}
    return inputs | {f"{layer}_bias": torch.zeros(hidden) for layer in layers}


def compare_half(inputs: Inputs, half: object, whole: Tensor) -> None:
    """Raise CheckFailed unless an output for `dropout_inputs` with dropout=0.5 has half of the weights, doubled.

    `whole` is the output without dropout.
    """
    tried, words = _tried(inputs, "output_half"), in_words(whole.shape, "b n hidden")
    if not isinstance(half, Tensor) or half.shape != whole.shape:
        raise CheckFailed(tried, f"output_half is {kind(half)}", f"output_half is a tensor {words}", HALVED)
    (first, second), (weights, _) = (
        output.detach().double().cpu().unflatten(-1, (int(inputs["num_heads"]), 2, -1)).unbind(-2)
        for output in (half, whole)
    )
    torn = (first - second).abs() >= CLOSE
    wrong, dropped, _ = dropped_shares(first.where(~torn, torch.nan), weights)
    if not is_halved(wrong, dropped):
        yours = f"{wrong:.0%} of the weights are neither dropped nor doubled, {dropped:.0%} are dropped"
        raise CheckFailed(tried, yours, EXPECTED, HALVED)


def _check_half(answer: Callable) -> None:
    """Raise CheckFailed unless the student's dropout acts on the weights, compared with the output without dropout."""
    inputs = on_device(dropout_inputs(torch.Generator().manual_seed(1)))
    tried = _tried(inputs, "output_half")
    with described_errors(tried, "output_half, a tensor"):
        without = load_parameters(answer(*_sizes(inputs)), _weights_by_name(inputs), _tried(inputs, "output"))
        half, whole = next(_call_half(_build_half(answer, inputs), inputs)), without(inputs["x"])
    compare_half(inputs, half, whole)


def multi_head_scores(answer: Callable) -> None:
    """Check the scores of the student's `MultiHeadSelfAttention`, by the resulting weights."""
    MULTI_HEAD_ATTENTION.only("the scores are", "weights").check(answer)


def multi_head_mask(answer: Callable) -> None:
    """Check the mask of the student's `MultiHeadSelfAttention`, by the weights with causal=True."""
    MULTI_HEAD_ATTENTION.only("the mask is", "weights", "weights_causal").check(answer)


def multi_head_attention(answer: Callable) -> None:
    """Check all of the student's `MultiHeadSelfAttention`: outputs and weights, mask and dropout."""
    MULTI_HEAD_ATTENTION.check(answer, _check_half)
