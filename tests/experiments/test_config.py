"""Configs: every combination composes, a run's name follows from what decides its numbers, refusals are helpful."""

from collections.abc import Callable

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from experiments.build import build_data, build_model, check_training
from experiments.config import CONF, config_hash, explain, identity, refusing, resolved, run_name
from experiments.errors import RefusedError

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
BIDIRECTIONAL_ONLY = ["linformer"]
# LRA's own settings leave less room in a block than Mamba's smallest takes.
TOO_SMALL = [("mamba", "lra/image", "paper"), ("mamba", "lra/pathfinder", "paper")]
MEASURED = ["memory_scaling", "interpretability"]  # tasks that train nothing
TASKS = sorted(path.relative_to(CONF / "task").with_suffix("").as_posix() for path in (CONF / "task").rglob("*.yaml"))
TASKS = [task for task in TASKS if task not in MEASURED]
TRAINERS = sorted(path.stem for path in (CONF / "trainer").glob("*.yaml"))


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_task_and_scale_composes_and_builds(
    files_of: Callable[[str], list[str]], model: str, task: str, scale: str
) -> None:
    choice = [f"model={model}", f"task={task}", f"scale={scale}", "cache_dir=unused"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", [*choice, *files_of(task)])
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    check_training(cfg)
    with torch.device("meta"):
        if cfg.task.causal and model in BIDIRECTIONAL_ONLY:
            with pytest.raises(ValueError, match="causal=True is not allowed"):
                build_model(cfg, build_data(cfg))
        elif (model, task, scale) in TOO_SMALL:
            with pytest.raises(ValueError, match=r"cannot be matched: .* match_parameters=false"):
                build_model(cfg, build_data(cfg))
        else:
            build_model(cfg, build_data(cfg))


@pytest.mark.parametrize("task", MEASURED)
def test_a_task_that_trains_nothing_leaves_training_out_and_says_so(
    configure: Callable[..., DictConfig], task: str
) -> None:
    for scale in ("smoke", "cpu", "paper"):
        cfg = configure(f"task={task}", f"scale={scale}", f"checkpoint={CONF / 'config.yaml'}")
        assert not {"train", "match_parameters"} & (set(resolved(cfg)) | set(identity(cfg)))
    with pytest.raises(ValueError, match=f"task={task} trains nothing: it has no data"):
        build_data(cfg)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_trainer_has_the_same_keys(configure: Callable[..., DictConfig], trainer: str) -> None:
    assert configure(f"trainer={trainer}").trainer.keys() == configure("trainer=auto").trainer.keys()


def test_task_lra_means_listops(configure: Callable[..., DictConfig]) -> None:
    assert configure("task=lra").task == configure("task=lra/listops").task


def test_what_decides_the_numbers_names_the_run(configure: Callable[..., DictConfig]) -> None:
    base = configure()
    assert run_name(base).startswith("smoke-seed0-")
    same = configure(
        "trainer.devices=2", "logger=csv", "model.recompute=true", "cache_dir=elsewhere", "task.scales.paper.dim=8"
    )
    assert config_hash(same) == config_hash(base)
    for change in ("seed=1", "model=sdpa", "train.steps=13", "model.num_components=8", "backbone.depth=2"):
        assert config_hash(configure(change)) != config_hash(base), change
    assert config_hash(configure("trainer.precision=64-true")) != config_hash(base)
    assert "scales" not in identity(base)["task"]


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("model=gmaa", "model=gmaa is not known; nearest: gma"),
        ("task=lra/listop", "task=lra/listop is not known; nearest: lra/listops"),
        ("trainer=tpu", "trainer=tpu is not known; "),
        ("scale=huge", "scale=huge is not known; allowed: smoke, cpu, paper"),
        ("train.step=5", "train.step is not a key of the config; nearest: train.steps"),
        ("learning_rate=0.1", "learning_rate is not a key of the config; nearest: train.learning_rate"),
        ("model.components=3", "model.components is not a key of the config; nearest: model.num_components"),
    ],
)
def test_a_mistyped_argument_is_answered_with_the_nearest_valid_ones(override: str, answer: str) -> None:
    assert explain(ConfigCompositionException("whatever Hydra says"), ["task=lra", override]).startswith(answer)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("backbone.num_heads=3", r"num_heads=3 is not allowed: num_heads must be a divisor of dim=32"),
        ("model.num_components=0", r"num_components=0 is not allowed"),
        ("backbone.dim=0", r"backbone.dim=0 is not allowed"),
        ("task.data.length=30", r"length=30 is not allowed: expressions of up to 59 tokens would be cut"),
        ("task.head=max", r"task.head='max' is not allowed: task.head must be one of cls, mean"),
        ("backbone.positions=rotary", r"must be one of learned, grid, sinusoidal, none"),
        ("backbone.positions=grid", r"no pictures here"),
        ("train.steps=0", r"train.steps=0 is not allowed"),
        ("train.steps=many", r"train.steps='many' is not allowed: train.steps must be a whole number"),
        ("train.learning_rate=-1", r"train.learning_rate=-1 is not allowed"),
        ("train.schedule=linear", r"must be one of cosine, inverse_sqrt"),
        ("task.data.folder=/nowhere", r"/nowhere lacks basic_train.tsv"),
        ("seed=-1", r"seed=-1 is not allowed: seed must be a whole number"),
        ("seed=1.5", r"seed=1.5 is not allowed"),
        ("train.betas=0.9", r"train.betas=0.9 is not allowed: train.betas must be two numbers"),
        ("trainer.precision=16-mixed", r"must be one of auto, bf16-mixed, 32-true, 64-true"),
        ("model.num_components=2.5", r"num_components=2.5 is not allowed: num_components must be a whole number"),
        ("model.temperature=hot", r"temperature='hot' is not allowed"),
        ("model.equal_norms=fals", r"equal_norms='fals' is not allowed"),
        ("resume=yes", r"resume=.* is not allowed: resume must be auto or never"),
    ],
)
def test_nonsense_is_refused_in_one_line_before_any_work(
    configure: Callable[..., DictConfig], override: str, complaint: str
) -> None:
    cfg = configure(override)
    with pytest.raises(RefusedError, match=complaint) as refused, refusing():
        _ = check_training(cfg), build_model(cfg, build_data(cfg))
    assert "\n" not in str(refused.value)
