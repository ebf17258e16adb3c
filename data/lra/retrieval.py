"""Document retrieval of Long Range Arena: does one paper cite the other, both read byte by byte?

LRA's pairs come from the ACL Anthology Network (AAN), which cannot be downloaded any more. Files in LRA's layout are
read from a folder: ``new_aan_pairs.{train,eval,test}.tsv``, plain or ``.gz``, with columns label, id, id, text, text.
"""

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, Value
from datasets import Sequence as ListOf

from data.batch import Batch, pad
from data.hub import digest_of_files
from data.lra.base import LabelledSequences

FILES = {"train": "new_aan_pairs.train.tsv", "validation": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
FEATURES = Features({"tokens": ListOf(Value("uint8")), "other": ListOf(Value("uint8")), "label": Value("uint8")})
FORMAT_VERSION = 1


class Retrieval(LabelledSequences):
    """Columns ``tokens`` and ``other`` (bytes of the two papers, cut after ``length``), ``label`` 1 for a citation.

    A batch of B pairs is 2 B rows: all first papers, then all second ones; one model reads both, and the pair head
    (:class:`gma.heads.PairHead`) compares.

    Args:
        cache_dir: where the Arrow files go.
        folder: with LRA's three files.
        length: bytes of a paper that are read.

    Raises:
        ValueError: for a length below 1, no folder, or a line that is no pair.
        FileNotFoundError: for files missing in ``folder``.
    """

    name = "retrieval"
    vocab_size = 257  # 0 is padding
    num_classes = 2

    def __init__(self, cache_dir: str | Path, folder: str | Path | None = None, length: int = 4000) -> None:
        if length < 1:
            raise ValueError(f"length={length} is not allowed: it must be at least 1")
        if folder is None:
            raise ValueError(
                "task.data.folder=null is not allowed: give task.data.folder=PATH with"
                " new_aan_pairs.{train,eval,test}.tsv, plain or .gz. They are in lra_release.gz, which its authors have"
                " taken offline; ask someone who kept it, or write other pairs in that layout (label, id, id, text,"
                " text, separated by tabs)"
            )
        self.cache_dir, self.length = Path(cache_dir).expanduser(), length
        self.folder = Path(folder).expanduser()
        self.files = {split: self._find(name) for split, name in FILES.items()}

    @property
    def fingerprint(self) -> str:
        """Names the data: the same for the same rows."""
        return f"v{FORMAT_VERSION}-{self.length}-{digest_of_files(self.files.values())}"

    @property
    def source(self) -> str:
        """The folder's name: pairs other than AAN's may stand there."""
        return f"files in {self.folder.name}"

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Rows of a split in numpy format -> inputs of 2 B rows and B labels."""
        papers = [row["tokens"] for row in rows] + [row["other"] for row in rows]
        return pad([paper + np.uint16(1) for paper in papers], [int(row["label"]) for row in rows], 0)

    def _find(self, name: str) -> Path:
        for candidate in (self.folder / name, self.folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
        raise FileNotFoundError(
            f"{self.folder} has neither {name} nor {name}.gz: task.data.folder must hold LRA's three files"
        )

    def _build(self) -> DatasetDict:
        return DatasetDict({split: self._read(file) for split, file in self.files.items()})

    def _read(self, file: Path) -> Dataset:
        columns: dict[str, list[Any]] = {"tokens": [], "other": [], "label": []}
        with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as lines:
            for number, line in enumerate(_whole(lines, file), start=1):
                cells = line.rstrip(b"\r\n").split(b"\t")
                if len(cells) != 5 or cells[0] not in (b"0", b"1", b"0.0", b"1.0"):
                    raise ValueError(
                        f"{file}, line {number}: not a label (0 or 1), two ids and two texts, separated by tabs"
                    )
                columns["label"].append(int(float(cells[0])))
                for column, text in (("tokens", cells[3]), ("other", cells[4])):
                    columns[column].append(np.frombuffer(text[: self.length], np.uint8))
        return Dataset.from_dict(columns, features=FEATURES)


def _whole(lines: Iterable[bytes], file: Path) -> Iterator[bytes]:
    try:
        yield from lines
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} is cut short or no gzip file: {error}") from error
