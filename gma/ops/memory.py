"""A K-slot memory that keys write values to and queries read from, in linear time.

The features may be any non-negative ones: responsibilities for GMA, kernel features for linear attention. Every read is
the weighted mean of the written values, O = S V / (S 1 + eps) with S = Q K^T; S is never built over the whole sequence.

Matrix products run in the dtype of the values and add up in float32 inside. Masses, normalisers and sums over chunks
are kept in float32 or better, the decoding state in float64: a sum of ten million small terms loses nothing there.

Shapes: B batch, N queries, M keys, H heads, K slots, D value width, G chunks of C tokens.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gma.ops.autograd import first_derivative_only

WRITTEN_AT_ONCE = 4096  # tokens, so that no long prompt is held in float64 as a whole


class MemoryState(NamedTuple):
    """What has been written so far: ``values`` (B, H, K, D), the sum of feature times value; ``mass`` (B, H, K)."""

    values: Tensor
    mass: Tensor


def mask_keys(key_features: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the features (B, H, M, K) of keys whose ``mask`` (B, M) is false, so that they write nothing."""
    return key_features if mask is None else key_features.masked_fill(~mask[:, None, :, None], 0.0)


def mix(
    query_features: Tensor, key_features: Tensor, values: Tensor, mask: Tensor | None = None, eps: float = 1e-6
) -> Tensor:
    """Bidirectional write and read: O = Q (K^T V) / (Q K^T 1 + eps).

    Args:
        query_features: (B, H, N, K), non-negative. key_features: (B, H, M, K), non-negative.
        values: (B, H, M, D). mask: (B, M) bool, true for real keys.
        eps: keeps a read of an empty memory at zero.

    Returns:
        (B, H, N, D) in the dtype of ``values``.
    """
    key_features = mask_keys(key_features, mask)
    wide = torch.promote_types(values.dtype, torch.float32)
    with torch.autocast(values.device.type, enabled=False):
        mass = key_features.sum(-2, dtype=wide)
        normaliser = query_features.to(wide) @ mass.unsqueeze(-1) + eps
        memory = key_features.to(values.dtype).transpose(-1, -2) @ values
        return ((query_features.to(values.dtype) @ memory) / normaliser).to(values.dtype)


def causal_mix(
    query_features: Tensor,
    key_features: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    eps: float = 1e-6,
    chunk_size: int = 64,
) -> Tensor:
    """Causal write and read: query i reads what keys 0 .. i have written.

    The sequence is cut into chunks. Within one, the C x C scores are built and masked; what came before it is read from
    the memory that all earlier chunks have left. Time O(N (C (K + D) + K D)); kept for the backward pass are queries,
    keys, values, result and normaliser, 2 K + 2 D + 1 numbers a token.
    First derivatives only: ``create_graph=True`` raises ``RuntimeError``.

    Arguments and result as :func:`mix`, with M = N; any N >= 1, whole chunks or not.
    """
    batch, heads, length, _ = values.shape
    chunk_size = max(1, min(chunk_size, length))
    key_features = mask_keys(key_features, mask)
    chunked = (_chunk(x.to(values.dtype), chunk_size) for x in (query_features, key_features, values))
    mixed = _CausalMix.apply(*chunked, batch * heads, eps)
    return mixed.reshape(batch, heads, -1, values.shape[-1])[:, :, :length]


def _chunk(x: Tensor, chunk_size: int) -> Tensor:
    """(B, H, N, W) -> (B H G, C, W), padded with zeros at the end: a zero feature writes nothing."""
    missing = -x.shape[-2] % chunk_size
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    return x.reshape(-1, chunk_size, x.shape[-1])


