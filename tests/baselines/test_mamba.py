"""Mamba: equal to mamba-ssm's own reference; the scan equal to its definition, whatever the chunk."""

import sys
import types
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest
import torch

from baselines import selective_scan as scan_module
from baselines.mamba import Mamba
from baselines.selective_scan import selective_scan, selective_scan_reference

# State dicts, inputs, outputs and gradients computed by mamba-ssm's reference implementation.
GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "mamba_ssm_reference.npz")


def golden(case: str, kind: str) -> dict[str, torch.Tensor]:
    prefix = f"{case}/{kind}/"
    return {key.removeprefix(prefix): torch.from_numpy(GOLDEN[key]) for key in GOLDEN if key.startswith(prefix)}


@pytest.fixture(params=[("small", {"dim": 16, "d_state": 8}), ("default", {"dim": 32})], ids=["small", "default"])
def case(request: pytest.FixtureRequest) -> tuple[str, Mamba]:
    name, arguments = request.param
    mamba = Mamba(causal=True, **arguments)
    mamba.load_state_dict(golden(name, "state"))
    return name, mamba


def test_outputs_and_gradients_are_those_of_mamba_ssm(case: tuple[str, Mamba]) -> None:
    name, mamba = case
    x, y, dy, dx = (torch.from_numpy(GOLDEN[f"{name}/{key}"]) for key in ("x", "y", "dy", "dx"))
    x.requires_grad_()
    out = mamba(x)
    out.backward(dy)
    torch.testing.assert_close(out, y, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, dx, rtol=1e-5, atol=1e-5)
    expected = golden(name, "grad")
    assert {key for key, _ in mamba.named_parameters()} == set(expected)
    for key, parameter in mamba.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[key], rtol=1e-5, atol=1e-5)


def test_steps_are_those_of_mamba_ssm(case: tuple[str, Mamba]) -> None:
    name, mamba = case
    x, y = (torch.from_numpy(GOLDEN[f"{name}/{key}"]) for key in ("x", "y"))
    state = mamba.init_state(len(x))
    with torch.no_grad():
        for t in range(x.shape[1]):
            y_t, state = mamba.step(x[:, t], state)
            torch.testing.assert_close(y_t, y[:, t], rtol=1e-5, atol=1e-5)


def arguments(
    batch: int, length: int, channels: int, states: int, dtype: torch.dtype, beside: tuple[int, ...] = ()
) -> list[torch.Tensor]:
    u, dt = torch.randn(2, batch, length, *beside, channels, dtype=dtype).unbind()
    a = -torch.rand(*beside, channels, states, dtype=dtype) * states
    b, c = torch.randn(2, batch, length, *beside, states, dtype=dtype).unbind()
    return [x.requires_grad_() for x in (u, torch.nn.functional.softplus(dt - 2), a, b, c)]


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 300])
@pytest.mark.parametrize("beside", [(), (2,)])
def test_the_scan_is_its_definition(
    monkeypatch: pytest.MonkeyPatch, chunk: int, length: int, beside: tuple[int, ...]
) -> None:
    monkeypatch.setattr(scan_module, "CHUNK_ELEMENTS", chunk * 2 * 5 * 3)
    inputs = arguments(2, length, 5, 3, torch.float64, beside)
    expected, found = selective_scan_reference(*inputs), selective_scan(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    gradient = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, inputs, gradient), torch.autograd.grad(expected, inputs, gradient), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_the_scan_in_float32_is_close_to_float64_also_under_autocast() -> None:
    inputs = arguments(2, 300, 8, 16, torch.float32)
    exact = selective_scan_reference(*(x.double() for x in inputs))
    with torch.autocast("cpu", torch.bfloat16):
        found = selective_scan(*inputs)
    assert found.dtype == torch.float32
    assert (found - exact).square().mean().sqrt() < 1e-6 * exact.square().mean().sqrt()


