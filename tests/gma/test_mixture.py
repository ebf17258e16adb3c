"""The mixture: constraints, initialisation, refusals."""

import math

import pytest
import torch

from gma import GaussianMixture


@pytest.mark.parametrize("route_dim", [1, 4, 16, 32, 64, 256])
@pytest.mark.parametrize("components", [8, 64, 128])
def test_initial_routing_is_soft_and_uses_every_component(components: int, route_dim: int) -> None:
    mixture = GaussianMixture(4, components, route_dim)
    gamma = mixture(torch.randn(1, 4, 4096, route_dim)).detach()
    entropy = -(gamma * gamma.log()).sum(-1).mean()
    assert entropy >= 0.5 * math.log(components)
    assert gamma.mean((0, 2)).max() <= 4 / components


def test_the_papers_plain_form_is_reachable_and_routes_hard_from_the_start() -> None:
    plain = GaussianMixture(4, 64, 32, temperature=1.0, equal_norms=False)
    assert plain.temperature == 1
    torch.testing.assert_close(plain.means.std(), torch.tensor(1.0), rtol=0.05, atol=0)
    gamma = plain(torch.randn(1, 4, 4096, 32)).detach().clamp(min=1e-30)
    assert -(gamma * gamma.log()).sum(-1).mean() < 0.3 * math.log(64)


def test_constraints_hold_for_any_parameters() -> None:
    mixture = GaussianMixture(2, 6, 3, variance_floor=1e-3)
    torch.testing.assert_close(mixture.variances, torch.full((2, 6, 3), 1.0))
    torch.testing.assert_close(mixture.log_priors.exp(), torch.full((2, 6), 1 / 6))
    with torch.no_grad():
        mixture.raw_variances.fill_(-1e4)
        mixture.prior_logits.normal_(std=30)
    assert (mixture.variances >= 1e-3).all()
    torch.testing.assert_close(mixture.log_priors.exp().sum(-1), torch.ones(2))
    assert mixture(torch.randn(1, 2, 5, 3)).isfinite().all()


def test_a_learned_temperature_starts_at_the_fixed_one_and_learns() -> None:
    torch.manual_seed(0)
    fixed = GaussianMixture(2, 6, 9)
    torch.manual_seed(0)
    learned = GaussianMixture(2, 6, 9, learn_temperature=True)
    x = torch.randn(1, 2, 5, 9)
    torch.testing.assert_close(learned(x), fixed(x))
    learned(x)[..., 0].sum().backward()
    assert learned.log_temperature is not None
    assert (learned.log_temperature.grad != 0).all()


def test_normalized_inputs_do_not_feel_their_scale() -> None:
    mixture, x = GaussianMixture(2, 6, 9, normalize_inputs=True), torch.randn(1, 2, 5, 9)
    torch.testing.assert_close(mixture(100 * x), mixture(x), rtol=1e-4, atol=1e-6)
    assert mixture(torch.zeros(1, 2, 5, 9)).isfinite().all()


def test_every_parameter_carries_its_share_of_the_learning_rate() -> None:
    mixture = GaussianMixture(2, 6, 9, learn_temperature=True, learning_rate_scale=5.0)
    assert [parameter.learning_rate_scale for parameter in mixture.parameters()] == [5.0] * 4


@pytest.mark.parametrize("equal_norms", [False, True])
def test_means_started_from_tokens_are_tokens_of_their_head(equal_norms: bool) -> None:
    mixture, x = GaussianMixture(2, 6, 9, equal_norms=equal_norms, mean_spread=0.5), torch.randn(50, 2, 9)
    mixture.start_means_from(x)
    if equal_norms:
        x = 0.5 * 3 * x / x.norm(dim=-1, keepdim=True)
    found = torch.cdist(mixture.means.detach(), x.transpose(0, 1), compute_mode="donot_use_mm_for_euclid_dist") < 1e-5
    assert (found.sum(-1) == 1).all()
    assert (found.sum(-2) <= 1).all()  # no token twice
    with pytest.raises(ValueError, match=r"tokens=5 .*at least num_components=6"):
        mixture.start_means_from(x[:5])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("num_heads", 0),
        ("num_components", 0),
        ("route_dim", -1),
        ("temperature", 0.0),
        ("learning_rate_scale", 0.0),
        ("mean_spread", -0.1),
        ("initial_variance", 0.0),
        ("variance_floor", 0.0),
    ],
)
def test_wrong_arguments_are_named_with_their_value(argument: str, value: float) -> None:
    arguments = {"num_heads": 2, "num_components": 4, "route_dim": 8, argument: value}
    with pytest.raises(ValueError, match=f"{argument}={value}.*must be"):
        GaussianMixture(**arguments)
