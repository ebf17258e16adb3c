"""The machine under a run: what it can do, how to make it quick, how a result describes it."""

import contextlib
import ctypes
import os
import platform
import resource
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "lightning", "hydra-core", "torchmetrics", "datasets", "numpy", "wandb")

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # from glibc's malloc.h


def raise_malloc_thresholds() -> bool:
    """Let glibc keep freed memory instead of returning it to the system after every large tensor.

    Fresh pages cost a fault each: a 33 MB elementwise product ran at 7 GB/s with the defaults and 85 GB/s without. Call
    before the first tensor. Returns whether it took effect: false on a machine without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def uses_gpu(accelerator: str) -> bool:
    """Whether Lightning's ``accelerator`` argument means a CUDA device here."""
    import torch

    return accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())


def has_bfloat16(accelerator: str) -> bool:
    """Whether the processor computes in bfloat16, not merely stores it."""
    import torch

    if uses_gpu(accelerator):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(_cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"})


def forget_peak_memory(gpu: bool) -> None:
    """Let :func:`peak_memory_bytes` start from what is held now, if the system can: runs may have gone before."""
    import torch

    if gpu:
        if torch.cuda.is_available():  # else the trainer says what is missing
            torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # what that run has freed
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes(gpu: bool) -> int:
    """The most memory held so far: of PyTorch's allocator on a GPU, resident in this process on a CPU."""
    import torch

    if gpu:
        return torch.cuda.max_memory_allocated()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def describe() -> dict[str, Any]:
    """Processor, cores, threads, GPUs and system, for a result."""
    import torch

    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Installed versions of the packages that a run's numbers may depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_state() -> dict[str, Any]:
    """Commit of the checkout, and whether files differ from it (ignored ones aside); ``None`` outside a checkout."""
    root = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def _cpu_info() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {key.strip().lower(): value.strip() for key, value in pairs}


def _cpu_flags() -> set[str]:
    info = _cpu_info()
    return set((info.get("flags") or info.get("features") or "").split())


def _cpu_name() -> str:
    return _cpu_info().get("model name") or platform.processor() or platform.machine()
