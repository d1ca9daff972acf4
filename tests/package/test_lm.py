"""Labels, loss, slices and evaluation, against loops. Sizes: (b, n, v) = (3, 5, 7)."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transformer_lm.lm import (
    all_slices,
    batch_to_labeled_samples,
    compute_loss,
    evaluating,
    last_position_bits,
    loss_per_token,
    random_slices,
)
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.shapes import ShapeError

B, N, V = 3, 5, 7


@pytest.fixture
def model() -> TransformerLM:
    """Return a model in float64 and in training mode, with dropout, which must be off during evaluation."""
    torch.manual_seed(0)
    model = TransformerLM(LMConfig(V, N, hidden=12, num_layers=1, num_heads=2, dropout=0.5)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model


@pytest.fixture
def text() -> Tensor:
    return torch.randint(V, (43,), generator=torch.Generator().manual_seed(1))


def logits_and_labels() -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    return 3 * torch.randn(B, N, V, dtype=torch.float64), torch.randint(V, (B, N))


def minus_log(model: nn.Module, context: Tensor, following: Tensor) -> float:
    """Return -ln p of one token after a context, computed in NumPy from the model's scores."""
    model.eval()
    with torch.no_grad():
        scores = model(context[None])[0, -1].numpy()
    model.train()
    return float(np.log(np.exp(scores).sum()) - scores[following])


# ------------------------------------------------------------------ equals an independent reference


def test_labels_are_the_tokens_one_place_further():
    batch = torch.arange(B * (N + 1)).view(B, N + 1)
    inputs, labels = batch_to_labeled_samples(batch)
    assert inputs.tolist() == [[0, 1, 2, 3, 4], [6, 7, 8, 9, 10], [12, 13, 14, 15, 16]]
    assert labels.tolist() == [[1, 2, 3, 4, 5], [7, 8, 9, 10, 11], [13, 14, 15, 16, 17]]


@pytest.mark.parametrize("pad", [None, 0, 4])
def test_the_loss_is_the_mean_of_a_loop_over_labels_that_are_no_padding(pad):
    logits, labels = logits_and_labels()
    assert pad is None or (labels == pad).any()
    losses = [
        math.log(sum(math.exp(score) for score in scores)) - scores[label]
        for row, row_labels in zip(logits.tolist(), labels.tolist(), strict=True)
        for scores, label in zip(row, row_labels, strict=True)
        if label != pad
    ]
    assert compute_loss(logits, labels, pad).item() == pytest.approx(sum(losses) / len(losses), rel=1e-12)


@pytest.mark.parametrize("length", [N + 1, 2 * N, 2 * N + 1, 43])
@pytest.mark.parametrize("b", [1, 3, 64])
def test_the_loss_per_token_is_that_of_a_loop_over_windows(model, text, length, b):
    losses = []
    for start in range(0, length - N, N):  # the token after each window must be there too
        for place in range(N):
            context = text[start : start + place + 1]
            losses.append(minus_log(model, context, text[start + place + 1]))
    assert loss_per_token(model, text[:length], N, b) == pytest.approx(np.mean(losses), rel=1e-9)


def test_the_sliding_window_is_a_slow_loop_over_all_places(model, text):
    bits = [minus_log(model, text[i : i + N], text[i + N]) / math.log(2) for i in range(len(text) - N)]
    assert last_position_bits(model, all_slices(text, N + 1, b=4)) == pytest.approx(np.mean(bits), rel=1e-9)


def test_bits_are_an_average_over_slices_in_batches_of_any_size(model, text):
    slices = random_slices(text, 7, N + 1, torch.Generator().manual_seed(0))
    bits = [minus_log(model, each[:-1], each[-1]) / math.log(2) for each in slices]
    for size in (1, 2, 7):
        assert last_position_bits(model, slices.split(size)) == pytest.approx(np.mean(bits), rel=1e-9)


def test_a_model_that_knows_nothing_needs_log2_v_bits_and_ln_v_nats(text):
    model = TransformerLM(LMConfig(V, N, hidden=12, num_layers=1, num_heads=2, tied=False, init="zero_output"))
    assert last_position_bits(model, all_slices(text, N + 1)) == pytest.approx(math.log2(V), rel=1e-6)
    assert loss_per_token(model, text, N) == pytest.approx(math.log(V), rel=1e-6)


