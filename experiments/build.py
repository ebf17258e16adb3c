"""From a config to the objects it names: data set and model."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import nn

import gma
from experiments.matching import matched_mlp_dim
from gma.mixer import require

POSITIONS = ("learned", "grid", "sinusoidal", "none")
PRECISIONS = ("auto", "bf16-mixed", "32-true", "64-true")
HEADS = {"cls": gma.ClsHead, "mean": gma.MeanPoolHead, "pair": gma.PairHead}
LANGUAGE_MODEL = "next_token"


def build_data(cfg: DictConfig) -> Any:
    """The task's data set; checks its arguments, builds nothing yet.

    Raises:
        ValueError: for a task without one, and whatever the data set refuses.
    """
    if "data" not in cfg.task:
        raise ValueError(f"task={cfg.task.name} trains nothing: it has no data")
    return instantiate(cfg.task.data)


def build_model(cfg: DictConfig, data: Any) -> gma.SequenceModel:
    """The backbone with the config's mixer, sized for ``data``.

    With ``match_parameters``, :func:`experiments.matching.matched_mlp_dim` finds the feed-forward width.

    Raises:
        ValueError: for a head or positions that are not known, and whatever backbone, mixer and matching refuse.
    """
    heads = [*HEADS] if data.num_classes else [LANGUAGE_MODEL]
    require(cfg.task.head in heads, "task.head", cfg.task.head, f"one of {', '.join(heads)} for this task")
    require(
        cfg.backbone.positions in POSITIONS,
        "backbone.positions",
        cfg.backbone.positions,
        "one of " + ", ".join(POSITIONS),
    )
    for key in ("dim", "depth", "num_heads", "mlp_dim"):
        value = cfg.backbone[key]
        require(isinstance(value, int) and value >= 1, f"backbone.{key}", value, "a whole number, at least 1")
    matching = cfg.match_parameters
    require(isinstance(matching, bool), "match_parameters", matching, "true or false")
    mixer, assemble = instantiate(cfg.model), partial(_assemble, cfg, data)
    return assemble(mixer, matched_mlp_dim(cfg, mixer, assemble) if matching else cfg.backbone.mlp_dim)


def _assemble(cfg: DictConfig, data: Any, mixer: Callable[[int], gma.SequenceMixer], mlp_dim: int) -> gma.SequenceModel:
    dim = cfg.backbone.dim
    if cfg.backbone.positions == "learned":
        positions = gma.LearnedPositions(data.length, dim)
    elif cfg.backbone.positions == "grid":
        require(hasattr(data, "side"), "backbone.positions", "grid", "learned, sinusoidal or none: no pictures here")
        positions = gma.GridPositions(data.side, data.side, dim)
    elif cfg.backbone.positions == "sinusoidal":
        positions = gma.SinusoidalPositions(dim)
    else:
        positions = gma.NoPositions()
    if data.vocab_size is None:
        embedding: nn.Module = gma.ContinuousEmbedding(data.channels, dim)
    else:
        embedding = gma.TokenEmbedding(data.vocab_size, dim)
    is_language_model = cfg.task.head == LANGUAGE_MODEL
    return gma.SequenceModel(
        mixer,
        embedding,
        gma.LanguageModelHead(embedding) if is_language_model else HEADS[cfg.task.head](dim, data.num_classes),
        dim=dim,
        depth=cfg.backbone.depth,
        mlp_dim=mlp_dim,
        positions=positions,
        dropout=cfg.backbone.dropout,
    )


def check_training(cfg: DictConfig) -> None:
    """Refuse numbers that no training can use, naming the key.

    Raises:
        ValueError: naming the key, its value and what is allowed.
    """

    def whole(key: str, least: int) -> None:
        value = cfg.train[key]
        require(isinstance(value, int) and value >= least, f"train.{key}", value, f"a whole number, at least {least}")

    require(isinstance(cfg.seed, int) and cfg.seed >= 0, "seed", cfg.seed, "a whole number, at least 0")
    require(cfg.resume in ("auto", "never"), "resume", cfg.resume, "auto or never")
    require(
        cfg.trainer.precision in PRECISIONS,
        "trainer.precision",
        cfg.trainer.precision,
        f"one of {', '.join(PRECISIONS)}",
    )
    whole("steps", 1)
    whole("batch_size", 1)
    whole("validate_every", 1)
    whole("warmup_steps", 0)
    require(
        cfg.train.warmup_steps <= cfg.train.steps, "train.warmup_steps", cfg.train.warmup_steps, "at most train.steps"
    )
    for key in ("learning_rate", "gradient_clip"):
        value = cfg.train[key]
        require(isinstance(value, int | float) and value > 0, f"train.{key}", value, "a positive number")
    schedules = ("cosine", "inverse_sqrt")
    require(cfg.train.schedule in schedules, "train.schedule", cfg.train.schedule, f"one of {', '.join(schedules)}")
    betas = cfg.train.betas
    require(
        OmegaConf.is_list(betas) and len(betas) == 2 and all(isinstance(b, float) and 0 <= b < 1 for b in betas),
        "train.betas",
        betas,
        "two numbers in [0, 1)",
    )
    decay = cfg.train.weight_decay
    require(isinstance(decay, int | float) and decay >= 0, "train.weight_decay", decay, "a number, at least 0")
