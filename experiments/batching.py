"""Which rows make up which batch: a pure function of the seed and the step, on any number of devices.

A resumed run therefore sees what it would have seen, and two processes together see what one would. Rows of similar
length share a batch, so that little is padding.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import lightning
import numpy as np
import pyarrow.compute
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler

from data.batch import Batch
from data.windows import Windows

Rows = Dataset | Windows

WINDOW_BATCHES = 32  # rows are sorted by length among this many batches


class TrainBatches(Sampler[list[int]]):
    """Row numbers of the batches ``start .. steps - 1``; reshuffled each pass over the rows, incomplete ones dropped.

    Args:
        lengths: of every row.
        batch_size: rows over all ranks, at most the number of rows.
        steps: batches in the whole training.
        seed: of the order.
        rank, world_size: this process takes every ``world_size``-th row of a batch, from ``rank`` on.
        start: batches that an earlier part of this run has already taken.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        steps: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
    ) -> None:
        self.lengths, self.batch_size, self.steps, self.seed = lengths, batch_size, steps, seed
        self.rank, self.world_size, self.start = rank, world_size, start
        self.batches_per_pass = len(lengths) // batch_size

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        step = self.start
        while step < self.steps:
            offset = step % self.batches_per_pass
            for batch in self._batches_of_pass(step // self.batches_per_pass)[offset : offset + self.steps - step]:
                yield batch[self.rank :: self.world_size].tolist()
                step += 1

    def rows(self, step: int) -> list[int]:
        """The rows of all ranks at one step."""
        return self._batches_of_pass(step // self.batches_per_pass)[step % self.batches_per_pass].tolist()

    def _batches_of_pass(self, number: int) -> np.ndarray:
        """(batches, batch_size) row numbers of one pass over the data."""
        rng = np.random.default_rng((self.seed, number))
        rows = rng.permutation(len(self.lengths))[: self.batches_per_pass * self.batch_size]
        window = WINDOW_BATCHES * self.batch_size
        for first in range(0, len(rows), window):
            part = rows[first : first + window]
            ordered = part[np.argsort(self.lengths[part], kind="stable")].reshape(-1, self.batch_size)
            rows[first : first + window] = rng.permutation(ordered).reshape(-1)
        return rows.reshape(-1, self.batch_size)


class EvaluationBatches(Sampler[list[int]]):
    """Every row once, by length; every rank gets the same number of batches and none a row twice.

    Raises:
        ValueError: for fewer rows than ranks.
    """

    def __init__(self, lengths: np.ndarray, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        if len(lengths) < world_size:
            raise ValueError(f"{len(lengths)} rows cannot be spread over {world_size} processes; take fewer devices")
        by_length = np.argsort(lengths, kind="stable")
        batches = np.array_split(by_length, min(-(-len(lengths) // batch_size), len(lengths) // world_size))
        self.batches = [batch[rank::world_size].tolist() for batch in batches]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class TrainLoader(DataLoader):
    """A loader whose position is the step of the run: it has no state of its own to save, and resumes mid-pass."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Batches(lightning.LightningDataModule):
    """Loaders of the three splits of ``data`` (``collate``), for the trainer's rank.

    Args:
        data: the data set object. splits: what its ``load`` returned.
        batch_size: over all ranks. steps, seed: see :class:`TrainBatches`.
        num_workers: processes that collate; 0 is this one.
        world_size: ranks that share a batch.

    Raises:
        ValueError: if the ranks don't divide ``batch_size``, or a split is too small.
    """

    def __init__(
        self,
        data: Any,
        splits: Mapping[str, Rows],
        batch_size: int,
        steps: int,
        seed: int,
        num_workers: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__()
        rows = len(splits["train"])
        if batch_size > rows:
            raise ValueError(f"train.batch_size={batch_size} is not allowed: the train split has only {rows} rows")
        if batch_size % world_size:
            raise ValueError(
                f"train.batch_size={batch_size} is not allowed: it must be a multiple of the {world_size} processes"
                " that share it"
            )
        self.data, self.splits = data, splits
        self.batch_size, self.steps, self.seed, self.num_workers = batch_size, steps, seed, num_workers

    def first(self) -> Batch:
        """The batch of the first step, of all ranks together."""
        rows = self._formatted("train")
        order = TrainBatches(_lengths(self.splits["train"]), self.batch_size, self.steps, self.seed)
        return self.data.collate([rows[row] for row in order.rows(0)])

    def train_dataloader(self) -> DataLoader:
        """From the trainer's current step on."""
        sampler = TrainBatches(
            _lengths(self.splits["train"]),
            self.batch_size,
            self.steps,
            self.seed,
            self.trainer.global_rank,
            self.trainer.world_size,
            start=self.trainer.global_step,
        )
        return self._loader(TrainLoader, "train", sampler)

    def val_dataloader(self) -> DataLoader:
        """The validation split, during training."""
        return self._evaluation("validation")

    def test_dataloader(self) -> list[DataLoader]:
        """Validation and test split: both are measured for the final checkpoints."""
        return [self._evaluation("validation"), self._evaluation("test")]

    def _evaluation(self, split: str) -> DataLoader:
        lengths = _lengths(self.splits[split])
        sampler = EvaluationBatches(lengths, self.batch_size, self.trainer.global_rank, self.trainer.world_size)
        return self._loader(DataLoader, split, sampler)

    def _formatted(self, split: str) -> Rows:
        rows = self.splits[split]
        return rows.with_format("numpy") if isinstance(rows, Dataset) else rows

    def _loader(self, kind: type[DataLoader], split: str, sampler: Sampler[list[int]]) -> DataLoader:
        return kind(
            self._formatted(split),
            batch_sampler=sampler,
            collate_fn=self.data.collate,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=self.trainer.strategy.root_device.type == "cuda",
        )


def _lengths(rows: Rows) -> np.ndarray:
    if not isinstance(rows, Dataset):
        return rows.lengths
    return pyarrow.compute.list_value_length(rows.data.column("tokens")).to_numpy()
