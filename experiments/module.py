"""What training is for every task: dropout's draws, clipping, optimizer, schedule. A subclass says what the loss is."""

import hashlib
import math
from collections.abc import Callable
from typing import Any, ClassVar

import lightning
import torch
from omegaconf import DictConfig
from torch import nn

from data.batch import Batch


class TrainingModule(lightning.LightningModule):
    """A model and how it is optimised.

    A subclass defines ``training_step``, ``validation_step`` and ``test_step`` (dataloader 0 is the validation split, 1
    the test split), logs ``val/...`` and ``test/...``, and names the metric that chooses the best checkpoint.

    Args:
        model: (inputs, mask) -> logits.
        train: the config's ``train`` node.
        seed: of dropout; each step draws from (seed, step, rank) alone, so that a resumed run repeats it.
    """

    monitor: ClassVar[str]
    mode: ClassVar[str]  # "max" or "min"

    def __init__(self, model: nn.Module, train: DictConfig, seed: int) -> None:
        super().__init__()
        self.model, self.train_config, self.seed = model, train, seed

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        key = f"{self.seed} {self.global_step} {self.global_rank}".encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "big"))

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
        """AdamW: decay on matrices alone; a parameter's ``learning_rate_scale``, if it has one, on its rate."""
        matrices = {module.weight for module in self.model.modules() if isinstance(module, nn.Linear)}
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for parameter in self.parameters():
            rate = self.train_config.learning_rate * getattr(parameter, "learning_rate_scale", 1.0)
            decay = self.train_config.weight_decay if parameter in matrices else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
        optimizer = torch.optim.AdamW(
            [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()],
            betas=tuple(self.train_config.betas),
            fused=self.device.type in ("cpu", "cuda"),
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
