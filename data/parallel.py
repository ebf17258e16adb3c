"""Rows grown by several processes: the same rows in the same order however many there are."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def grow_rows(
    grow_shard: Callable[[int], list[tuple[bytes, int]]],
    shard_rows: int,
    wanted: int,
    processes: int | None,
    title: str,
) -> dict[bytes, int]:
    """At least ``wanted`` different rows with their labels, in the order of the shards.

    Args:
        grow_shard: shard number -> about ``shard_rows`` rows; a module's function (or a partial of one), to be pickled.
        processes: ``None`` takes every core.
        title: of the progress bar.
    """
    rows: dict[bytes, int] = {}  # a dict keeps the order and drops repeated rows
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes or _cores(), context, initializer=_leave_interrupts_to_the_parent)
    try:
        with Progress(*columns) as progress:
            bar = progress.add_task("", total=wanted)
            shard = 0
            while len(rows) < wanted:
                count = -(-(wanted - len(rows)) // shard_rows)
                for grown in pool.map(grow_shard, range(shard, shard + count)):
                    rows.update(grown)
                    progress.update(bar, completed=min(len(rows), wanted))
                shard += count
    finally:
        pool.shutdown(cancel_futures=True)
    return rows


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
