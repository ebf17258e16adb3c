"""The command line as a person meets it: help, refusals, kills, several processes, several jobs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-m", "experiments.run"]


def start(arguments: list[str], **options: object) -> subprocess.Popen[str]:
    environment = os.environ | {"WANDB_MODE": "offline", "COLUMNS": "200"}
    return subprocess.Popen(
        [*RUN, *arguments],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def run(arguments: list[str]) -> tuple[int, str, str]:
    return finish(start(arguments))


def read(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_help_is_quick_and_shows_groups_and_examples() -> None:
    run(["--help"])  # once before the clock runs: byte code, disk
    started = time.perf_counter()
    status, out, _ = run(["--help"])
    assert time.perf_counter() - started < 3
    assert status == 0
    assert "model: gma, linear_transformer, linformer, mamba, performer, sdpa" in out
    assert out.count("python -m experiments.run ") >= 3


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["task=lra", "model=gmaa"], "error: model=gmaa is not known; nearest: gma"),
        (["task=lra", "train.stepz=5"], "error: train.stepz is not a key of the config; nearest: train.steps"),
        (["task=lra", "scale=tiny"], "error: scale=tiny is not known; allowed: smoke, cpu, paper"),
        (
            ["task=lra", "scale=smoke", "backbone.num_heads=5"],
            "error: num_heads=5 is not allowed: num_heads must be a divisor",
        ),
        (["task=interpretability"], "error: checkpoint=None is no file: name runs/wikitext103/gma/"),
        (["-m", "task=lra", "scale=smoke", "model.num_components=0"], "error: task=lra scale=smoke model.num_c"),
    ],
)
def test_a_bad_request_is_answered_in_one_line(tmp_path: Path, arguments: list[str], answer: str) -> None:
    cache = tmp_path / "cache"
    places = [f"cache_dir={cache}", f"hydra.run.dir={tmp_path / 'run'}", f"hydra.sweep.dir={tmp_path}", "logger=none"]
    status, _, err = run([*arguments, *places])
    assert status == 2
    assert err.startswith(answer)
    assert err.count("\n") == 1
    assert not cache.exists()
    assert not (tmp_path / "run").exists()


def stop_in_the_middle(arguments: list[str], folder: Path, number: signal.Signals) -> tuple[int, str]:
    """Send a signal to the whole process group, as a terminal does, once the first checkpoint is there."""
    process = start(arguments, start_new_session=True)
    last = folder / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 120
    while not last.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, number)
    status, _, err = finish(process)
    assert last.exists()
    assert not (folder / "result.json").exists()
    return status, err


def test_an_interrupt_ends_in_one_line(command: list[str], tmp_path: Path) -> None:
    arguments = [*command, "train.steps=20000", "train.validate_every=20"]
    status, err = stop_in_the_middle(arguments, tmp_path / "run", signal.SIGINT)
    assert status != 0
    assert "interrupted; the same command goes on from the last validation" in err
    assert "Traceback" not in err


def test_kill_in_the_middle_then_the_same_command_gives_the_same_result(command: list[str], tmp_path: Path) -> None:
    arguments = [*command, "train.steps=150", "train.validate_every=10"]
    stop_in_the_middle(arguments, tmp_path / "run", signal.SIGKILL)

    status, _, err = run(arguments)
    assert status == 0, err
    resumed = read(tmp_path / "run")
    status, _, err = run([*arguments, f"hydra.run.dir={tmp_path / 'whole'}"])
    assert status == 0, err
    whole = read(tmp_path / "whole")
    assert (resumed["sittings"], whole["sittings"]) == (2, 1)
    for key in ("metrics", "metrics_last", "checkpoints", "tokens_seen", "steps"):
        assert resumed[key] == whole[key], key


def test_two_processes_train_as_one_and_leave_one_run(command: list[str], tmp_path: Path) -> None:
    logger = ["logger=wandb"]
    status, _, err = run([*command, *logger, f"hydra.run.dir={tmp_path / 'one'}"])
    assert status == 0, err
    ddp = ["trainer=ddp", "trainer.precision=32-true", "trainer.accelerator=cpu", "trainer.devices=2"]
    status, out, err = run([*command, *logger, *ddp, f"hydra.run.dir={tmp_path / 'two'}"])
    assert status == 0, err
    one, two = read(tmp_path / "one"), read(tmp_path / "two")
    assert two["execution"]["devices"] == 2
    assert out.count("results in") == 1
    for name, value in one["metrics_last"].items():
        assert two["metrics_last"][name] == pytest.approx(value, abs=1e-4), name
    assert two["metrics_last"]["test/accuracy"] == one["metrics_last"]["test/accuracy"]
    assert two["tokens_seen"] == one["tokens_seen"]
    assert two["config_hash"] == one["config_hash"]
    assert len(list((tmp_path / "two").rglob("result.json"))) == 1
    assert len(list((tmp_path / "two" / "wandb").glob("offline-run-*"))) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "cache"}


def test_a_multirun_gives_each_cell_its_folder(command: list[str], tmp_path: Path) -> None:
    status, out, err = run(
        ["-m", *command, "logger=wandb", "model=gma,sdpa", "seed=0,1", f"hydra.sweep.dir={tmp_path}", "train.steps=2"]
    )
    assert status == 0, err
    together = out.rsplit("all runs", 1)[1]
    assert together.count("lra/listops") == 4
    cells = {
        (r["model"], r["seed"]): path for path in tmp_path.rglob("result.json") for r in [json.loads(path.read_text())]
    }
    assert set(cells) == {(model, seed) for model in ("gma", "sdpa") for seed in (0, 1)}
    for (model, seed), path in cells.items():
        assert path.parent.parent == tmp_path / "lra" / "listops" / model
        assert path.parent.name.startswith(f"smoke-seed{seed}-")
        assert len(list(path.parent.glob("wandb/offline-run-*"))) == 1


@pytest.mark.parametrize("launcher", ["basic", "submitit_local"])  # the second: a process each, as SLURM's
def test_a_multirun_goes_on_after_a_cell_that_cannot_run(launcher: str, command: list[str], tmp_path: Path) -> None:
    places = ["logger=none", f"hydra.sweep.dir={tmp_path}", "train.steps=2", f"hydra/launcher={launcher}"]
    status, _, err = run(["-m", *command, *places, "backbone.num_heads=5,2"])
    assert status == 2
    assert re.match(r"error: .*backbone.num_heads=5: num_heads=5 is not allowed", err.splitlines()[-1])
    assert [
        json.loads(path.read_text())["config"]["backbone"]["num_heads"] for path in tmp_path.rglob("result.json")
    ] == [2]


def test_a_multirun_goes_on_after_a_crash_and_names_it_at_the_end(command: list[str], tmp_path: Path) -> None:
    places = ["logger=none", f"hydra.sweep.dir={tmp_path}", "train.steps=2"]
    status, _, err = run(["-m", *command, *places, "seed=0"])
    assert status == 0, err
    (result,) = tmp_path.rglob("result.json")
    result.unlink()
    (result.parent / "checkpoints" / "last.ckpt").write_bytes(b"not a checkpoint")
    status, _, err = run(["-m", *command, *places, "seed=0,1"])
    assert status == 1
    assert "Traceback" in err
    assert re.match(r"error: .*seed=0: \w+Error: ", err.splitlines()[-1])
    assert [json.loads(path.read_text())["seed"] for path in tmp_path.rglob("result.json")] == [1]


def test_the_table_of_long_range_arena_is_a_multirun_of_its_own() -> None:
    status, out, err = run(["+table=lra", "--cfg", "hydra"])
    assert status == 0, err
    assert "mode: MULTIRUN" in out
    assert "task: lra/listops,lra/text,lra/image,lra/pathfinder" in out
