"""Composed configs and runs small enough for a test."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from experiments import results, training
from experiments.config import CONF, register_resolvers

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "log", "and", "then", "it", "was", "=", "Title"]

SMALL = [
    "scale=smoke",
    "logger=none",
    "trainer=cpu",
    "trainer.precision=32-true",  # comparisons are exact, also where the processor has bfloat16
]
# ListOps with expressions of up to 60 tokens: the whole path in seconds.
TINY = [
    *SMALL,
    "task.data.min_length=5",
    "task.data.max_length=60",
    "task.data.length=64",
    "train.steps=12",
    "train.validate_every=4",
    "train.warmup_steps=2",
]


@pytest.fixture
def configure(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., DictConfig]:
    """``configure("model=sdpa", ...)``: the tiny config with these overrides; of another task, its smoke scale."""
    cache = tmp_path_factory.getbasetemp() / "cache"

    def make(*overrides: str) -> DictConfig:
        register_resolvers()
        other = any(override.startswith("task=") and not override.startswith("task=lra") for override in overrides)
        base = SMALL if other else TINY
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", [*base, f"cache_dir={cache}", *overrides])

    return make


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three small texts."""
    folder, rng = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    for split, lines in (("train", 400), ("validation", 30), ("test", 41)):
        text = "".join(" ".join(rng.choice(WORDS, size=rng.integers(0, 12))) + "\n" for _ in range(lines))
        (folder / f"{split}.txt").write_text(text)
    return folder


@pytest.fixture
def text_config(configure: Callable[..., DictConfig], corpus: Path) -> Callable[..., DictConfig]:
    """The smoke scale of wikitext103 on the small corpus."""

    def make(*overrides: str) -> DictConfig:
        small = ["train.steps=8", "train.validate_every=4", "task.data.vocab_size=300", "task.data.length=24"]
        return configure("task=wikitext103", f"task.data.folder={corpus}", *small, *overrides)

    return make


@pytest.fixture
def train_text(text_config: Callable[..., DictConfig], tmp_path: Path) -> Callable[..., results.Result]:
    """Train that, in ``tmp_path / folder``, and leave the config there as the command does."""

    def train(*overrides: str, folder: str = "run") -> results.Result:
        cfg, place = text_config(*overrides), tmp_path / folder
        (place / ".hydra").mkdir(parents=True, exist_ok=True)
        OmegaConf.save(cfg, place / ".hydra" / "config.yaml")
        return training.run(cfg, "wikitext103/gma/tiny", place)

    return train


@pytest.fixture
def files_of(tmp_path: Path) -> Callable[[str], list[str]]:
    """``files_of("lra/retrieval")``: overrides that give a task the files it cannot do without."""

    def overrides(task: str) -> list[str]:
        if task != "lra/retrieval":
            return []
        for split in ("train", "eval", "test"):
            (tmp_path / f"new_aan_pairs.{split}.tsv").write_text("1.0\tA\tB\tone\tother\n")
        return [f"task.data.folder={tmp_path}"]

    return overrides


@pytest.fixture
def tiny() -> list[str]:
    """Overrides that make a run of ListOps take seconds."""
    return [*TINY]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Overrides that make the command line run the tiny config, in a folder of the test's own."""
    return [*TINY, f"cache_dir={tmp_path / 'cache'}", f"hydra.run.dir={tmp_path / 'run'}"]


@pytest.fixture
def make_result() -> Callable[..., results.Result]:
    """``make_result(task=..., metrics=...)``: a result of a training that never was, on one budget unless told."""
    train = {"steps": 10, "batch_size": 8, "learning_rate": 0.1}
    config = {"train": train, "backbone": {"dim": 8, "mlp_dim": 9}, "task": {"head": "cls"}}

    def make(**values: object) -> results.Result:
        return _made(results.Result, {"config": config, "parameters": 5, "tokens_per_second": 1.0} | values)

    return make


@pytest.fixture
def make_measurement() -> Callable[..., results.Measurement]:
    """The same of a run that trains nothing."""

    def make(**values: object) -> results.Measurement:
        return _made(results.Measurement, values)

    return make


def _made(kind: type, values: dict[str, object]) -> results.Record:
    given = {"seed": 0, "scale": "cpu", "schema": results.SCHEMA, "config_hash": "", "finished_at": "1"}
    given |= {"run_id": "task/model/run", "git": {"commit": "abc", "dirty": False}}
    if kind is results.Result:
        given |= dict.fromkeys(("steps", "tokens_seen", "train_seconds", "wall_seconds", "peak_memory_bytes"), 1)
    return kind(**({field.name: {} for field in fields(kind)} | given | values))
