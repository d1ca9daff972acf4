"""A model without one of its heads: the loss that it really has then.

Sizes: 2 layers, 3 heads of width 4, batches of 2 and 3 texts of 8 tokens, a vocabulary of 7.
"""

import copy
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_lm.heads.ablation import ablate_heads, mean_outputs, without_head
from transformer_lm.modeling_lm import LMConfig, TransformerLM

HEADS, WIDTH, V = 3, 4, 7


@pytest.fixture
def model() -> TransformerLM:
    torch.manual_seed(0)
    config = LMConfig(V, max_len=8, hidden=HEADS * WIDTH, num_layers=2, num_heads=HEADS, init="torch")
    return TransformerLM(config).double()


@pytest.fixture
def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(V, (b, 8), generator=generator) for b in (2, 3)]


def loss(model: TransformerLM, batches: list[Tensor]) -> float:
    losses = [
        F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
        for batch in batches
    ]
    return sum(each.item() for each in losses) / sum(batch[:, 1:].numel() for batch in batches)


@pytest.mark.parametrize(("layer", "head"), [(0, 0), (0, 2), (1, 1)])
def test_zero_is_the_loss_of_a_model_without_the_columns_that_read_the_head(model, batches, layer, head):
    cut = copy.deepcopy(model)
    with torch.no_grad():
        cut.blocks[layer].attention.mix.weight[:, head * WIDTH : (head + 1) * WIDTH] = 0
    found = ablate_heads(model, batches, how="zero", progress=False)[layer, head]
    assert found.loss == pytest.approx(loss(model, batches))
    assert found.change == pytest.approx(loss(cut, batches) - loss(model, batches))
    assert math.isnan(found.served_change)


def test_mean_adds_what_the_head_adds_on_average_over_all_batches(model, batches):
    layer, head, part = 1, 2, slice(2 * WIDTH, 3 * WIDTH)
    found, attention = [], model.blocks[layer].attention
    hook = attention.mix.register_forward_pre_hook(lambda mix, given: found.append(given[0][..., part].flatten(0, 1)))
    loss(model, batches)
    hook.remove()
    mean = torch.cat(found).mean(dim=0)  # over queries of all batches, which differ in size
    torch.testing.assert_close(mean_outputs(model, batches)[layer][part], mean)
    changed = copy.deepcopy(model)
    mix = changed.blocks[layer].attention.mix
    with torch.no_grad():
        mix.bias += mix.weight[:, part] @ mean
        mix.weight[:, part] = 0
    result = ablate_heads(model, batches, heads=[(layer, head)], how="mean", progress=False)
    assert list(result) == [(layer, head)]
    assert result[layer, head].change == pytest.approx(loss(changed, batches) - loss(model, batches))


def test_served_predictions_are_counted_alone(model, batches):
    def serves(tokens: Tensor) -> Tensor:
        return tokens == 3

    found = ablate_heads(model, batches, how="zero", serves=serves, progress=False)[0, 1]
    before, after = [], []
    for batch in batches:
        chosen = batch[:, :-1] == 3
        for into, ablated in ((before, False), (after, True)):
            if ablated:
                with without_head(model.blocks[0].attention, 1):
                    logits = model(batch[:, :-1])
            else:
                logits = model(batch[:, :-1])
            into.append(F.cross_entropy(logits[chosen], batch[:, 1:][chosen], reduction="none"))
    assert found.served_loss == pytest.approx(torch.cat(before).mean().item())
    assert found.served_change == pytest.approx((torch.cat(after).mean() - torch.cat(before).mean()).item())


def test_all_heads_are_tried_and_the_model_is_as_before(model, batches):
    model.train()
    before = model(batches[0][:, :-1])
    assert list(ablate_heads(model, batches, progress=False)) == [
        (layer, head) for layer in (0, 1) for head in range(3)
    ]
    assert torch.equal(model(batches[0][:, :-1]), before)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"how": "noise"}, "how must be one of zero, mean, got 'noise'"),
        ({"heads": [(0, 3)]}, r"heads must be \(layer, head\) among .*, got \(0, 3\)"),
        ({"heads": [(2, 0)]}, r"got \(2, 0\)"),
    ],
)
def test_what_is_not_there_is_refused(model, batches, options, words):
    with pytest.raises(ValueError, match=words):
        ablate_heads(model, batches, progress=False, **options)
    with pytest.raises(ValueError, match="batches must hold a text, got none"):
        ablate_heads(model, [], progress=False)
