"""``python -m experiments.reproduce``: what is missing of Tables 1-4, run one after the other, then the report."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from omegaconf import DictConfig, OmegaConf

from experiments import results
from experiments.arguments import run_command
from experiments.config import CONF, file_digest, refusing, run_name
from experiments.errors import RefusedError

HELP = """Run what is missing of the paper's Tables 1-4 and make the report. Finished cells are skipped, a killed one
goes on where it stopped, a failed one is named at the end and tried again by the next call.

  python -m experiments.reproduce scale=smoke
  python -m experiments.reproduce only=table3 models=[gma,sdpa] seeds=[0,1] dry_run=true
  python -m experiments.reproduce scale=paper launcher=submitit_slurm overrides=[hydra.launcher.partition=gpu]

Keys, and what each is unless set:
"""
TASKS = {
    "table1": ("memory_scaling",),
    "table2": ("lra/listops", "lra/text", "lra/image", "lra/pathfinder"),
    "table3": ("wikitext103",),
    "table4": ("interpretability",),
}
SEEDED = ("table2", "table3")  # a measurement has one seed
DONE, TO_DO, IMPOSSIBLE = "done", "to do", "impossible here"


@dataclass(frozen=True)
class Cell:
    """One place of a table.

    Attributes:
        table, task, model, seed: which. state: done, to do, or impossible here; reason: why, in the last case.
        hours: that it will take, judging by results of the same task, model and scale; ``None`` without any.
        place: of its result file, where it is known beforehand. extra: arguments that only this cell has.
    """

    table: str
    task: str
    model: str
    seed: int
    state: str
    reason: str = ""
    hours: float | None = None
    place: Path | None = None
    extra: tuple[str, ...] = ()


def plan(arguments: DictConfig) -> list[Cell]:
    """Every cell that ``arguments`` ask for.

    Raises:
        RefusedError: for a table or model that is not known, or seeds that are none.
    """
    _check(arguments)
    past = _past_hours([Path(arguments.runs), Path(__file__).parent / "reference"], arguments.scale)
    cells: list[Cell] = []
    for table in _listed(arguments.only):
        for task in TASKS[table]:
            if table == "table4":
                cells.append(_components_cell(arguments))
                continue
            seeds = arguments.seeds if table in SEEDED else arguments.seeds[:1]
            lacking: str | None = None  # why its data cannot be had; asked once
            for model in arguments.models:
                cfg = _compose(arguments, task, model)
                lacking = _lacking(task, cfg) if lacking is None else lacking
                reason = lacking or _refused(cfg)
                for seed in seeds:
                    place = _result(arguments, cfg, model, seed)
                    state = DONE if place.is_file() else IMPOSSIBLE if reason else TO_DO
                    told = reason if state == IMPOSSIBLE else ""
                    cells.append(Cell(table, task, model, seed, state, told, past.get((task, model)), place))
    return cells


def _check(arguments: DictConfig) -> None:
    """Refuse what cannot be asked for, and fill in the seeds."""
    for name, values, allowed in (
        ("only", _listed(arguments.only), list(TASKS)),
        ("models", arguments.models, sorted(path.stem for path in (CONF / "model").glob("*.yaml"))),
        ("scale", [arguments.scale], ["smoke", "cpu", "paper"]),
    ):
        for value in values:
            if value not in allowed:
                raise RefusedError(f"{name}={value} is not known; allowed: {', '.join(allowed)}")
    if arguments.seeds is None:
        arguments.seeds = [0] if arguments.scale == "smoke" else [0, 1, 2]
    seeds = arguments.seeds
    if not OmegaConf.is_list(seeds) or not seeds or not all(isinstance(seed, int) and seed >= 0 for seed in seeds):
        raise RefusedError(f"seeds={seeds} is not allowed: give a list of whole numbers, as seeds=[0,1,2]")
    if not arguments.models or not _listed(arguments.only):
        raise RefusedError("nothing to do: only= and models= must name something")


def _listed(value: object) -> list[str]:
    return [value] if isinstance(value, str) else list(value)  # type: ignore[call-overload]


def _compose(arguments: DictConfig, task: str, model: str) -> DictConfig:
    from hydra import compose, initialize_config_dir

    own = [word for word in arguments.overrides if not word.lstrip("+").startswith("hydra")]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", [f"task={task}", f"model={model}", f"scale={arguments.scale}", *own])


def _result(arguments: DictConfig, cfg: DictConfig, model: str, seed: int) -> Path:
    """Where the result of a cell lies, once there is one."""
    cfg.seed = seed
    return Path(arguments.runs) / cfg.task.name / model / run_name(cfg) / results.FILE_NAME


def _lacking(task: str, cfg: DictConfig) -> str:
    """Why a task's data cannot be had here, or nothing."""
    from experiments.datasets import MISSING, TO_FETCH, describe_task

    if "data" not in cfg.task:
        return ""
    row = describe_task(task, cfg)
    offline = row.state == TO_FETCH and os.environ.get("HF_HUB_OFFLINE") == "1"
    return row.help if offline or row.state == MISSING else ""


