"""``python -m experiments.publish``: finished results to Weights & Biases, once and only once each."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.progress import track

from experiments import results
from experiments.arguments import run_command
from experiments.errors import RefusedError

HELP = """Log finished results to Weights & Biases: numbers, tables, figures, and the result files as artifacts.

  python -m experiments.publish
  python -m experiments.publish results=[runs] project=gma entity=my-team checkpoints=true tables=cpu

What a run has logged itself, or this command before, is not logged again. Offline where no API key is set: then
wandb sync uploads it. Keys, and what each is unless set:
"""


def publish(arguments: DictConfig) -> tuple[int, int]:
    """How many results were logged, and how many had been already.

    Raises:
        RefusedError: for a folder that is not there.
    """
    import wandb

    from experiments import loggers  # heavy

    folders = [Path(folder).expanduser() for folder in arguments.results]
    for folder in folders:
        if not folder.is_dir():
            raise RefusedError(f"results={list(arguments.results)}: {folder} is no folder")
    loggers.go_offline_without_key()
    logged = known = 0
    for path in track([path for folder in folders for path in results.find(folder)], "Publishing"):
        try:
            record = results.read(path)
        except ValueError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        noted = loggers.published(record, path.parent, arguments.project)
        offline = os.environ.get("WANDB_MODE") == "offline"
        if noted is not None and noted["offline"] and not offline:
            noted = None  # it waits on this disk for wandb sync; now it can go itself, to the same run
        with_checkpoints = arguments.checkpoints or (noted is not None and noted["checkpoints"])
        if noted is not None and noted["checkpoints"] == with_checkpoints:
            known += 1
            continue
        with wandb.init(
            project=arguments.project,
            entity=arguments.entity,
            dir=str(path.parent),
            config=record.config,
            **loggers.wandb_identity(record.run_id, record.scale),
        ) as run:
            if noted is None:
                loggers.log_to_wandb(run, record, path.parent)
            for checkpoint in sorted(path.parent.glob("checkpoints/*.ckpt")) if arguments.checkpoints else ():
                artifact = wandb.Artifact(f"{record.run_id.replace('/', '-')}-{checkpoint.stem}", type="model")
                artifact.add_file(str(checkpoint))
                run.log_artifact(artifact)
        loggers.note_published(run, record, path.parent, with_checkpoints)  # only now is all of it there
        logged += 1
    return logged, known


def publish_tables(arguments: DictConfig) -> bool:
    """Log the report's tables and figures of one scale; false if the same have been logged already."""
    import wandb

    from experiments.report import figures, tables
    from experiments.report.collect import collect

    folders = [Path(folder).expanduser() for folder in arguments.results]
    found = collect(folders, arguments.tables)
    if not found.records:
        raise RefusedError(f"tables={arguments.tables}: there is no result of that scale")
    for reason in found.left_out:
        print(f"left out: {reason}", file=sys.stderr)
    made = tables.all_tables(found, arguments.tables)
    text = "".join(table.markdown() for table in made)
    noted = folders[0] / f"report-{arguments.tables}.published.json"
    this = {"project": arguments.project, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    if noted.is_file() and json.loads(noted.read_text()) == this:
        return False
    content: dict[str, Any] = {
        table.name: wandb.Table(columns=table.columns, data=[[entry.text for entry in row] for row in table.rows])
        for table in made
        if table.rows
    }
    name = f"report-{arguments.tables}"
    with wandb.init(
        project=arguments.project, entity=arguments.entity, dir=str(folders[0]), id=name, name=name, resume="allow"
    ) as run:
        content |= {drawn.name: wandb.Image(drawn.figure) for drawn in figures.all_figures(found)}
        run.log(content)
    noted.write_text(json.dumps(this) + "\n")
    return True


def publish_and_say(arguments: DictConfig) -> None:
    """The same, with its numbers printed."""
    import wandb

    try:
        logged, known = publish(arguments)
        news = arguments.tables is not None and publish_tables(arguments)
    except wandb.errors.Error as error:
        raise RefusedError(f"W&B does not take the results: {error}") from error
    print(f"{logged} results logged, {known} had been already{'; tables and figures logged' if news else ''}")


def main() -> None:
    """The command."""
    run_command("publish", HELP, publish_and_say)


if __name__ == "__main__":
    main()
