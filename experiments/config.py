"""What a composed config means: the name of its run, and why one is refused."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.errors import RefusedError

CONF = Path(__file__).parents[1] / "conf"

# What decides a run's numbers. Everything else (devices, loggers, folders) may change without making it another run.
IDENTITY = ("task", "model", "scale", "seed", "backbone", "match_parameters", "train", "trainer.precision")


# Keys of a model that say how it is computed, not what.
EXECUTION = ("recompute",)

# Where one machine keeps things: neither part of a run's identity nor of its result.
PLACES = ("cache_dir", "data_dir", "checkpoint")


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The config for a result: resolved, without places and without the budgets of the scales.

    The chosen scale's budget stands in ``backbone`` and ``train``.
    """
    used = OmegaConf.masked_copy(cfg, [key for key in cfg if key not in _unused(cfg)])
    content: dict[str, Any] = OmegaConf.to_container(used, resolve=True)
    del content["task"]["scales"]
    for place in PLACES:
        content.pop(place, None)
        content["task"].pop(place, None)
        content["task"].get("data", {}).pop(place, None)
    return content


def identity(cfg: DictConfig) -> dict[str, Any]:
    """The part of a config that decides a run's numbers, resolved; budgets of other scales left out."""
    parts: dict[str, Any] = {}
    for key in IDENTITY:
        if key in _unused(cfg):
            continue
        value = OmegaConf.select(cfg, key, throw_on_missing=True)
        parts[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    parts["task"].pop("scales")
    for key in EXECUTION:
        parts.get("model", {}).pop(key, None)
    for place in PLACES:
        parts["task"].pop(place, None)
        parts["task"].get("data", {}).pop(place, None)
    return parts


def _unused(cfg: DictConfig) -> Sequence[str]:
    """Keys that mean nothing to the task, because it trains nothing."""
    return cfg.task.get("unused", ())


def config_hash(cfg: DictConfig) -> str:
    """SHA-256 of :func:`identity`, as hexadecimal digits."""
    return hashlib.sha256(json.dumps(identity(cfg), sort_keys=True).encode()).hexdigest()


def run_name(cfg: DictConfig) -> str:
    """``<scale>-seed<seed>-<hash>``: the same command finds the same folder, another one never does."""
    return f"{cfg.scale}-seed{cfg.seed}-{config_hash(cfg)[:8]}"


def register_resolvers() -> None:
    """Make ``${run_name:}`` and ``${file_digest:path}`` known to Hydra."""
    OmegaConf.register_new_resolver("run_name", lambda *, _root_: run_name(_root_), replace=True)
    OmegaConf.register_new_resolver("file_digest", file_digest, replace=True)


def file_digest(path: str | None) -> str:
    """Names a checkpoint by what is in it."""
    if not path or not Path(path).expanduser().is_file():
        raise ValueError(f"checkpoint={path} is no file: name runs/wikitext103/gma/<run>/checkpoints/best.ckpt")
    with Path(path).expanduser().open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


@contextmanager
def refusing() -> Iterator[None]:
    """Turn a complaint about the request (a value, file, device, package) into :class:`RefusedError`."""
    from hydra.errors import InstantiationException

    try:
        yield
    except InstantiationException as error:
        raise RefusedError(_first_line(error.__cause__ or error)) from error
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise RefusedError(_first_line(error)) from error


def explain(error: Exception, arguments: Sequence[str]) -> str:
    """One line for an error of composition: the argument at fault and the nearest valid ones, else the error itself."""
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    groups = {path.relative_to(CONF).as_posix() for path in CONF.rglob("*") if path.is_dir()}
    chosen = {}
    for override in overrides:
        key, value = override.lstrip("+~").split("=", 1)
        if key not in groups:
            continue
        options = sorted(
            path.relative_to(CONF / key).with_suffix("").as_posix() for path in (CONF / key).rglob("*.yaml")
        )
        for choice in value.split(","):
            if choice not in options:
                return f"{key}={choice} is not known; {_nearest(choice, options)}"
        chosen[key] = value.split(",")[0]
    cfg = _compose(chosen)
    for override in overrides:
        key, value = override.split("=", 1)
        if key in groups or key.startswith(("+", "~", "hydra")):
            continue
        keys = list(_keys(OmegaConf.to_container(cfg)))
        if key not in keys:
            return f"{key} is not a key of the config; {_nearest(key, keys)}"
        for choice in value.split(",") if key == "scale" else ():
            if choice not in cfg.task.scales:
                return f"scale={choice} is not known; {_nearest(choice, list(cfg.task.scales))}"
    return _first_line(error)


def _compose(chosen: Mapping[str, str]) -> DictConfig:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", [f"{group}={choice}" for group, choice in chosen.items()])


def _keys(tree: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    near += [key for key in known if key.split(".")[-1] == word.split(".")[-1] and key not in near][:3]
    return f"nearest: {', '.join(near)}" if near else f"allowed: {', '.join(known[:12])}"


def _first_line(error: BaseException) -> str:
    """The message, without Hydra's echo of the whole configuration."""
    message = re.sub(r"^\w+ raised while resolving interpolation: ", "", str(error))
    message = re.split(r"\n\s*(?:full_key|object_type|set the environment)", message, flags=re.IGNORECASE)[0]
    return " ".join(message.split())
