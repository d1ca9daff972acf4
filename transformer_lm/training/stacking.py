"""Stacking: several models that differ only in their weights run as one, with stacked parameters.

Much of a step of a tiny model is overhead, which a stack has only once instead of once for each model.

Axes: s models, b batch, n positions, c classes.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


class NotStackable(ValueError):
    """These models cannot run as one. They can still be trained one by one."""


class Stack:
    """Models as one: `parameters` are their parameters, stacked by name, and the models always see the current values.

    Raises NotStackable for fewer than two models, models with buffers, or parameters that differ in name or shape.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        if len(models) < 2:
            raise NotStackable(f"models must be at least two, got {len(models)}.")
        buffers = [name for model in models for name, _ in model.named_buffers()]
        if buffers:  # a forward pass may change or replace them
            raise NotStackable(f"models must have no buffers, got {', '.join(buffers)}.")
        if len({tuple(dict(model.named_parameters())) for model in models}) > 1:
            raise NotStackable("models must have the same layers of the same sizes, got parameters of different names.")
        try:
            self.parameters: dict[str, Tensor] = stack_module_state(list(models))[0]
        except RuntimeError as error:
            raise NotStackable(f"models must have the same layers of the same sizes, got: {error}") from error
        self.models = models
        for index, model in enumerate(models):
            for name, parameter in model.named_parameters():
                parameter.data = self.parameters[name].data[index]  # a view, so a step changes the model too
        self._call = vmap(lambda parameters, tokens: functional_call(models[0], parameters, (tokens,)))

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the scores that each model gives to its own batch.

        Shapes:
            tokens   (s, b, n)
            returns  (s, b, c)
        """
        with sdpa_kernel(SDPBackend.MATH):  # on a CPU, vmap would run the faster kernel once for each model
            return self._call(self.parameters, tokens)

    def train(self) -> "Stack":
        """Put all models in training mode, and return the stack."""
        for model in self.models:
            model.train()
        return self

    def check(self, tokens: Tensor, labels: Tensor) -> None:
        """Raise NotStackable unless each model gets the same gradients in the stack as alone.

        They differ if a model holds tensors that are not parameters, or if an operation ignores one of its options
        under vmap, as `nn.Embedding` does with `padding_idx`. A model with dropout, or with a branch that depends on
        the tokens, does not run in a stack at all.

        Shapes:
            tokens  (s, b, n)
            labels  (s, b)
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # vmap warns about an operation that it can only run model by model
                together = _gradients(stacked_cross_entropy(self(tokens), labels).sum(), self.parameters)
            alone = [
                _gradients(F.cross_entropy(model(tokens[index]), labels[index]), dict(model.named_parameters()))
                for index, model in enumerate(self.models)
            ]
        except Exception as error:  # if the model is the cause, training it alone shows that more clearly
            raise NotStackable(f"models must run in a stack, got: {error}") from error
        for name, gradient in together.items():
            expected = torch.stack([gradients[name] for gradients in alone])
            if not torch.allclose(gradient, expected, rtol=1e-3, atol=1e-6):
                raise NotStackable(f"models must get the same gradients in a stack as alone, got others for {name}.")

    def release(self) -> None:
        """Give each model separate memory, with the current values."""
        for model in self.models:
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()


def stacked_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of each model.

    Shapes:
        logits   (s, b, c)
        labels   (s, b)
        returns  (s,)
    """
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")  # (s * b,)
    return losses.view(labels.shape).mean(dim=1)


def _gradients(loss: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of the loss for each trainable parameter; 0 if the loss does not depend on it."""
    learned = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    gradients = torch.autograd.grad(loss, list(learned.values()), materialize_grads=True)
    return dict(zip(learned, gradients, strict=True))
