"""Train a classifier, test its best and its last checkpoint, write the result."""

import hashlib
import logging
import math
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from data.batch import Batch
from experiments import machine, results
from experiments.batching import Batches
from experiments.build import build_data, build_model, check_training
from experiments.callbacks import ProgressBar, StopOnNonFiniteLoss, Throughput
from experiments.config import config_hash, refusing
from experiments.loggers import build_logger

MONITOR = "val/accuracy"


class Classification(lightning.LightningModule):
    """Cross-entropy on the logits of ``model``; accuracy and mean loss over a whole split.

    Args:
        model: (inputs, mask) -> logits (B, num_classes).
        num_classes: of the labels.
        train: the config's ``train`` node.
        seed: of dropout; each step draws from (seed, step, rank) alone, so that a resumed run repeats it.
    """

    def __init__(self, model: nn.Module, num_classes: int, train: DictConfig, seed: int) -> None:
        super().__init__()
        self.model, self.train_config, self.seed = model, train, seed
        self.accuracies = nn.ModuleDict(
            {split: MulticlassAccuracy(num_classes, average="micro") for split in ("val", "test")}
        )
        self.losses = nn.ModuleDict({split: MeanMetric() for split in ("val", "test")})

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        key = f"{self.seed} {self.global_step} {self.global_rank}".encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "big"))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits = self.model(batch.inputs, batch.mask).float()
        loss = F.cross_entropy(logits, batch.labels)
        accuracy = (logits.argmax(-1) == batch.labels).float().mean()
        self.log("train/loss", loss, prog_bar=True, sync_dist=True)
        self.log("train/accuracy", accuracy, sync_dist=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "val", prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, ("val", "test")[dataloader_idx], logger=False)

    def _evaluate(self, batch: Batch, split: str, **log: Any) -> None:
        logits = self.model(batch.inputs, batch.mask).float()
        self.accuracies[split](logits, batch.labels)
        self.losses[split](F.cross_entropy(logits, batch.labels), weight=len(batch.labels))
        for name, metric in (("accuracy", self.accuracies[split]), ("loss", self.losses[split])):
            self.log(f"{split}/{name}", metric, on_step=False, on_epoch=True, add_dataloader_idx=False, **log)

    def configure_optimizers(self) -> dict[str, Any]:
        decayed = {module.weight for module in self.model.modules() if isinstance(module, nn.Linear)}
        groups = [
            {"params": [p for p in self.parameters() if p in decayed], "weight_decay": self.train_config.weight_decay},
            {"params": [p for p in self.parameters() if p not in decayed], "weight_decay": 0.0},
        ]
        fused = self.device.type in ("cpu", "cuda")
        optimizer = torch.optim.AdamW(
            groups, lr=self.train_config.learning_rate, betas=tuple(self.train_config.betas), fused=fused
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor(self.train_config))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def learning_rate_factor(train: DictConfig) -> Callable[[int], float]:
    """Linear warm-up to 1, then ``cosine`` to zero at the last step, or ``inverse_sqrt``: sqrt(warm-up / step)."""
    warmup, steps = train.warmup_steps, train.steps

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if train.schedule == "inverse_sqrt":
            return math.sqrt(max(1, warmup) / max(1, step))
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return factor


