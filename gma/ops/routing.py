"""Log densities and responsibilities of a diagonal Gaussian mixture, as matrix products in log space.

Shapes: B batch, N tokens, H heads, K components, R routing width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def natural_parameters(
    means: Tensor, variances: Tensor, log_priors: Tensor, temperature: float | Tensor = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The coefficients of s_k(x) = linear_k . x + quadratic_k . x^2 + constant_k (:func:`gma.ops.reference.log_joint`).

    With precision p = 1 / (tau sigma^2): linear = p mu, quadratic = -p / 2 and
    constant = log pi - 1/2 sum_m (p mu^2 + log(2 pi sigma^2) / tau).

    Args:
        means, variances: (H, K, R). log_priors: (H, K).

    Returns:
        linear (H, K, R), quadratic (H, K, R), constant (H, K).
    """
    precision = (variances * temperature).reciprocal()
    linear = precision * means
    log_normaliser = (linear * means + (2 * math.pi * variances).log() / temperature).sum(-1)
    return linear, -0.5 * precision, log_priors - 0.5 * log_normaliser


def log_joint(
    x: Tensor, means: Tensor, variances: Tensor, log_priors: Tensor, temperature: float | Tensor = 1.0
) -> Tensor:
    """s_k(x), finite for every finite ``x`` and any variance from 1e-6 up.

    Computed in float32, or in float64 if ``x`` is, whatever autocast says. Coordinates whose square would overflow are
    clamped (beyond 1e14 in float32).

    Args:
        x: (B, H, N, R). means, variances: (H, K, R). log_priors: (H, K).
        temperature: tau, divides the log density; a number, or (H, 1, 1).

    Returns:
        (B, H, N, K) in float32 or float64.
    """
    batch, heads, length, width = x.shape
    dtype = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        tau = temperature.to(dtype) if isinstance(temperature, Tensor) else temperature
        linear, quadratic, constant = natural_parameters(
            means.to(dtype), variances.to(dtype), log_priors.to(dtype), tau
        )

        def per_row(parameter: Tensor) -> Tensor:  # (H, ...) -> (B H, ...)
            return parameter.expand(batch, *parameter.shape).flatten(0, 1)

        limit = 1e-5 * math.sqrt(torch.finfo(dtype).max)
        x = F.hardtanh(x.to(dtype).reshape(batch * heads, length, width), -limit, limit)  # clamp, in one backward pass
        scores = torch.baddbmm(per_row(constant.unsqueeze(-2)), x, per_row(linear.transpose(-1, -2)))
        scores = scores.baddbmm_(x * x, per_row(quadratic.transpose(-1, -2)))
        return scores.unflatten(0, (batch, heads))


def responsibilities(
    x: Tensor, means: Tensor, variances: Tensor, log_priors: Tensor, temperature: float | Tensor = 1.0
) -> Tensor:
    """gamma_k(x) = softmax_k s_k(x): non-negative, summing to one over K. Arguments and dtype as :func:`log_joint`."""
    return log_joint(x, means, variances, log_priors, temperature).softmax(-1)
