"""Where metrics go besides ``result.json``."""

import netrc
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger, WandbLogger
from omegaconf import DictConfig

from experiments.results import Measurement, Result


def build_logger(cfg: DictConfig, run_id: str, folder: Path) -> Any:
    """The config's logger writing into ``folder``, or ``False``; W&B goes offline where no API key is set."""
    if cfg.logger.get("_target_") is None:
        return False
    if not cfg.logger["_target_"].endswith("WandbLogger"):
        return instantiate(cfg.logger, save_dir=str(folder))
    if "WANDB_MODE" not in os.environ and not has_wandb_key():
        os.environ["WANDB_MODE"] = "offline"
    os.environ.setdefault("WANDB_SILENT", "true")
    task, model, _run = run_id.rsplit("/", 2)
    logger = instantiate(
        cfg.logger,
        save_dir=str(folder),
        id=run_id.replace("/", "-"),
        name=run_id,
        group=f"{task}/{model}",
        tags=[task, model, cfg.scale],
        resume="allow",
    )
    logger._wandb_init.pop("anonymous", None)  # Lightning passes it always, wandb warns of it always
    return logger


def mirror(result: Result, loggers: Sequence[Logger]) -> None:
    """Log what ``result.json`` says to every logger: metrics of both checkpoints, floors, cost."""
    metrics = dict(result.metrics)
    metrics |= {f"last/{name}": value for name, value in result.metrics_last.items()}
    metrics |= {f"floor/{name}": value for name, value in result.floors.items()}
    for name in (
        "parameters",
        "tokens_seen",
        "tokens_per_second",
        "train_seconds",
        "wall_seconds",
        "peak_memory_bytes",
    ):
        metrics[name] = getattr(result, name)
    for logger in loggers:
        logger.log_metrics(metrics, step=result.steps)
        logger.finalize("success")


def mirror_rows(result: Measurement, rows: Sequence[Mapping[str, Any]], figures: Sequence[Path], logger: Any) -> None:
    """Log a measurement: its exponents, and to W&B its rows, one value a cell, as a table and its figures as images."""
    if not logger:
        return
    logger.log_metrics({f"exponent/{name}": value for name, value in result.exponents.items()})
    if isinstance(logger, WandbLogger):
        columns = list(dict.fromkeys(key for row in rows for key in row))
        logger.log_table("rows", columns=columns, data=[[row.get(column) for column in columns] for row in rows])
        for figure in figures:
            logger.log_image(figure.stem, [str(figure)])
    logger.finalize("success")


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
