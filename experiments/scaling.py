"""``task=memory_scaling``: time, memory and decoding state of a mixer against the length (Table 1).

A row has ``form`` (causal, bidirectional or decoding), ``inside`` (mixer or block), ``length`` and either ``refused``,
why there is nothing, or what was measured. Times in seconds, and ratios, are [median, first quartile, third quartile]:

- ``forward_seconds``, ``training_seconds`` (forward and backward), ``tokens_per_second`` (of training);
- ``forward_speed_over_sdpa``, ``training_speed_over_sdpa``: time of softmax attention over this one's, turn by turn;
- ``saved_bytes``: kept for the backward pass, exact; ``peak_bytes``: of forward and backward, as the allocator or the
  kernel saw it;
- decoding: ``step_seconds`` a token after ``length`` others, ``state_elements`` and ``state_bytes``.
"""

import json
import math
import multiprocessing
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import linear_regression
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from experiments import machine, results
from experiments.config import refusing
from gma.mixer import require

ROWS_FILE = "rows.jsonl"  # of what has been measured so far
FITTED = ("saved_bytes", "peak_bytes", "training_seconds")
Case = tuple[str, int]  # form and length


def run(cfg: DictConfig, run_id: str, folder: Path) -> results.Measurement:
    """Measure everything, or what an interrupted run has left, and return the result, which also lies in ``folder``.

    Raises:
        RefusedError: for lengths and turns that make no sense, or a mixer that cannot be built.
    """
    from experiments.loggers import build_logger, mirror  # heavy, and the fresh processes do without
    from experiments.scaling_plot import plot

    with refusing():
        _check(cfg)
    git = machine.git_state()
    gpu = machine.uses_gpu(cfg.trainer.accelerator)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / ROWS_FILE
    if cfg.resume == "never":
        log.unlink(missing_ok=True)
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {(row["form"], row["length"]) for row in rows}
    cases = list(_cases(cfg))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("Measuring", total=len(cases), completed=len(done))
        for case in cases:
            if case in done:
                continue
            progress.update(task, description=f"{case[0]} {case[1]:,}")
            new = _measure(cfg, case, rows, gpu)
            with log.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
            rows += new
            progress.advance(task)
    result = results.Measurement(
        rows=rows,
        exponents=exponents(rows),
        execution={
            "precision": "32-true",
            "devices": 1,
            "malloc_thresholds_raised": bool(cfg.trainer.raise_malloc_thresholds and not gpu),
        },
        **results.provenance(cfg, run_id, git),
    )
    plot(result, folder)
    result.write(folder)
    logger = build_logger(cfg, run_id, folder)
    mirror(result, folder, [logger] if logger else [])
    return result