def _refused(cfg: DictConfig) -> str:
    """Why a model cannot be built for its task, or nothing."""
    from experiments.build import build_data, build_model

    if "data" not in cfg.task:
        return ""
    try:
        with refusing():
            build_model(cfg, build_data(cfg))
    except RefusedError as error:
        return str(error)
    return ""


def _components_cell(arguments: DictConfig) -> Cell:
    """Table 4 looks at what Table 3 has trained: the first seed's GMA."""
    cfg = _compose(arguments, "wikitext103", "gma")
    run = _result(arguments, cfg, "gma", arguments.seeds[0])
    checkpoint = run.parent / "checkpoints" / "best.ckpt"
    name = f"{run.parent.name}/best.ckpt"
    for path in (Path(arguments.runs) / "interpretability" / "gma").glob(f"*/{results.FILE_NAME}"):
        try:
            record = results.read(path)
        except ValueError:
            continue  # the report names it
        same = record.scale == arguments.scale and record.execution.get("checkpoint") == name
        if same and checkpoint.is_file() and record.config["task"]["weights"] == file_digest(str(checkpoint)):
            return Cell("table4", "interpretability", "gma", 0, DONE)
    state, reason = TO_DO, ""
    if not run.is_file():
        trained_first = "table3" in _listed(arguments.only) and "gma" in arguments.models
        reason = _lacking("wikitext103", cfg) if trained_first else "needs the GMA of table3 with the same seed"
        state = IMPOSSIBLE if reason else TO_DO
    return Cell("table4", "interpretability", "gma", 0, state, reason, extra=(f"checkpoint={checkpoint}",))


def _is_done(arguments: DictConfig, cell: Cell) -> bool:
    """Whether a cell that was to do has its result now."""
    return _components_cell(arguments).state == DONE if cell.place is None else cell.place.is_file()


def _past_hours(folders: Iterable[Path], scale: str) -> dict[tuple[str, str], float]:
    seconds: dict[tuple[str, str], list[float]] = {}
    for path in (path for folder in folders if folder.is_dir() for path in results.find(folder)):
        try:
            record = results.read(path)
        except ValueError:
            continue  # the report names it
        if isinstance(record, results.Result) and record.scale == scale:
            seconds.setdefault((record.task, record.model), []).append(record.wall_seconds)
    return {key: mean(values) / 3600 for key, values in seconds.items()}


def batches(cells: Sequence[Cell]) -> list[list[Cell]]:
    """What is to do, in lots that one multirun takes: tasks of one table, each with the same models and seeds."""
    to_do = [cell for cell in cells if cell.state == TO_DO]
    by_seeds: dict[tuple[object, ...], list[Cell]] = {}
    for cell in to_do:
        seeds = tuple(other.seed for other in to_do if (other.task, other.model) == (cell.task, cell.model))
        by_seeds.setdefault((cell.table, cell.task, cell.extra, seeds), []).append(cell)
    lots: dict[tuple[object, ...], list[Cell]] = {}
    for (table, _, extra, seeds), own in by_seeds.items():
        models = tuple(dict.fromkeys(cell.model for cell in own))
        lots.setdefault((table, extra, seeds, models), []).extend(own)
    return list(lots.values())


