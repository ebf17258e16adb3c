"""Log densities and responsibilities of a diagonal Gaussian mixture, as matrix products in log space.

Shapes: B batch, N tokens, H heads, K components, R routing width.
"""

import math
from typing import Any

import torch
from torch import Tensor

from gma.ops.autograd import first_derivative_only


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
    with torch.autocast(x.device.type, enabled=False):
        rows, *coefficients = _prepare(x, means, variances, log_priors, temperature)
        return _scores(_clamp(rows), *coefficients).unflatten(0, x.shape[:2])


def responsibilities(
    x: Tensor, means: Tensor, variances: Tensor, log_priors: Tensor, temperature: float | Tensor = 1.0
) -> Tensor:
    """gamma_k(x) = softmax_k s_k(x): non-negative, summing to one over K. Arguments and dtype as :func:`log_joint`.

    Kept for the backward pass: x and gamma, R + K numbers a token and head. First derivatives only:
    ``create_graph=True`` raises ``RuntimeError``.
    """
    with torch.autocast(x.device.type, enabled=False):
        gamma: Tensor = _Responsibilities.apply(*_prepare(x, means, variances, log_priors, temperature))
        return gamma.unflatten(0, x.shape[:2])


def _prepare(
    x: Tensor, means: Tensor, variances: Tensor, log_priors: Tensor, temperature: float | Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``x`` as (B H, N, R) and the coefficients of its scores, one set a row; all in float32 or better."""
    batch, heads, length, width = x.shape
    dtype = torch.promote_types(x.dtype, torch.float32)
    tau = temperature.to(dtype) if isinstance(temperature, Tensor) else temperature
    parameters = natural_parameters(means.to(dtype), variances.to(dtype), log_priors.to(dtype), tau)
    linear, quadratic, constant = (p.expand(batch, *p.shape).flatten(0, 1) for p in parameters)
    return x.to(dtype).reshape(batch * heads, length, width), linear, quadratic, constant.unsqueeze(1)


def _clamp(x: Tensor) -> Tensor:
    """No square overflows, and no sum of squares times a coefficient."""
    limit = 1e-5 * math.sqrt(torch.finfo(x.dtype).max)
    return x.clamp(-limit, limit)


def _scores(x: Tensor, linear: Tensor, quadratic: Tensor, constant: Tensor) -> Tensor:
    scores = torch.baddbmm(constant, x, linear.transpose(1, 2))
    return scores.baddbmm_(x * x, quadratic.transpose(1, 2))


class _Responsibilities(torch.autograd.Function):
    """gamma = softmax of :func:`_scores`, without keeping scores and squares. Gradients pass through the clamp.

    With g the gradient of gamma: ds = gamma (g - sum_k g_k gamma_k), dx = ds linear + 2 x (ds quadratic).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Tensor, quadratic: Tensor, constant: Tensor) -> Tensor:
        x = _clamp(x)
        gamma = _scores(x, linear, quadratic, constant).softmax(-1)
        ctx.save_for_backward(x, linear, quadratic, gamma)
        return gamma

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, linear, quadratic, gamma = ctx.saved_tensors
        grad_scores = torch.ops.aten._softmax_backward_data(grad, gamma, -1, gamma.dtype)
        grad_x = torch.bmm(grad_scores, 2 * quadratic).mul_(x).baddbmm_(grad_scores, linear)
        grad_linear, grad_quadratic = (torch.bmm(grad_scores.transpose(1, 2), power) for power in (x, x * x))
        return grad_x, grad_linear, grad_quadratic, grad_scores.sum(1, keepdim=True)