class _CausalMix(torch.autograd.Function):
    """The causal mix of chunks: q, k (B H G, C, K) and v (B H G, C, D) -> (B H G, C, D).

    With A = tril(q k^T), and S and Z what all earlier chunks have written: o = (A v + q S) / n, n = A 1 + q Z + eps.
    The backward pass builds A, S and Z again instead of keeping them. Kept: q, k, v, o and n.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: int, eps: float) -> Tensor:
        wide = torch.promote_types(v.dtype, torch.float32)
        with torch.autocast(v.device.type, enabled=False):
            memory, mass = _written_before(k, v, rows)
            scores = torch.bmm(q, k.transpose(1, 2)).tril_()
            normaliser = scores.sum(2, keepdim=True, dtype=wide).add_((q * mass).sum(2, keepdim=True)).add_(eps)
            out = (torch.bmm(scores, v).baddbmm_(q, memory) / normaliser).to(v.dtype)
        ctx.save_for_backward(q, k, v, out, normaliser)
        ctx.rows = rows
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, normaliser = ctx.saved_tensors
        narrow, wide = v.dtype, normaliser.dtype
        with torch.autocast(v.device.type, enabled=False):
            grad_normaliser = -(grad * out).sum(2, keepdim=True, dtype=wide) / normaliser
            grad_read = (grad / normaliser).to(narrow)  # with respect to A v + q S
            grad_n = grad_normaliser.to(narrow)
            grad_scores = torch.baddbmm(grad_n, grad_read, v.transpose(1, 2)).tril_()
            memory, mass = _written_before(k, v, ctx.rows)
            grad_q = torch.bmm(grad_scores, k).baddbmm_(grad_read, memory.transpose(1, 2))
            grad_q.addcmul_(grad_n, mass.to(narrow))
            del memory

            later_memory = _sum_over_chunks(torch.bmm(q.transpose(1, 2), grad_read).to(wide), ctx.rows, reverse=True)
            later_mass = _sum_over_chunks((q * grad_normaliser).sum(1, keepdim=True), ctx.rows, reverse=True)
            later_memory = later_memory.to(narrow)
            grad_k = torch.baddbmm(later_mass.to(narrow), grad_scores.transpose(1, 2), q)
            grad_k.baddbmm_(v, later_memory.transpose(1, 2))
            del grad_scores
            scores = torch.bmm(q, k.transpose(1, 2)).tril_()
            grad_v = torch.bmm(scores.transpose(1, 2), grad_read).baddbmm_(k, later_memory)
        return grad_q, grad_k, grad_v, None, None


def _written_before(k: Tensor, v: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """S (B H G, K, D) in the dtype of ``v`` and Z (B H G, 1, K) in float32 or better."""
    wide = torch.promote_types(v.dtype, torch.float32)
    memory = _sum_over_chunks(torch.bmm(k.transpose(1, 2), v).to(wide), rows)
    return memory.to(v.dtype), _sum_over_chunks(k.sum(1, keepdim=True, dtype=wide), rows)


def _sum_over_chunks(x: Tensor, rows: int, reverse: bool = False) -> Tensor:
    """Per row of B H, the sum over all earlier chunks (later ones if ``reverse``) of ``x`` (B H G, ., .).

    Not "inclusive sum minus own term": the subtraction would leave rounding errors as large as this chunk's own tokens,
    which lie in the future of its first query. On a CPU slice by slice, as ``torch.cumsum`` along a strided dimension
    takes about four times as long there.
    """
    x = x.unflatten(0, (rows, -1))
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        x = x.flip(1) if reverse else x
        before = F.pad(x[:, :-1].cumsum(1), (0, 0, 0, 0, 1, 0))
        return (before.flip(1) if reverse else before).flatten(0, 1)
    order = range(x.shape[1])[:: -1 if reverse else 1]
    out = torch.empty_like(x)
    out[:, order[0]] = 0
    for last, here in pairwise(order):
        torch.add(out[:, last], x[:, last], out=out[:, here])
    return out.flatten(0, 1)


def init_state(batch_size: int, num_heads: int, slots: int, value_dim: int, device: torch.device) -> MemoryState:
    """An empty memory, in float64 (float32 on MPS, which has nothing wider)."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return MemoryState(
        values=torch.zeros(batch_size, num_heads, slots, value_dim, dtype=dtype, device=device),
        mass=torch.zeros(batch_size, num_heads, slots, dtype=dtype, device=device),
    )


def write(key_features: Tensor, values: Tensor, state: MemoryState) -> MemoryState:
    """Write many tokens, (B, H, M, K) and (B, H, M, D), without reading; ``state`` is overwritten."""
    dtype = state.values.dtype
    for keys, some in zip(key_features.split(WRITTEN_AT_ONCE, 2), values.split(WRITTEN_AT_ONCE, 2), strict=True):
        state.values.add_(keys.to(dtype).transpose(-1, -2) @ some.to(dtype))
        state.mass.add_(keys.sum(-2, dtype=dtype))
    return state


def step(
    query_features: Tensor, key_features: Tensor, values: Tensor, state: MemoryState, eps: float = 1e-6
) -> tuple[Tensor, MemoryState]:
    """One token: write, then read. O(K D) whatever the position.

    Args:
        query_features, key_features: (B, H, K). values: (B, H, D). state: overwritten.

    Returns:
        (B, H, D) in the dtype of ``values``, and the state with this token in it.
    """
    dtype = state.values.dtype
    query, key = query_features.to(dtype), key_features.to(dtype)
    state.values.addcmul_(key.unsqueeze(-1), values.to(dtype).unsqueeze(-2))
    state.mass.add_(key)
    read = (query.unsqueeze(-2) @ state.values).squeeze(-2)
    normaliser = (query * state.mass).sum(-1, keepdim=True) + eps
    return (read / normaliser).to(values.dtype), state
