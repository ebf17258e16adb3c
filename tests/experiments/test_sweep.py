"""Sweeps: what is searched, trials that are runs, a kill in the middle, and a best config that runs."""

import json
import os
import platform
import sqlite3
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments.config import CONF, register_resolvers
from experiments.errors import RefusedError
from experiments.study import _compose, conclude, search, studies, suggest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def arguments(tiny: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    register_resolvers()
    known = OmegaConf.load(CONF / "sweep.yaml")
    assert isinstance(known, DictConfig)
    cache = tmp_path_factory.getbasetemp() / "cache"
    given = {"sweep": "learning_rate", "task": "lra/listops", "models": ["gma"], "trials": 3, "scale": "smoke"}
    return OmegaConf.merge(known, given | {"runs": str(tmp_path / "runs"), "overrides": [*tiny, f"cache_dir={cache}"]})


@pytest.mark.parametrize("sweep", sorted(path.stem for path in (CONF / "sweep").glob("*.yaml")))
def test_every_sweep_names_keys_and_values_that_a_run_takes(arguments: DictConfig, sweep: str) -> None:
    arguments.sweep, arguments.task, arguments.models, arguments.overrides = sweep, None, None, []
    for study in studies(arguments):
        for end in (0, -1):
            values = {key: (a.get("choices") or [a["low"], a["high"]])[end] for key, a in study.space.items()}
            cfg = _compose(study.choices, suggest(optuna.trial.FixedTrial(values), study.space))
            assert {key: OmegaConf.select(cfg, key) for key in study.space} == values
            instantiate(cfg.model)(cfg.backbone.dim)


def test_a_study_ends_with_a_config_that_runs_history_and_importance(arguments: DictConfig, tmp_path: Path) -> None:
    (study,) = studies(arguments)
    opened = search(study)
    conclude(study, opened)
    assert [t.state.name for t in opened.trials] == ["COMPLETE"] * 3
    content = json.loads((study.folder / "trials.json").read_text())
    assert [row["trial"] for row in content["trials"]] == [0, 1, 2]
    for row in content["trials"]:
        result = json.loads((study.folder / "trials" / row["run"] / "result.json").read_text())
        assert result["config"]["train"]["learning_rate"] == row["train.learning_rate"]
        assert result["metrics"]["val/accuracy"] == row["value"]
    assert opened.best_value == max(row["value"] for row in content["trials"])
    assert (study.folder / "history.png").stat().st_size > 1000

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert len(search(study).trials) == 3  # there are enough
    command = [sys.executable, "-m", "experiments.run", "--config-dir", str(study.folder), f"+best={study.name}"]
    done = subprocess.run(
        [*command, f"hydra.run.dir={tmp_path / 'again'}"], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    again = json.loads((tmp_path / "again" / "result.json").read_text())
    assert again["config"]["train"]["learning_rate"] == opened.best_params["train.learning_rate"]
    assert again["metrics"]["val/accuracy"] == opened.best_value
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_trial_of_a_killed_process_is_taken_up_with_its_values(arguments: DictConfig, elsewhere: bool) -> None:
    arguments.trials, arguments.overrides = 2, [*arguments.overrides, "train.steps=4"]
    (study,) = studies(arguments)
    abandoned = study.open().ask()
    values = suggest(abandoned, study.space)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    abandoned.set_user_attr("worker", f"{'elsewhere' if elsewhere else platform.node()} {gone.pid}")
    if elsewhere:
        with sqlite3.connect(study.folder / "study.db") as database:  # no sign of life for an hour
            database.execute(
                "insert into trial_heartbeats (trial_id, heartbeat) values (?, datetime('now', '-1 hour'))",
                (abandoned._trial_id,),
            )
    first, *others = search(study).trials
    assert first.state.name == "FAIL"
    assert [t.params == values for t in others] == [True, False]  # the second draws something else
    assert [t.state.name for t in others] == ["COMPLETE"] * 2


def test_workers_do_not_draw_what_another_draws(arguments: DictConfig) -> None:
    (study,) = studies(arguments)
    one, other = study.open(), study.open()
    assert len({opened.ask().suggest_float("x", 0, 1) for opened in (one, other)}) == 2


def test_other_choices_are_another_study(arguments: DictConfig) -> None:
    (one,) = studies(arguments)
    arguments.overrides = [*arguments.overrides, "train.steps=4"]
    (other,) = studies(arguments)
    assert one.name != other.name


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("sweep", "learning_rates", "sweep= is learning_rates: not known; allowed: gma_listops, gma_wikitext"),
        ("trials", 0, "trials=0 is not allowed"),
        ("workers", "many", "workers=many is not allowed"),
    ],
)
def test_bad_requests_are_refused(arguments: DictConfig, key: str, value: object, complaint: str) -> None:
    arguments[key] = value
    with pytest.raises(RefusedError, match=complaint):
        studies(arguments)


def test_a_task_that_trains_nothing_is_refused(arguments: DictConfig) -> None:
    arguments.task, arguments.overrides = "memory_scaling", []
    (study,) = studies(arguments)
    with pytest.raises(RefusedError, match="task=memory_scaling trains nothing"):
        search(study)
