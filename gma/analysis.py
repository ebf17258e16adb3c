"""What responsibilities say of a layer: numbers, no plots.

Shapes: B batch, N tokens, H heads, K components.
"""

import torch
from torch import Tensor


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


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)


def _mean_over_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, H, N, W) -> (H, W)."""
    if mask is None:
        return x.mean((0, 2))
    real = mask[:, None, :, None]
    return x.masked_fill(~real, 0.0).sum((0, 2)) / mask.sum().clamp(min=1)