# ------------------------------------------------------------------ keeps a property


def test_slices_are_pieces_of_the_text_and_each_comes_equally_often():
    text = torch.arange(100, 100 + N + 3)  # 4 slices of N
    slices = random_slices(text, 8000, N, torch.Generator().manual_seed(0))
    assert slices.shape == (8000, N)
    counts = Counter(map(tuple, slices.tolist()))
    assert counts.keys() == {tuple(range(100 + start, 100 + start + N)) for start in range(4)}
    assert max(abs(count - 2000) for count in counts.values()) < 4 * math.sqrt(8000 * 0.25 * 0.75)


def test_a_text_as_long_as_a_slice_is_enough_and_a_seed_decides_which_slices_come(text):
    assert random_slices(text[:N], 2, N).tolist() == [text[:N].tolist()] * 2
    assert list(map(Tensor.tolist, all_slices(text[:N], N))) == [[text[:N].tolist()]]
    one, same, other = (random_slices(text, 9, N, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_all_slices_are_all_in_order(text):
    batches = list(all_slices(text, N, b=10))
    assert [len(batch) for batch in batches] == [10, 10, 10, 9]
    assert torch.cat(batches).tolist() == [text[start : start + N].tolist() for start in range(39)]


def test_bytes_are_tokens_too(model, text):
    few = text.to(torch.uint8)
    assert random_slices(few, 2, N).dtype == torch.long
    assert next(all_slices(few, N)).dtype == torch.long
    assert loss_per_token(model, few, N) == loss_per_token(model, text, N)
    bits = last_position_bits(model, [text[None, : N + 1]])
    assert last_position_bits(model, [few[None, : N + 1]]) == bits


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_in_its_own_mode_after_it_was_measured_and_after_an_error(model, text, training):
    model.train(training)
    modes = []
    model.embed.register_forward_hook(lambda module, *_: modes.append((module.training, torch.is_grad_enabled())))
    loss_per_token(model, text, N)
    last_position_bits(model, all_slices(text, N + 1))
    assert set(modes) == {(False, False)}
    assert all(module.training == training for module in model.modules())
    with pytest.raises(ShapeError):
        loss_per_token(model, text, N + 1)  # longer than the model's context
    with pytest.raises(ShapeError):
        last_position_bits(model, all_slices(text, N + 2))
    assert all(module.training == training for module in model.modules())
    assert torch.is_grad_enabled()


def test_the_device_is_that_of_the_weights_or_the_cpu_without_any(model):
    with evaluating(model.to("meta")) as device:
        assert device == torch.device("meta")
    with evaluating(nn.Identity()) as device:
        assert device == torch.device("cpu")


def test_padding_gets_no_gradient():
    logits, labels = logits_and_labels()
    logits.requires_grad_()
    compute_loss(logits, labels, pad=4).backward()
    assert torch.equal(logits.grad.abs().amax(-1) > 0, labels != 4)


# ------------------------------------------------------------------ refuses bad input with the right words


def test_sequences_of_one_token_are_refused():
    with pytest.raises(ValueError, match="batch must hold two tokens or more of each sequence, got 1"):
        batch_to_labeled_samples(torch.zeros(B, 1))


def test_shapes_that_disagree_are_refused():
    logits, labels = logits_and_labels()
    with pytest.raises(ShapeError, match=r"axis n must have one size, got 5 in logits .* and 4 in labels"):
        compute_loss(logits, labels[:, 1:])
    with pytest.raises(ShapeError, match=r"batch must have the 2 axes \(b, n\), got 1"):
        batch_to_labeled_samples(labels[0])


def test_a_text_shorter_than_a_slice_is_refused(model, text):
    words = "the text must have {} tokens or more, got 4: take a longer text or a smaller n."
    with pytest.raises(ValueError, match=words.format(5)):
        random_slices(text[:4], 2, N)
    with pytest.raises(ValueError, match=words.format(5)):
        next(all_slices(text[:4], N))
    with pytest.raises(ValueError, match=words.format(6)):
        loss_per_token(model, text[:4], N)


def test_no_batch_at_all_is_refused(model):
    with pytest.raises(ValueError, match="batches must hold a slice, got none"):
        last_position_bits(model, [])
