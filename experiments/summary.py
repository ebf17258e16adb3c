"""What a finished run says on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.results import Result


def show(result: Result, folder: Path) -> None:
    """Print the metrics of both checkpoints with the floors beside them, cost, and where the result lies."""
    best, last = (result.checkpoints[which]["step"] for which in ("best", "last"))
    table = Table(title=result.run_id, title_justify="left")
    table.add_column("")
    table.add_column(f"best checkpoint (step {best})", justify="right")
    table.add_column(f"last checkpoint (step {last})", justify="right")
    for name, value in result.metrics.items():
        table.add_row(name, f"{value:.4f}", f"{result.metrics_last[name]:.4f}")
    for name, value in result.floors.items():
        table.add_row(f"floor: {name.replace('_', ' ')}", f"{value:.4f}", f"{value:.4f}", style="dim")
    console = Console()
    console.print(table)
    console.print(
        f"{result.parameters:,} parameters, {result.steps} steps, {result.tokens_seen:,} tokens at"
        f" {result.tokens_per_second:,.0f} tokens/s, {result.wall_seconds:.0f} s in all;"
        f" {result.execution['precision']} on {result.execution['devices']} device(s)"
    )
    console.print(f"{folder / 'result.json'}", soft_wrap=True, highlight=False)


def show_together(several: Sequence[Result]) -> None:
    """Print one line a run of a multirun: its score on the test split."""
    table = Table("task", "model", "seed", "score", title="all runs", title_justify="left")
    for heading in ("best checkpoint", "last checkpoint", "floors", "minutes"):
        table.add_column(heading, justify="right")
    for result in several:
        name = next(name for name in result.metrics if name.startswith("test/") and name != "test/loss")
        floors = ", ".join(f"{value:.4f}" for value in result.floors.values())
        scores = (f"{result.metrics[name]:.4f}", f"{result.metrics_last[name]:.4f}")
        table.add_row(
            result.task, result.model, str(result.seed), name, *scores, floors, f"{result.wall_seconds / 60:.1f}"
        )
    Console().print(table)
