"""Mamba (Gu and Dao 2023): a gated state space whose step size, input and output maps depend on the token.

Parameters and state-dict keys are those of ``mamba_ssm.Mamba`` (github.com/state-spaces/mamba): weights go both ways.

Shapes: B batch, N tokens, E = expand dim channels (half of them a direction if bidirectional), S states a channel,
W taps of the convolution.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from baselines.packing import packed
from baselines.selective_scan import selective_scan
from gma.mixer import SequenceMixer, require, require_mask

SCANS = ("auto", "torch", "cuda")
Scan = Callable[..., Tensor]


class MambaState(NamedTuple):
    """The last W - 1 inputs of the convolution (B, W - 1, E), and the states (B, E, S)."""

    recent: Tensor
    states: Tensor


class Mamba(SequenceMixer):
    """out_proj(y silu(z)), y = scan(u) + D u, u = silu(conv(x)), with x and z from ``in_proj``.

    Linear time in N; the decoding state is E (S + W - 1) numbers. A bidirectional one is two of them, which read from
    either end and are added; ``reverse`` is the other. Each has half the channels, so that both together have the
    parameters and the cost of a causal one. Padding is moved behind the real tokens first: it enters no state.

    Args:
        dim: width of the tokens.
        causal: whether output i sees inputs 0 .. i only; then parameters and keys are those of ``mamba_ssm.Mamba``.
        d_state: S. d_conv: W. expand: E / dim, over both directions.
        scan: "auto" runs mamba-ssm's kernel on CUDA tensors if it is installed, else :func:`selective_scan`; "cuda" is
            the same and refuses to be built where it is not installed; "torch" never takes it.

    Raises:
        ValueError: naming the argument, for a count below 1, an ``expand`` that leaves no channel, an unknown scan.
        ImportError: for ``scan="cuda"`` without mamba-ssm.
    """

    def __init__(
        self,
        dim: int,
        causal: bool = False,
        *,
        d_state: int = 16,
        d_conv: int = 4,
        expand: float = 2,
        scan: str = "auto",
    ) -> None:
        super().__init__(dim, causal)
        for name, count in (("d_state", d_state), ("d_conv", d_conv)):
            require(isinstance(count, int) and count >= 1, name, count, "a whole number, at least 1")
        require(scan in SCANS, "scan", scan, f"one of {', '.join(SCANS)}")
        channels = round(expand * dim) if causal else round(expand * dim) // 2
        require(channels >= 1, "expand", expand, f"enough to give each direction a channel at dim={dim}")
        self.kernel = _find_kernel(scan)
        self.d_state, self.d_conv, self.channels = d_state, d_conv, channels
        self.dt_rank = math.ceil(dim / 16)
        self.in_proj = nn.Linear(dim, 2 * channels, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, d_conv, groups=channels)
        self.x_proj = nn.Linear(channels, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, channels)
        self.A_log = nn.Parameter(torch.arange(1, d_state + 1).float().log().repeat(channels, 1))
        self.D = nn.Parameter(torch.ones(channels))
        self.out_proj = nn.Linear(channels, dim, bias=False)
        nn.init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        with torch.no_grad():  # softplus(bias) is log-uniform in [1e-3, 1e-1]
            dt = torch.empty(channels).uniform_(math.log(1e-3), math.log(1e-1)).exp()
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))
        self.reverse = None
        if not causal:
            self.reverse = Mamba(dim, True, d_state=d_state, d_conv=d_conv, expand=channels / dim, scan=scan)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix (B, N, dim)."""
        require_mask(mask, x)
        if self.reverse is None:
            return packed(self._read, x, mask)
        both = torch.cat([x, x.flip(1)])
        forth, back = packed(self._read, both, None if mask is None else torch.cat([mask, mask.flip(1)])).chunk(2)
        return forth + back.flip(1)

    def init_state(self, batch_size: int) -> MambaState:
        """Zeros, in the dtype of A."""
        self.require_causal("init_state")
        recent = self.A_log.new_zeros(batch_size, self.d_conv - 1, self.channels)
        return MambaState(recent, self.A_log.new_zeros(batch_size, self.channels, self.d_state))

    @torch.no_grad()
    def prefill(self, x: Tensor) -> tuple[Tensor, MambaState]:
        """Read a prompt (B, N, dim) at once, in time linear in N."""
        self.require_causal("prefill")
        length = x.shape[1]
        x, z = self.in_proj(x).chunk(2, -1)
        padded = F.pad(x, (0, 0, self.d_conv - 1, 0))
        u = self._convolve(padded)
        dt, b, c = self._select(u)
        # S more tokens that take no time leave the states as they are; each reads one of them
        more, each = (0, 0, 0, self.d_state), torch.eye(self.d_state, dtype=c.dtype, device=c.device)
        c = torch.cat([c, each.expand(len(x), -1, -1)], 1)
        y = self._scan(F.pad(u, more), F.pad(dt, more), F.pad(b, more), c, self.A_log)
        states = y[:, length:].transpose(1, 2)
        return self._gate(y[:, :length], u, z), MambaState(padded[:, length:].to(states.dtype), states)

    def step(self, x: Tensor, state: MambaState) -> tuple[Tensor, MambaState]:
        """One token (B, dim) in time and memory that do not depend on its position."""
        self.require_causal("step")
        x, z = self.in_proj(x).chunk(2, -1)
        window = torch.cat([state.recent, x.unsqueeze(1).to(state.recent.dtype)], 1)
        u = self._convolve(window).squeeze(1)
        dt, b, c = self._select(u)
        decays = (dt.unsqueeze(-1) * -self.A_log.exp()).exp()
        states = decays * state.states + (dt * u).unsqueeze(-1) * b.unsqueeze(1)
        y = (states * c.unsqueeze(1)).sum(-1) + self.D * u
        return self.out_proj((y * F.silu(z)).to(x.dtype)), MambaState(window[:, 1:], states)

    def state_elements(self, length: int) -> int:
        """E (S + W - 1), whatever the length."""
        return self.channels * (self.d_state + self.d_conv - 1)

    def _read(self, x: Tensor) -> Tensor:
        """From left to right, (B, N, dim) -> (B, N, dim); if there are two directions, each its half of B."""
        directions = [self] if self.reverse is None else [self, self.reverse]
        projected = [one._project(part) for one, part in zip(directions, x.chunk(len(directions)), strict=True)]
        chosen = [(u, *one._select(u)) for one, (u, _) in zip(directions, projected, strict=True)]
        side_by_side = (torch.stack(each, 2) for each in zip(*chosen, strict=True))
        y = self._scan(*side_by_side, torch.stack([one.A_log for one in directions]))
        read = zip(directions, y.unbind(2), projected, strict=True)
        return torch.cat([one._gate(y, u, z) for one, y, (u, z) in read])

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """u and z, (B, N, E) both, of (B, N, dim)."""
        x, z = self.in_proj(x).chunk(2, -1)
        return self._convolve(F.pad(x, (0, 0, self.d_conv - 1, 0))), z

    def _scan(self, u: Tensor, dt: Tensor, b: Tensor, c: Tensor, a_log: Tensor) -> Tensor:
        """:func:`selective_scan` in the dtype of ``dt``, or the kernel for it."""
        a, u = -a_log.exp(), u.to(dt.dtype)
        if self.kernel is None or not u.is_cuda:
            return selective_scan(u, dt, a, b, c)
        flat = (x.flatten(2).transpose(1, 2).contiguous() for x in (u, dt))
        grouped = (x.movedim(1, -1).contiguous() for x in (b, c))
        return self.kernel(*flat, a.flatten(0, -2), *grouped).transpose(1, 2).view(u.shape)

    def _gate(self, y: Tensor, u: Tensor, z: Tensor) -> Tensor:
        """What the scan gave, plus D u, gated and mixed over channels: (B, N, E) -> (B, N, dim)."""
        return self.out_proj((y.addcmul(self.D, u) * F.silu(z)).to(z.dtype))

    def _convolve(self, padded: Tensor) -> Tensor:
        """silu of the causal convolution: (B, N + W - 1, E) -> (B, N, E). Tap by tap, which needs no transposition."""
        length = padded.shape[1] - self.d_conv + 1
        taps = self.conv1d.weight.squeeze(1).unbind(-1)
        out: Tensor = self.conv1d.bias
        for i, tap in enumerate(taps):
            out = out.addcmul(padded[:, i : i + length], tap)
        return F.silu(out).to(padded.dtype)

    def _select(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step sizes (..., E), B and C (..., S) of every token, in float32 or better."""
        dt, b, c = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        wide = torch.promote_types(dt.dtype, torch.float32)
        bias = self.dt_proj.bias.to(wide)
        return F.softplus(F.linear(dt, self.dt_proj.weight).to(wide) + bias), b.to(wide), c.to(wide)


def _find_kernel(scan: str) -> Scan | None:
    """mamba-ssm's kernel if it is installed and wanted.

    Raises:
        ImportError: if nothing else is wanted, saying how to get it.
    """
    if scan == "torch":
        return None
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    except ImportError as error:
        if scan == "auto":
            return None
        raise ImportError(
            f"scan=cuda needs mamba-ssm, which cannot be imported ({error}): pip install"
            " 'gaussian-mixture-attention[cuda]' on a machine with an NVIDIA GPU and the CUDA toolkit, or take"
            " scan=auto or scan=torch"
        ) from error
    return selective_scan_fn