def test_the_scan_keeps_one_state_a_chunk_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "CHUNK_ELEMENTS", 32 * 2 * 8 * 16)

    def kept(length: int) -> int:
        seen: dict[int, int] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            seen[x.data_ptr()] = x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            selective_scan(*arguments(2, length, 8, 16, torch.float32))
        return sum(seen.values())

    per_token = (kept(1024) - kept(512)) / 512
    inputs, states = 2 * (2 * 8 + 2 * 16), 2 * 8 * 16
    assert per_token <= inputs + states / 32
    assert per_token < states  # what even one state a token would take


def test_differentiating_the_scan_twice_is_refused() -> None:
    inputs = arguments(1, 4, 2, 2, torch.float64)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(selective_scan(*inputs).square().sum(), inputs[0], create_graph=True)


def test_step_sizes_start_between_a_thousandth_and_a_tenth() -> None:
    steps = torch.nn.functional.softplus(Mamba(256, causal=True).dt_proj.bias)
    assert 0.000999 <= steps.min() < 0.002
    assert 0.05 < steps.max() <= 0.1001


def test_two_directions_have_the_size_of_one_twice_as_wide() -> None:
    both, one = (sum(p.numel() for p in Mamba(64, causal).parameters()) for causal in (False, True))
    assert both == pytest.approx(one, rel=0.01)


def test_reading_backwards_mirrors_reading_forwards() -> None:
    mamba, x = Mamba(24).double(), torch.randn(2, 50, 24, dtype=torch.float64)
    own = {key: value for key, value in mamba.state_dict().items() if not key.startswith("reverse.")}
    mirrored = Mamba(24).double()
    other = {key.removeprefix("reverse."): v for key, v in mamba.state_dict().items() if key.startswith("reverse.")}
    mirrored.load_state_dict(other | {f"reverse.{key}": value for key, value in own.items()})
    torch.testing.assert_close(mirrored(x.flip(1)).flip(1), mamba(x))


def test_the_cuda_kernel_is_explained_where_it_is_missing_and_taken_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    with pytest.raises(ImportError, match=r"scan=cuda needs mamba-ssm.*\[cuda\].*scan=auto"):
        Mamba(16, scan="cuda")
    with pytest.raises(ValueError, match="scan='fast' is not allowed: scan must be one of auto, torch, cuda"):
        Mamba(16, scan="fast")
    interface = types.ModuleType("mamba_ssm.ops.selective_scan_interface")
    interface.selective_scan_fn = selective_scan  # type: ignore[attr-defined]
    for name in ("mamba_ssm", "mamba_ssm.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    assert Mamba(16, scan="cuda").kernel is Mamba(16).kernel is selective_scan
    assert Mamba(16, scan="torch").kernel is None


@pytest.mark.parametrize("causal", [True, False])
def test_the_cuda_kernel_is_handed_directions_as_groups_of_channels(
    monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    def kernel(u: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """mamba-ssm's layout: u, dt (B, D, N), a (D, S), b, c (B, G, S, N)."""
        assert all(x.is_contiguous() for x in (u, dt, b, c))
        channels, groups = u.shape[1], b.shape[1]
        b, c = (x.repeat_interleave(channels // groups, 1).permute(0, 3, 1, 2) for x in (b, c))
        one_by_one = (x.transpose(1, 2).unsqueeze(-1) for x in (u, dt))
        return selective_scan_reference(*one_by_one, a.unsqueeze(1), b, c).squeeze(-1).transpose(1, 2)

    mamba, x = Mamba(16, causal).double(), torch.randn(2, 30, 16, dtype=torch.float64)
    expected = mamba(x)
    mamba.kernel = kernel
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    torch.testing.assert_close(mamba(x), expected)


def test_only_the_cuda_extra_asks_for_mamba_ssm() -> None:
    asked = [line for line in requires("gaussian-mixture-attention") or [] if line.startswith("mamba-ssm")]
    assert len(asked) == 1
    assert 'extra == "cuda"' in asked[0]
