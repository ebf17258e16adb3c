"""``python -m experiments.decoding_speed``: one more token after short and long contexts, in turns in one process.

So a drift of the machine hits every context alike, and "no slower after 262,144 tokens than after 1,024" can be judged.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from experiments import machine
from experiments.arguments import complaining_in_one_line
from experiments.config import CONF, register_resolvers
from experiments.speed import save, shown, spread

MODELS = ("sdpa", "gma", "linear_transformer", "performer", "mamba")
STEPS = 32  # tokens a turn


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.decoding_speed", description=__doc__.split("\n\n")[0])
    parser.add_argument("override", nargs="*", help="as of experiments.run (default: task=memory_scaling scale=cpu)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["sdpa", "gma"], help="default: sdpa gma")
    contexts = [1024, 16384, 262144]
    parser.add_argument("--contexts", type=int, nargs="+", default=contexts, help="default: 1024 16384 262144")
    parser.add_argument("--turns", type=int, default=20, help=f"counted turns of {STEPS} tokens each (default: 20)")
    parser.add_argument("--output", type=Path, help="write everything to this JSON file, too")
    arguments = parser.parse_intermixed_args()
    if min(arguments.contexts) < 1 or arguments.turns < 2:
        parser.error("--contexts must be at least 1, --turns at least 2")
    raised, about = machine.raise_malloc_thresholds(), machine.describe()
    print(f"{about['cpu']}, {about['threads']} threads, torch {machine.versions()['torch']}, float32")
    first = arguments.contexts[0]
    print(f"median of turns [quartiles]: microseconds a token; of the time after {first} tokens; time of sdpa / time")
    with complaining_in_one_line(arguments.override):
        times = measure(arguments.override, arguments.models, arguments.contexts, arguments.turns)
    lines = []
    for (name, context), seconds in times.items():
        line: dict[str, Any] = {"context": context, "name": name, "microseconds": spread([1e6 * s for s in seconds])}
        line["of_first"] = _ratio(seconds, times[name, first])
        text = f"{name:<19} after {context:>7}  {shown(line['microseconds'], 0)} us"
        text += f"   of first {shown(line['of_first'], 2)}"
        if ("sdpa", context) in times:
            line["over_sdpa"] = _ratio(times["sdpa", context], seconds)
            text += f"   over sdpa {shown(line['over_sdpa'], 2)}"
        lines.append(line)
        print(text, flush=True)
    save(arguments, raised, lines)


def measure(
    overrides: list[str], models: list[str], contexts: list[int], turns: int
) -> dict[tuple[str, int], list[float]]:
    """Seconds a token of every counted turn, by model and context. The first turn of each is not counted."""
    import torch
    from hydra import compose, initialize_config_dir

    from experiments import scaling_worker

    register_resolvers()
    decoders = {}
    for name in models:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("config", ["task=memory_scaling", "scale=cpu", f"model={name}", *overrides])
        mixer = scaling_worker.build(cfg, True, "mixer", torch.device("cpu"))
        tokens = torch.randn(cfg.task.batch_size, STEPS, cfg.backbone.dim)
        for context in contexts:
            with torch.no_grad():
                state = scaling_worker.state_after(mixer, context, tokens, room=(1 + turns) * STEPS)
            decoders[name, context] = (mixer, tokens, state)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in decoders}
    with torch.no_grad():
        for turn in range(1 + turns):
            for key, (mixer, tokens, state) in decoders.items():
                start = time.perf_counter()
                for token in tokens.unbind(1):
                    _, state = mixer.step(token, state)
                if turn:
                    times[key].append((time.perf_counter() - start) / STEPS)
                decoders[key] = (mixer, tokens, state)
    return times


def _ratio(over: list[float], under: list[float]) -> tuple[float, float, float]:
    return spread([a / b for a, b in zip(over, under, strict=True)])


if __name__ == "__main__":
    main()
