"""The definition: Gaussian Mixture Attention as its equations are written (arXiv 2606.18283, section 3).

Slow and plain on purpose, in whatever dtype it is given: tests run it in float64 and hold every fast path to it.

Shapes: B batch, N queries, M keys, H heads, K components, R routing width, D value width.
A causal mix has M = N. ``mask`` is (B, M) bool, true where a key is a real token.
"""

import math

import torch
from torch import Tensor


def log_joint(
    x: Tensor, means: Tensor, variances: Tensor, log_priors: Tensor, temperature: float | Tensor = 1.0
) -> Tensor:
    """s_k(x) = log pi_k - 1/(2 tau) [R log 2 pi + sum_m log sigma^2_km + sum_m (x_m - mu_km)^2 / sigma^2_km].

    ``x`` (B, H, N, R), ``means`` and ``variances`` (H, K, R), ``log_priors`` (H, K) -> (B, H, N, K). tau is a
    number or (H, 1, 1); the paper has 1.
    """
    difference = x.unsqueeze(-2) - means.unsqueeze(-3)
    mahalanobis = (difference.square() / variances.unsqueeze(-3)).sum(-1)
    log_determinant = variances.log().sum(-1).unsqueeze(-2)
    log_density = -0.5 * (means.shape[-1] * math.log(2 * math.pi) + log_determinant + mahalanobis)
    return log_priors.unsqueeze(-2) + log_density / temperature


def responsibilities(
    x: Tensor, means: Tensor, variances: Tensor, log_priors: Tensor, temperature: float | Tensor = 1.0
) -> Tensor:
    """gamma_k(x) = exp s_k(x) / sum_l exp s_l(x), shape (B, H, N, K)."""
    return log_joint(x, means, variances, log_priors, temperature).softmax(-1)


def masked(key_features: Tensor, mask: Tensor | None) -> Tensor:
    """Gamma^K with the rows of padded keys set to zero: they write nothing."""
    return key_features if mask is None else key_features * mask[:, None, :, None].to(key_features.dtype)


def affinity(
    query_features: Tensor, key_features: Tensor, causal: bool, mask: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    """A = diag(d + eps)^-1 S with S = Gamma^Q (Gamma^K)^T, lower triangular if causal, and d its row sums.

    (B, H, N, K) and (B, H, M, K) -> (B, H, N, M). Only tests and figures build it: the mixer never does.
    """
    scores = query_features @ masked(key_features, mask).transpose(-1, -2)
    if causal:
        scores = scores.tril()
    return scores / (scores.sum(-1, keepdim=True) + eps)


def mix(
    query_features: Tensor, key_features: Tensor, values: Tensor, mask: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    """Bidirectional: write Vt = (Gamma^K)^T V and Z = (Gamma^K)^T 1, read O = Gamma^Q Vt / (Gamma^Q Z + eps).

    (B, H, N, K), (B, H, M, K), (B, H, M, D) -> (B, H, N, D).
    """
    key_features = masked(key_features, mask)
    memory = key_features.transpose(-1, -2) @ values
    mass = key_features.sum(-2)
    return (query_features @ memory) / ((query_features @ mass.unsqueeze(-1)) + eps)


def causal_mix(
    query_features: Tensor, key_features: Tensor, values: Tensor, mask: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    """Causal: the same with the prefix sums Vt_i = sum_{j<=i} gamma^K_j V_j^T and Z_i = sum_{j<=i} gamma^K_j."""
    key_features = masked(key_features, mask)
    memory = (key_features.unsqueeze(-1) * values.unsqueeze(-2)).cumsum(-3)
    mass = key_features.cumsum(-2)
    read = torch.einsum("bhnk,bhnkd->bhnd", query_features, memory)
    return read / ((query_features * mass).sum(-1, keepdim=True) + eps)