def command(arguments: DictConfig, lot: Sequence[Cell]) -> list[str]:
    """The multirun of one lot."""
    words = [f"{key}={_values(lot, key, ',')}" for key in ("task", "model", "seed")]
    words += [f"scale={arguments.scale}", *lot[0].extra, f"hydra.sweep.dir={arguments.runs}"]
    if arguments.launcher:
        words.append(f"hydra/launcher={arguments.launcher}")
    return [sys.executable, "-m", "experiments.run", "-m", *words, *arguments.overrides]


def _values(lot: Sequence[Cell], key: str, separator: str) -> str:
    return separator.join(dict.fromkeys(str(getattr(cell, key)) for cell in lot))


def show(cells: Sequence[Cell]) -> None:
    """Print the plan: one line a task and model, and why what cannot be cannot."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("table", "task", "model", DONE, TO_DO, "hours to go", ""):
        table.add_column(heading, justify="right" if heading in (DONE, TO_DO, "hours to go") else "left")
    for key in dict.fromkeys((cell.table, cell.task, cell.model) for cell in cells):
        own = [cell for cell in cells if (cell.table, cell.task, cell.model) == key]
        count = {state: sum(cell.state == state for cell in own) for state in (DONE, TO_DO, IMPOSSIBLE)}
        hours = _hours(own)
        table.add_row(
            *key,
            str(count[DONE]),
            str(count[TO_DO]),
            "" if not count[TO_DO] else "unknown" if hours is None else f"{hours:.2f}",
            IMPOSSIBLE if count[IMPOSSIBLE] else "",
        )
    console = Console()
    console.print(table)
    for reason in dict.fromkeys(f"{cell.task}: {cell.reason}" for cell in cells if cell.reason):
        console.print(f"{IMPOSSIBLE}: {reason}", highlight=False, soft_wrap=True)


def _hours(cells: Iterable[Cell]) -> float | None:
    """Of what is to do; ``None`` if nothing is known of it."""
    known = [cell.hours for cell in cells if cell.state == TO_DO and cell.hours is not None]
    return sum(known) if known else None


def _watch(words: Sequence[str], lot: Sequence[Cell], before: int, total: int) -> int:
    """Run a lot, say after each of its cells how many of all there are, and return its exit status."""
    process, shown = subprocess.Popen(words), 0
    try:
        while process.poll() is None:
            time.sleep(1.0)
            done = sum(cell.place is not None and cell.place.is_file() for cell in lot)
            if done > shown:
                print(f"\n=== {before + done} of {total} cells", flush=True)
                shown = done
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)  # at a terminal it has been interrupted, too, and ends by itself
        process.terminate()
        raise
    return process.returncode


def run(arguments: DictConfig) -> int:
    """Run the plan and make the report; 1 if a possible cell is still missing or there is no report, else 0."""
    cells = plan(arguments)
    show(cells)
    if arguments.dry_run:
        return 0
    lots = batches(cells)
    total, finished = sum(map(len, lots)), 0
    for lot in lots:
        hours = _hours(cell for later in lots[lots.index(lot) :] for cell in later)
        remaining = "" if hours is None else f"; at least {hours:.1f} h to go"
        which = f"cells {finished + 1} to {finished + len(lot)} of {total}"
        tasks, models = (_values(lot, key, ", ") for key in ("task", "model"))
        print(f"\n=== {which}: {tasks}; {models}{remaining}", flush=True)
        if _watch(command(arguments, lot), lot, finished, total) == 130:
            raise KeyboardInterrupt
        finished += len(lot)
    missing = [cell for lot in lots for cell in lot if not _is_done(arguments, cell)]
    report = [f"results=[{arguments.runs}]", f"scale={arguments.scale}", f"output={arguments.output}"]
    print("\n=== report", flush=True)
    reported = subprocess.run([sys.executable, "-m", "experiments.report", *report]).returncode
    for cell in missing:
        name = f"{cell.task} {cell.model} seed {cell.seed}"
        print(f"failed, and tried again by the same command: {name}", file=sys.stderr)
    return 1 if missing or reported else 0


def main() -> None:
    """The command."""
    run_command("reproduce", HELP, run)


if __name__ == "__main__":
    main()
