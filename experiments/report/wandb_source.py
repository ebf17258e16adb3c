"""Results that lie at W&B instead of on this disk."""

from pathlib import Path

from experiments.errors import RefusedError
from experiments.results import WANDB_TYPE


def download(project: str, folder: Path) -> Path:
    """Fetch the result file of every run of ``project`` (``entity/name`` or ``name``) into ``folder``.

    Raises:
        RefusedError: if W&B cannot be asked, or has no result there.
    """
    import wandb

    try:
        runs = list(wandb.Api().runs(project))
        for run in runs:
            for artifact in run.logged_artifacts():
                if artifact.type == WANDB_TYPE:
                    artifact.download(root=str(folder / run.id))
    except (wandb.errors.Error, ValueError, OSError) as error:
        raise RefusedError(f"W&B does not give the runs of {project}: {error}") from error
    if not any(folder.iterdir()):
        raise RefusedError(
            f"none of the {len(runs)} runs of {project} has a result; python -m experiments.publish puts them there"
        )
    return folder
