"""The one schema of a result: what was run, on what, and what came out. Files are the truth; W&B mirrors them."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments import machine
from experiments.config import config_hash, resolved

SCHEMA = 2
FILE_NAME = "result.json"
WANDB_TYPE = "result"  # of the artifact that holds it at W&B


@dataclass(kw_only=True)
class Record(ABC):
    """What every finished run says of itself.

    Attributes:
        run_id: ``<task>/<model>/<run>``, also its folder under ``runs``.
        task, model, scale, seed: which cell of the tables it fills.
        execution: how it was run: precision, devices, whether malloc thresholds were raised.
        config: resolved; config_hash: of the part that decides the numbers.
        git, versions, machine: what it ran with.
    """

    run_id: str
    task: str
    model: str
    scale: str
    seed: int
    execution: dict[str, Any]
    config: dict[str, Any]
    config_hash: str
    git: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    finished_at: str
    schema: int = field(default=SCHEMA)

    @abstractmethod
    def numbers(self) -> dict[str, float]:
        """What a logger plots."""

    def write(self, folder: Path) -> Path:
        """Write ``result.json`` into ``folder``, whole or not at all."""
        path = folder / FILE_NAME
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n")
        os.replace(partial, path)
        return path


@dataclass(kw_only=True)
class Measurement(Record):
    """A run that trains nothing.

    Attributes:
        rows: one a thing measured; what their keys mean, the task's module says.
        exponents: of a power of the length, fitted to columns of the rows.
    """

    rows: list[dict[str, Any]]
    exponents: dict[str, float]

    def numbers(self) -> dict[str, float]:
        """The exponents."""
        return {f"exponent/{name}": value for name, value in self.exponents.items()}

    def flat_rows(self) -> list[dict[str, Any]]:
        """The rows with one value a cell: of [median, quartiles] the first; dicts spread, longer lists left out."""
        flat = []
        for row in self.rows:
            cells: dict[str, Any] = {}
            for key, value in row.items():
                if isinstance(value, dict):
                    cells |= {f"{key} {part}": number for part, number in value.items()}
                elif not isinstance(value, list):
                    cells[key] = value
                elif len(value) == 3:
                    cells[key] = value[0]
            flat.append(cells)
        return flat


@dataclass(kw_only=True)
class Result(Record):
    """A finished training.

    Attributes:
        dataset: name, source and fingerprint of the data.
        metrics: of the checkpoint with the best validation score, as ``<split>/<metric>``.
        metrics_last: the same of the last checkpoint.
        checkpoints: the steps of both, the metric that chose the best, and their files.
        floors: scores of rules that do not solve the task, to read the test score against.
        parameters: trainable numbers. mlp_dim: feed-forward width; with ``match_parameters`` it makes them equal.
        tokens_seen: real tokens trained on. steps: of the optimizer.
        train_seconds: spent training, without validation; wall_seconds: from start to result, over all sittings.
        tokens_per_second: tokens_seen / train_seconds, over all devices.
        peak_memory_bytes: of the allocator on a GPU, resident on a CPU.
        sittings: times the run was started: 1 unless it was resumed.
    """

    dataset: dict[str, Any]
    metrics: dict[str, float]
    metrics_last: dict[str, float]
    checkpoints: dict[str, Any]
    floors: dict[str, float]
    parameters: int
    mlp_dim: int
    steps: int
    tokens_seen: int
    train_seconds: float
    wall_seconds: float
    tokens_per_second: float
    peak_memory_bytes: int
    sittings: int

    def numbers(self) -> dict[str, float]:
        """Metrics of both checkpoints, floors, cost."""
        costs = "parameters tokens_seen tokens_per_second train_seconds wall_seconds peak_memory_bytes"
        return (
            self.metrics
            | {f"last/{name}": value for name, value in self.metrics_last.items()}
            | {f"floor/{name}": value for name, value in self.floors.items()}
            | {name: getattr(self, name) for name in costs.split()}
        )


def provenance(cfg: DictConfig, run_id: str, git: dict[str, Any]) -> dict[str, Any]:
    """The fields of a :class:`Record` that do not depend on what was run, as of now; ``git`` as of the start."""
    return {
        "run_id": run_id,
        "task": cfg.task.name,
        "model": run_id.split("/")[-2],
        "scale": cfg.scale,
        "seed": cfg.seed,
        "config": resolved(cfg),
        "config_hash": config_hash(cfg),
        "git": git,
        "versions": machine.versions(),
        "machine": machine.describe(),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def read(path: Path) -> Result | Measurement:
    """Read one ``result.json``.

    Raises:
        ValueError: naming the file, if it is no JSON, of another schema, or lacks or adds a key.
    """
    try:
        content = json.loads(path.read_text())
        found = content["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a result file: {error!r}") from error
    if found != SCHEMA:
        raise ValueError(f"{path} has schema {found}; this version reads schema {SCHEMA}")
    kind = Measurement if "rows" in content else Result
    expected = {field.name for field in fields(kind)}
    if content.keys() != expected:
        raise ValueError(f"{path} lacks or adds keys: {', '.join(sorted(content.keys() ^ expected))}")
    return kind(**content)


def find(root: Path) -> Iterator[Path]:
    """Every result file under ``root``, in the order of their paths."""
    return iter(sorted(root.rglob(FILE_NAME)))
