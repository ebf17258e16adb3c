"""Multi-head softmax attention (Vaswani et al. 2017) on PyTorch's fused ``scaled_dot_product_attention``.

Shapes: B batch, N tokens, H heads, D = dim / H, S slots of the cache.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gma.mixer import require_mask
from gma.multi_head import MultiHeadMixer


class KeyValueCache(NamedTuple):
    """Keys and values (B, H, S, D) of the tokens so far, in buffers with room to grow; ``length`` slots are filled."""

    keys: Tensor
    values: Tensor
    length: int


class ScaledDotProductAttention(MultiHeadMixer):
    """softmax(Q K^T / sqrt(D)) V: quadratic time in N, 2 N dim numbers of decoding state.

    Args:
        dim: width of the tokens. num_heads: H, a divisor of ``dim``.
        causal: whether output i sees inputs 0 .. i only.
        bias: whether the four projections have one.
    """

    def __init__(self, dim: int, num_heads: int, causal: bool = False, *, bias: bool = True) -> None:
        super().__init__(dim, num_heads, causal, bias=bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix (B, N, dim); a query that sees no real key reads zeros."""
        require_mask(mask, x)
        visible = None if mask is None else mask[:, None, None, :]
        if visible is not None and self.causal:
            length = x.shape[1]
            visible = visible & torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        is_causal = self.causal and visible is None
        mixed = F.scaled_dot_product_attention(*self._project(x), attn_mask=visible, is_causal=is_causal)
        return self.merge_heads(mixed)

    def init_state(self, batch_size: int) -> KeyValueCache:
        """An empty cache."""
        self.require_causal("init_state")
        empty = self.k_proj.weight.new_empty(batch_size, self.num_heads, 0, self.head_dim)
        return KeyValueCache(empty, empty, 0)

    @torch.no_grad()
    def prefill(self, x: Tensor) -> tuple[Tensor, KeyValueCache]:
        """Read a prompt (B, N, dim) at once; the cache holds its keys and values."""
        self.require_causal("prefill")
        query, key, value = self._project(x)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.merge_heads(mixed), KeyValueCache(key, value, x.shape[1])

    def step(self, x: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """One token (B, dim), in time and memory linear in its position."""
        self.require_causal("step")
        query, key, value = self._project(x.unsqueeze(1))
        keys, values, length = state
        if length == keys.shape[2]:  # full: double the room, so that appending costs O(1) on average
            room = (0, 0, 0, max(length, 16))
            keys, values = F.pad(keys.to(key.dtype), room), F.pad(values.to(value.dtype), room)
        keys[:, :, length : length + 1] = key
        values[:, :, length : length + 1] = value
        length += 1
        mixed = F.scaled_dot_product_attention(query, keys[:, :, :length], values[:, :, :length])
        return self.merge_heads(mixed).squeeze(1), KeyValueCache(keys, values, length)

    def state_elements(self, length: int) -> int:
        """2 N dim: every key and value."""
        return 2 * length * self.dim

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.split_heads(self.q_proj(x)), self.split_heads(self.k_proj(x)), self.split_heads(self.v_proj(x))
