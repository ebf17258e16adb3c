"""Language modelling: perplexities recomputed by hand, causality of trained models, resuming, writing."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from experiments import results
from experiments import run as command
from experiments.arguments import read_arguments
from experiments.build import build_data, build_model
from experiments.checkpoints import load_language_model
from experiments.config import CONF
from experiments.errors import RefusedError
from experiments.generate import write
from experiments.language_modelling import LanguageModelling

CAUSAL = sorted(path.stem for path in (CONF / "model").glob("*.yaml") if path.stem != "linformer")
Run = Callable[..., results.Result]


@pytest.fixture
def make(text_config: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    return text_config


@pytest.fixture
def run(train_text: Run) -> Run:
    return train_text


def trained(cfg: DictConfig, folder: Path, result: results.Result) -> torch.nn.Module:
    model = build_model(cfg, build_data(cfg)).eval()
    weights = torch.load(folder / result.checkpoints["last"]["file"], weights_only=False)["state_dict"]
    model.load_state_dict({k.removeprefix("model."): v for k, v in weights.items() if k.startswith("model.")})
    return model


@pytest.mark.parametrize("stride", ["null", "7"])
def test_perplexities_are_those_recomputed_from_the_logits(
    run: Run, make: Callable[..., DictConfig], corpus: Path, tmp_path: Path, stride: str
) -> None:
    """Token by token from the text itself: no windows, batches or metrics of the project."""
    overrides = f"task.data.stride={stride}"
    result = run(overrides)
    cfg = make(overrides)
    data, model = build_data(cfg), trained(cfg, tmp_path / "run", result)
    text = (corpus / "test.txt").read_text()
    tokens = data.tokenizer.encode("\n").ids + data.tokenizer.encode(text).ids
    step = 24 if stride == "null" else int(stride)
    total, position = 0.0, 0
    while position < len(tokens) - 1:
        end = min(max(position + step, 24), len(tokens) - 1)
        begin = position if stride == "null" else max(0, (position + step) - 24) if position else 0
        with torch.no_grad():
            logits = model(torch.tensor([tokens[begin:end]]))[0].double().log_softmax(-1)
        total -= sum(float(logits[i - begin, tokens[i + 1]]) for i in range(position, end))
        position = end
    metrics = result.metrics_last
    assert metrics["test/perplexity"] == pytest.approx(math.exp(total / (len(tokens) - 1)), rel=1e-6)
    words = sum(len(line.split()) + 1 for line in text.splitlines())
    assert metrics["test/word_perplexity"] == pytest.approx(math.exp(total / words), rel=1e-6)
    assert metrics["test/bits_per_byte"] == pytest.approx(total / len(text.encode()) / math.log(2), rel=1e-6)
    assert result.dataset["stride"] == step


def test_a_run_learns_and_says_what_it_is(run: Run) -> None:
    result = run("train.steps=150", "train.validate_every=150", "train.learning_rate=0.01")
    assert result.metrics["test/perplexity"] < result.floors["unigram_perplexity"]
    assert result.checkpoints["chosen_by"] == "val/loss"
    assert set(result.metrics) == {
        f"{split}/{name}"
        for split in ("val", "test")
        for name in ("loss", "perplexity", "word_perplexity", "bits_per_byte")
    }
    assert result.tokens_seen == pytest.approx(150 * 8 * 24, rel=0.01)


@pytest.mark.parametrize("model", CAUSAL)
def test_no_logit_of_a_trained_model_sees_the_future(
    run: Run, make: Callable[..., DictConfig], tmp_path: Path, model: str
) -> None:
    result = run(f"model={model}")
    net = trained(make(f"model={model}"), tmp_path / "run", result).double()
    tokens = torch.randint(260, (2, 24))
    for cut in (1, 11, 23):
        changed = tokens.clone()
        changed[:, cut:] = (changed[:, cut:] + 1) % 260
        torch.testing.assert_close(net(changed)[:, :cut], net(tokens)[:, :cut], rtol=1e-9, atol=1e-9)
        assert not torch.allclose(net(changed)[:, cut:], net(tokens)[:, cut:])


def test_a_run_stopped_in_the_middle_of_a_pass_goes_on_with_the_same_batches(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, losses = LanguageModelling.training_step, []

    def watching(self: LanguageModelling, batch: object, batch_idx: int) -> torch.Tensor:
        if stop_at == len(losses):
            raise RuntimeError("power cut")
        losses.append(step(self, batch, batch_idx))
        return losses[-1]

    monkeypatch.setattr(LanguageModelling, "training_step", watching)
    stop_at = -1
    whole_result = run(folder="whole")
    whole = [loss.item() for loss in losses]
    losses.clear()
    stop_at = 6  # two steps after a checkpoint
    with pytest.raises(RuntimeError, match="power cut"):
        run()
    del losses[4:]
    stop_at = -1
    resumed_result = run()
    assert [loss.item() for loss in losses] == whole
    assert resumed_result.metrics == whole_result.metrics


def test_component_usage_is_logged_for_every_layer(run: Run, tmp_path: Path) -> None:
    run("logger=csv", "backbone.depth=2", "model.num_components=8")
    header, *rows = (tmp_path / "run" / "csv" / "version_0" / "metrics.csv").read_text().splitlines()
    columns = header.split(",")
    for layer in (0, 1):
        index = columns.index(f"usage/layer{layer}/effective_components")
        values = [float(row.split(",")[index]) for row in rows if row.split(",")[index]]
        assert values
        assert all(1 <= value <= 8 for value in values)
    assert "usage/layer0/entropy" in columns


def test_a_causal_task_refuses_a_mixer_without_causal_form(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="causal=True is not allowed for Linformer"):
        run("model=linformer")


def test_the_parameters_of_the_mixture_have_their_own_learning_rate(make: Callable[..., DictConfig]) -> None:
    cfg = make("model.learning_rate_scale=5", "train.learning_rate=0.01", "train.weight_decay=0.1")
    data = build_data(cfg)
    module = LanguageModelling(build_model(cfg, data), data, cfg.train, cfg.seed)
    groups = module.configure_optimizers()["optimizer"].param_groups
    group_of = {id(parameter): group for group in groups for parameter in group["params"]}
    rates = {name: group_of[id(parameter)] for name, parameter in module.named_parameters()}
    mixture = [group for name, group in rates.items() if "mixture" in name]
    assert mixture
    assert all(group["initial_lr"] == pytest.approx(0.05) and group["weight_decay"] == 0 for group in mixture)
    matrix = rates["model.blocks.0.mixer.q_proj.weight"]
    assert matrix["initial_lr"] == pytest.approx(0.01)
    assert matrix["weight_decay"] == pytest.approx(0.1)


def test_generate_writes_what_the_model_says(run: Run, tmp_path: Path) -> None:
    result = run()
    checkpoint = tmp_path / "run" / result.checkpoints["best"]["file"]
    root = Path(__file__).parents[2]
    cache = OmegaConf.load(tmp_path / "run" / ".hydra" / "config.yaml").cache_dir
    generate = [sys.executable, "-m", "experiments.generate", f"checkpoint={checkpoint}", f"cache_dir={cache}"]
    arguments = ["prompt=the cat = ", "tokens=12", "temperature=0"]
    done = subprocess.run([*generate, *arguments], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    model, data, _ = load_language_model(checkpoint, cache, None)
    tokens = data.tokenizer.encode("the cat = ").ids
    for _ in range(12):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    assert done.stdout == data.tokenizer.decode(tokens) + "\n"


def test_generate_answers_bad_requests_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"prompts=x is not known; allowed: checkpoint=, prompt=, tokens="):
        read_arguments("generate", ["prompts=x"])
    with pytest.raises(RefusedError, match="checkpoint= is missing"):
        write(read_arguments("generate", ["prompt=x"]))
    with pytest.raises(RefusedError, match=r"best.ckpt is not there: a run of experiments.run leaves both"):
        load_language_model(tmp_path / "checkpoints" / "best.ckpt", "cache", None)


def test_text_that_has_changed_is_noticed(
    run: Run, make: Callable[..., DictConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "validation", "test"):
        (text / f"{split}.txt").write_text("one two three\n" * 200)
    here = f"task.data.folder={text}"
    result = run(here)
    cache = make(here).cache_dir
    checkpoint = tmp_path / "run" / result.checkpoints["best"]["file"]
    load_language_model(checkpoint, cache, None)
    (text / "train.txt").write_text("four five six\n" * 200)
    with pytest.raises(RefusedError, match=r"the data of .* have changed: it was run on .*resume=never"):
        load_language_model(checkpoint, cache, None)
    command._finish(make(here), result.run_id, tmp_path / "run")
    assert "the data have changed since" in capsys.readouterr().out
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RefusedError, match="have changed"):
        run(here)


@pytest.mark.parametrize("key", ["tokens=-3", "tokens=many", "seed=x"])
def test_generate_refuses_numbers_that_are_none(key: str) -> None:
    with pytest.raises(RefusedError, match=r"is not allowed: .* must be a whole number, at least 0"):
        write(read_arguments("generate", ["checkpoint=somewhere", key]))


def test_a_damaged_checkpoint_is_refused(run: Run, make: Callable[..., DictConfig], tmp_path: Path) -> None:
    result = run()
    checkpoint = tmp_path / "run" / result.checkpoints["best"]["file"]
    checkpoint.write_bytes(b"not a checkpoint")
    with pytest.raises(RefusedError, match=r"best.ckpt is damaged"):
        load_language_model(checkpoint, make().cache_dir, None)
