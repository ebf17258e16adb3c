"""The recurrence inside Mamba: a diagonal linear system whose step size, input and output maps depend on the token.

Shapes: B batch, N tokens, E channels, S states a channel, T tokens of a chunk; * axes to run over side by side, if any.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gma.ops.autograd import first_derivative_only

CHUNK_ELEMENTS = 1 << 20  # T B * S E: 4 MB in float32, which stay in cache; measured, half of it is about as quick


def selective_scan_reference(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The definition, a token at a time: h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t, y_t = h_t C_t.

    Source: Gu and Dao 2023, equation 2, with their simplified discretisation of B.

    Args:
        u: inputs (B, N, *, E). dt: step sizes (B, N, *, E), positive. a: A (*, E, S), negative.
        b, c: B and C (B, N, *, S).

    Returns:
        y (B, N, *, E).
    """
    state = u.new_zeros(u.shape[0], *a.shape)
    outputs = []
    for u_t, dt_t, b_t, c_t in zip(u.unbind(1), dt.unbind(1), b.unbind(1), c.unbind(1), strict=True):
        state = (dt_t[..., None] * a).exp() * state + (dt_t * u_t)[..., None] * b_t[..., None, :]
        outputs.append((state @ c_t[..., None]).squeeze(-1))
    return torch.stack(outputs, 1)


def selective_scan(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """:func:`selective_scan_reference`, quicker, with one state kept a chunk instead of several a token.

    Chunk by chunk: what has no order (exponentials, inputs, outputs) for all its tokens at once, the recurrence in one
    fused multiply-add a token. The backward pass computes a chunk's states again from the one that it started with.
    First derivatives only: ``create_graph=True`` raises ``RuntimeError``.
    """
    u, dt, b, c = (x.transpose(0, 1).contiguous() for x in (u, dt, b, c))  # a token's slice in one piece
    return _SelectiveScan.apply(u, dt, a.transpose(-1, -2).contiguous(), b, c).transpose(0, 1)


class _Buffer(NamedTuple):
    """Room for the states of a chunk, and a view of each token's: making views in the loop would take as long as it."""

    whole: Tensor
    tokens: Sequence[Tensor]


class _SelectiveScan(torch.autograd.Function):
    """u, dt (N, B, *, E), a (*, S, E), b, c (N, B, *, S) -> y (N, B, *, E). Kept: these, and one state a chunk.

    What is as large as a chunk's states goes to the same memory for every chunk, which so stays in cache.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        state = u.new_zeros(*b.shape[1:], u.shape[-1])
        size = min(len(u), max(1, CHUNK_ELEMENTS // state.numel()))
        decays, states = _buffers(2, size, state)
        starts, out = [], torch.empty_like(u)
        with torch.autocast(u.device.type, enabled=False):
            for here in _chunks(len(u), size):
                h, _ = _states(states, decays, u[here], dt[here], a, b[here], state)
                torch.matmul(c[here].unsqueeze(-2), h, out=out[here].unsqueeze(-2))
                starts.append(state)
                state = h[-1].clone()
        ctx.save_for_backward(u, dt, a, b, c, *starts)
        ctx.size = size
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        u, dt, a, b, c, *starts = ctx.saved_tensors
        grad = grad.contiguous()
        grad_u, grad_dt, grad_b, grad_c = (torch.empty_like(x) for x in (u, dt, b, c))
        grad_a = torch.zeros_like(a)
        carried = torch.zeros_like(starts[0])  # what later chunks send to the last state of this one
        decays, states, grads, product = _buffers(4, ctx.size, carried)
        with torch.autocast(u.device.type, enabled=False):
            for here, start in reversed(list(zip(_chunks(len(u), ctx.size), starts, strict=True))):
                h, decay = _states(states, decays, u[here], dt[here], a, b[here], start)
                torch.matmul(h, grad[here].unsqueeze(-1), out=grad_c[here].unsqueeze(-1))

                last, grad_h = len(h) - 1, grads.whole[: len(h)]
                torch.mul(c[here].unsqueeze(-1), grad[here].unsqueeze(-2), out=grad_h)
                grad_h[last].add_(carried)
                _recur(decays.tokens[last:0:-1], grads.tokens[:last][::-1], grad_h[last])
                torch.mul(decay[0], grad_h[0], out=carried)

                written = dt[here] * u[here]
                torch.matmul(grad_h, written.unsqueeze(-1), out=grad_b[here].unsqueeze(-1))
                grad_written = (b[here].unsqueeze(-2) @ grad_h).squeeze(-2)
                torch.mul(grad_written, dt[here], out=grad_u[here])

                grad_exponents = grad_h.mul_(decay)  # with respect to dt A: times the state before, too
                grad_exponents[1:].mul_(h[:-1])
                grad_exponents[0].mul_(start)
                torch.sum(torch.mul(grad_exponents, a, out=product.whole[: len(h)]), -2, out=grad_dt[here])
                grad_dt[here].addcmul_(grad_written, u[here])
                grad_a += grad_exponents.mul_(dt[here].unsqueeze(-2)).sum((0, 1))
        return grad_u, grad_dt, grad_a, grad_b, grad_c


def _chunks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _buffers(count: int, size: int, state: Tensor) -> list[_Buffer]:
    wholes = [state.new_empty(size, *state.shape) for _ in range(count)]
    return [_Buffer(whole, whole.unbind(0)) for whole in wholes]


def _states(
    states: _Buffer, decays: _Buffer, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """h and exp(dt A), (T, B, *, S, E) both, of a chunk that starts from ``start`` (B, *, S, E)."""
    h, decay = states.whole[: len(u)], decays.whole[: len(u)]
    torch.mul(dt.unsqueeze(-2), a, out=decay).exp_()
    torch.mul((dt * u).unsqueeze(-2), b.unsqueeze(-1), out=h)
    _recur(decays.tokens[: len(u)], states.tokens[: len(u)], start)
    return h, decay


def _recur(decays: Sequence[Tensor], values: Sequence[Tensor], state: Tensor) -> None:
    """values_t += decays_t values_{t-1}, in order, the first from ``state``."""
    for decay, value in zip(decays, values, strict=True):
        state = value.addcmul_(decay, state)
