"""Text classification of Long Range Arena: is a film review (IMDb) good or bad, read byte by byte?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict

from data.batch import Batch, pad
from data.hub import digest, find_local_copy, load_split
from data.lra.base import LabelledSequences, as_dataset, check_limits, count_name, frequencies_floor, hold_out, limited

FORMAT_VERSION = 2  # part of the cache key: raise it when the same reviews would give other rows


class Text(LabelledSequences):
    """Columns ``tokens`` (bytes, cut after ``length``) and ``label`` (0 bad, 1 good); a batch has bytes plus one.

    LRA validates on the test split. Here a tenth of the train split is held out instead, unless ``validation`` says
    ``test``; the result names which.

    Args:
        cache_dir: where the Arrow files go. data_dir: looked through for a local copy before the hub is asked.
        path, config: on the hub.
        length: bytes of a review that are read.
        validation: ``held_out`` or ``test``.
        seed: of the choice of held-out reviews, and of those kept.
        rows: how many of each split are kept; see :func:`data.lra.base.check_limits`.

    Raises:
        ValueError: naming the argument.
        FileNotFoundError: from :meth:`load`, if the reviews are neither here nor to be fetched.
    """

    name = "imdb"
    vocab_size = 257  # 0 is padding
    num_classes = 2

    def __init__(
        self,
        cache_dir: str | Path,
        data_dir: str | Path | None = None,
        path: str = "stanfordnlp/imdb",
        config: str = "plain_text",
        length: int = 4096,
        validation: str = "held_out",
        seed: int = 0,
        rows: Mapping[str, int | None] | None = None,
    ) -> None:
        if length < 1:
            raise ValueError(f"length={length} is not allowed: it must be at least 1")
        if validation not in ("held_out", "test"):
            raise ValueError(f"validation={validation!r} is not allowed: it must be held_out or test")
        self.cache_dir = Path(cache_dir).expanduser()
        self.path, self.config, self.length, self.validation, self.seed = path, config, length, validation, seed
        self.rows = check_limits(rows)
        self.local = find_local_copy(path, config, data_dir)

    @property
    def fingerprint(self) -> str:
        """Names the data: the same for the same rows."""
        name = f"v{FORMAT_VERSION}-{self.length}-{self.validation}-seed{self.seed}-{count_name(self.rows)}"
        return f"{name}-{digest(self.path, self.config, self.local)}"

    @property
    def source(self) -> str:
        """The hub, or a local copy."""
        return "hub" if self.local is None else "local copy of the hub's"

    def describe(self) -> dict[str, Any]:
        """What a result says of its data."""
        return super().describe() | {"validation": self.validation}

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Rows of a split in numpy format -> one padded batch."""
        return pad([row["tokens"] + np.uint16(1) for row in rows], [int(row["label"]) for row in rows], 0)

    def floors(self, splits: DatasetDict) -> dict[str, float]:
        """``byte_frequencies``: what the bytes tell that occur, in whatever order."""
        return super().floors(splits) | {"byte_frequencies": frequencies_floor(splits)}

    def _build(self) -> DatasetDict:
        train, test = self._read("train"), self._read("test")
        train, validation = (train, test) if self.validation == "test" else hold_out(train, self.seed)
        return limited({"train": train, "validation": validation, "test": test}, self.rows, self.seed)

    def _read(self, split: str) -> Dataset:
        rows = load_split(self.path, self.config, split, self.local, "give task.data.path, a local folder like that")
        return as_dataset([(row["text"].encode()[: self.length], row["label"]) for row in rows])
