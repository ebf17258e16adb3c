"""Image classification of Long Range Arena: CIFAR-10 in grey, one pixel after the other."""

from collections.abc import Mapping
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, DatasetDict

from data.hub import digest, find_local_copy, load_split
from data.lra.base import as_dataset, check_limits, count_name, frequencies_floor, hold_out, limited
from data.lra.pixels import PixelSequences

FORMAT_VERSION = 2  # part of the cache key: raise it when the same images would give other rows


class Image(PixelSequences):
    """Columns ``tokens``, 1,024 grey levels row by row, and ``label`` 0-9; a tenth of the train images validate.

    Args:
        cache_dir: where the Arrow files go. data_dir: looked through for a local copy before the hub is asked.
        path, config: on the hub.
        pixels: see :class:`PixelSequences`.
        seed: of the choice of held-out images, and of those kept.
        rows: how many of each split are kept; see :func:`data.lra.base.check_limits`.

    Raises:
        FileNotFoundError: from :meth:`load`, if the images are neither here nor to be fetched.
    """

    name = "cifar10"
    num_classes = 10
    length = 1024

    def __init__(
        self,
        cache_dir: str | Path,
        data_dir: str | Path | None = None,
        path: str = "uoft-cs/cifar10",
        config: str = "plain_text",
        pixels: str = "tokens",
        seed: int = 0,
        rows: Mapping[str, int | None] | None = None,
    ) -> None:
        super().__init__(pixels)
        self.cache_dir = Path(cache_dir).expanduser()
        self.path, self.config, self.seed, self.rows = path, config, seed, check_limits(rows)
        self.local = find_local_copy(path, config, data_dir)

    @property
    def fingerprint(self) -> str:
        """Names the data: the same for the same rows."""
        return f"v{FORMAT_VERSION}-seed{self.seed}-{count_name(self.rows)}-{digest(self.path, self.config, self.local)}"

    @cached_property
    def source(self) -> str:
        """The hub, or a local copy; one whose files are JPEG has lost detail and says so."""
        if self.local is None:
            return "hub"
        compression = next(iter(self._open("train")))["img"].format
        return "local copy of the hub's" + (", compressed with loss (JPEG)" if compression == "JPEG" else "")

    def floors(self, splits: DatasetDict) -> dict[str, float]:
        """``grey_level_frequencies``: what the grey levels tell that occur, in whatever order."""
        return super().floors(splits) | {"grey_level_frequencies": frequencies_floor(splits)}

    def _build(self) -> DatasetDict:
        train, held_out = hold_out(self._files("train"), self.seed)
        chosen = limited({"train": train, "validation": held_out, "test": self._files("test")}, self.rows, self.seed)
        return DatasetDict({split: self._decoded(rows, split) for split, rows in chosen.items()})

    def _files(self, split: str) -> Dataset:
        """Pictures as they are stored, as decoding takes most of the time and not all may be asked for."""
        rows = list(self._open(split).cast_column("img", datasets.Image(decode=False)))
        return Dataset.from_dict(
            {"file": [row["img"]["bytes"] for row in rows], "label": [row["label"] for row in rows]}
        )

    def _decoded(self, rows: Dataset, split: str) -> Dataset:
        from PIL import Image as Picture

        try:
            return as_dataset([(Picture.open(BytesIO(r["file"])).convert("L").tobytes(), r["label"]) for r in rows])
        except OSError as error:  # also what Pillow raises for what is no image
            place = self.local or self.path
            raise ValueError(f"an image of the {split} split of {place} cannot be read: {error}") from error

    def _open(self, split: str) -> Any:
        return load_split(self.path, self.config, split, self.local, "give task.data.path, a local folder like that")
