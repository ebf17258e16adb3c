"""One length, in a process of its own: peak memory starts from nothing, and running out of it ends no other row.

Shapes: B batch, N tokens.
"""

import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from baselines.sdpa import KeyValueCache, ScaledDotProductAttention
from experiments import machine
from gma import Block, SequenceMixer

STEPS = 32  # decoded tokens a turn


def measure(cfg: DictConfig, reference: bool, causal: bool, length: int, gpu: bool) -> list[dict[str, Any]]:
    """A row for the mixer alone and one for a block around it.

    Args:
        cfg: of the run. reference: whether softmax attention takes turns with it.
        causal, length: which form, and N. gpu: where.
    """
    device = torch.device("cuda" if gpu else "cpu")
    x = torch.randn(cfg.task.batch_size, length, cfg.backbone.dim, device=device)
    rows, contenders = [], []
    for inside in ("mixer", "block"):
        own = build(cfg, causal, inside, device)
        others = {"sdpa": build(cfg, causal, inside, device, ScaledDotProductAttention)} if reference else {}
        contenders.append({"own": own, **others})
        _pass(own, x[:, :8])  # libraries load what they need
        memory = {"saved_bytes": saved_bytes(own, x), "peak_bytes": peak_bytes(own, x)}
        form = "causal" if causal else "bidirectional"
        rows.append({"form": form, "inside": inside, "length": length} | memory)
    if not gpu and cfg.trainer.raise_malloc_thresholds:
        machine.raise_malloc_thresholds()  # only now: memory that is kept would hide a peak
    return [row | _times(some, x, cfg.task.turns) for row, some in zip(rows, contenders, strict=True)]


def measure_decoding(cfg: DictConfig, context: int, gpu: bool) -> list[dict[str, Any]]:
    """The state after ``context`` tokens, and the time of one more token, of the mixer alone."""
    device = torch.device("cuda" if gpu else "cpu")
    mixer = build(cfg, True, "mixer", device)
    x = torch.randn(cfg.task.batch_size, STEPS, cfg.backbone.dim, device=device)
    state = state_after(mixer, context, x, room=(1 + cfg.task.turns) * STEPS)
    held = sum(t.numel() * t.element_size() for t in state if isinstance(t, Tensor))
    times = []
    with torch.no_grad():
        for turn in range(1 + cfg.task.turns):
            _wait(device)
            start = time.perf_counter()
            for token in x.unbind(1):
                _, state = mixer.step(token, state)
            _wait(device)
            if turn:
                times.append((time.perf_counter() - start) / STEPS)
    return [
        {
            "form": "decoding",
            "inside": "mixer",
            "length": context,
            "state_elements": mixer.state_elements(context),
            "state_bytes": held,
            "step_seconds": spread(times),
        }
    ]


def state_after(mixer: SequenceMixer, context: int, x: Tensor, room: int) -> Any:
    """The state after ``context`` tokens; a cache of keys and values, with ``room`` for more, is filled at random.

    To read so many tokens by softmax attention would take time quadratic in their number.
    """
    if isinstance(mixer, ScaledDotProductAttention):
        shape = (len(x), mixer.num_heads, context + room, mixer.head_dim)
        return KeyValueCache(*(torch.randn(shape, device=x.device) for _ in range(2)), context)
    return mixer.prefill(torch.randn(len(x), context, x.shape[-1], device=x.device))[1]


def build(
    cfg: DictConfig, causal: bool, inside: str, device: torch.device, mixer: Callable[..., SequenceMixer] | None = None
) -> nn.Module:
    """The config's mixer, or ``mixer``, alone or in a block, in float32."""
    from hydra.utils import instantiate

    torch.manual_seed(cfg.seed)
    if mixer is None:
        cfg.task.causal = causal
        built = instantiate(cfg.model)(cfg.backbone.dim)
    else:
        built = mixer(cfg.backbone.dim, cfg.backbone.num_heads, causal)
    return (built if inside == "mixer" else Block(built, cfg.backbone.mlp_dim)).to(device)


def saved_bytes(module: nn.Module, x: Tensor) -> int:
    """What autograd keeps for the backward pass, parameters not counted, each storage once. Exact."""
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        module(x.detach().requires_grad_()).sum()
    return sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in parameters)


def peak_bytes(module: nn.Module, x: Tensor) -> int | None:
    """The most memory that forward and backward take beyond what was there before; ``None`` where nobody counts it.

    On a GPU the allocator counts; on Linux the kernel, pages of this process.
    """
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _pass(module, x)
        return torch.cuda.max_memory_allocated() - before
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is held now
    except OSError:
        return None
    before = _kernel("self/status", "VmRSS")
    _pass(module, x)
    return _kernel("self/status", "VmHWM") - before


def limit_memory() -> None:
    """Let a request for more memory than the machine has left fail here, instead of ending some process or other."""
    try:
        limit = _kernel("self/status", "VmSize") + _kernel("meminfo", "MemAvailable")
    except OSError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def spread(values: list[float]) -> list[float]:
    """Median, first and third quartile."""
    first, median, third = quantiles(values, n=4, method="inclusive")
    return [median, first, third]


def _kernel(file: str, key: str) -> int:
    """Bytes that Linux says."""
    lines = Path("/proc", file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) * 1024


def _times(contenders: dict[str, nn.Module], x: Tensor, turns: int) -> dict[str, Any]:
    forward: dict[str, list[float]] = {name: [] for name in contenders}
    both: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(1 + turns):
        for name, module in contenders.items():
            seconds = _pass(module, x)
            if turn:
                forward[name].append(seconds[0])
                both[name].append(seconds[1])
    row: dict[str, Any] = {"forward_seconds": spread(forward["own"]), "training_seconds": spread(both["own"])}
    row["tokens_per_second"] = x.shape[0] * x.shape[1] / row["training_seconds"][0]
    if "sdpa" in contenders:
        for name, seconds in (("forward", forward), ("training", both)):
            row[f"{name}_speed_over_sdpa"] = spread(
                [theirs / own for theirs, own in zip(seconds["sdpa"], seconds["own"], strict=True)]
            )
    return row


def _pass(module: nn.Module, x: Tensor) -> tuple[float, float]:
    """Seconds of a forward pass, and of forward and backward together."""
    x = x.detach().requires_grad_()
    _wait(x.device)
    start = time.perf_counter()
    y = module(x)
    _wait(x.device)
    middle = time.perf_counter()
    y.backward(torch.ones_like(y))
    _wait(x.device)
    end = time.perf_counter()
    module.zero_grad()
    return middle - start, end - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
