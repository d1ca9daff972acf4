"""Models stacked into one: each gives the same output as alone, and models that would not are refused."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_lm.training.stacking import NotStackable, Stack, stacked_cross_entropy

S, B, N, HIDDEN, VOCAB, CLASSES = 3, 5, 4, 6, 7, 2


class Classifier(nn.Module):
    """A model that embeds, does one thing to the vectors, and classifies their mean."""

    def __init__(self, layer: nn.Module | Callable[[Tensor], Tensor], hidden: int = HIDDEN, **options) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, hidden, **options)
        self.layer = layer
        self.classify = nn.Linear(hidden, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classify(self.layer(self.embed(tokens)).mean(dim=1))


class Full(nn.MultiheadAttention):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(HIDDEN, num_heads=2, batch_first=True, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x, x, need_weights=False)[0]


class Hidden(nn.Module):
    """A layer whose weights are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.randn(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weights


def simple(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def branching(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def bag(x: Tensor) -> Tensor:
    return F.embedding_bag(torch.zeros(B, 2, dtype=torch.long), x[0])[:, None]  # vmap runs it model by model


KINDS = {
    "baseline": lambda: Classifier(nn.Identity()),
    "simple": lambda: Classifier(simple),
    "full": lambda: Classifier(Full()),
    "network": lambda: Classifier(nn.Sequential(nn.Linear(HIDDEN, 9), nn.GELU(), nn.Linear(9, HIDDEN), nn.Dropout(0))),
}
REFUSED = {
    "dropout": (lambda: Classifier(nn.Dropout(0.5)), "random operation"),
    "dropout-of-attention": (lambda: Classifier(Full(dropout=0.1)), "random operation"),
    "branch": (lambda: Classifier(branching), "data-dependent control flow"),
    "recurrent": (lambda: Classifier(lambda x: nn.GRU(HIDDEN, HIDDEN)(x)[0]), "must run in a stack"),
    "slow-operation": (lambda: Classifier(bag), "performance drop"),
    "buffer": (lambda: Classifier(nn.Sequential(nn.BatchNorm1d(N))), "must have no buffers, got layer.0.running_mean"),
    "hidden-weights": (lambda: Classifier(Hidden()), "the same gradients in a stack as alone"),
    "padding-that-does-not-learn": (lambda: Classifier(nn.Identity(), padding_idx=4), "got others for embed.weight"),
}


def made(make: Callable[[], nn.Module]) -> list[nn.Module]:
    torch.manual_seed(0)
    return [make() for _ in range(S)]


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randint(VOCAB, (S, B, N), generator=generator),
        torch.randint(CLASSES, (S, B), generator=generator),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_model_gives_what_it_gives_alone_and_learns_what_it_learns_alone(kind):
    models = made(KINDS[kind])
    alone = copy.deepcopy(models)
    tokens, labels = batch()
    stack = Stack(models)
    stack.check(tokens, labels)
    logits = stack(tokens)
    losses = stacked_cross_entropy(logits, labels)
    losses.sum().backward()
    for place, model in enumerate(alone):
        expected = model(tokens[place])
        torch.testing.assert_close(logits[place], expected)
        loss = F.cross_entropy(expected, labels[place])
        torch.testing.assert_close(losses[place], loss)
        loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(stack.parameters[name].grad[place], parameter.grad, rtol=1e-4, atol=1e-6)


def test_models_see_what_is_learned_until_they_are_released():
    models = made(KINDS["full"])
    stack = Stack(models)
    with torch.no_grad():
        stack.parameters["classify.bias"] += torch.arange(1.0, S + 1)[:, None]
    torch.testing.assert_close(models[2].classify.bias, stack.parameters["classify.bias"][2])
    stack.release()
    kept = models[2].classify.bias.clone()
    with torch.no_grad():
        stack.parameters["classify.bias"].zero_()
    assert torch.equal(models[2].classify.bias, kept)


def test_a_parameter_that_two_layers_share_stays_shared():
    def make() -> nn.Module:
        model = Classifier(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)))
        model.layer[1].weight = model.layer[0].weight
        return model

    stack = Stack(made(make))
    stack.check(*batch())
    assert "layer.1.weight" not in stack.parameters
    assert all(model.layer[0].weight is model.layer[1].weight for model in stack.models)


def test_what_does_not_learn_is_left_alone():
    def make() -> nn.Module:
        model = KINDS["full"]()
        model.embed.requires_grad_(False)
        return model

    stack = Stack(made(make))
    stack.check(*batch())
    assert not stack.parameters["embed.weight"].requires_grad


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_would_give_something_else_are_refused(kind):
    make, message = REFUSED[kind]
    with pytest.raises(NotStackable, match=message):
        Stack(made(make)).train().check(*batch())


@pytest.mark.parametrize(
    "models",
    [
        [Classifier(nn.Identity(), hidden=4), Classifier(nn.Identity(), hidden=6)],
        [Classifier(nn.Identity()), Classifier(nn.Linear(HIDDEN, HIDDEN))],
        [Classifier(nn.Linear(HIDDEN, HIDDEN)), Classifier(nn.Identity())],
        [Classifier(nn.Identity()), nn.Linear(HIDDEN, HIDDEN)],
    ],
    ids=["size", "one-more-layer", "one-layer-less", "class"],
)
def test_models_that_are_not_alike_are_refused(models):
    with pytest.raises(NotStackable, match="must have the same layers of the same sizes"):
        Stack(models)


@pytest.mark.parametrize("number", [0, 1])
def test_fewer_than_two_models_are_refused(number):
    with pytest.raises(NotStackable, match=f"models must be at least two, got {number}"):
        Stack([KINDS["baseline"]() for _ in range(number)])
