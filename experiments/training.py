"""Train, test the best and the last checkpoint, write the result."""

import json
import logging
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from omegaconf import DictConfig

from experiments import machine, results
from experiments.batching import Batches
from experiments.build import build_data, build_model, check_training
from experiments.callbacks import ComponentUsage, HeedInterrupts, ProgressBar, StopOnNonFiniteLoss, Throughput
from experiments.classification import Classification
from experiments.config import refusing, resolved
from experiments.language_modelling import LanguageModelling
from experiments.loggers import build_logger, mirror
from experiments.matching import count_parameters
from experiments.module import TrainingModule
from gma import start_means_from_data

DATA_FILE = "data.json"  # what a run's data were, from its first moment on

MODULES: dict[str, type[TrainingModule]] = {
    "classification": Classification,
    "language_modelling": LanguageModelling,
}


def run(cfg: DictConfig, run_id: str, folder: Path, callbacks: Sequence[Callback] = ()) -> results.Result:
    """Train what ``cfg`` says, or go on with it, and return its result, which also lies in ``folder``.

    ``callbacks`` watch besides those of every run.

    Raises:
        RefusedError: for a request that makes no sense, before any work.
        NonFiniteLossError: with the last good checkpoint kept.
    """
    with refusing():
        check_training(cfg)
    git = machine.git_state()
    gpu = machine.uses_gpu(cfg.trainer.accelerator)
    raised = cfg.trainer.raise_malloc_thresholds and not gpu and machine.raise_malloc_thresholds()
    lightning.seed_everything(cfg.seed, workers=True, verbose=False)
    machine.forget_peak_memory(gpu)
    throughput = Throughput()
    with _quiet_lightning(), refusing():
        data = build_data(cfg)
        model = build_model(cfg, data)
        module = MODULES[cfg.task.kind](model, data, cfg.train, cfg.seed)
        try:
            trainer = build_trainer(cfg, run_id, folder, throughput, module, callbacks)
        except MisconfigurationException as error:
            devices = f"trainer.accelerator={cfg.trainer.accelerator} trainer.devices={cfg.trainer.devices}"
            raise ValueError(f"{devices} is not to be had here: {error}; trainer=auto takes what is there") from error
        splits = data.load()
        workers = _num_workers(cfg, gpu)
        batches = Batches(data, splits, cfg.train.batch_size, cfg.train.steps, cfg.seed, workers, trainer.world_size)

    best, last = (folder / "checkpoints" / name for name in ("best.ckpt", "last.ckpt"))
    resuming = cfg.resume == "auto" and last.exists()
    with refusing():
        if resuming:
            check_same_data(folder, data)
        elif any(getattr(part, "means_from_data", False) for part in model.modules()):
            batch = batches.first()
            start_means_from_data(model, batch.inputs, batch.mask)
    parameters = count_parameters(model)
    if trainer.is_global_zero:
        if cfg.resume == "never":
            (folder / results.FILE_NAME).unlink(missing_ok=True)
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DATA_FILE).write_text(json.dumps(data.describe(), indent=1))
        began = "resumed" if resuming else "started"
        size = f"{parameters:,} parameters (feed-forward width {model.mlp_dim})"
        print(f"{run_id} {began}: {size}, {trainer.precision}, results in {folder}", flush=True)
    for logger in trainer.loggers:
        logger.log_hyperparams(resolved(cfg))
    with _quiet_lightning():
        trainer.fit(module, batches, ckpt_path=last if resuming else None, weights_only=False)
        trainer.save_checkpoint(last)
        best_step, last_step = (_load(checkpoint)["global_step"] for checkpoint in (best, last))
        metrics_last = _test(trainer, module, batches, last)
        metrics = metrics_last if best_step == last_step else _test(trainer, module, batches, best)
    tokens = int(
        trainer.strategy.reduce(torch.tensor(throughput.tokens, device=trainer.strategy.root_device), reduce_op="sum")
    )
    result = results.Result(
        dataset=data.describe(),
        metrics=metrics,
        metrics_last=metrics_last,
        checkpoints={
            "chosen_by": module.monitor,
            "best": {"file": "checkpoints/best.ckpt", "step": best_step},
            "last": {"file": "checkpoints/last.ckpt", "step": last_step},
        },
        floors=data.floors(splits),
        parameters=parameters,
        mlp_dim=model.mlp_dim,
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
        **results.provenance(cfg, run_id, git),
    )
    if trainer.is_global_zero:
        result.write(folder)
        mirror(result, folder, trainer.loggers)
    return result


def check_same_data(folder: Path, data: Any) -> None:
    """Refuse to go on with a run whose data are no longer the same.

    Raises:
        ValueError: naming both fingerprints.
    """
    file = folder / DATA_FILE
    then = json.loads(file.read_text())["fingerprint"] if file.is_file() else data.fingerprint
    if then != data.fingerprint:
        raise ValueError(
            f"the data of {folder} have changed: it was run on {then}, now there is {data.fingerprint}; bring the old"
            " data back, or take resume=never to run it again"
        )


def build_trainer(
    cfg: DictConfig,
    run_id: str,
    folder: Path,
    throughput: Throughput,
    module: TrainingModule,
    callbacks: Sequence[Callback] = (),
) -> lightning.Trainer:
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
            HeedInterrupts(),
            StopOnNonFiniteLoss(folder / "checkpoints" / "last.ckpt"),
            ModelCheckpoint(filename="best", monitor=module.monitor, mode=module.mode, **where),
            ModelCheckpoint(filename="last", **where),  # after "best", whose state it carries
            ComponentUsage(),
            ProgressBar(throughput),
            *callbacks,
        ],
    )


def _test(trainer: lightning.Trainer, module: TrainingModule, batches: Batches, checkpoint: Path) -> dict[str, float]:
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
