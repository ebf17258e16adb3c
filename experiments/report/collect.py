"""Which results a report is made of: one a cell, all of one budget, and a sentence for every one left out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import results
from experiments.results import Measurement, Record, Result

Cell = tuple[str, str, int]  # task, model, seed

SWEEPS = "sweeps"  # folder of trials, which are no cells of a table
METRICS = {  # without which a training has nothing to say, by the first part of its task's name
    "lra": ("test/accuracy",),
    "wikitext103": tuple(
        f"{split}/{name}" for split in ("val", "test") for name in ("perplexity", "word_perplexity", "bits_per_byte")
    ),
}
ROW_KEYS = {  # the same for a measurement
    "memory_scaling": ("form", "inside", "length"),
    "interpretability": (
        "state", "layer", "head", "side", "effective_components", "entropy", "dead_share", "lipschitz",
        "lipschitz_bound",
    ),
}  # fmt: skip


@dataclass
class Collection:
    """``records``, one a cell; ``left_out`` says why others are not among them."""

    records: list[Record] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def of(self, task: str) -> list[Any]:
        """Records of one task, or of all whose name begins so if it ends in a slash."""
        return [r for r in self.records if r.task == task or (task.endswith("/") and r.task.startswith(task))]


def collect(folders: Sequence[Path], scale: str) -> Collection:
    """Read every result file of ``scale`` below ``folders``.

    Where two files are of one cell, the one in the folder named first counts, and in one folder the later one if both
    were run with the same config; two of one cell with different configs are both left out, as nothing says which is
    meant. In a task, only results with the longest training there is, on the same data and in the same backbone, stand
    beside each other. All that does not count is named.
    """
    found = Collection()
    seen: dict[Cell, tuple[Path, Record]] = {}
    for folder in folders:
        here: dict[Cell, list[tuple[Path, Record]]] = {}
        for path in results.find(folder):
            if SWEEPS in path.relative_to(folder).parts:
                continue
            try:
                record = results.read(path)
            except ValueError as error:
                found.left_out.append(str(error))
                continue
            if record.scale != scale:
                continue
            if complaint := _complaint(record):
                found.left_out.append(f"{path}: {complaint}")
                continue
            here.setdefault((record.task, record.model, record.seed), []).append((path, record))
        budgets = _budgets(record for found_here in here.values() for _, record in found_here)
        for cell, candidates in here.items():
            best, rest = _choose(candidates, budgets.get(cell[0]), found.left_out)
            if best is None and rest:
                paths = ", ".join(str(path) for path, _ in rest)
                found.left_out.append(
                    f"several configs of {' '.join(map(str, cell))}: {paths}; name the one that counts with results="
                )
            elif best is not None and cell not in seen:
                seen[cell] = best
            elif best is not None and best[1].finished_at != seen[cell][1].finished_at:
                found.left_out.append(f"{best[0]}: {seen[cell][0]} is of the same cell and comes first")
    budgets = _budgets(record for _, record in seen.values())
    for path, record in seen.values():
        if isinstance(record, Result) and _budget(record) != budgets[record.task]:
            found.left_out.append(f"{path}: other data, backbone or length of training than the rest of {record.task}")
            continue
        found.records.append(record)
    return found


def _choose(
    candidates: list[tuple[Path, Record]], budget: Any, left_out: list[str]
) -> tuple[tuple[Path, Record] | None, list[tuple[Path, Record]]]:
    """The one that counts, or none and those between which nothing decides."""
    same = [pair for pair in candidates if not isinstance(pair[1], Result) or _budget(pair[1]) == budget]
    for pair in candidates:
        if pair not in same:
            left_out.append(f"{pair[0]}: other data, backbone or length of training than the longest of its task")
    if not same:
        return None, []
    if len({record.config_hash for _, record in same}) > 1:
        return None, same
    *older, newest = sorted(same, key=lambda pair: pair[1].finished_at)
    left_out += [f"{path}: {newest[0]} is the same run, finished later" for path, _ in older]
    return newest, []


def _budget(result: Result) -> tuple[Any, ...]:
    """What results that stand beside each other have in common; training steps times batch first, to compare by."""
    train = result.config["train"]
    backbone = {key: value for key, value in result.config["backbone"].items() if key != "mlp_dim"}
    tokens = train["steps"] * train["batch_size"]
    return tokens, str(sorted(result.dataset.items())), str(sorted(backbone.items())), train["steps"]


def _budgets(records: Iterable[Record]) -> dict[str, tuple[Any, ...]]:
    """The budget of each task that counts: the longest training, and among equals the commonest."""
    every: dict[str, list[tuple[Any, ...]]] = {}
    for record in records:
        if isinstance(record, Result):
            every.setdefault(record.task, []).append(_budget(record))
    return {task: max(budgets, key=lambda b: (b[0], budgets.count(b), b)) for task, budgets in every.items()}


def _complaint(record: Record) -> str | None:
    """What is missing or no number in a record that could be read."""
    if isinstance(record, Result):
        for where, metrics in (("metrics", record.metrics), ("metrics_last", record.metrics_last)):
            for name in METRICS.get(record.task.split("/")[0], ()):
                if name not in metrics:
                    return f"{where} has no {name}"
                if not isinstance(metrics[name], int | float) or not math.isfinite(metrics[name]):
                    return f"{where} has {name} = {metrics[name]}"
        if not {"train", "backbone"} <= record.config.keys():
            return "its config has no train or no backbone"
    elif isinstance(record, Measurement):
        for number, row in enumerate(record.rows):
            for key in ROW_KEYS.get(record.task, ()):
                if key not in row:
                    return f"row {number} has no {key}"
    return None
