"""One command for the whole paper: its plan, what it skips, and what is left after a kill."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from experiments.config import CONF, register_resolvers
from experiments.errors import RefusedError
from experiments.reproduce import DONE, IMPOSSIBLE, TO_DO, batches, command, plan

ROOT = Path(__file__).parents[2]
# The smoke scale of everything, smaller still; no film reviews or pictures, as where there is no network.
SMALL = ["logger=none", "data_dir=null", "trainer.precision=32-true"]


@pytest.fixture
def arguments(tmp_path: Path) -> DictConfig:
    register_resolvers()
    known = OmegaConf.load(CONF / "reproduce.yaml")
    given = {"runs": str(tmp_path / "runs"), "scale": "smoke", "models": ["gma", "sdpa"], "seeds": [0, 1]}
    own = [*SMALL, f"cache_dir={tmp_path / 'cache'}"]
    assert isinstance(known, DictConfig)
    return OmegaConf.merge(known, given | {"overrides": own})


def test_the_plan_has_every_cell_and_says_why_one_cannot_be(arguments: DictConfig) -> None:
    cells = plan(arguments)
    states = {(c.table, c.task): {o.state for o in cells if (o.table, o.task) == (c.table, c.task)} for c in cells}
    assert states == {
        ("table1", "memory_scaling"): {TO_DO},
        ("table2", "lra/listops"): {TO_DO},
        ("table2", "lra/text"): {IMPOSSIBLE},
        ("table2", "lra/image"): {IMPOSSIBLE},
        ("table2", "lra/pathfinder"): {TO_DO},
        ("table3", "wikitext103"): {IMPOSSIBLE},
        ("table4", "interpretability"): {IMPOSSIBLE},
    }
    assert len(cells) == 2 + 4 * 4 + 4 + 1
    reasons = {c.task: c.reason for c in cells if c.state == IMPOSSIBLE}
    assert "GMA_DATA_DIR" in reasons["lra/text"]
    assert "GMA_DATA_DIR" in reasons["wikitext103"]


def test_a_model_without_the_form_of_a_task_is_not_to_do(arguments: DictConfig, data_dir: Path) -> None:
    arguments.only, arguments.models = "table3", ["linformer"]
    arguments.overrides = [*arguments.overrides, f"data_dir={data_dir}"]
    assert {cell.state for cell in plan(arguments)} == {IMPOSSIBLE}


def test_a_lot_is_one_multirun_and_leaves_out_what_is_done(arguments: DictConfig) -> None:
    arguments.only, arguments.launcher = "table2", "submitit_slurm"
    first = next(c for c in plan(arguments) if c.task == "lra/pathfinder")
    lots = batches(plan(arguments))
    assert [len(lot) for lot in lots] == [8]
    words = command(arguments, lots[0])
    tasks = "task=lra/listops,lra/pathfinder"
    assert words[words.index("-m", 2) + 1 :][:4] == [tasks, "model=gma,sdpa", "seed=0,1", "scale=smoke"]
    assert "hydra/launcher=submitit_slurm" in words
    without = [c if c != first else type(c)(c.table, c.task, c.model, c.seed, DONE) for c in plan(arguments)]
    parts = [(lot[0].task, lot[0].model, [c.seed for c in lot]) for lot in batches(without)]
    assert parts == [
        ("lra/listops", "gma", [0, 1, 0, 1]),
        ("lra/pathfinder", "gma", [1]),
        ("lra/pathfinder", "sdpa", [0, 1]),
    ]


@pytest.mark.parametrize(("scale", "seeds"), [("smoke", {0}), ("cpu", {0, 1, 2})])
def test_one_seed_is_enough_for_smoke(arguments: DictConfig, scale: str, seeds: set[int]) -> None:
    arguments.only, arguments.models, arguments.scale, arguments.seeds = "table3", ["gma"], scale, None
    assert {cell.seed for cell in plan(arguments)} == seeds


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("only", "table9", "only=table9 is not known; allowed: table1, table2"),
        ("models", ["gmaa"], "models=gmaa is not known"),
        ("seeds", ["x"], r"seeds=\['x'\] is not allowed"),
        ("seeds", 3, "seeds=3 is not allowed"),
        ("scale", "tiny", "scale=tiny is not known; allowed: smoke, cpu, paper"),
    ],
)
def test_bad_requests_are_refused(arguments: DictConfig, key: str, value: object, complaint: str) -> None:
    arguments[key] = value
    with pytest.raises(RefusedError, match=complaint):
        plan(arguments)


def test_a_killed_reproduction_goes_on_and_ends_in_the_report(arguments: DictConfig, tmp_path: Path) -> None:
    runs, output = Path(arguments.runs), tmp_path / "report"
    own = ",".join([*SMALL, f"cache_dir={tmp_path / 'cache'}", "train.steps=6", "train.warmup_steps=1"])
    words = ["scale=smoke", "only=table2", "models=[gma,sdpa]", "seeds=[0]", f"runs={runs}", f"output={output}"]
    start = [sys.executable, "-m", "experiments.reproduce", *words, f"overrides=[{own}]"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GMA_DATA_DIR": ""}
    process = subprocess.Popen(
        start, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 200
    while not list(runs.rglob("result.json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = set(runs.rglob("result.json"))
    assert finished
    before = {path: path.stat().st_mtime_ns for path in finished}
    done = subprocess.run(start, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lra/text: " in done.stdout  # why it cannot be had
    assert re.search(r"=== \d of \d cells", done.stdout)
    assert len(list(runs.rglob("result.json"))) == 4  # listops and pathfinder, gma and sdpa
    assert {path: path.stat().st_mtime_ns for path in finished} == before
    assert (output / "index.html").is_file()


def test_table_4_looks_at_what_table_3_has_trained(data_dir: Path, tmp_path: Path) -> None:
    runs, output = tmp_path / "runs", tmp_path / "report"
    own = "logger=none,trainer.precision=32-true"
    words = [
        "scale=smoke",
        "only=[table1,table3,table4]",
        "models=[gma]",
        "seeds=[0]",
        f"runs={runs}",
        f"output={output}",
    ]
    start = [sys.executable, "-m", "experiments.reproduce", *words, f"overrides=[{own},data_dir={data_dir}]"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GMA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(start, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tasks = {path.relative_to(runs).parts[0] for path in runs.rglob("result.json")}
    assert tasks == {"memory_scaling", "wikitext103", "interpretability"}
    page = (output / "index.html").read_text()
    for figure in ("Figure 1", "Figure 2", "Figure 3"):
        assert figure in page
    again = subprocess.run([*start, "dry_run=true"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "hours to go" in again.stdout
    assert again.stdout.count(" 1      0") == 3  # done and to do, of each task
