"""Training in this process: results, resuming, schedules, stopping."""

import csv
import json
import math
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from experiments import machine, results, training
from experiments import run as command
from experiments.callbacks import HeedInterrupts
from experiments.classification import Classification
from experiments.config import config_hash
from experiments.errors import NonFiniteLossError, RefusedError
from experiments.module import learning_rate_factor


@pytest.fixture
def run(configure: Callable[..., DictConfig], tmp_path: Path) -> Callable[..., results.Result]:
    def make(*overrides: str, folder: str = "run") -> results.Result:
        return training.run(configure(*overrides), "lra/listops/gma/tiny", tmp_path / folder)

    return make


def test_a_run_leaves_a_result_that_says_everything(
    run: Callable[..., results.Result], configure: Callable[..., DictConfig], tmp_path: Path
) -> None:
    result = run()
    assert result == results.read(tmp_path / "run" / "result.json")
    assert (result.task, result.model, result.scale, result.seed) == ("lra/listops", "gma", "smoke", 0)
    assert set(result.metrics) == {"val/accuracy", "val/loss", "test/accuracy", "test/loss"}
    assert set(result.metrics_last) == set(result.metrics)
    assert set(result.floors) == {"majority_class", "root_operator", "root_operator_and_digits"}
    assert result.dataset["name"] == "listops"
    assert result.config_hash == config_hash(configure())
    assert result.config["train"]["steps"] == result.steps == result.checkpoints["last"]["step"] == 12
    assert result.checkpoints["best"]["step"] in (4, 8, 12)
    assert result.tokens_seen > 12 * 8 * 5
    assert 0 < result.train_seconds < result.wall_seconds
    assert result.tokens_per_second == pytest.approx(result.tokens_seen / result.train_seconds)
    assert result.parameters > 0
    assert result.peak_memory_bytes > 2**20
    assert result.sittings == 1
    assert result.versions["torch"] == torch.__version__
    assert result.machine["threads"] == torch.get_num_threads()
    assert str(tmp_path.parent) not in json.dumps(result.config)  # nothing of where this machine keeps things


def test_metrics_are_those_of_the_saved_weights_on_every_row(
    run: Callable[..., results.Result], configure: Callable[..., DictConfig], tmp_path: Path
) -> None:
    """Recomputed here row by row, without padding, batches or Lightning."""
    result = run()
    cfg = configure()
    data = training.build_data(cfg)
    model = training.build_model(cfg, data).eval()
    for which, metrics in (("best", result.metrics), ("last", result.metrics_last)):
        weights = torch.load(tmp_path / "run" / result.checkpoints[which]["file"], weights_only=False)["state_dict"]
        model.load_state_dict({k.removeprefix("model."): v for k, v in weights.items() if k.startswith("model.")})
        right, loss = [], []
        for row in data.load()["test"]:
            with torch.no_grad():
                logits = model(torch.tensor([row["tokens"]]))
            right.append(int(logits.argmax()) == row["label"])
            loss.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor([row["label"]]))))
        assert metrics["test/accuracy"] == pytest.approx(sum(right) / len(right))
        assert metrics["test/loss"] == pytest.approx(sum(loss) / len(loss), abs=1e-4)


def test_means_started_from_data_change_the_run_and_survive_a_resume(run: Callable[..., results.Result]) -> None:
    started = run("model.means_from_data=true", "train.validate_every=12", folder="started")
    assert started.metrics != run("train.validate_every=12", folder="drawn").metrics
    assert run("model.means_from_data=true", "train.validate_every=12", folder="again").metrics == started.metrics