def exponents(rows: list[dict[str, Any]]) -> dict[str, float]:
    """``<form>/<inside>/<column>``: the slope of log column against log length, over the longer half of the lengths."""
    found = {}
    for form, inside in sorted({(row["form"], row["inside"]) for row in rows if row["form"] != "decoding"}):
        measured = [row for row in rows if (row["form"], row["inside"]) == (form, inside) and "refused" not in row]
        for column in FITTED:
            values = [(row["length"], row[column]) for row in measured if row[column]]
            points = [(math.log(n), math.log(v[0] if isinstance(v, list) else v)) for n, v in values]
            points = sorted(points)[-max(2, len(points) // 2) :]
            if len(points) >= 2:
                found[f"{form}/{inside}/{column}"] = linear_regression(*zip(*points, strict=True)).slope
    return found


def show(result: results.Measurement, folder: Path) -> None:
    """Print the rows and the exponents."""
    table = Table(title=result.run_id, title_justify="left")
    for heading in ("", "tokens", "forward, ms", "training, ms", "against sdpa", "saved, MB", "peak, MB"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in result.rows:
        name = f"{row['form']} {row['inside']}"
        if "refused" in row:
            table.add_row(name, f"{row['length']:,}", row["refused"])
        elif row["form"] == "decoding":
            state = f"state of {row['state_elements']:,} numbers"
            table.add_row(name, f"{row['length']:,}", f"{1e3 * row['step_seconds'][0]:.3g} a token", state)
        else:
            ratio = row.get("training_speed_over_sdpa")
            table.add_row(
                name,
                f"{row['length']:,}",
                f"{1e3 * row['forward_seconds'][0]:.4g}",
                f"{1e3 * row['training_seconds'][0]:.4g}",
                "-" if ratio is None else "{:.2f} [{:.2f} - {:.2f}]".format(*ratio),
                f"{row['saved_bytes'] / 1e6:.4g}",
                "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.4g}",
            )
    console = Console()
    console.print(table)
    for name, exponent in result.exponents.items():
        console.print(f"{name} grows as N^{exponent:.2f}", highlight=False)
    console.print(f"{folder / results.FILE_NAME}", soft_wrap=True, highlight=False)


def _check(cfg: DictConfig) -> None:
    for key in ("lengths", "contexts"):
        values = cfg.task[key]
        whole = len(values) and all(isinstance(value, int) and value >= 1 for value in values)
        require(bool(whole), f"task.{key}", values, "a list of whole numbers, at least 1")
    require(max(cfg.task.lengths) <= cfg.task.max_length, "task.lengths", cfg.task.lengths, "up to task.max_length")
    for key, least in (("batch_size", 1), ("turns", 2)):
        value = cfg.task[key]
        require(isinstance(value, int) and value >= least, f"task.{key}", value, f"a whole number, at least {least}")
    seconds = cfg.task.seconds_a_pass
    require(isinstance(seconds, int | float) and seconds > 0, "task.seconds_a_pass", seconds, "a positive number")
    from hydra.utils import instantiate

    cfg.task.causal = False
    instantiate(cfg.model)(cfg.backbone.dim)
    cfg.task.causal = True


def _cases(cfg: DictConfig) -> Iterator[Case]:
    for form, lengths in (
        ("causal", cfg.task.lengths),
        ("bidirectional", cfg.task.lengths),
        ("decoding", cfg.task.contexts),
    ):
        yield from ((form, length) for length in sorted(lengths))


def _measure(cfg: DictConfig, case: Case, rows: list[dict[str, Any]], gpu: bool) -> list[dict[str, Any]]:
    """Rows of one case, measured in a fresh process, or the reason why there are none."""
    form, length = case
    earlier = [row for row in rows if row["form"] == form]
    own = expected_seconds([r for r in earlier if r["inside"] == "block"], length)
    limit = cfg.task.seconds_a_pass
    if own is not None and own > limit:
        return [_refused(case, f"about {own:.0f} s a pass, more than task.seconds_a_pass={limit:g}")]
    context = _context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, cfg, case, _with_reference(cfg, earlier, length), gpu))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = "the process was ended by the system, most likely for its memory"
    process.join()
    return [_refused(case, answer)] if isinstance(answer, str) else answer


@cache
def _context() -> Any:
    """How processes start: where that exists, as copies of one that has imported what they need and done nothing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "experiments.scaling_worker", "hydra.utils"])
    return context


def expected_seconds(rows: list[dict[str, Any]], length: int, ratio: str | None = None) -> float | None:
    """Of a pass at ``length``, from the two longest of ``rows``; of softmax attention if ``ratio`` names the column."""
    times = sorted(
        (row["length"], row["training_seconds"][0] * (row[ratio][0] if ratio else 1))
        for row in rows
        if "training_seconds" in row and (ratio is None or ratio in row)
    )
    if len(times) < 2:
        return None
    (n, t), (m, u) = times[-2:]
    return u * (length / m) ** max(1.0, math.log(u / t) / math.log(m / n))


def _with_reference(cfg: DictConfig, earlier: list[dict[str, Any]], length: int) -> bool:
    """Whether softmax attention takes turns: not with itself, and not where it would take too long or has failed."""
    if cfg.model["_target_"].endswith("ScaledDotProductAttention"):
        return False
    column = "training_speed_over_sdpa"
    alone = [row for row in earlier if row["inside"] == "mixer"]
    expected = expected_seconds(alone, length, column)
    return (expected is None or expected <= cfg.task.seconds_a_pass) and all(column in row for row in alone)


def _refused(case: Case, reason: str) -> dict[str, Any]:
    return {"form": case[0], "inside": "mixer", "length": case[1], "refused": reason}


def _work(sender: Connection, cfg: DictConfig, case: Case, reference: bool, gpu: bool) -> None:
    """In the fresh process: send the rows, or why there are none."""
    import torch

    from experiments import scaling_worker

    form, length = case
    if not gpu:
        scaling_worker.limit_memory()
    try:
        if form == "decoding":
            sender.send(scaling_worker.measure_decoding(cfg, length, gpu))
        else:
            sender.send(scaling_worker.measure(cfg, reference, form == "causal", length, gpu))
    except ValueError as error:  # a mixer without this form
        sender.send(str(error))
    except (torch.cuda.OutOfMemoryError, MemoryError, RuntimeError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if not isinstance(error, RuntimeError) or "memory" in text:
            sender.send(f"out of memory: {text}")
        else:
            raise
