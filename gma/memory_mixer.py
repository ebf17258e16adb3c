"""Attention whose tokens meet in a memory of K slots, whatever decides who writes and reads where.

Shapes: B batch, N tokens, M context tokens, H heads, K slots, R width of queries and keys, D = dim / H value width.
"""

from abc import abstractmethod

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gma.mixer import require, require_mask
from gma.multi_head import MultiHeadMixer
from gma.ops import memory


class MemoryMixer(MultiHeadMixer):
    """Attention through a memory of K slots: keys write values by their features, queries read by theirs.

    O = Q (K^T V) / (Q K^T 1 + eps) with non-negative features Q and K; causally, with prefix sums. Linear in N, and the
    decoding state is K (D + 1) numbers a head. A subclass says what the features are.

    Args:
        slots: K, the number of features; ``None`` takes R.
        eps: added to the normaliser.
        recompute: whether to keep queries, keys and values alone for the backward pass, 2 R + D numbers a token and
            head instead of 2 R + 2 K + 2 D + 1, and compute features and mix again there.
        dim, num_heads, causal, route_dim, bias: see :class:`MultiHeadMixer`.

    Raises:
        ValueError: for an ``eps`` that is not positive, and as :class:`MultiHeadMixer`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        causal: bool,
        slots: int | None = None,
        route_dim: int | None = None,
        bias: bool = True,
        eps: float = 1e-6,
        recompute: bool = False,
    ) -> None:
        super().__init__(dim, num_heads, causal, route_dim, bias)
        require(slots is None or slots >= 1, "slots", slots, "at least 1, or None for the width of queries and keys")
        require(eps > 0, "eps", eps, "positive")
        self.slots = self.route_dim if slots is None else slots
        require(isinstance(recompute, bool), "recompute", recompute, "true or false")
        self.eps, self.recompute = eps, recompute

    @abstractmethod
    def query_features(self, queries: Tensor) -> Tensor:
        """Projected queries (B, H, N, R) -> non-negative features (B, H, N, K), in float32 or better."""

    @abstractmethod
    def key_features(self, keys: Tensor) -> Tensor:
        """Projected keys (B, H, M, R) -> non-negative features (B, H, M, K), each a function of its key alone."""

    def features(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Features (B, H, N, K) of the queries of ``x`` and (B, H, M, K) of the keys of ``context`` (default ``x``)."""
        keys = self.k_proj(x if context is None else context)
        return self.query_features(self.split_heads(self.q_proj(x))), self.key_features(self.split_heads(keys))

    def forward(self, x: Tensor, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        """Mix ``x`` with itself, or read from ``context`` (cross-attention, bidirectional only).

        Args:
            x: (B, N, dim).
            mask: bool, true for real tokens among those that are written: (B, N), or (B, M) with a context.
            context: (B, M, dim).

        Returns:
            (B, N, dim).

        Raises:
            ValueError: for a context given to a causal mixer, or a mask that is not bool or of another shape.
        """
        if context is not None and self.causal:
            raise ValueError("context is for causal=False only: a causal mixer has no order between x and context")
        require_mask(mask, x if context is None else context)
        written = x if context is None else context
        queries = self.split_heads(self.q_proj(x))
        keys, values = self.split_heads(self.k_proj(written)), self.split_heads(self.v_proj(written))
        if self.recompute and torch.is_grad_enabled():
            mixed = checkpoint(self._mix, queries, keys, values, mask, use_reentrant=False, preserve_rng_state=False)
        else:
            mixed = self._mix(queries, keys, values, mask)
        return self.merge_heads(mixed)

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        mix = memory.causal_mix if self.causal else memory.mix
        return mix(self.query_features(queries), self.key_features(keys), values, mask, self.eps)

    def init_state(self, batch_size: int) -> memory.MemoryState:
        """An empty memory of (B, H, K, D) values and (B, H, K) masses, in float64."""
        self.require_causal("init_state")
        return memory.init_state(batch_size, self.num_heads, self.slots, self.head_dim, self.v_proj.weight.device)

    @torch.no_grad()
    def prefill(self, x: Tensor) -> tuple[Tensor, memory.MemoryState]:
        """Read a prompt (B, N, dim) at once, in time linear in N."""
        state = self.init_state(len(x))
        queries, keys = self.features(x)
        values = self.split_heads(self.v_proj(x))
        return self.merge_heads(memory.causal_mix(queries, keys, values, None, self.eps)), memory.write(
            keys, values, state
        )

    def step(self, x: Tensor, state: memory.MemoryState) -> tuple[Tensor, memory.MemoryState]:
        """One token (B, dim) in time and memory that do not depend on its position."""
        self.require_causal("step")
        x = x.unsqueeze(1)
        queries, keys = self.features(x)
        values = self.split_heads(self.v_proj(x))
        mixed, state = memory.step(queries.squeeze(2), keys.squeeze(2), values.squeeze(2), state, self.eps)
        return self.merge_heads(mixed.unsqueeze(2)).squeeze(1), state

    def state_elements(self, length: int) -> int:
        """K (D + 1) H, whatever the length."""
        return self.num_heads * self.slots * (self.head_dim + 1)