def run(cfg: DictConfig, run_id: str, folder: Path) -> results.Result:
    """Train what ``cfg`` says, or go on with it, and return its result, which also lies in ``folder``.

    Raises:
        RefusedError: for a request that makes no sense, before any work.
        NonFiniteLossError: with the last good checkpoint kept.
    """
    result_file = folder / results.FILE_NAME
    if cfg.resume == "auto" and result_file.exists():
        return results.read(result_file)
    gpu = machine.uses_gpu(cfg.trainer.accelerator)
    raised = cfg.trainer.raise_malloc_thresholds and not gpu and machine.raise_malloc_thresholds()
    lightning.seed_everything(cfg.seed, workers=True, verbose=False)
    with refusing():
        check_training(cfg)
        data = build_data(cfg)
        model = build_model(cfg, data)
        module = Classification(model, data.num_classes, cfg.train, cfg.seed)
        checkpoints = folder / "checkpoints"
        throughput = Throughput()
        trainer = build_trainer(cfg, run_id, folder, throughput)
    with refusing():
        splits = data.load()
        batches = Batches(data, splits, cfg.train.batch_size, cfg.train.steps, cfg.seed, _num_workers(cfg, gpu))
    if cfg.resume == "never" and trainer.is_global_zero:
        result_file.unlink(missing_ok=True)
        shutil.rmtree(checkpoints, ignore_errors=True)

    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if trainer.is_global_zero:
        print(f"{run_id}: {parameters:,} parameters, {trainer.precision}, results in {folder}", flush=True)
    last = checkpoints / "last.ckpt"
    with _quiet_lightning():
        trainer.fit(module, batches, ckpt_path=last if last.exists() else None, weights_only=False)
        trainer.save_checkpoint(last)
        metrics_last = _test(trainer, module, batches, last)
        best = checkpoints / "best.ckpt"
        metrics = _test(trainer, module, batches, best)
    tokens = int(trainer.strategy.reduce(torch.tensor(throughput.tokens, dtype=torch.float64), reduce_op="sum"))
    result = results.Result(
        run_id=run_id,
        task=cfg.task.name,
        dataset=data.describe(),
        model=run_id.split("/")[-2],
        scale=cfg.scale,
        seed=cfg.seed,
        metrics=metrics,
        metrics_last=metrics_last,
        checkpoints={
            "chosen_by": MONITOR,
            "best": {"file": "checkpoints/best.ckpt", "step": _load(best)["global_step"]},
            "last": {"file": "checkpoints/last.ckpt", "step": _load(last)["global_step"]},
        },
        floors=data.floors(splits),
        parameters=parameters,
        steps=trainer.global_step,
        tokens_seen=tokens,
        train_seconds=throughput.seconds,
        wall_seconds=throughput.total_wall_seconds(),
        tokens_per_second=tokens / throughput.seconds,
        peak_memory_bytes=machine.peak_memory_bytes(gpu),
        sittings=throughput.sittings,
        execution={
            "precision": trainer.precision,
            "strategy": type(trainer.strategy).__name__,
            "devices": trainer.world_size,
            "malloc_thresholds_raised": raised,
        },
        config=OmegaConf.to_container(cfg, resolve=True),
        config_hash=config_hash(cfg),
        git=machine.git_state(),
        versions=machine.versions(),
        machine=machine.describe(),
        finished_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    if trainer.is_global_zero:
        result.write(folder)
        for logger in trainer.loggers:
            logger.log_metrics(result.metrics, step=result.steps)
            logger.finalize("success")
    return result


def build_trainer(cfg: DictConfig, run_id: str, folder: Path, throughput: Throughput) -> lightning.Trainer:
    """Lightning's trainer with this project's callbacks; one "epoch" is the whole training."""
    precision = cfg.trainer.precision
    if precision == "auto":
        precision = "bf16-mixed" if machine.has_bfloat16(cfg.trainer.accelerator) else "32-true"
    where = {"dirpath": folder / "checkpoints", "enable_version_counter": False, "save_on_train_epoch_end": False}
    return lightning.Trainer(
        accelerator=cfg.trainer.accelerator,
        devices=cfg.trainer.devices,
        strategy=cfg.trainer.strategy,
        num_nodes=cfg.trainer.num_nodes,
        precision=precision,
        max_epochs=1,
        val_check_interval=min(cfg.train.validate_every, cfg.train.steps),
        num_sanity_val_steps=0,
        log_every_n_steps=min(10, cfg.train.steps),
        gradient_clip_val=cfg.train.gradient_clip,
        use_distributed_sampler=False,
        enable_model_summary=False,
        default_root_dir=folder,
        logger=build_logger(cfg, run_id, folder),
        callbacks=[
            throughput,
            StopOnNonFiniteLoss(folder / "checkpoints" / "last.ckpt"),
            ModelCheckpoint(filename="best", monitor=MONITOR, mode="max", **where),
            ModelCheckpoint(filename="last", **where),  # after "best", whose state it carries
            ProgressBar(throughput),
        ],
    )


def _test(trainer: lightning.Trainer, module: Classification, batches: Batches, checkpoint: Path) -> dict[str, float]:
    """Metrics of a checkpoint's weights on the validation and the test split."""
    module.load_state_dict(_load(checkpoint)["state_dict"])
    trainer.test(module, batches, verbose=False)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def _load(checkpoint: Path) -> dict[str, Any]:
    return torch.load(checkpoint, map_location="cpu", weights_only=False)


def _num_workers(cfg: DictConfig, gpu: bool) -> int:
    if cfg.trainer.num_workers != "auto":
        return cfg.trainer.num_workers
    return min(4, machine.describe()["cores"] - 1) if gpu else 0


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Without Lightning's notices and its advice against what this project has decided (no workers on a CPU, say)."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for message in (
            ".*many workers.*",
            ".*infer the `batch_size`.*",
            ".*LeafSpec.*",
            ".*exists and is not empty.*",
        ):
            warnings.filterwarnings("ignore", message)
        yield
