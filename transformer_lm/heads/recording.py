"""Record the attention weights of a model during a forward pass.

    weights = record_attention(model, tokens)["blocks.0.attention.weights"]  # (b, h, i, j)

Axes: b batch, h heads, i of the query, j of the key.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from transformer_lm.answers import sealed_while_open
from transformer_lm.lm import evaluating

ASKED = "return_attention"  # the argument with which attention returns its weights


@sealed_while_open("attention-maps")
@torch.no_grad()
def record_attention(model: nn.Module, *tokens: Tensor) -> dict[str, Tensor]:
    """Return the attention weights of every layer by its name in the model, first to last, before dropout.

    It takes any model whose attention has `forward(..., return_attention)`: language models, classifiers, and your own
    models. The model runs on the tokens as usual, in eval mode; then each attention layer is called again on the same
    input for its weights. So neither the model nor its output changes. A translation model takes two sequences: the
    source and the target.

    Shapes:
        tokens   (b, n) each
        returns  (b, h, i, j) each

    Raises ValueError if no module of the model can return weights.
    """
    layers = dict(attention_layers(model))
    if not layers:
        raise ValueError(f"model must have attention with return_attention, got none in {type(model).__name__}.")
    recording: dict[str, Tensor] = {}

    def recorder(name: str):
        def record(attention: nn.Module, arguments: tuple, options: dict, output: object) -> None:
            call = inspect.signature(attention.forward).bind(*arguments, **options)
            call.arguments[ASKED] = True
            _, weights = attention.forward(*call.args, **call.kwargs)  # not attention(...): no hook is called again
            if weights.dim() == 3:  # (b * h, i, j): the heads of the first sequence, then of the next
                weights = weights.unflatten(0, (len(tokens[0]), -1))
            recording[f"{name}.weights"] = weights

        return record

    with evaluating(model) as device, ExitStack() as hooks:
        for name, attention in layers.items():
            hooks.enter_context(attention.register_forward_hook(recorder(name), with_kwargs=True))
        model(*(each.to(device) for each in tokens))
    return recording


def attention_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the attention layers with their names: the innermost modules that can return their weights."""
    for name, module in model.named_modules():
        inner = (child for child in module.modules() if child is not module)
        if _hands_out(module) and not any(_hands_out(child) for child in inner):
            yield name, module


def _hands_out(module: nn.Module) -> bool:
    return ASKED in inspect.signature(module.forward).parameters
