"""Parameter matching: within 2 % of softmax attention for every model, or refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from experiments.build import build_data, build_model
from experiments.config import CONF
from experiments.matching import count_parameters

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))

Configure = Callable[..., DictConfig]


def build(cfg: DictConfig) -> torch.nn.Module:
    with torch.device("meta"):
        return build_model(cfg, build_data(cfg))


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_the_parameters_of_softmax_attention(configure: Configure, model: str, scale: str) -> None:
    cfg = configure(f"model={model}", f"scale={scale}", "task.data.length=2000")
    target = count_parameters(build(configure("model=sdpa", f"scale={scale}", "task.data.length=2000")))
    assert abs(count_parameters(build(cfg)) - target) <= 0.02 * target


def test_softmax_attention_keeps_its_width(configure: Configure) -> None:
    assert build(configure("model=sdpa", "backbone.mlp_dim=77")).mlp_dim == 77


def test_without_matching_every_model_keeps_its_width(configure: Configure) -> None:
    assert build(configure("model=gma", "backbone.mlp_dim=77", "match_parameters=false")).mlp_dim == 77


def test_a_mixer_too_large_to_match_is_refused_with_what_to_do(configure: Configure) -> None:
    with pytest.raises(ValueError, match=r"cannot be matched: .*mlp_dim=128 has .* match_parameters=false"):
        build(configure("model=gma", "model.num_components=4000"))


def test_matching_draws_no_random_numbers(configure: Configure) -> None:
    """The same seed gives the same weights, whether the width was found or given."""
    cfg = configure("model=gma")
    data = build_data(cfg)
    torch.manual_seed(1)
    matched = build_model(cfg, data)
    given = configure("model=gma", "match_parameters=false", f"backbone.mlp_dim={matched.mlp_dim}")
    torch.manual_seed(1)
    plain = build_model(given, data)
    for one, other in zip(matched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_switch_is_checked(configure: Configure) -> None:
    with pytest.raises(ValueError, match="match_parameters='yes' is not allowed"):
        build(configure("match_parameters='yes'"))
    assert Path(CONF, "config.yaml").read_text().count("match_parameters: true") == 1
