"""``python -m experiments.speed``: the causal mix, forward and backward, as a ratio to softmax attention and others.

All contenders take turns in one process, so that a drift of the machine hits them alike; the first two turns of each
are not counted.

Shapes: B batch, N tokens, H heads, K components, R routing width, D value width.
"""

import argparse
import contextlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from experiments import machine

SLOW_UP_TO = 1024  # tokens; beyond, the contenders that build N x K x D would take the memory
Mix = Callable[..., Any]  # q, k, v -> output


def main() -> None:
    """The command."""
    arguments = read_arguments()
    raised = machine.raise_malloc_thresholds()
    about = machine.describe()
    place = f"{about['cpu']}, {about['threads']} threads" if arguments.device == "cpu" else about["gpus"][0]
    print(f"{place}, torch {machine.versions()['torch']}, {arguments.dtype},", end=" ")
    print(f"malloc thresholds {'raised' if raised else 'as they were'};", end=" ")
    route = arguments.route or arguments.width
    print(f"B {arguments.batch}, H {arguments.heads}, K = D = {arguments.width}, R = {route}")
    print("forward + backward, median of turns [quartiles]: ms; time of sdpa / time; time / time of gma")
    lines = []
    for length in arguments.lengths:
        times = measure(length, arguments)
        for name, seconds in times.items():
            line = {
                "length": length,
                "name": name,
                "milliseconds": spread([1e3 * s for s in seconds]),
                "over_sdpa": spread([sdpa / own for sdpa, own in zip(times["sdpa"], seconds, strict=True)]),
                "of_gma": spread([own / gma for gma, own in zip(times["gma"], seconds, strict=True)]),
            }
            lines.append(line)
            print(
                f"N {length:>6}  {name:<17}  {shown(line['milliseconds'], 1)} ms   over sdpa"
                f" {shown(line['over_sdpa'], 2)}   of gma {shown(line['of_gma'], 2)}",
                flush=True,
            )
    save(arguments, raised, lines)


def read_arguments() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="python -m experiments.speed", description=__doc__.split("\n\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192], help="N (default: 512 2048 8192)")
    parser.add_argument("--batch", type=int, default=2, help="B (default: 2)")
    parser.add_argument("--heads", type=int, default=8, help="H (default: 8)")
    parser.add_argument("--width", type=int, default=64, help="K = D (default: 64)")
    parser.add_argument("--route", type=int, help="R (default: as --width)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--turns", type=int, default=12, help="counted turns a contender and length (default: 12)")
    slow = f"also the equations as written and performer-pytorch, up to N = {SLOW_UP_TO}"
    parser.add_argument("--all", action="store_true", help=slow)
    parser.add_argument("--output", type=Path, help="write everything to this JSON file, too")
    arguments = parser.parse_args()
    for name in ("batch", "heads", "width"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if arguments.route is not None and arguments.route < 1:
        parser.error("--route must be at least 1")
    if min(arguments.lengths) < 1 or arguments.turns < 2:
        parser.error("--lengths must be at least 1, --turns at least 2")
    if arguments.device == "cuda" and not machine.uses_gpu("auto"):
        parser.error("--device cuda needs a GPU that PyTorch can use; there is none here")
    return arguments


def contenders(length: int, arguments: argparse.Namespace) -> tuple[dict[str, Mix], Any]:
    """By name, each a function of queries and keys (B, H, N, R) and values (B, H, N, D); and GMA's mixture."""
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint

    from gma import GaussianMixture
    from gma.ops import memory, reference

    mixture = GaussianMixture(arguments.heads, arguments.width, arguments.route or arguments.width)
    mixture.to(arguments.device)

    def gma(q: Any, k: Any, v: Any) -> Any:
        return memory.causal_mix(mixture(q), mixture(k), v)

    def literal(q: Any, k: Any, v: Any) -> Any:
        parts = mixture.means, mixture.variances, mixture.log_priors, mixture.temperature
        gammas = (reference.responsibilities(x, *parts) for x in (q, k))
        return reference.causal_mix(*gammas, v, eps=1e-6)

    found: dict[str, Mix] = {
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "gma": gma,
        "gma recompute": lambda q, k, v: checkpoint(gma, q, k, v, use_reentrant=False, preserve_rng_state=False),
        "linear": lambda q, k, v: memory.causal_mix(F.elu(q) + 1, F.elu(k) + 1, v),
    }
    if arguments.all and length <= SLOW_UP_TO:
        found["literal"] = literal
        with contextlib.suppress(ImportError), contextlib.redirect_stdout(io.StringIO()):  # it says: no CUDA
            from performer_pytorch import FastAttention

            favor = FastAttention(arguments.width, arguments.width, causal=True)
            found["performer-pytorch"] = favor.to(arguments.device)
    return found, mixture


def measure(length: int, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of every counted turn of each contender at one length. Only GMA's queries and keys have the width R."""
    import torch

    settings: dict[str, Any] = {"dtype": getattr(torch, arguments.dtype), "device": arguments.device}
    wait = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
    mixes, mixture = contenders(length, arguments)
    widths = {"route": arguments.route or arguments.width, "value": arguments.width}
    shape = (arguments.batch, arguments.heads, length)
    narrow, wide = (
        [torch.randn(*shape, widths[kind], requires_grad=True, **settings) for _ in range(2)] for kind in widths
    )
    values = torch.randn(*shape, arguments.width, requires_grad=True, **settings)
    gradient = torch.randn(*shape, arguments.width, **settings)
    times: dict[str, list[float]] = {name: [] for name in mixes}
    for turn in range(2 + arguments.turns):
        for name, mix in mixes.items():
            queries, keys = narrow if name.startswith(("gma", "literal")) else wide
            wait()
            start = time.perf_counter()
            torch.autograd.backward(mix(queries, keys, values), gradient)
            wait()
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
            for tensor in (*narrow, *wide, values, *mixture.parameters()):
                tensor.grad = None
    return times


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median, first quartile, third quartile."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return median(values), low, high


def save(arguments: argparse.Namespace, malloc_thresholds_raised: bool, lines: list[dict[str, Any]]) -> None:
    """Write what was asked, what came out, and on what, to ``arguments.output``, if there is one."""
    if arguments.output:
        settings = {key: value for key, value in vars(arguments).items() if key != "output"}
        content = {"settings": settings, "malloc_thresholds_raised": malloc_thresholds_raised, "lines": lines}
        content |= {"git": machine.git_state(), "versions": machine.versions(), "machine": machine.describe()}
        arguments.output.write_text(json.dumps(content, indent=1) + "\n")


def shown(values: Any, digits: int) -> str:
    """``median [first quartile - third quartile]``."""
    middle, low, high = values
    return f"{middle:.{digits}f} [{low:.{digits}f} - {high:.{digits}f}]"


if __name__ == "__main__":
    main()
