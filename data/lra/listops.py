"""ListOps of Long Range Arena: the value 0-9 of a nested expression of MIN, MAX, median and sum modulo 10.

Generated after the rules of LRA's own generator, without a network, or read from LRA's ``basic_{train,val,test}.tsv``.
"""

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import DatasetDict

from data.lra import expressions
from data.lra.base import LabelledSequences, as_dataset, check_rows, count_name, split_rows
from data.parallel import grow_rows

LRA_FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
SHARD_ROWS = 500
GENERATOR_VERSION = 1  # part of the cache key: raise it when the same seed would give other rows


class ListOps(LabelledSequences):
    """Three splits of expressions with columns ``tokens`` (see :mod:`data.lra.expressions`) and ``label`` 0-9.

    Args:
        cache_dir: where the Arrow files go.
        rows: rows of the splits ``train``, ``validation`` and ``test``, when generated.
        min_length, max_length: only lengths strictly between are kept, when generated.
        length: the longest input the model takes; expressions are not cut, so it must hold the longest of them.
        seed: of the generator.
        folder: read LRA's three files from here instead of generating.
        processes: that generate; ``None`` takes every core. The rows do not depend on it.

    Raises:
        ValueError: naming the argument, for lengths or counts that make no sense.
        FileNotFoundError: for files missing in ``folder``.
    """

    name = "listops"
    pad_value = expressions.PAD
    vocab_size = expressions.VOCAB_SIZE
    num_classes = 10

    def __init__(
        self,
        cache_dir: str | Path,
        rows: Mapping[str, int],
        min_length: int = 500,
        max_length: int = 2000,
        length: int = 2000,
        seed: int = 0,
        folder: str | Path | None = None,
        processes: int | None = None,
    ) -> None:
        if not 0 <= min_length < max_length - 1:
            raise ValueError(
                f"min_length={min_length} is not allowed: it must be from 0 to max_length - 2={max_length - 2}"
            )
        if length < max_length:
            raise ValueError(
                f"length={length} is not allowed: expressions of up to {max_length - 1} tokens would be cut, which"
                f" loses their value; give a length of at least max_length={max_length}, or lower max_length with it"
            )
        self.cache_dir = Path(cache_dir).expanduser()
        self.rows = check_rows(rows)
        self.min_length, self.max_length, self.length = min_length, max_length, length
        self.seed = seed
        self.folder = None if folder is None else Path(folder).expanduser()
        self.processes = processes
        if self.folder is not None:
            missing = [name for name in LRA_FILES.values() if not (self.folder / name).is_file()]
            if missing:
                raise FileNotFoundError(
                    f"{self.folder} lacks {', '.join(missing)}: folder must hold LRA's listops files"
                    f" ({', '.join(LRA_FILES.values())}), or be null to generate the data"
                )

    @property
    def fingerprint(self) -> str:
        """Names the data: the same for the same rows."""
        if self.folder is None:
            lengths = f"{self.min_length}-{self.max_length}"
            return f"generated-v{GENERATOR_VERSION}-seed{self.seed}-{lengths}-{count_name(self.rows)}"
        digest = hashlib.sha256(f"length {self.length}".encode())
        for name in LRA_FILES.values():
            with (self.folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"files-{digest.hexdigest()[:16]}"

    @property
    def source(self) -> str:
        """Generated, or LRA's files."""
        return "generated" if self.folder is None else "files"

    def what_rules_see(self, tokens: np.ndarray) -> dict[str, Any]:
        """``root_operator``: the first token; ``root_operator_and_digits``: also the least (MIN) or greatest (MAX) of
        the digits right under it.
        """
        operator = expressions.root_operator(tokens)
        extreme = (min, max)[operator](expressions.root_digits(tokens), default=None) if operator in (0, 1) else None
        rules = {"root_operator": operator, "root_operator_and_digits": (operator, extreme)}
        return super().what_rules_see(tokens) | rules

    def _build(self) -> DatasetDict:
        return self._generate() if self.folder is None else self._read()

    def _generate(self) -> DatasetDict:
        grow = partial(_grow_shard, self.seed, self.min_length, self.max_length)
        rows = grow_rows(grow, SHARD_ROWS, sum(self.rows.values()), self.processes, "Generating ListOps")
        return split_rows(rows.items(), self.rows)

    def _read(self) -> DatasetDict:
        assert self.folder is not None
        return DatasetDict({split: as_dataset(self._rows_of(self.folder / name)) for split, name in LRA_FILES.items()})

    def _rows_of(self, path: Path) -> list[tuple[bytes, int]]:
        lines = path.read_text().splitlines()
        rows = []
        for number, line in enumerate(lines[1:], start=2):
            try:
                source, target = line.split("\t")
                label = int(target)
                tokens = expressions.tokenize(source)
                if not 0 <= label <= 9:
                    raise ValueError(f"label {label} is not a digit")
                if not 1 <= len(tokens) <= self.length:
                    raise ValueError(f"{len(tokens)} tokens, allowed are 1 to length={self.length}")
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            rows.append((bytes(tokens), label))
        if not lines or lines[0].split("\t") != ["Source", "Target"] or not rows:
            raise ValueError(f"{path} is not one of LRA's listops files: it needs a header Source<TAB>Target and rows")
        return rows


def _grow_shard(seed: int, min_length: int, max_length: int, shard: int) -> list[tuple[bytes, int]]:
    return expressions.grow_shard(seed, shard, SHARD_ROWS, min_length, max_length)
