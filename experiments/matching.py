"""Models of equal size: each mixer's feed-forward network gives up, or takes, what makes the totals equal."""

from collections.abc import Callable
from functools import partial

import torch
from omegaconf import DictConfig
from torch import nn

import gma
from baselines.sdpa import ScaledDotProductAttention

TOLERANCE = 0.02

Mixer = Callable[[int], gma.SequenceMixer]


def count_parameters(model: nn.Module) -> int:
    """Trainable numbers; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def matched_mlp_dim(cfg: DictConfig, mixer: Mixer, assemble: Callable[[Mixer, int], nn.Module]) -> int:
    """The feed-forward width at which the model is closest to softmax attention's of width ``backbone.mlp_dim``.

    Args:
        cfg: a run's config. mixer: the one to be matched. assemble: (mixer, mlp_dim) -> model. Models are built without
            memory, on the meta device, and draw no random numbers.

    Raises:
        ValueError: if no width of at least 1 brings it within 2 %.
    """
    sdpa = partial(ScaledDotProductAttention, num_heads=cfg.backbone.num_heads, causal=cfg.task.causal)
    with torch.device("meta"):
        target = count_parameters(assemble(sdpa, cfg.backbone.mlp_dim))
        least, second = (count_parameters(assemble(mixer, mlp_dim)) for mlp_dim in (1, 2))
    per_unit = second - least
    mlp_dim = max(1, 1 + round((target - least) / per_unit))
    reached = least + (mlp_dim - 1) * per_unit
    if abs(reached - target) > TOLERANCE * target:
        raise ValueError(
            f"this mixer cannot be matched: softmax attention with backbone.mlp_dim={cfg.backbone.mlp_dim} has"
            f" {target:,} parameters, this model {reached:,} with a feed-forward width of {mlp_dim}; give it fewer"
            " (see conf/model), raise backbone.mlp_dim for all, or set match_parameters=false"
        )
    return mlp_dim
