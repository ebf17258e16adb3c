"""``python -m experiments.datasets``: the data set of every task, where it is, and how to get what is missing."""

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from experiments.arguments import complaining_in_one_line
from experiments.config import CONF, refusing, register_resolvers
from experiments.errors import RefusedError

MISSING, TO_FETCH = "missing", "to fetch"


@dataclass(frozen=True)
class Row:
    """One data set.

    Attributes:
        task: as in ``task=``. state: ready (in the cache), here (a local copy or files, to be read at first use), to
            generate, to fetch, or missing.
        where: folder, or name on the hub. size: bytes there. checksum: of the cached files, from their manifest.
        help: how to get it, if it is to be fetched or missing.
    """

    task: str
    state: str
    where: str = ""
    size: int | None = None
    checksum: str = ""
    help: str = ""


def describe(overrides: list[str]) -> list[Row]:
    """One row a task that has data, at the scale that ``overrides`` choose."""
    from hydra import compose, initialize_config_dir

    register_resolvers()
    paths = [path for path in (CONF / "task").rglob("*.yaml") if path.name != "lra.yaml"]
    rows = []
    for task in sorted(path.relative_to(CONF / "task").with_suffix("").as_posix() for path in paths):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("config", [*overrides, f"task={task}"])
        if "data" in cfg.task:
            rows.append(describe_task(task, cfg))
    return rows


def describe_task(task: str, cfg: DictConfig) -> Row:
    """The data set of one composed config."""
    from experiments.build import build_data

    try:
        with refusing():
            data = build_data(cfg)
    except RefusedError as error:
        return Row(task, MISSING, help=str(error))
    if data.place.is_dir():
        manifest = data.place / "manifest.json"
        checksum = hashlib.sha256(manifest.read_bytes()).hexdigest()[:12] if manifest.is_file() else ""
        return Row(task, "ready", str(data.place), _size(data.place), checksum)
    source: Path | None = getattr(data, "folder", None) or getattr(data, "local", None)
    if source is not None:
        return Row(task, "here", str(source), _size(source))
    if not hasattr(data, "path"):
        return Row(task, "to generate", str(data.place))
    help_ = (
        f"comes from the hub at first use; offline, set GMA_DATA_DIR to a folder that holds hub/{data.path}/README.md"
        f" and hub/{data.path}/{data.config}/*.parquet"
    )
    return Row(task, TO_FETCH, data.path, help=help_)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def show(rows: list[Row]) -> None:
    """Print the table, and below it how to get what is not there."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for heading in ("task", "state", "MB", "checksum", "where"):
        table.add_column(heading, justify="right" if heading == "MB" else "left", overflow="fold")
    for row in rows:
        table.add_row(row.task, row.state, "" if row.size is None else f"{row.size / 1e6:.1f}", row.checksum, row.where)
    console = Console()
    console.print(table)
    for row in rows:
        if row.help:
            console.print(f"{row.task}: {row.help}", highlight=False)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.datasets",
        description="The data set of every task: where it is, its size and checksum, how to get what is missing.",
    )
    parser.add_argument("override", nargs="*", help="as of experiments.run: scale=paper data_dir=... cache_dir=...")
    overrides = parser.parse_args().override
    with complaining_in_one_line(overrides):
        show(describe(overrides))


if __name__ == "__main__":
    main()
