"""The recurrence inside Mamba: a diagonal linear system whose step size, input and output maps depend on the token.

Shapes: B batch, N tokens, E channels, S states a channel, T tokens of a chunk.
"""

from typing import Any

import torch
from torch import Tensor

from gma.ops.autograd import first_derivative_only

CHUNK_ELEMENTS = 1 << 19  # T B S E: 2 MB in float32, which stay in cache; measured, 2^18 to 2^21 differ little


def selective_scan_reference(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The definition, a token at a time: h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t, y_t = h_t C_t.

    Source: Gu and Dao 2023, equation 2, with their simplified discretisation of B.

    Args:
        u: inputs (B, N, E). dt: step sizes (B, N, E), positive. a: A (E, S), negative. b, c: B and C (B, N, S).

    Returns:
        y (B, N, E).
    """
    state = u.new_zeros(u.shape[0], *a.shape)
    outputs = []
    for u_t, dt_t, b_t, c_t in zip(u.unbind(1), dt.unbind(1), b.unbind(1), c.unbind(1), strict=True):
        state = (dt_t[..., None] * a).exp() * state + (dt_t * u_t)[..., None] * b_t[:, None]
        outputs.append((state @ c_t[..., None]).squeeze(-1))
    return torch.stack(outputs, 1)


def selective_scan(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """:func:`selective_scan_reference`, quicker, with one state kept a chunk instead of several a token.

    Chunk by chunk: what has no order (exponentials, inputs, outputs) for all its tokens at once, the recurrence in one
    fused multiply-add a token. The backward pass computes a chunk's states again from the one that it started with.
    First derivatives only: ``create_graph=True`` raises ``RuntimeError``.
    """
    u, dt, b, c = (x.transpose(0, 1).contiguous() for x in (u, dt, b, c))  # a token's slice in one piece
    return _SelectiveScan.apply(u, dt, a.T.contiguous(), b, c).transpose(0, 1)


class _SelectiveScan(torch.autograd.Function):
    """u, dt (N, B, E), a (S, E), b, c (N, B, S) -> y (N, B, E). Kept: these, and one state (B, S, E) a chunk."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        state = u.new_zeros(u.shape[1], *a.shape)
        size = max(1, CHUNK_ELEMENTS // state.numel())
        starts, out = [], torch.empty_like(u)
        with torch.autocast(u.device.type, enabled=False):
            for here in (slice(i, i + size) for i in range(0, len(u), size)):
                starts.append(state)
                _, states = _decays_and_states(u[here], dt[here], a, b[here], state)
                torch.matmul(c[here].unsqueeze(-2), states, out=out[here].unsqueeze(-2))
                state = states[-1].clone()
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
        with torch.autocast(u.device.type, enabled=False):
            for index in reversed(range(len(starts))):
                here = slice(index * ctx.size, (index + 1) * ctx.size)
                decays, states = _decays_and_states(u[here], dt[here], a, b[here], starts[index])
                torch.matmul(states, grad[here].unsqueeze(-1), out=grad_c[here].unsqueeze(-1))

                grad_states = c[here].unsqueeze(-1) * grad[here].unsqueeze(-2)
                grad_states[-1].add_(carried)
                for t in range(len(grad_states) - 2, -1, -1):
                    grad_states[t].addcmul_(decays[t + 1], grad_states[t + 1])
                carried = decays[0] * grad_states[0]

                written = dt[here] * u[here]
                torch.matmul(grad_states, written.unsqueeze(-1), out=grad_b[here].unsqueeze(-1))
                grad_written = (b[here].unsqueeze(-2) @ grad_states).squeeze(-2)
                torch.mul(grad_written, dt[here], out=grad_u[here])

                grad_exponents = grad_states.mul_(decays)  # with respect to dt A: times the state before, too
                grad_exponents[1:].mul_(states[:-1])
                grad_exponents[0].mul_(starts[index])
                grad_dt[here] = grad_written.mul_(u[here]).add_((grad_exponents * a).sum(-2))
                grad_a += grad_exponents.mul_(dt[here].unsqueeze(-2)).sum((0, 1))
        return grad_u, grad_dt, grad_a, grad_b, grad_c


def _decays_and_states(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """exp(dt A) and h, (T, B, S, E) both, of a chunk that starts from ``state`` (B, S, E)."""
    decays = (dt.unsqueeze(-2) * a).exp_()
    states = (dt * u).unsqueeze(-2) * b.unsqueeze(-1)
    for decay, written in zip(decays.unbind(0), states.unbind(0), strict=True):
        state = written.addcmul_(decay, state)
    return decays, states
