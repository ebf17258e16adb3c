"""Searches by Optuna: a study a model, each trial a run like any other."""

import json
import math
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import optuna
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig, OmegaConf
from optuna.trial import FrozenTrial, TrialState

from experiments import results
from experiments.config import CONF, config_hash, run_name
from experiments.errors import NonFiniteLossError, RefusedError
from experiments.module import TrainingModule

HEARTBEAT = 10  # seconds between signs of life of a trial; after three without one, another worker takes it over
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Study:
    """One model's search.

    Attributes:
        name: ``<sweep>-<task>-<model>-<scale>-<hash of the choices>``.
        folder: ``<runs>/sweeps/<name>``; the trials' runs lie there, so that no report takes them for cells of a table.
        choices: of its runs, as of ``experiments.run``. space: what Optuna may choose. trials: how many are enough.
    """

    name: str
    folder: Path
    choices: tuple[str, ...]
    space: Mapping[str, Mapping[str, Any]]
    trials: int

    def open(self) -> optuna.Study:
        """The study in its SQLite file, begun if it is new."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # what takes over from the dead
            storage = optuna.storages.RDBStorage(
                f"sqlite:///{self.folder / 'study.db'}",
                heartbeat_interval=HEARTBEAT,
                grace_period=3 * HEARTBEAT,
                heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=5),
            )
        return optuna.create_study(
            storage=storage,
            study_name=self.name,
            direction="maximize" if _module(self).mode == "max" else "minimize",
            load_if_exists=True,
            # without a seed: workers that drew from the same one would try the same
            sampler=optuna.samplers.TPESampler(n_startup_trials=max(4, self.trials // 3)),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
        )


class _Prune(Callback):
    """Tells Optuna of every validation and ends a trial that it has no hope for."""

    def __init__(self, trial: optuna.Trial, monitor: str) -> None:
        self.trial, self.monitor = trial, monitor

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self.trial.report(float(trainer.callback_metrics[self.monitor]), trainer.global_step)
            unfinished = trainer.global_step < module.train_config.steps
            if unfinished and self.trial.should_prune():
                raise optuna.TrialPruned


def studies(arguments: DictConfig) -> list[Study]:
    """One a model.

    Raises:
        RefusedError: for a sweep that is not known, or numbers that make no sense.
    """
    known = sorted(path.stem for path in (CONF / "sweep").glob("*.yaml"))
    if OmegaConf.is_missing(arguments, "sweep") or arguments.sweep not in known:
        chosen = "missing" if OmegaConf.is_missing(arguments, "sweep") else f"{arguments.sweep}: not known"
        raise RefusedError(f"sweep= is {chosen}; allowed: {', '.join(known)}")
    sweep = OmegaConf.load(CONF / "sweep" / f"{arguments.sweep}.yaml")
    task, models, trials = (
        sweep[key] if arguments[key] is None else arguments[key] for key in ("task", "models", "trials")
    )
    for name, value in (("trials", trials), ("workers", arguments.workers)):
        if not isinstance(value, int) or value < 1:
            raise RefusedError(f"{name}={value} is not allowed: it must be a whole number, at least 1")
    found = []
    for model in [models] if isinstance(models, str) else models:
        choices = (f"task={task}", f"model={model}", f"scale={arguments.scale}", *arguments.overrides)
        cfg = _compose(choices)
        name = f"{arguments.sweep}-{cfg.task.name.replace('/', '-')}-{model}-{arguments.scale}-{config_hash(cfg)[:8]}"
        space = OmegaConf.to_container(sweep.space)
        folder = Path(arguments.runs) / "sweeps" / name
        found.append(Study(name, folder, choices, space, trials))  # type: ignore[arg-type]
    return found


def suggest(trial: optuna.Trial, space: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A value for every key of ``space``: one of ``choices``, or a number from ``low`` to ``high``."""
    return {
        key: trial.suggest_categorical(key, among["choices"])
        if "choices" in among
        else trial.suggest_float(key, among["low"], among["high"], log=among.get("log", False))
        for key, among in space.items()
    }


