"""Performer (Choromanski et al. 2021): softmax attention approximated by positive orthogonal random features (FAVOR+).

Shapes: B batch, N tokens, H heads, K features, R = D = dim / H.
"""

import math

import torch
from torch import Tensor

from gma.memory_mixer import MemoryMixer
from gma.mixer import require


def orthogonal_projection(num_features: int, width: int) -> Tensor:
    """(K, R) rows that are each normally distributed and orthogonal within every block of R (section 2.4).

    Directions come from QR decompositions of normal matrices, with the signs that make them uniform (without, Q leans
    to one side and the kernel is biased); lengths are the norms of other normal rows.
    """
    blocks = []
    for _ in range(-(-num_features // width)):
        q, r = torch.linalg.qr(torch.randn(width, width))
        blocks.append((q * r.diagonal().sign()).T)
    directions = torch.cat(blocks)[:num_features]
    return directions * torch.randn(num_features, width).norm(dim=1, keepdim=True)


class Performer(MemoryMixer):
    """Attention with the kernel exp(q . k / sqrt(R)) = E_w[phi_w(q) phi_w(k)], phi_w(x) = exp(w . x' - |x'|^2 / 2).

    Here x' = x / R^(1/4), and the K rows w are drawn once, or again every ``redraw_every`` training steps. The features
    of a query are divided by their largest, which cancels in the normaliser. Those of keys are multiplied by one
    constant for all, never by a maximum over positions, which would show the future to a causal mixer.

    Args:
        dim: width of the tokens. num_heads: H, a divisor of ``dim``.
        causal: whether output i sees inputs 0 .. i only.
        num_features: K; ``None`` takes R log R, rounded down, as the authors suggest (at least 1).
        redraw_every: training forward passes between draws of the projection; 0 keeps the first.
        bias: whether the four projections have one.
        eps: added to the normaliser.

    Raises:
        ValueError: naming the argument, for a count out of range, and as :class:`gma.MemoryMixer`.
    """

    projection: Tensor
    passes: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        causal: bool = False,
        *,
        num_features: int | None = None,
        redraw_every: int = 0,
        bias: bool = True,
        eps: float = 1e-12,
    ) -> None:
        super().__init__(dim, num_heads, causal, slots=num_features, bias=bias, eps=eps)
        require(redraw_every >= 0, "redraw_every", redraw_every, "at least 0")
        if num_features is None:
            self.slots = max(1, int(self.route_dim * math.log(self.route_dim)))
        self.redraw_every = redraw_every
        self.register_buffer("projection", orthogonal_projection(self.slots, self.route_dim))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        """As :meth:`gma.MemoryMixer.forward`; while training, draws the projection anew when it is due."""
        if self.training and self.redraw_every:
            if self.passes > 0 and self.passes % self.redraw_every == 0:
                self.redraw()
            self.passes += 1
        return super().forward(x, mask, context)

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw another projection."""
        self.projection.copy_(orthogonal_projection(self.slots, self.route_dim))

    def query_features(self, queries: Tensor) -> Tensor:
        """phi(q), (B, H, N, K), each query's largest scaled to 1 / sqrt(K)."""
        exponents = self._exponents(queries)
        return (exponents - exponents.detach().amax(-1, keepdim=True)).exp() / math.sqrt(self.slots)

    def key_features(self, keys: Tensor) -> Tensor:
        """phi(k), (B, H, N, K), times one constant that keeps them below e^40, as w . k - |k|^2 / 2 <= |w|^2 / 2."""
        bound = self.projection.square().sum(-1).amax() / 2
        return (self._exponents(keys) - (bound - 40).clamp(min=0)).exp() / math.sqrt(self.slots)

    def _exponents(self, x: Tensor) -> Tensor:
        """w . x' - |x'|^2 / 2, in float32 or better whatever autocast says."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            scaled = x.to(dtype) * self.route_dim**-0.25
            return scaled @ self.projection.to(dtype).T - scaled.square().sum(-1, keepdim=True) / 2
