"""Usage of components: the extremes and a case by hand."""

import math

import pytest
import torch

from gma import GaussianMixture
from gma.analysis import effective_components, lipschitz_bound, mean_entropy, responsibility_jacobian, usage
from gma.ops.reference import responsibilities


def test_even_and_single_use() -> None:
    even, single = torch.full((2, 3, 5, 4), 0.25), torch.zeros(2, 3, 5, 4)
    single[..., 1] = 1
    torch.testing.assert_close(effective_components(even), torch.full((3,), 4.0))
    torch.testing.assert_close(mean_entropy(even), torch.full((3,), math.log(4)))
    torch.testing.assert_close(effective_components(single), torch.ones(3))
    torch.testing.assert_close(mean_entropy(single), torch.zeros(3))


def test_hard_but_even_assignments_use_every_component_without_entropy() -> None:
    gamma = torch.eye(4).reshape(1, 1, 4, 4)
    assert effective_components(gamma).item() == pytest.approx(4)
    assert mean_entropy(gamma).item() == 0


def test_padding_does_not_count() -> None:
    gamma = torch.rand(2, 3, 5, 4).softmax(-1)
    mask = torch.tensor([[True, True, False, True, False], [True, False, False, False, False]])
    real = torch.cat([gamma[0, :, mask[0]], gamma[1, :, mask[1]]], dim=1)
    torch.testing.assert_close(usage(gamma, mask), real.mean(1))
    torch.testing.assert_close(mean_entropy(gamma, mask), -(real * real.log()).sum(-1).mean(1))


def mixture(learned: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float | torch.Tensor]:
    """Of unequal components in float64."""
    own = GaussianMixture(3, 5, 4, learn_temperature=learned).double()
    with torch.no_grad():
        own.raw_variances.normal_()
        own.prior_logits.normal_()
        temperature = own.temperature * torch.tensor([0.5, 1.0, 3.0]).double()[:, None, None] if learned else 1.7
        return own.means, own.variances, own.log_priors, temperature


@pytest.mark.parametrize("learned", [False, True])
def test_the_gradient_of_responsibilities_is_modulated_by_them(learned: bool) -> None:
    parts = mixture(learned)
    x = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    closed = responsibility_jacobian(x, *parts)
    assert closed.shape == (2, 3, 7, 5, 4)
    batches = torch.autograd.functional.jacobian(lambda x: responsibilities(x, *parts), x)
    own = torch.einsum("bhnkbhnr->bhnkr", batches)
    torch.testing.assert_close(closed, own)


@pytest.mark.parametrize("learned", [False, True])
def test_responsibilities_never_change_faster_than_the_bound(learned: bool) -> None:
    means, variances, log_priors, temperature = mixture(learned)
    x = 3 * torch.randn(4, 3, 500, 4, dtype=torch.float64)
    radius = x.norm(dim=-1).amax((0, 2))
    bound = lipschitz_bound(means, variances, temperature, radius)
    jacobian = responsibility_jacobian(x, means, variances, log_priors, temperature)
    found = torch.linalg.matrix_norm(jacobian, ord=2).amax((0, 2))
    assert (found <= bound).all()
    assert (found > 0.02 * bound).all()  # it says something
    tau = temperature.flatten() if isinstance(temperature, torch.Tensor) else temperature
    crude = (radius + means.norm(dim=-1).amax(-1)) / (tau * variances.amin((-2, -1)))
    assert (bound <= crude).all()
    gamma = responsibilities(x, means, variances, log_priors, temperature)
    steps, rises = ((t[:, :, 1:] - t[:, :, :-1]).norm(dim=-1) for t in (x, gamma))
    assert (rises <= bound[:, None] * steps).all()
