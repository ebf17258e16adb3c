"""Image classification of Long Range Arena: CIFAR-10 in grey, one pixel after the other."""

from pathlib import Path

from datasets import Dataset, DatasetDict

from data.hub import digest, find_local_copy, load_split
from data.lra.base import LabelledSequences, as_dataset, hold_out, limited

FORMAT_VERSION = 1  # part of the cache key: raise it when the same images would give other rows


class Image(LabelledSequences):
    """Columns ``tokens``, 1,024 grey levels row by row, and ``label`` 0-9; a tenth of the train images validate.

    Black is a grey level like any other: nothing is padding.

    Args:
        cache_dir: where the Arrow files go. data_dir: looked through for a local copy before the hub is asked.
        path, config: on the hub.
        seed: of the choice of held-out images. limit: keeps only so many of each file, chosen by ``seed``.

    Raises:
        FileNotFoundError: from :meth:`load`, if the images are neither here nor to be fetched.
    """

    name = "cifar10"
    vocab_size = 256
    num_classes = 10
    length = 1024

    def __init__(
        self,
        cache_dir: str | Path,
        data_dir: str | Path | None = None,
        path: str = "uoft-cs/cifar10",
        config: str = "plain_text",
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        self.cache_dir = Path(cache_dir).expanduser()
        self.path, self.config, self.seed, self.limit = path, config, seed, limit
        self.local = find_local_copy(path, config, data_dir)

    @property
    def fingerprint(self) -> str:
        """Names the data: the same for the same rows."""
        return f"v{FORMAT_VERSION}-seed{self.seed}-{self.limit or 'all'}-{digest(self.path, self.config, self.local)}"

    @property
    def source(self) -> str:
        """The hub, or a local copy."""
        return "hub" if self.local is None else "local copy of the hub's"

    def _build(self) -> DatasetDict:
        train, held_out = hold_out(self._read("train"), self.seed)
        return DatasetDict(train=train, validation=held_out, test=self._read("test"))

    def _read(self, split: str) -> Dataset:
        rows = load_split(self.path, self.config, split, self.local, "give task.data.path, a local folder like that")
        return limited(
            as_dataset([(row["img"].convert("L").tobytes(), row["label"]) for row in rows]), self.limit, self.seed
        )
