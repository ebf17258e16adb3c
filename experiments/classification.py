"""What a training step and an evaluation step are for a classification task."""

from typing import Any

from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from data.batch import Batch
from experiments.module import TrainingModule


class Classification(TrainingModule):
    """Cross-entropy on logits (B, num_classes); accuracy and mean loss over a whole split.

    Args:
        data: the data set, for its ``num_classes``.
        model, train, seed: see :class:`TrainingModule`.
    """

    monitor, mode = "val/accuracy", "max"

    def __init__(self, model: nn.Module, data: Any, train: DictConfig, seed: int) -> None:
        super().__init__(model, train, seed)
        self.accuracies = nn.ModuleDict(
            {split: MulticlassAccuracy(data.num_classes, average="micro") for split in ("val", "test")}
        )
        self.losses = nn.ModuleDict({split: MeanMetric() for split in ("val", "test")})

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
