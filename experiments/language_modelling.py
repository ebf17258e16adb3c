"""What a training step and an evaluation step are for a causal language model."""

import math
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric

from data.batch import IGNORED, Batch
from experiments.module import TrainingModule

SPLITS = {"val": "validation", "test": "test"}


class LogLikelihood(Metric):
    """Sum of -log p over all predicted tokens of a split, in float64, and their number. Nothing is averaged before."""

    total: Tensor
    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """``logits`` (B, N, V), ``labels`` (B, N) with ``IGNORED`` where nothing is predicted."""
        losses = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
        self.total += losses.double().sum()
        self.tokens += (labels != IGNORED).sum()

    def compute(self) -> tuple[Tensor, Tensor]:
        """Nats in all, and tokens."""
        return self.total, self.tokens


class LanguageModelling(TrainingModule):
    """Cross-entropy of the next token; perplexities and bits per byte of a whole split.

    ``loss`` is nats a token of the model, ``perplexity`` its exponential. ``word_perplexity`` spreads the same total
    over the words of the text (a newline counts as one), ``bits_per_byte`` over its bytes: these two compare across
    tokenizers.

    Args:
        data: the data set; once loaded, its ``words`` and ``bytes`` say how many each split has.
        model, train, seed: see :class:`TrainingModule`.
    """

    monitor, mode = "val/loss", "min"

    def __init__(self, model: nn.Module, data: Any, train: DictConfig, seed: int) -> None:
        super().__init__(model, train, seed)
        self.data = data
        self.likelihoods = nn.ModuleDict({split: LogLikelihood() for split in SPLITS})

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits = self.model(batch.inputs, batch.mask).float()
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED)
        self.log("train/loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, ("val", "test")[dataloader_idx])

    def on_validation_epoch_end(self) -> None:
        self._report("val", prog_bar=True)

    def on_test_epoch_end(self) -> None:
        for split in SPLITS:
            self._report(split, logger=False)

    def _evaluate(self, batch: Batch, split: str) -> None:
        self.likelihoods[split].update(self.model(batch.inputs, batch.mask), batch.labels)

    def _report(self, split: str, **log: Any) -> None:
        total, tokens = (float(value) for value in self.likelihoods[split].compute())
        self.likelihoods[split].reset()
        words, size = (counts[SPLITS[split]] for counts in (self.data.words, self.data.bytes))
        scores = {
            "loss": total / tokens,
            "perplexity": _exp(total / tokens),
            "word_perplexity": _exp(total / words),
            "bits_per_byte": total / size / math.log(2),
        }
        for name, value in scores.items():
            self.log(f"{split}/{name}", torch.tensor(value, dtype=torch.float64), **log)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
