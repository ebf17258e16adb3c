"""Where metrics go besides ``result.json``."""

import json
import netrc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger, WandbLogger
from omegaconf import DictConfig

from experiments.results import FILE_NAME, WANDB_TYPE, Measurement, Record, Result

PUBLISHED = "published.json"  # beside it: to which project it has been logged


def build_logger(cfg: DictConfig, run_id: str, folder: Path) -> Any:
    """The config's logger writing into ``folder``, or ``False``; W&B goes offline where no API key is set."""
    if cfg.logger.get("_target_") is None:
        return False
    if not cfg.logger["_target_"].endswith("WandbLogger"):
        return instantiate(cfg.logger, save_dir=str(folder))
    go_offline_without_key()
    group = {"group": cfg.logger.group} if "group" in cfg.logger else {}  # of a sweep
    logger = instantiate(cfg.logger, save_dir=str(folder), **(wandb_identity(run_id, cfg.scale) | group))
    logger._wandb_init.pop("anonymous", None)  # Lightning passes it always, wandb warns of it always
    return logger


def mirror(record: Record, folder: Path, loggers: Sequence[Logger]) -> None:
    """Log what ``result.json`` says to every logger; to W&B also rows, figures and the file itself."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            log_to_wandb(logger.experiment, record, folder)
            note_published(logger.experiment, record, folder)
        else:
            logger.log_metrics(record.numbers(), step=getattr(record, "steps", 0))
        logger.finalize("success")


def log_to_wandb(run: Any, record: Record, folder: Path) -> None:
    """Log a finished record to an open W&B run.

    Its numbers; the rows of a measurement as a table; every picture in ``folder`` as an image; ``result.json`` as an
    artifact.
    """
    import wandb

    content: dict[str, Any] = dict(record.numbers())
    if isinstance(record, Result):
        content["trainer/global_step"] = record.steps
    if isinstance(record, Measurement):
        rows = record.flat_rows()
        columns = list(dict.fromkeys(key for row in rows for key in row))
        content["rows"] = wandb.Table(columns=columns, data=[[row.get(column) for column in columns] for row in rows])
    content |= {figure.stem: wandb.Image(str(figure)) for figure in sorted(folder.glob("*.png"))}
    run.log(content)
    artifact = wandb.Artifact(record.run_id.replace("/", "-"), type=WANDB_TYPE)
    artifact.add_file(str(folder / FILE_NAME))
    run.log_artifact(artifact)


def note_published(run: Any, record: Record, folder: Path, checkpoints: bool = False) -> None:
    """Let ``folder`` remember where ``record`` has been logged, and whether its checkpoints went with it."""
    noted = {
        "project": run.project,
        "offline": bool(run.settings._offline),
        "finished_at": record.finished_at,
        "checkpoints": checkpoints,
    }
    (folder / PUBLISHED).write_text(json.dumps(noted) + "\n")


def published(record: Record, folder: Path, project: str) -> dict[str, Any] | None:
    """What :func:`note_published` noted of this very record and ``project``, or ``None``."""
    try:
        noted: dict[str, Any] = json.loads((folder / PUBLISHED).read_text())
    except (OSError, ValueError):
        return None
    return noted if (noted.get("project"), noted.get("finished_at")) == (project, record.finished_at) else None


def wandb_identity(run_id: str, scale: str) -> dict[str, Any]:
    """Under what a run goes at W&B, whenever it is logged: the same run twice is one run there."""
    task, model, _run = run_id.rsplit("/", 2)
    return {
        "id": run_id.replace("/", "-"),
        "name": run_id,
        "group": f"{task}/{model}",
        "tags": [task, model, scale],
        "resume": "allow",
    }


def go_offline_without_key() -> None:
    """Set W&B's mode for this process, unless the user has."""
    if "WANDB_MODE" not in os.environ and not has_wandb_key():
        os.environ["WANDB_MODE"] = "offline"
    os.environ.setdefault("WANDB_SILENT", "true")


def finish() -> None:
    """End the W&B run of this job, if it has one: else the next job of a multirun would go on writing into it."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        wandb.finish()


def has_wandb_key() -> bool:
    """Whether W&B would find an API key, in the environment or in netrc, without asking for one."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
