"""Fast log densities and responsibilities against the definition.

Shapes: B batch, N tokens, H heads, K components, R routing width.
"""

import math

import pytest
import torch

from gma.ops import reference, routing

B, H, K, R = 2, 3, 5, 7


def mixture(dtype: torch.dtype = torch.float64, k: int = K, r: int = R) -> list[torch.Tensor]:
    means = torch.randn(H, k, r, dtype=dtype)
    variances = torch.rand(H, k, r, dtype=dtype) + 0.1
    log_priors = torch.randn(H, k, dtype=dtype).log_softmax(-1)
    return [parameter.requires_grad_() for parameter in (means, variances, log_priors)]


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("function", ["log_joint", "responsibilities"])
def test_equals_the_definition_with_all_gradients(function: str, temperature: float) -> None:
    inputs = [torch.randn(B, H, 11, R, dtype=torch.float64, requires_grad=True), *mixture()]
    expected = getattr(reference, function)(*inputs, temperature)
    found = getattr(routing, function)(*inputs, temperature)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, weight), torch.autograd.grad(expected, inputs, weight), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_a_temperature_a_head_equals_the_definition_with_its_gradient() -> None:
    temperature = (torch.rand(H, 1, 1, dtype=torch.float64) + 0.5).requires_grad_()
    inputs = [torch.randn(B, H, 11, R, dtype=torch.float64), *(p.detach() for p in mixture())]
    expected, found = (module.responsibilities(*inputs, temperature) for module in (reference, routing))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(expected)
    (mine,), (theirs,) = (torch.autograd.grad(gamma, temperature, weight) for gamma in (found, expected))
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_log_joint_is_the_density_of_a_normal_distribution_times_its_prior() -> None:
    x = torch.randn(B, H, 4, R, dtype=torch.float64)
    means, variances, log_priors = mixture()
    normal = torch.distributions.Normal(means.unsqueeze(1), variances.sqrt().unsqueeze(1))
    expected = log_priors.unsqueeze(1) + normal.log_prob(x.unsqueeze(-2)).sum(-1)
    torch.testing.assert_close(reference.log_joint(x, means, variances, log_priors), expected)


def test_gradient_of_responsibilities_is_modulated_by_them() -> None:
    """d gamma_k / dx = gamma_k (g_k - sum_l gamma_l g_l) with g_k = -(x - mu_k) / sigma_k^2."""
    x = torch.randn(1, H, 1, R, dtype=torch.float64)
    means, variances, log_priors = mixture()
    jacobian = torch.autograd.functional.jacobian(
        lambda x: routing.responsibilities(x, means, variances, log_priors).sum((0, 2)), x
    )  # (H, K, 1, H, 1, R)
    gamma = routing.responsibilities(x, means, variances, log_priors)[0, :, 0, :, None]
    pull = -(x[0] - means) / variances
    expected = gamma * (pull - (gamma * pull).sum(1, keepdim=True))
    found = torch.stack([jacobian[h, :, 0, h, 0] for h in range(H)])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variance", [1e-6, 1e-4, 1.0, 1e4])
def test_finite_for_any_input_the_dtype_holds_and_any_variance(dtype: torch.dtype, variance: float) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([largest, -largest, 1e4, 1.0, 0.0, torch.finfo(dtype).tiny]).to(dtype)
    x = x.view(1, 1, -1, 1).expand(B, H, -1, R).clone().requires_grad_()
    parameters = [p.detach().requires_grad_() for p in mixture(torch.promote_types(dtype, torch.float32))]
    parameters[1] = torch.full_like(parameters[1], variance).requires_grad_()
    gamma = routing.responsibilities(x, *parameters)
    gamma.square().sum().backward()
    assert gamma.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(gamma.sum(-1), torch.ones_like(gamma[..., 0]))
    assert all(tensor.grad.isfinite().all() for tensor in (x, *parameters))


def test_finite_at_the_largest_input_and_the_smallest_variance_for_wide_routing() -> None:
    x = torch.full((1, H, 2, 1024), torch.finfo(torch.float32).max)
    means, variances, log_priors = mixture(torch.float32, r=1024)
    assert routing.responsibilities(x, means, torch.full_like(variances, 1e-6), log_priors).isfinite().all()


def test_autocast_leaves_responsibilities_in_float32() -> None:
    x, parameters = torch.randn(B, H, 9, R), mixture(torch.float32)
    exact = routing.responsibilities(x, *parameters)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(routing.responsibilities(x, *parameters), exact, rtol=0, atol=0)


def test_kept_for_the_backward_pass_are_inputs_responsibilities_and_coefficients() -> None:
    storages: dict[int, torch.Tensor] = {}
    x, parameters = torch.randn(B, H, 1000, R, requires_grad=True), mixture(torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: storages.setdefault(t.untyped_storage().data_ptr(), t), lambda t: t
    ):
        routing.responsibilities(x, *parameters).sum()
    kept = sum(t.numel() for t in storages.values() if t.numel() >= B * H * 1000)
    assert kept == B * H * 1000 * (R + K)


def test_differentiating_twice_is_refused_not_wrong() -> None:
    x = torch.randn(B, H, 9, R, requires_grad=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(routing.responsibilities(x, *mixture(torch.float32))[..., 0].sum(), x, create_graph=True)


def test_one_component_takes_everything() -> None:
    gamma = routing.responsibilities(torch.randn(B, H, 3, R), *mixture(torch.float32, k=1))
    assert (gamma == 1).all()


def test_uniform_when_components_are_equal() -> None:
    means, variances = torch.zeros(H, K, R), torch.ones(H, K, R)
    log_priors = torch.full((H, K), -math.log(K))
    gamma = routing.responsibilities(torch.randn(B, H, 3, R), means, variances, log_priors)
    torch.testing.assert_close(gamma, torch.full_like(gamma, 1 / K))
