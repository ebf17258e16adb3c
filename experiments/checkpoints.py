"""A trained language model back from its checkpoint."""

import pickle
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from experiments.config import refusing
from experiments.errors import RefusedError


class Loaded(NamedTuple):
    """``model`` (a :class:`gma.SequenceModel`, in eval mode), its ``data`` set, and the ``cfg`` of its run."""

    model: Any
    data: Any
    cfg: DictConfig


def load_language_model(checkpoint: Path, cache_dir: str, data_dir: str | None) -> Loaded:
    """What a checkpoint of ``experiments.run`` holds; the rest of its run must stand around it.

    Raises:
        RefusedError: if the checkpoint or the config of its run is missing, damaged, of other data or of another task.
    """
    import torch

    from experiments.build import LANGUAGE_MODEL, build_data, build_model
    from experiments.training import check_same_data

    checkpoint = checkpoint.expanduser().resolve()
    run = checkpoint.parent.parent
    config = run / ".hydra" / "config.yaml"
    for path in (checkpoint, config):
        if not path.is_file():
            raise RefusedError(f"{path} is not there: a run of experiments.run leaves both checkpoints and config")
    cfg = OmegaConf.load(config)
    cfg.cache_dir, cfg.data_dir = cache_dir, data_dir
    if cfg.task.head != LANGUAGE_MODEL:
        raise RefusedError(f"{checkpoint} is of task {cfg.task.name}, which predicts no next token")
    with refusing():
        data = build_data(cfg)
        check_same_data(run, data)
        model = build_model(cfg, data)
        try:
            state = torch.load(checkpoint, map_location="cpu", weights_only=False)["state_dict"]
            weights = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
            model.load_state_dict(weights)
        except (pickle.UnpicklingError, RuntimeError, KeyError, EOFError) as error:
            raise ValueError(f"{checkpoint} is damaged, or of other code than this: {error}") from error
    return Loaded(model.eval(), data, cfg)
