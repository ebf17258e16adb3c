"""Gaussian Mixture Attention (arXiv 2606.18283): tokens meet in K learned components instead of comparing pairwise.

Shapes: B batch, N tokens, M context tokens, H heads, K components, R routing width, D = dim / H value width.
"""

import torch
from einops import rearrange
from torch import Tensor, nn

from gma.mixer import SequenceMixer, require
from gma.mixture import GaussianMixture
from gma.ops import memory


class GaussianMixtureAttention(SequenceMixer):
    """Queries and keys are assigned softly to the components of one mixture per head; values travel through them.

    Gamma^Q and Gamma^K are the responsibilities of q = x W_Q and k = x W_K. Keys write values into K slots,
    Vt = (Gamma^K)^T V with mass Z = (Gamma^K)^T 1, and queries read O = Gamma^Q Vt / (Gamma^Q Z + eps); causally, with
    prefix sums. Time and memory are linear in N, the decoding state is K (D + 1) numbers a head.

    Args:
        dim: width of the tokens.
        num_heads: H, a divisor of ``dim``.
        num_components: K.
        route_dim: R, the width of queries and keys; ``None`` takes D.
        causal: whether output i sees inputs 0 .. i only.
        temperature, mean_spread, equal_norms, initial_variance, variance_floor: of the mixture, see
            :class:`GaussianMixture`; the paper's exact form is ``temperature=1, equal_norms=False``.
        bias: whether the four projections have one.
        eps: added to the normaliser.

    Raises:
        ValueError: naming the argument, its value and what is allowed.

    Example:
        >>> layer = GaussianMixtureAttention(dim=64, num_heads=4, num_components=32)
        >>> x = torch.randn(2, 100, 64)
        >>> mask = torch.arange(100) < torch.tensor([[100], [70]])
        >>> layer(x, mask).shape
        torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_components: int,
        route_dim: int | None = None,
        causal: bool = False,
        *,
        temperature: float | None = None,
        mean_spread: float = 1.0,
        equal_norms: bool = True,
        initial_variance: float = 1.0,
        variance_floor: float = 1e-4,
        bias: bool = True,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, num_heads, causal)
        require(eps > 0, "eps", eps, "positive")
        self.route_dim = self.head_dim if route_dim is None else route_dim
        self.num_components = num_components
        self.eps = eps
        self.mixture = GaussianMixture(
            num_heads,
            num_components,
            self.route_dim,
            temperature=temperature,
            mean_spread=mean_spread,
            equal_norms=equal_norms,
            initial_variance=initial_variance,
            variance_floor=variance_floor,
        )
        self.q_proj = nn.Linear(dim, num_heads * self.route_dim, bias=bias)
        self.k_proj = nn.Linear(dim, num_heads * self.route_dim, bias=bias)
        self.v_proj = nn.Linear(dim, dim, bias=bias)
        self.out_proj = nn.Linear(dim, dim, bias=bias)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Projections that keep unit variance, so that the mixture meets the inputs it was initialised for."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            projection.weight.normal_(std=self.dim**-0.5)
            if projection.bias is not None:
                projection.bias.zero_()
        self.mixture.reset_parameters()

    def responsibilities(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Gamma^Q (B, H, N, K) of ``x`` and Gamma^K (B, H, M, K) of ``context`` (default ``x``), float32 or better."""
        source = x if context is None else context
        return self.mixture(self._heads(self.q_proj(x))), self.mixture(self._heads(self.k_proj(source)))

    def forward(self, x: Tensor, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        """Mix ``x`` with itself, or read from ``context`` (cross-attention, bidirectional only).

        Args:
            x: (B, N, dim).
            mask: bool, true for real tokens among those that are written: (B, N), or (B, M) with a context.
            context: (B, M, dim).

        Returns:
            (B, N, dim).

        Raises:
            ValueError: for a context given to a causal mixer.
        """
        if context is not None and self.causal:
            raise ValueError("context is for causal=False only: a causal mixer has no order between x and context")
        queries, keys = self.responsibilities(x, context)
        values = self._heads(self.v_proj(x if context is None else context))
        mix = memory.causal_mix if self.causal else memory.mix
        mixed = mix(queries, keys, values, mask, self.eps)
        return self.out_proj(rearrange(mixed, "b h n d -> b n (h d)"))

    def init_state(self, batch_size: int) -> memory.MemoryState:
        """An empty memory of (B, H, K, D) values and (B, H, K) masses, in float64."""
        self.require_causal("init_state")
        return memory.init_state(
            batch_size, self.num_heads, self.num_components, self.head_dim, self.v_proj.weight.device
        )

    def step(self, x: Tensor, state: memory.MemoryState) -> tuple[Tensor, memory.MemoryState]:
        """One token (B, dim) in time and memory that do not depend on its position."""
        self.require_causal("step")
        queries, keys = (gamma.squeeze(2) for gamma in self.responsibilities(x.unsqueeze(1)))
        values = rearrange(self.v_proj(x), "b (h d) -> b h d", h=self.num_heads)
        mixed, state = memory.step(queries, keys, values, state, self.eps)
        return self.out_proj(rearrange(mixed, "b h d -> b (h d)")), state

    def state_elements(self, length: int) -> int:
        """K (D + 1) H, whatever the length."""
        return self.num_heads * self.num_components * (self.head_dim + 1)

    def _heads(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h w) -> b h n w", h=self.num_heads)
