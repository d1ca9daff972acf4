"""Muon: one step in NumPy, torch's own optimizer up to rounding, and saving and loading its state."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transformer_lm.training.muon import Muon, orthogonal

SHAPES = [(3, 5), (5, 3), (4, 4), (3, 5), (2, 7)]


def matrices() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in SHAPES]


def gradients(step: int) -> list[Tensor]:
    torch.manual_seed(100 + step)
    return [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]


def take_steps(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        for parameter, gradient in zip(parameters, gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step()


def numpy_orthogonal(x: np.ndarray) -> np.ndarray:
    """Return a matrix with five polynomials applied to its singular values."""
    left, values, right = np.linalg.svd(x, full_matrices=False)
    values = values / np.sqrt((values**2).sum())
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


# ------------------------------------------------------------------ equals an independent reference


def test_steps_are_those_of_numpy():
    ours = matrices()
    theirs = [parameter.detach().numpy().copy() for parameter in ours]
    averages = [np.zeros(shape) for shape in SHAPES]
    take_steps(Muon(ours, lr=0.1, momentum=0.8), ours, range(4))
    for step in range(4):
        for number, gradient in enumerate(g.numpy() for g in gradients(step)):
            averages[number] = 0.8 * averages[number] + 0.2 * gradient
            update = numpy_orthogonal(0.8 * averages[number] + 0.2 * gradient)
            rows, columns = SHAPES[number]
            theirs[number] -= 0.1 * np.sqrt(max(1, rows / columns)) * update
    for parameter, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(parameter.detach(), expected, rtol=0, atol=1e-6)  # of the 1e-7 beside the norm


def test_steps_are_those_of_torch_up_to_its_rounding():
    ours, theirs = matrices(), matrices()
    take_steps(Muon(ours, lr=0.1, momentum=0.8), ours, range(4))
    torch_muon = torch.optim.Muon(theirs, lr=0.1, momentum=0.8, weight_decay=0.0, nesterov=True)
    take_steps(torch_muon, theirs, range(4))
    for mine, other, start in zip(ours, theirs, matrices(), strict=True):
        moved = (other - start).abs().max()
        assert (mine - other).abs().max() < 0.03 * moved  # it computes in bfloat16


# ------------------------------------------------------------------ keeps a property


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_singular_values_come_near_1_and_singular_vectors_stay(scale):
    torch.manual_seed(0)
    x = scale * torch.randn(6, 20, 30, dtype=torch.float64)
    result = orthogonal(x, 5)
    values = torch.linalg.svdvals(result)
    assert values.min() > 0.65
    assert values.max() < 1.25
    left, _, right = torch.linalg.svd(x, full_matrices=False)
    inside = left.mT @ result @ right.mT  # diagonal where the vectors are the same
    assert (inside - torch.diag_embed(inside.diagonal(dim1=1, dim2=2))).abs().max() < 1e-9


def test_a_gradient_of_0_changes_nothing():
    ours = matrices()
    for parameter in ours:
        parameter.grad = torch.zeros_like(parameter)
    Muon(ours).step()
    assert all(torch.equal(parameter, before) for parameter, before in zip(ours, matrices(), strict=True))


def test_matrices_without_a_gradient_are_left_alone_and_others_do_not_notice():
    ours, some = matrices(), matrices()
    optimizer = Muon(some, lr=0.1)
    take_steps(Muon(ours, lr=0.1), ours, range(1))
    for number, gradient in enumerate(gradients(0)):
        some[number].grad = gradient if number else None
    optimizer.step()
    assert torch.equal(some[0], matrices()[0])
    assert some[0] not in optimizer.state
    torch.testing.assert_close(some[1:], ours[1:], rtol=0, atol=1e-12)


def test_a_state_that_was_stored_goes_on_as_if_nothing_had_been():
    straight, resumed = matrices(), matrices()
    take_steps(Muon(straight, lr=0.1), straight, range(6))
    first = Muon(resumed, lr=0.1)
    take_steps(first, resumed, range(3))
    second = Muon(resumed, lr=0.5)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    take_steps(second, resumed, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    (parameter, *_) = matrices()
    optimizer = Muon([parameter])

    def closure():
        loss = parameter.square().sum()
        loss.backward()
        return loss

    before = parameter.detach().square().sum()
    assert optimizer.step(closure) == before
    assert not torch.equal(parameter, matrices()[0])


def test_the_gradient_stays_as_it_is():
    ours = matrices()
    take_steps(Muon(ours), ours, range(1))
    assert all(torch.equal(p.grad, g) for p, g in zip(ours, gradients(0), strict=True))


# ------------------------------------------------------------------ refuses bad input with the right words


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
def test_parameters_that_are_no_matrices_are_refused(shape):
    with pytest.raises(ValueError, match=rf"parameters must be matrices, got one of shape \({shape[0]},"):
        Muon([nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(shape))])