def test_a_finished_run_is_shown_again_and_not_trained(
    run: Callable[..., results.Result],
    configure: Callable[..., DictConfig],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = run()
    monkeypatch.setattr(training, "run", lambda *_: pytest.fail("trained again"))
    capsys.readouterr()
    command._finish(configure(), first.run_id, tmp_path / "run")
    out = capsys.readouterr().out
    assert f"was finished at {first.finished_at}; resume=never runs it again" in out
    assert f"{first.metrics['test/accuracy']:.4f}" in out
    monkeypatch.setattr(machine, "git_state", lambda: {"commit": "another", "dirty": False})
    command._finish(configure(), first.run_id, tmp_path / "run")
    assert "the code may have changed since" in capsys.readouterr().out


def test_resume_never_trains_again(run: Callable[..., results.Result]) -> None:
    first = run()
    again = run("resume=never")
    assert again.finished_at >= first.finished_at
    assert again.wall_seconds != first.wall_seconds
    assert again.metrics == first.metrics


def test_a_run_goes_on_from_its_last_checkpoint_to_the_same_numbers(
    run: Callable[..., results.Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Stopped in the middle of step 10, two steps after a checkpoint; dropout on, so that its draws matter."""
    overrides = ("backbone.dropout=0.2",)
    whole = run(*overrides, folder="whole")
    step = Classification.training_step
    seen: list[int] = []

    def stopping(self: Classification, batch: object, batch_idx: int) -> torch.Tensor:
        seen.append(batch_idx)
        if len(seen) == 10:
            raise RuntimeError("power cut")
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Classification, "training_step", stopping)
    with pytest.raises(RuntimeError, match="power cut"):
        run(*overrides)
    assert not (tmp_path / "run" / "result.json").exists()
    resumed = run(*overrides)
    assert seen == [*range(10), *range(8, 12)]
    assert resumed.metrics == whole.metrics
    assert resumed.metrics_last == whole.metrics_last
    assert resumed.checkpoints == whole.checkpoints
    assert resumed.tokens_seen == whole.tokens_seen
    assert resumed.sittings == 2


def test_bfloat16_trains_as_float32_does_within_its_precision(run: Callable[..., results.Result]) -> None:
    exact = run("trainer.precision=32-true", folder="exact")
    rounded = run("trainer.precision=bf16-mixed", folder="rounded")
    assert rounded.execution["precision"] == "bf16-mixed"
    assert rounded.metrics_last["test/loss"] == pytest.approx(exact.metrics_last["test/loss"], abs=0.05)


def test_a_run_killed_between_training_and_result_only_tests_again(
    run: Callable[..., results.Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run()
    (tmp_path / "run" / "result.json").unlink()
    capsys.readouterr()
    second = run()
    assert "resumed" in capsys.readouterr().out
    for name in ("metrics", "metrics_last", "checkpoints", "steps", "tokens_seen", "train_seconds"):
        assert getattr(second, name) == getattr(first, name), name


def test_a_missing_gpu_is_refused_in_one_line(run: Callable[..., results.Result]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RefusedError, match=r"trainer.accelerator=gpu .* is not to be had here"):
        run("trainer=gpu")


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    run: Callable[..., results.Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forward = training.build_model

    def poisoned(cfg: DictConfig, data: object) -> torch.nn.Module:
        model, calls = forward(cfg, data), [0]

        def poison(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
            calls[0] += module.training
            return output * (float("nan") if calls[0] == 7 else 1.0)

        model.register_forward_hook(poison)
        return model

    monkeypatch.setattr(training, "build_model", poisoned)
    with pytest.raises(
        NonFiniteLossError, match=r"not finite at step 7 of 12 \(train rows (\d+, ){7}\d+\).*last\.ckpt"
    ):
        run()
    kept = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    assert kept["global_step"] == 4
    assert all(tensor.isfinite().all() for tensor in kept["state_dict"].values())
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_batch_larger_than_the_data_is_refused(run: Callable[..., results.Result]) -> None:
    with pytest.raises(RefusedError, match=r"train.batch_size=641 is not allowed: the train split has only 640 rows"):
        run("train.batch_size=641")


def test_a_batch_that_the_processes_cannot_share_is_refused(run: Callable[..., results.Result]) -> None:
    with pytest.raises(RefusedError, match=r"train.batch_size=7 .* multiple of the 2 processes"):
        run("train.batch_size=7", "trainer.devices=2", "trainer.strategy=ddp")


def test_the_csv_log_has_the_curve_and_the_final_metrics(run: Callable[..., results.Result], tmp_path: Path) -> None:
    result = run("logger=csv")
    with (tmp_path / "run" / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["val/loss"]][:3] == ["3", "7", "11"]
    assert float(rows[-1]["test/accuracy"]) == result.metrics["test/accuracy"]
    assert float(rows[-1]["floor/majority_class"]) == result.floors["majority_class"]


def test_a_bad_data_file_is_refused_in_one_line(run: Callable[..., results.Result], tmp_path: Path) -> None:
    for name in ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"):
        (tmp_path / name).write_text("Source\tTarget\n[MAX 1 2 ]\t11\n")
    with pytest.raises(RefusedError, match="line 2: label 11 is not a digit"):
        run(f"task.data.folder={tmp_path}")


@pytest.mark.parametrize("schedule", ["cosine", "inverse_sqrt"])
def test_learning_rate_warms_up_to_its_peak_and_falls(configure: Callable[..., DictConfig], schedule: str) -> None:
    train = configure(f"train.schedule={schedule}", "train.steps=100", "train.warmup_steps=10").train
    factor = learning_rate_factor(train)
    values = [factor(step) for step in range(101)]
    assert values[0] == pytest.approx(1 / 11)
    assert max(values) == values[10] == 1
    assert values[:11] == sorted(values[:11])
    assert values[10:] == sorted(values[10:], reverse=True)
    assert values[100] == pytest.approx(0 if schedule == "cosine" else math.sqrt(10 / 100))


def test_only_matrices_decay(configure: Callable[..., DictConfig]) -> None:
    cfg = configure()
    data = training.build_data(cfg)
    module = Classification(training.build_model(cfg, data), data, cfg.train, cfg.seed)
    groups = module.configure_optimizers()["optimizer"].param_groups
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    decayed, spared = (
        {names[id(p)] for group in groups if bool(group["weight_decay"]) is decays for p in group["params"]}
        for decays in (True, False)
    )
    assert decayed | spared == set(names.values())
    assert "model.blocks.0.mixer.q_proj.weight" in decayed
    assert {"model.blocks.0.mixer.mixture.means", "model.embedding.weight", "model.positions.table"} <= spared


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_destructor_swallows_ends_the_next_batch() -> None:
    class Destroyed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    heed, before = HeedInterrupts(), signal.getsignal(signal.SIGINT)
    heed.on_fit_start(None, None)
    try:
        heed.on_train_batch_start(None, None, None, 0)
        Destroyed()  # gone at once
        with pytest.raises(KeyboardInterrupt):
            heed.on_train_batch_start(None, None, None, 1)
    finally:
        heed.on_fit_end(None, None)
    assert signal.getsignal(signal.SIGINT) is before
