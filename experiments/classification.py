"""What a training step and an evaluation step are for a classification task."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import lightning
import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from data.batch import Batch


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

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        # Lightning refuses to clip for a fused optimizer under mixed precision; that is about the scaled gradients of
        # float16, which this project does not offer. Those of bfloat16 are not scaled.
        nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

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
