"""Data sets of the Hugging Face hub, or the same files in a local folder, by the same code. A local copy wins."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def find_local_copy(path: str, config: str, data_dir: str | Path | None) -> Path | None:
    """The folder in the hub's layout that holds ``config``: ``path`` itself, or one below ``data_dir``."""
    places = [Path(path).expanduser()]
    if data_dir is not None:
        root = Path(data_dir).expanduser()
        places += [root / "hub" / path, root / path]
    return next((place for place in places if (place / config).is_dir()), None)


def load_split(path: str, config: str, split: str, local: Path | None, other_way: str) -> Any:
    """Rows of one split, from the local copy without writing anything, or from the hub and its cache.

    Args:
        path, config: as on the hub. split: its name there. local: what :func:`find_local_copy` found.
        other_way: what else the user can do, to end the error message with.

    Raises:
        FileNotFoundError: saying every way to get the data, if it is neither here nor to be fetched.
    """
    from datasets import load_dataset

    try:
        if local is not None:
            return load_dataset(str(local), config, split=split, streaming=True)
        return load_dataset(path, config, split=split)
    except Exception as error:  # the hub's client raises a dozen kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FileNotFoundError(
            f"the {split} split of {path} ({config}) is not at {local or 'the hub, or it cannot be reached'}: {reason}."
            f" Be online once, so that it comes from the hub; or set GMA_DATA_DIR to a folder that holds"
            f" hub/{path}/README.md and hub/{path}/{config}/*.parquet; or {other_way}"
        ) from error


def digest(path: str, config: str, local: Path | None) -> str:
    """Twelve hexadecimal digits that follow the content of a local copy, or the names of a data set of the hub."""
    if local is None:
        return digest_of_words(path, config)
    return digest_of_files(sorted((local / config).glob("*")))


def digest_of_words(*words: object) -> str:
    """Twelve hexadecimal digits that follow ``words``."""
    return hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()[:12]


def digest_of_files(files: Iterable[Path]) -> str:
    """Twelve hexadecimal digits that follow what is in ``files``, not what they are called."""
    key = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            key.update(hashlib.file_digest(opened, "sha256").digest())
    return key.hexdigest()[:12]
