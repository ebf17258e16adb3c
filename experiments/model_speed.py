"""``python -m experiments.model_speed``: training steps of the whole model, every mixer in turns in one process.

A step is what training does: forward, loss, backward, clipping, the optimizer; on random tokens, so that no data are
needed. Every length has the same tokens a step. ``--profile`` says instead which operations a step spends its time on.

Shapes: B batch, N tokens.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import machine
from experiments.arguments import complaining_in_one_line
from experiments.config import CONF, register_resolvers
from experiments.errors import RefusedError
from experiments.speed import save, shown, spread

MODELS = ("sdpa", "gma", "linear_transformer", "performer", "mamba")
SHOWN = 8  # operations a line


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.model_speed", description=__doc__.split("\n\n")[0])
    parser.add_argument("override", nargs="*", help="as of experiments.run (default: task=wikitext103 scale=cpu)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096], help="N (default: 256 1024 4096)")
    parser.add_argument("--tokens", type=int, default=4096, help="of a step, B N (default: 4096)")
    parser.add_argument("--turns", type=int, default=7, help="counted steps a model and length (default: 7)")
    parser.add_argument("--profile", action="store_true", help="shares of the step's time by operation, instead")
    parser.add_argument("--output", type=Path, help="write everything to this JSON file, too")
    arguments = parser.parse_intermixed_args()
    if min(arguments.lengths) < 1 or arguments.tokens < max(arguments.lengths) or arguments.turns < 2:
        parser.error("--lengths must be at least 1, --tokens at least the longest of them, --turns at least 2")
    raised, about = machine.raise_malloc_thresholds(), machine.describe()
    print(f"{about['cpu']}, {about['threads']} threads, torch {machine.versions()['torch']}, float32")
    profile_or_time = _profile if arguments.profile else _time
    with complaining_in_one_line(arguments.override):
        save(arguments, raised, profile_or_time(arguments))


def _time(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    print("tokens/s and time of sdpa / time, median of turns [quartiles]")
    lines = []
    for length in arguments.lengths:
        times = measure(arguments.override, length, arguments.tokens // length, arguments.turns)
        for name, seconds in times.items():
            tokens = arguments.tokens // length * length
            line = {
                "length": length,
                "name": name,
                "tokens_per_second": spread([tokens / s for s in seconds]),
                "over_sdpa": spread([sdpa / own for sdpa, own in zip(times["sdpa"], seconds, strict=True)]),
            }
            lines.append(line)
            rate, ratio = shown(line["tokens_per_second"], 0), shown(line["over_sdpa"], 2)
            print(f"N {length:>6}  {name:<19} {rate} tokens/s   over sdpa {ratio}", flush=True)
    return lines


def _profile(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    print("share of a training step's time by operation, forward and backward together")
    lines = []
    for length in arguments.lengths:
        for name in MODELS:
            step = _step(name, arguments.override, length, arguments.tokens // length)
            found = shares(step, arguments.turns)
            lines += [{"length": length, "name": name, "operation": key, "share": part} for key, part in found.items()]
            told = ", ".join(f"{key} {part:.0%}" for key, part in list(found.items())[:SHOWN])
            print(f"N {length:>6}  {name:<19} {told}", flush=True)
    return lines


def shares(step: Callable[[], None], turns: int) -> dict[str, float]:
    """PyTorch's operations by their own share of the time of ``turns`` steps, largest first; two are not counted."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(turns):
            step()
    own: Counter[str] = Counter()
    for event in profiler.key_averages():
        own[event.key.removeprefix("aten::")] += event.self_cpu_time_total
    return {key: part / own.total() for key, part in own.most_common()}


def measure(overrides: list[str], length: int, batch: int, turns: int) -> dict[str, list[float]]:
    """Seconds of every counted step of each model at one length; the first two steps are not counted."""
    steps = {name: _step(name, overrides, length, batch) for name in MODELS}
    times: dict[str, list[float]] = {name: [] for name in MODELS}
    for turn in range(2 + turns):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    return times


def _step(name: str, overrides: list[str], length: int, batch: int) -> Callable[[], None]:
    import torch
    from hydra import compose, initialize_config_dir
    from torch.nn import functional as F

    from experiments.build import build_data, build_model
    from experiments.language_modelling import LanguageModelling

    register_resolvers()
    words = ["task=wikitext103", "scale=cpu", f"model={name}", f"task.data.length={length}", *overrides]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", words)
    if cfg.task.kind != "language_modelling":
        raise RefusedError(f"task={cfg.task.name} is not allowed: the task must model a language, as wikitext103 does")
    data = build_data(cfg)
    module = LanguageModelling(build_model(cfg, data), data, cfg.train, cfg.seed)
    optimizer = module.configure_optimizers()["optimizer"]
    tokens = torch.randint(data.vocab_size, (batch, length + 1))

    def step() -> None:
        loss = F.cross_entropy(module.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        module.configure_gradient_clipping(optimizer, cfg.train.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
