"""What watches a training: speed, a finite loss, and a bar that says how it goes."""

import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from rich import get_console
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from experiments.errors import NonFiniteLossError
from gma import GaussianMixtureAttention
from gma.analysis import effective_components, mean_entropy

BAR_LABELS = {
    "train/loss": "loss",
    "val/accuracy": "val acc",
    "val/perplexity": "val ppl",
}  # the metrics that have room on the bar


class Throughput(Callback):
    """Counts real tokens and the seconds spent training (loading included, validation not), over all sittings.

    The count stays on the device: nothing waits for it before a validation.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.tokens = 0
        self.wall_seconds = 0.0
        self.sittings = 0
        self._unread: Tensor | int = 0
        self._since: float | None = None
        self._started = time.perf_counter()

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.sittings += 1
        self._resume()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._unread = self._unread + (batch.inputs.shape[:2].numel() if batch.mask is None else batch.mask.sum())

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._pause()

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._resume()

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._pause()

    @property
    def tokens_per_second(self) -> float:
        """Of this process, up to now."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        seconds = self.seconds + running
        return (self.tokens + int(self._unread)) / seconds if seconds else 0.0

    def total_wall_seconds(self) -> float:
        """From the start of the first sitting to now, without the time between sittings."""
        return self.wall_seconds + time.perf_counter() - self._started

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "tokens": self.tokens + int(self._unread),
            "wall_seconds": self.total_wall_seconds(),
            "sittings": self.sittings,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds, self.tokens = state["seconds"], state["tokens"]
        self.wall_seconds, self.sittings = state["wall_seconds"], state["sittings"]

    def _resume(self) -> None:
        self._since = time.perf_counter()

    def _pause(self) -> None:
        if self._since is not None:
            self.tokens += int(self._unread)  # waits for the device, so that the time below is its time too
            self._unread = 0
            self.seconds += time.perf_counter() - self._since
            self._since = None


class HeedInterrupts(Callback):
    """Raises ``KeyboardInterrupt`` again at the next batch if it was lost: Python drops what a destructor raises."""

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def on_fit_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread() and callable(
            before := signal.getsignal(signal.SIGINT)
        ):
            self._before = before
            signal.signal(signal.SIGINT, self._note)

    def on_train_batch_start(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._asked:
            raise KeyboardInterrupt

    def on_fit_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._before(number, frame)


class StopOnNonFiniteLoss(Callback):
    """Raises :class:`NonFiniteLossError` naming step and rows, before the checkpoint on disk can be overwritten.

    On a GPU the verdict is read every ``check_every`` steps and before each validation, so that no step waits for it.
    """

    def __init__(self, last_checkpoint: Path, check_every: int = 50) -> None:
        self.last_checkpoint = last_checkpoint
        self.check_every = check_every
        self._first_bad: Tensor | None = None

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs["loss"].detach()
        if self._first_bad is None:
            self._first_bad = torch.full((), -1, device=loss.device)
        is_first = (self._first_bad < 0) & ~torch.isfinite(loss)
        self._first_bad = torch.where(is_first, batch_idx, self._first_bad)
        if loss.device.type == "cpu" or batch_idx % self.check_every == 0:
            self._check(trainer)

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._check(trainer)

    def _check(self, trainer: lightning.Trainer) -> None:
        if self._first_bad is None or (step := int(self._first_bad)) < 0:
            return
        rows = trainer.train_dataloader.batch_sampler.rows(step)
        kept = self.last_checkpoint
        rescue = f"the last good checkpoint is {kept}" if kept.exists() else "no checkpoint had been written yet"
        raise NonFiniteLossError(
            f"the loss is not finite at step {step + 1} of {trainer.num_training_batches} (train rows"
            f" {', '.join(map(str, rows))}); {rescue}. Try a lower train.learning_rate or trainer.precision=32-true"
        )


class ComponentUsage(Callback):
    """Logs, for every GMA layer, how many components it uses and how sharply, on the steps at which the loss is logged.

    ``usage/layer<i>/effective_components``: exp of the entropy of mean responsibilities, 1 to K, mean over heads, of
    queries and keys together. ``usage/layer<i>/entropy``: mean entropy of a token's responsibilities, 0 to log K nats.
    """

    def __init__(self) -> None:
        self._hooks: list[RemovableHandle] = []

    def on_train_batch_start(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if (trainer.global_step + 1) % trainer.log_every_n_steps:
            return
        layers = [layer for layer in module.modules() if isinstance(layer, GaussianMixtureAttention)]
        for index, layer in enumerate(layers):
            hook = partial(self._measure, module, f"usage/layer{index}")
            self._hooks.append(layer.register_forward_hook(hook))

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @staticmethod
    def _measure(
        module: lightning.LightningModule,
        name: str,
        layer: GaussianMixtureAttention,
        inputs: tuple[Tensor, Tensor | None],
        output: Tensor,
    ) -> None:
        x, mask = inputs
        with torch.no_grad():
            gamma = torch.cat(layer.responsibilities(x), dim=2)
        real = None if mask is None else torch.cat([mask, mask], dim=1)
        module.log(f"{name}/effective_components", effective_components(gamma, real).mean())
        module.log(f"{name}/entropy", mean_entropy(gamma, real).mean())


class ProgressBar(RichProgressBar):
    """One bar for the whole training: loss, accuracy, tokens/s, time gone and left; a line at every validation."""

    def __init__(self, throughput: Throughput) -> None:
        super().__init__(refresh_rate=5, theme=RichProgressBarTheme(metrics_format=".4g"))
        self.throughput = throughput

    def get_metrics(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> dict[str, Any]:
        shown = super().get_metrics(trainer, module)
        metrics = {label: shown[name] for name, label in BAR_LABELS.items() if name in shown}
        metrics["tokens/s"] = f"{self.throughput.tokens_per_second * trainer.world_size:,.0f}"
        return metrics

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        super().on_validation_end(trainer, module)
        if trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_global_zero:
            return
        metrics = trainer.callback_metrics.items()
        shown = {name: f"{float(value):.4g}" for name, value in metrics if name.startswith(("train/", "val/"))}
        speed = f"{self.throughput.tokens_per_second * trainer.world_size:,.0f} tokens/s"
        line = "  ".join(f"{name} {value}" for name, value in sorted(shown.items()))
        console = self.progress.console if self.progress is not None else get_console()
        console.print(f"step {trainer.global_step}/{trainer.num_training_batches}  {line}  {speed}", soft_wrap=True)

    def configure_columns(self, trainer: lightning.Trainer) -> list[Any]:
        description, bar, steps, times, *_ = super().configure_columns(trainer)
        bar.bar_width = 8  # leaves the metrics on one line of 80 columns
        return [description, bar, steps, times]

    def on_exception(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, exception: BaseException
    ) -> None:
        super().on_exception(trainer, module, exception)
        if isinstance(exception, KeyboardInterrupt) and trainer.is_global_zero:
            print("interrupted; the same command goes on from the last validation", file=sys.stderr)

    def _get_train_description(self, current_epoch: int) -> str:
        return "Training"
