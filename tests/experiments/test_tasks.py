"""Every classification task with every mixer: what stands in the padding changes nothing."""

from collections.abc import Callable

import pytest
import torch
from hydra import compose, initialize_config_dir

from experiments.build import build_data, build_model
from experiments.config import CONF

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
TASKS = sorted(path.stem for path in (CONF / "task" / "lra").glob("*.yaml"))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", MODELS)
def test_padding_changes_no_logit(files_of: Callable[[str], list[str]], task: str, model: str) -> None:
    choice = [f"task=lra/{task}", f"model={model}", "scale=smoke", "cache_dir=unused", *files_of(f"lra/{task}")]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", choice)
    data = build_data(cfg)
    net = build_model(cfg, data).double().eval()
    mask = torch.arange(40) < torch.tensor([40, 23, 1, 31])[:, None]
    tokens = torch.randint(data.vocab_size, (4, 40))
    changed = torch.where(mask, tokens, torch.randint(data.vocab_size, (4, 40)))
    logits = net(tokens, mask)
    assert logits.shape == (2 if task == "retrieval" else 4, data.num_classes)
    torch.testing.assert_close(net(changed, mask), logits, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(net((tokens + 1) % data.vocab_size, mask), logits)