def search(study: Study) -> optuna.Study:
    """Run trials until there are enough; those that a killed process has left first."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    opened, module = study.open(), _module(study)
    _take_over(opened)
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(opened)  # of other machines; they come back as waiting
        if (begun := _count(opened, *FINISHED, TrialState.RUNNING)) >= study.trials:
            return opened
        print(f"\n=== {study.name}: trial {begun + 1} of {study.trials}{_so_far(opened, module.monitor)}", flush=True)
        opened.optimize(partial(_trial, study, module.monitor), n_trials=1)


def _take_over(opened: optuna.Study) -> None:
    """Have trials whose process on this machine is gone done again, with their values: their runs go on."""
    for trial in opened.get_trials(states=(TrialState.RUNNING,)):
        host, _, process = trial.user_attrs.get("worker", "").partition(" ")
        if host == platform.node() and not _is_alive(int(process)):
            opened.enqueue_trial(trial.params)
            opened.tell(trial.number, state=TrialState.FAIL)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # no signal, only the question
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _trial(study: Study, monitor: str, trial: optuna.Trial) -> float:
    from experiments import loggers, training

    trial.set_user_attr("worker", f"{platform.node()} {os.getpid()}")
    values = suggest(trial, study.space)
    cfg = _compose(study.choices, values, study.name)
    model = study.choices[1].split("=", 1)[1]
    folder = study.folder / "trials" / run_name(cfg)
    trial.set_user_attr("run", folder.name)
    if (folder / results.FILE_NAME).is_file():
        record = results.read(folder / results.FILE_NAME)
    else:
        (folder / ".hydra").mkdir(parents=True, exist_ok=True)
        OmegaConf.save(cfg, folder / ".hydra" / "config.yaml")
        try:
            run_id = f"{cfg.task.name}/{model}/{folder.name}-of-sweep"
            record = training.run(cfg, run_id, folder, callbacks=[_Prune(trial, monitor)])
        except NonFiniteLossError as error:
            print(f"given up: {error}", flush=True)
            raise optuna.TrialPruned from error
        except KeyboardInterrupt:
            sys.exit(130)  # Optuna would call the trial failed; so it is found as one that was left
        finally:
            loggers.finish()
    assert isinstance(record, results.Result)
    return record.metrics[monitor]


def _module(study: Study) -> type[TrainingModule]:
    from experiments.training import MODULES

    kind = _compose(study.choices).task.kind
    if kind not in MODULES:
        raise RefusedError(f"{study.choices[0]} trains nothing: there is nothing to search")
    return MODULES[kind]


def _compose(choices: Sequence[str], values: Mapping[str, Any] | None = None, group: str = "") -> DictConfig:
    from hydra import compose, initialize_config_dir

    words = [*choices, *(f"{key}={value}" for key, value in (values or {}).items())]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", words)
        if group and str(cfg.logger.get("_target_")).endswith("WandbLogger"):
            cfg = compose("config", [*words, f"+logger.group=sweep-{group}"])
    return cfg


def _count(opened: optuna.Study, *states: TrialState) -> int:
    return len(opened.get_trials(deepcopy=False, states=states))


def _best(opened: optuna.Study) -> FrozenTrial | None:
    return opened.best_trial if _count(opened, TrialState.COMPLETE) else None


def _so_far(opened: optuna.Study, monitor: str) -> str:
    best = _best(opened)
    return "" if best is None else f"; best {monitor} so far {best.value:.4g}"


def conclude(study: Study, opened: optuna.Study) -> None:
    """Write the best choice, how the search went and what mattered into the study's folder, and print the way on."""
    best = _best(opened)
    if best is None:
        raise RefusedError(f"no trial of {study.name} came to its end")
    chosen = study.folder / "best" / f"{study.name}.yaml"
    chosen.parent.mkdir(exist_ok=True)
    chosen.write_text(best_as_yaml(study, best))
    _draw(study, opened)
    print(f"\n{study.name}: {best.value:.4g} with {best.params} (trial {best.number})")
    print(f"python -m experiments.run --config-dir {study.folder} +best={study.name}")


def best_as_yaml(study: Study, best: FrozenTrial) -> str:
    """A config for ``+best=``: the choices of groups and every value, set."""
    groups, values = [], []
    for word in study.choices:
        key, value = word.lstrip("+").split("=", 1)
        (groups if (CONF / key).is_dir() else values).append((key, value))
    tree = OmegaConf.from_dotlist([f"{key}={value}" for key, value in values])
    for key, value in best.params.items():
        OmegaConf.update(tree, key, value)
    defaults = OmegaConf.to_yaml(OmegaConf.create({"defaults": [{f"override /{key}": value} for key, value in groups]}))
    head = f"# @package _global_\n# Trial {best.number} of {study.name}: {best.value:.6g}, {best.user_attrs['run']}\n"
    return head + defaults + OmegaConf.to_yaml(tree)


def _draw(study: Study, opened: optuna.Study) -> None:
    """History and importance, as pictures and numbers; importance only where trials differ."""
    import matplotlib

    matplotlib.use("Agg")
    from optuna.visualization import matplotlib as drawing

    rows = [
        {"trial": t.number, "state": t.state.name, "value": t.value, "run": t.user_attrs.get("run"), **t.params}
        for t in opened.trials
    ]
    importance: dict[str, float] = {}
    pictures = {"history": drawing.plot_optimization_history}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's pictures are marked experimental
        if _count(opened, TrialState.COMPLETE) > 2:
            try:
                importance = optuna.importance.get_param_importances(opened)
                pictures["importance"] = drawing.plot_param_importances
            except (RuntimeError, ValueError):
                pass  # every trial had the same value
        for name, draw in pictures.items():
            draw(opened).figure.savefig(study.folder / f"{name}.png", dpi=150, bbox_inches="tight")
    content = {"trials": rows, "importance": {key: value for key, value in importance.items() if math.isfinite(value)}}
    (study.folder / "trials.json").write_text(json.dumps(content, indent=1) + "\n")


def work(arguments: DictConfig) -> None:
    """Search every study, with as many processes as asked for."""
    for study in studies(arguments):
        own = [word for word in sys.argv[1:] if not word.startswith(("workers=", "models="))]
        model = study.choices[1].split("=", 1)[1]
        helper = [sys.executable, "-m", "experiments.sweep", *own, f"models=[{model}]", "workers=1"]
        study.open()  # before several want to
        helpers = [subprocess.Popen(helper) for _ in range(arguments.workers - 1)]
        try:
            opened = search(study)
            for process in helpers:
                process.wait()
        finally:
            for process in helpers:
                process.terminate()
        conclude(study, opened)
