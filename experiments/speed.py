"""``python -m experiments.speed``: the causal mix, forward and backward, as a ratio to softmax attention.

All contenders take turns in one process, so that a drift of the machine hits them alike; the first two turns of each
are not counted.

Shapes: B batch, N tokens, H heads, K components, R routing width, D value width.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median, quantiles

from experiments import machine


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.speed", description=__doc__.split("\n\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192], help="N (default: 512 2048 8192)")
    parser.add_argument("--batch", type=int, default=2, help="B (default: 2)")
    parser.add_argument("--heads", type=int, default=8, help="H (default: 8)")
    parser.add_argument("--width", type=int, default=64, help="K = R = D (default: 64)")
    parser.add_argument("--turns", type=int, default=12, help="counted turns a contender and length (default: 12)")
    arguments = parser.parse_args()
    for name in ("batch", "heads", "width"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if min(arguments.lengths) < 1 or arguments.turns < 2:
        parser.error("--lengths must be at least 1, --turns at least 2")
    raised = machine.raise_malloc_thresholds()
    about = machine.describe()
    print(f"{about['cpu']}, {about['threads']} threads, torch {machine.versions()['torch']}, float32,", end=" ")
    print(f"malloc thresholds {'raised' if raised else 'as they were'};", end=" ")
    print(f"B {arguments.batch}, H {arguments.heads}, K = R = D = {arguments.width}")
    print("forward + backward; ms: median [quartiles]; ratio: time of sdpa / time, median of turns [quartiles]")
    for length in arguments.lengths:
        times = measure(length, arguments.batch, arguments.heads, arguments.width, arguments.turns)
        for name, seconds in times.items():
            ratios = [sdpa / own for sdpa, own in zip(times["sdpa"], seconds, strict=True)]
            print(f"N {length:>6}  {name:<6}  {spread([1e3 * s for s in seconds], 1)} ms   ratio {spread(ratios, 2)}")


def measure(length: int, batch: int, heads: int, width: int, turns: int) -> dict[str, list[float]]:
    """Seconds of every counted turn of each contender at one length."""
    import torch
    from torch import Tensor
    from torch.nn import functional as F

    from gma import GaussianMixture
    from gma.ops import memory

    mixture = GaussianMixture(heads, width, width)
    contenders: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "gma": lambda q, k, v: memory.causal_mix(mixture(q), mixture(k), v),
        "linear": lambda q, k, v: memory.causal_mix(F.elu(q) + 1, F.elu(k) + 1, v),
    }
    inputs = [torch.randn(batch, heads, length, width, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(batch, heads, length, width)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(2 + turns):
        for name, mix in contenders.items():
            start = time.perf_counter()
            torch.autograd.backward(mix(*inputs), gradient)
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
            for tensor in (*inputs, *mixture.parameters()):
                tensor.grad = None
    return times


def spread(values: list[float], digits: int) -> str:
    """``median [first quartile - third quartile]``."""
    low, _, high = quantiles(values, n=4)
    return f"{median(values):.{digits}f} [{low:.{digits}f} - {high:.{digits}f}]"


if __name__ == "__main__":
    main()
