"""Every classification task with every mixer: what stands in the padding changes nothing."""

from collections.abc import Callable

import pytest
import torch
from hydra import compose, initialize_config_dir

from experiments.build import build_data, build_model
from experiments.config import CONF

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
TASKS = [[f"task=lra/{path.stem}"] for path in sorted((CONF / "task" / "lra").glob("*.yaml"))]


@pytest.mark.parametrize("task", [*TASKS, ["task=lra/image", "task.data.pixels=continuous"]], ids=" ".join)
@pytest.mark.parametrize("model", MODELS)
def test_padding_changes_no_logit(files_of: Callable[[str], list[str]], task: list[str], model: str) -> None:
    name = task[0].removeprefix("task=")
    choice = [*task, f"model={model}", "scale=smoke", "cache_dir=unused", *files_of(name)]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", choice)
    data = build_data(cfg)
    net = build_model(cfg, data).double().eval()
    mask = torch.arange(40) < torch.tensor([40, 23, 1, 31])[:, None]

    def draw() -> torch.Tensor:
        if data.vocab_size is None:
            return torch.rand(4, 40, data.channels, dtype=torch.float64)
        return torch.randint(data.vocab_size, (4, 40))

    inputs = draw()
    padded = ~(mask if data.vocab_size else mask.unsqueeze(-1))
    logits = net(inputs, mask)
    assert logits.shape == (2 if name == "lra/retrieval" else 4, data.num_classes)
    torch.testing.assert_close(net(torch.where(padded, draw(), inputs), mask), logits, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(net(draw(), mask), logits)
