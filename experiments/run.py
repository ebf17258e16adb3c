"""``python -m experiments.run task=lra model=gma``: train, test, leave a result. ``--help`` shows the choices."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiments.config import RefusedError, explain, register_resolvers, run_name


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def _run(cfg: DictConfig) -> None:
    from hydra.core.hydra_config import HydraConfig

    from experiments import summary, training  # heavy imports, once the command line is known to be good

    job = HydraConfig.get()
    folder = Path(job.runtime.output_dir)
    run_id = f"{cfg.task.name}/{job.runtime.choices.model}/{run_name(cfg)}"
    with _as_single_job(job.overrides.task):
        result = training.run(cfg, run_id, folder)
        if os.environ.get("LOCAL_RANK", "0") == "0":
            summary.show(result, folder)


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
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors reach the handlers below
    register_resolvers()
    try:
        _run()
    except RefusedError as error:
        _stop(str(error), 2)
    except (HydraException, OmegaConfBaseException) as error:
        _stop(explain(error, sys.argv[1:]), 2)
    except Exception as error:
        if type(error).__name__ != "NonFiniteLossError":  # its module is heavy: --help must not import it
            raise
        _stop(str(error), 1)


def _stop(message: str, status: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
