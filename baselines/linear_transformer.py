"""Linear Transformer (Katharopoulos et al. 2020): attention with the kernel phi(q) . phi(k), phi(x) = elu(x) + 1.

Shapes: B batch, N tokens, H heads, D = dim / H.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from gma.memory_mixer import MemoryMixer


class LinearTransformer(MemoryMixer):
    """O_i = phi(q_i)^T sum_j phi(k_j) v_j^T / (phi(q_i)^T sum_j phi(k_j) + eps), causally over j <= i.

    Linear time in N; the decoding state is D (D + 1) numbers a head.

    Args:
        dim: width of the tokens. num_heads: H, a divisor of ``dim``.
        causal: whether output i sees inputs 0 .. i only.
        bias: whether the four projections have one.
        eps: added to the normaliser.
    """

    def __init__(self, dim: int, num_heads: int, causal: bool = False, *, bias: bool = True, eps: float = 1e-6) -> None:
        super().__init__(dim, num_heads, causal, bias=bias, eps=eps)

    def query_features(self, queries: Tensor) -> Tensor:
        """phi(q), (B, H, N, D)."""
        return F.elu(queries.to(torch.promote_types(queries.dtype, torch.float32))) + 1

    def key_features(self, keys: Tensor) -> Tensor:
        """phi(k), (B, H, N, D)."""
        return self.query_features(keys)
