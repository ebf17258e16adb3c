"""Build a data set once and find it again: atomic, checked, safe between processes.

A cached set is a folder with a manifest of the size and SHA-256 of each of its files. It is built beside its place and
moved there whole; a set that does not match its manifest is built anew.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets import (
    DatasetDict,
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    load_from_disk,
)
from filelock import FileLock

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"


def load_or_build(folder: Path, build: Callable[[], DatasetDict]) -> DatasetDict:
    """Return the Arrow data set in ``folder``, memory-mapped; call ``build`` first if it is missing or damaged."""

    def fill(place: Path) -> None:
        built = build()
        with _no_progress_bars():
            built.save_to_disk(str(place))

    return load_from_disk(str(find_or_fill(folder, fill)))


def find_or_fill(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return ``folder``; if it is missing or damaged, let ``fill`` write its files into an empty place first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if folder.exists() and (damage := find_damage(folder)):
            log.warning("the cached data set %s is damaged (%s); building it again", folder, damage)
            shutil.rmtree(folder)
        if not folder.exists():
            partial = folder.with_name(folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            fill(partial)
            (partial / MANIFEST).write_text(json.dumps(_fingerprints(partial), indent=1))
            os.replace(partial, folder)
    return folder


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    hidden = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            enable_progress_bars()


def find_damage(folder: Path) -> str | None:
    """What is wrong with a cached set, in a few words, or ``None``."""
    try:
        expected = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return "its manifest is missing or unreadable"
    found = _fingerprints(folder)
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return f"changed, missing or extra: {', '.join(wrong)}" if wrong else None


def _fingerprints(folder: Path) -> dict[str, list[int | str]]:
    fingerprints: dict[str, list[int | str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            fingerprints[path.relative_to(folder).as_posix()] = [path.stat().st_size, digest]
    return fingerprints
