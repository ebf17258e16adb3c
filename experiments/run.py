"""``python -m experiments.run task=lra model=gma``: train, test, leave a result. ``--help`` shows the choices."""

import importlib
import os
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiments import machine
from experiments.config import explain, refusing, register_resolvers, run_name
from experiments.errors import JobFailedError, NonFiniteLossError, RefusedError

RUNNERS = {  # what runs a kind of task
    "classification": "experiments.training",
    "language_modelling": "experiments.training",
    "scaling": "experiments.scaling",
    "interpretability": "experiments.interpretability",
}

# What each job that could not finish said, with its exit status. Collected rather than raised: a multirun goes on, and
# Hydra adds no words of its own. A job that a launcher has sent to another process raises, so that the command hears.
_failures: list[tuple[int, str]] = []
_trained: list[Any] = []  # results, of which a multirun shows all at its end
_command_process = 0  # the process that was started as the command


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def _run(cfg: DictConfig) -> None:
    job = HydraConfig.get()
    folder = Path(job.runtime.output_dir)
    many = job.mode == RunMode.MULTIRUN
    cell = f"{' '.join(job.overrides.task)}: " if many else ""
    with _as_single_job(job.overrides.task):
        try:
            _finish(cfg, f"{cfg.task.name}/{job.runtime.choices.model}/{run_name(cfg)}", folder)
        except RefusedError as error:
            _refuse(f"{cell}{error}", folder)
        except OmegaConfBaseException as error:
            _refuse(f"{cell}{explain(error, job.overrides.task)}", folder)
        except NonFiniteLossError as error:
            _failures.append((1, f"{cell}{error}"))
        except Exception as error:
            if not many:
                raise
            traceback.print_exc()  # the other jobs go on; this one is named again at the end
            _failures.append((1, f"{cell}{type(error).__name__}: {error}"))
    if _failures and os.getpid() != _command_process:
        raise JobFailedError(*_failures.pop())


def _finish(cfg: DictConfig, run_id: str, folder: Path) -> None:
    from experiments import results, summary

    if cfg.resume == "auto" and (folder / results.FILE_NAME).exists():
        with refusing():
            result = results.read(folder / results.FILE_NAME)
        print(f"{run_id} was finished at {result.finished_at}; resume=never runs it again")
        if isinstance(result, results.Result):
            _compare_data(cfg, result)
        if result.git != machine.git_state() or result.git["dirty"]:
            print(f"the code may have changed since: that run was made from commit {result.git}")
    else:
        from experiments import loggers  # heavy imports, once the command line is known to be good

        try:
            result = importlib.import_module(RUNNERS[cfg.task.kind]).run(cfg, run_id, folder)
        finally:
            loggers.finish()
    if os.environ.get("LOCAL_RANK", "0") == "0":
        if isinstance(result, results.Result):
            summary.show(result, folder)
            _trained.append(result)
        else:
            importlib.import_module(RUNNERS[cfg.task.kind]).show(result, folder)


def _compare_data(cfg: DictConfig, result: Any) -> None:
    """Say so if the data are no longer those of the finished run."""
    from experiments.build import build_data

    with refusing():
        fingerprint = build_data(cfg).fingerprint
    if fingerprint != result.dataset["fingerprint"]:
        print(f"the data have changed since: that run had {result.dataset['fingerprint']}, here is {fingerprint}")


def _refuse(message: str, folder: Path) -> None:
    """Note why a run cannot be, and remove its folder if it never began: then it holds nothing but Hydra's notes."""
    _failures.append((2, message))
    if folder.is_dir() and {path.name for path in folder.iterdir()} <= {".hydra"}:
        shutil.rmtree(folder)


@contextmanager
def _as_single_job(overrides: Sequence[str]) -> Iterator[None]:
    """Let distributed strategies start their processes with this job's own command line, and end them with the job.

    Lightning repeats ``sys.argv`` for every process and marks this one in the environment; in a multirun the first
    would start the whole sweep again, the second would make the next job believe that its processes exist already.
    """
    arguments, environment = sys.argv[:], dict(os.environ)
    sys.argv[1:] = overrides
    try:
        yield
    finally:
        sys.argv[:] = arguments
        torch = sys.modules.get("torch")
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        os.environ.clear()
        os.environ.update(environment)


def main() -> None:
    """The command. A request that can't be run ends in one line and status 2, a training gone wrong in status 1."""
    global _command_process
    _command_process = os.getpid()
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors of composition reach the handler below
    register_resolvers()
    try:
        _run()
    except (HydraException, OmegaConfBaseException) as error:
        _failures.append((2, explain(error, sys.argv[1:])))
    except JobFailedError as error:
        _failures.append(error.args)
    except KeyboardInterrupt:
        _failures.append((130, "interrupted; nothing half-written is left"))
    if len(_trained) > 1:
        importlib.import_module("experiments.summary").show_together(_trained)
    for _, message in _failures:
        print(f"error: {message}", file=sys.stderr)
    sys.exit(max((status for status, _ in _failures), default=0))


if __name__ == "__main__":
    main()
