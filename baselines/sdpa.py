"""Multi-head softmax attention (Vaswani et al. 2017) on PyTorch's fused ``scaled_dot_product_attention``.

Shapes: B batch, N tokens, H heads, D = dim / H, S slots of the cache.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from gma.mixer import SequenceMixer


class KeyValueCache(NamedTuple):
    """Keys and values (B, H, S, D) of the tokens so far, in buffers with room to grow; ``length`` slots are filled."""

    keys: Tensor
    values: Tensor
    length: int


class ScaledDotProductAttention(SequenceMixer):
    """softmax(Q K^T / sqrt(D)) V: quadratic time in N, 2 N dim numbers of decoding state.

    Args:
        dim: width of the tokens. num_heads: H, a divisor of ``dim``.
        causal: whether output i sees inputs 0 .. i only.
        bias: whether the four projections have one.
    """

    def __init__(self, dim: int, num_heads: int, causal: bool = False, *, bias: bool = True) -> None:
        super().__init__(dim, num_heads, causal)
        self.q_proj = nn.Linear(dim, dim, bias=bias)
        self.k_proj = nn.Linear(dim, dim, bias=bias)
        self.v_proj = nn.Linear(dim, dim, bias=bias)
        self.out_proj = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix (B, N, dim); a query that sees no real key reads zeros."""
        queries, keys, values = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        visible = None if mask is None else mask[:, None, None, :]
        if visible is not None and self.causal:
            length = x.shape[1]
            visible = visible & torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=visible, is_causal=self.causal and visible is None
        )
        return self.out_proj(rearrange(mixed, "b h n d -> b n (h d)"))

    def init_state(self, batch_size: int) -> KeyValueCache:
        """An empty cache."""
        self.require_causal("init_state")
        empty = self.k_proj.weight.new_empty(batch_size, self.num_heads, 0, self.head_dim)
        return KeyValueCache(empty, empty, 0)

    def step(self, x: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """One token (B, dim), in time and memory linear in its position."""
        self.require_causal("step")
        query, key, value = (self._heads(proj(x.unsqueeze(1))) for proj in (self.q_proj, self.k_proj, self.v_proj))
        keys, values, length = state
        if length == keys.shape[2]:  # full: double the room, so that appending costs O(1) on average
            room = (0, 0, 0, max(length, 16))
            keys, values = F.pad(keys.to(key.dtype), room), F.pad(values.to(value.dtype), room)
        keys[:, :, length : length + 1] = key
        values[:, :, length : length + 1] = value
        length += 1
        mixed = F.scaled_dot_product_attention(query, keys[:, :, :length], values[:, :, :length])
        return self.out_proj(rearrange(mixed, "b h 1 d -> b (h d)")), KeyValueCache(keys, values, length)

    def state_elements(self, length: int) -> int:
        """2 N dim: every key and value."""
        return 2 * length * self.dim

    def _heads(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> b h n d", h=self.num_heads)
