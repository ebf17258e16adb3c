"""What responsibilities say of a layer, and how fast they can change: numbers, no plots.

Shapes: B batch, N tokens, H heads, K components, R routing width.
"""

import torch
from torch import Tensor

from gma.ops.reference import responsibilities


def usage(gamma: Tensor, mask: Tensor | None = None) -> Tensor:
    """Marginal usage of components: mean responsibility over real tokens.

    Args:
        gamma: responsibilities (B, H, N, K). mask: (B, N) bool, true for real tokens.

    Returns:
        (H, K), each row adding up to 1; float32 or better.
    """
    return _mean_over_tokens(gamma.to(torch.promote_types(gamma.dtype, torch.float32)), mask)


def effective_components(gamma: Tensor, mask: Tensor | None = None) -> Tensor:
    """exp of the entropy of :func:`usage`, (H,): K if all are used alike, 1 if one takes everything."""
    return _entropy(usage(gamma, mask)).exp()


def mean_entropy(gamma: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean entropy (H,) of a token's responsibilities, in nats: 0 for hard assignments, log K for indifference."""
    entropies = _entropy(gamma.to(torch.promote_types(gamma.dtype, torch.float32)))
    return _mean_over_tokens(entropies.unsqueeze(-1), mask).squeeze(-1)


def responsibility_jacobian(
    x: Tensor, means: Tensor, variances: Tensor, log_priors: Tensor, temperature: float | Tensor = 1.0
) -> Tensor:
    """d gamma_k / dx = gamma_k (g_k - sum_l gamma_l g_l) with g_k = -(x - mu_k) / (tau sigma_k^2), in closed form.

    The gradient of a component is modulated by its responsibility: one that takes no part in a token learns nothing
    from it (the paper's analysis).

    Args:
        x: (B, H, N, R). means, variances: (H, K, R). log_priors: (H, K). temperature: tau, a number or (H, 1, 1).

    Returns:
        (B, H, N, K, R).
    """
    gamma = responsibilities(x, means, variances, log_priors, temperature).unsqueeze(-1)
    if isinstance(temperature, Tensor):
        temperature = temperature.unsqueeze(-1)
    pull = (means.unsqueeze(-3) - x.unsqueeze(-2)) / variances.unsqueeze(-3) / temperature
    return gamma * (pull - (gamma * pull).sum(-2, keepdim=True))


def lipschitz_bound(means: Tensor, variances: Tensor, temperature: float | Tensor, radius: Tensor) -> Tensor:
    """A bound (H,) on how fast responsibilities change, in the 2-norm, among inputs of norm up to ``radius`` (H,).

    |(diag gamma - gamma gamma^T) u|_2 <= |.|_1 <= (max u - min u) / 2, so that the Jacobian's norm is at most
    max_{k,l} |g_k - g_l| / 2, where g_k - g_l = (p_k mu_k - p_l mu_l - (p_k - p_l) x) / tau with p_k = 1 / sigma_k^2.
    With variances of at least eps_sigma and means of norm up to M it never exceeds (radius + M) / (tau eps_sigma).

    Args:
        means, variances: (H, K, R). temperature: tau, a number or (H, 1, 1).
    """
    precisions = 1 / variances
    offsets = torch.cdist(means * precisions, means * precisions)  # (H, K, K)
    slopes = torch.cdist(precisions, precisions, p=torch.inf)
    return ((offsets + radius[:, None, None] * slopes) / temperature).amax((-2, -1)) / 2


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)


def _mean_over_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, H, N, W) -> (H, W)."""
    if mask is None:
        return x.mean((0, 2))
    real = mask[:, None, :, None]
    return x.masked_fill(~real, 0.0).sum((0, 2)) / mask.sum().clamp(min=1)
