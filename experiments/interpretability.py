"""``task=interpretability``: what the components of a trained causal GMA do (Table 4, Figures 2-3 of the paper).

A row is about one head of one layer, for its queries or its keys, of the trained model or of an untrained one of the
same config. It has

- ``effective_components``, ``entropy``: of usage and of a token's responsibilities, see :mod:`gma.analysis`;
- ``lipschitz``: how fast responsibilities change where they change fastest among the tokens, and ``lipschitz_bound``:
  how fast they could among inputs no longer than the longest of them (:func:`gma.analysis.lipschitz_bound`);
- ``dead_share``: components whose usage is below ``task.dead_below`` / K; ``usage``: of each component;
- each measure of :mod:`experiments.agreement` between the hard assignment argmax_k gamma_k and the token's surface-form
  category, as ``value``, and its ``chance``, ``chance_low`` and ``chance_high`` under shuffled categories;
- ``table``: how many tokens of each category each component takes, (categories, K).
"""

from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from experiments import component_figures, machine, results
from experiments.agreement import MEASURES, agreement, contingency
from experiments.build import build_model
from experiments.checkpoints import load_language_model
from experiments.config import refusing
from experiments.errors import RefusedError
from experiments.loggers import build_logger, mirror
from experiments.token_categories import CATEGORIES, categorise, count_words
from gma import GaussianMixture, GaussianMixtureAttention, SequenceModel
from gma.analysis import effective_components, lipschitz_bound, mean_entropy, responsibility_jacobian, usage
from gma.mixer import require

SIDES = ("queries", "keys")
WINDOWS_AT_ONCE = 8  # or the logits of a large vocabulary would fill the memory
PROBED = 256  # tokens of the first window at which the Jacobian is taken
Routed = tuple[Tensor, Tensor]  # vectors (windows, H, N, R) and their responsibilities (windows, H, N, K)


def run(cfg: DictConfig, run_id: str, folder: Path) -> results.Measurement:
    """Look at the model of ``cfg.checkpoint`` and return the result, which also lies in ``folder``, with its figures.

    Raises:
        RefusedError: for a checkpoint that is not there or has no GMA in it, and numbers that make no sense.
    """
    with refusing():
        for key, least in (("windows", 1), ("shuffles", 2)):
            value = cfg.task[key]
            require(
                isinstance(value, int) and value >= least, f"task.{key}", value, f"a whole number, at least {least}"
            )
    git = machine.git_state()
    checkpoint = Path(cfg.checkpoint)
    loaded = load_language_model(checkpoint, cfg.cache_dir, cfg.data_dir)
    if not _layers(loaded.model):
        raise RefusedError(f"{cfg.checkpoint} is of a model without Gaussian mixtures; train one with model=gma")
    torch.manual_seed(cfg.seed)
    models = {"trained": loaded.model, "untrained": build_model(loaded.cfg, loaded.data).eval()}
    loaded.data.stride = loaded.data.length  # each token once
    splits = loaded.data.load()
    tokens = torch.stack(
        [torch.from_numpy(splits["validation"][i]["tokens"].astype("int64")) for i in _windows(cfg, splits)]
    )
    tokenizer = loaded.data.tokenizer
    counts = count_words(splits["train"].tokens.tolist(), tokenizer)
    names = categorise(tokens.flatten().tolist(), tokenizer, counts)  # the windows follow one another
    labels = torch.tensor([CATEGORIES.index(name) for name in names]).numpy()

    rows = []
    for state, model in models.items():
        observed = zip(_layers(model), observe(model, tokens), strict=True)
        for layer, (module, sides) in enumerate(track(list(observed), f"Looking at the {state} model")):
            for side, (vectors, gamma) in zip(SIDES, sides, strict=True):
                speeds = change(module.mixture, vectors)
                for head in range(gamma.shape[1]):
                    row = describe(gamma[:, head : head + 1], cfg.task.dead_below)
                    row |= {name: float(values[head]) for name, values in speeds.items()}
                    clusters = gamma[:, head].argmax(-1).flatten().numpy()
                    row |= agreement(labels, clusters, cfg.task.shuffles, cfg.seed)
                    table = contingency(labels, clusters)
                    row["table"] = _padded(table, len(CATEGORIES), gamma.shape[-1])
                    rows.append({"state": state, "layer": layer, "head": head, "side": side} | row)
    folder.mkdir(parents=True, exist_ok=True)
    result = results.Measurement(
        rows=rows,
        exponents={},
        execution={
            "checkpoint": f"{checkpoint.parent.parent.name}/{checkpoint.name}",
            "checkpoint_seed": loaded.cfg.seed,
            "tokens": tokens.numel(),
        },
        **results.provenance(cfg, run_id, git),
    )
    component_figures.draw(result, loaded, tokens[0], folder)
    result.write(folder)
    logger = build_logger(cfg, run_id, folder)
    mirror(result, folder, [logger] if logger else [])
    return result


@torch.no_grad()
def observe(model: SequenceModel, tokens: Tensor) -> list[list[Routed]]:
    """Of every GMA layer, for its queries and its keys, on ``tokens`` (windows, N): what is routed, and where to."""
    mixtures = [layer.mixture for layer in _layers(model)]
    found: dict[torch.nn.Module, list[Routed]] = {mixture: [] for mixture in mixtures}
    hooks = [
        mixture.register_forward_hook(lambda mixture, inputs, gamma: found[mixture].append((inputs[0], gamma)))
        for mixture in mixtures
    ]
    try:
        for some in tokens.split(WINDOWS_AT_ONCE):
            model(some)
    finally:
        for hook in hooks:
            hook.remove()
    return [  # a layer routes its queries, then its keys
        [tuple(map(torch.cat, zip(*found[mixture][side :: len(SIDES)], strict=True))) for side in range(len(SIDES))]
        for mixture in mixtures
    ]


@torch.no_grad()
def change(mixture: GaussianMixture, vectors: Tensor) -> dict[str, Tensor]:
    """``lipschitz`` at some of ``vectors`` (windows, H, N, R) and ``lipschitz_bound`` among all, of each head."""
    x = mixture.prepare(vectors).double()
    temperature = mixture.temperature
    means, variances, log_priors, tau = (
        part.double() if isinstance(part, Tensor) else part
        for part in (mixture.means, mixture.variances, mixture.log_priors, temperature)
    )
    jacobian = responsibility_jacobian(x[:1, :, :PROBED], means, variances, log_priors, tau)
    return {
        "lipschitz": torch.linalg.matrix_norm(jacobian, ord=2).amax((0, 2)),
        "lipschitz_bound": lipschitz_bound(means, variances, tau, x.norm(dim=-1).amax((0, 2))),
    }


def describe(gamma: Tensor, dead_below: float) -> dict[str, Any]:
    """Usage and sharpness of one head's responsibilities (windows, 1, N, K)."""
    used = usage(gamma)[0]
    return {
        "effective_components": float(effective_components(gamma)),
        "entropy": float(mean_entropy(gamma)),
        "dead_share": float((used < dead_below / len(used)).float().mean()),
        "usage": used.tolist(),
    }


def show(result: results.Measurement, folder: Path) -> None:
    """Print one line a layer, side and state: means over heads, the agreement beside what chance gives."""
    table = Table(title=result.run_id, title_justify="left")
    headings = ("", "components used", "dead", "entropy", *(name.replace("_", " ") for name in MEASURES))
    for heading in headings:
        table.add_column(heading, justify="left" if not heading else "right")
    keys = dict.fromkeys((row["layer"], row["side"], row["state"]) for row in result.rows)
    for layer, side, state in sorted(keys):
        rows = [row for row in result.rows if (row["layer"], row["side"], row["state"]) == (layer, side, state)]

        def mean(key: str, part: str | None = None, rows: list[dict[str, Any]] = rows) -> float:
            return sum(row[key] if part is None else row[key][part] for row in rows) / len(rows)

        table.add_row(
            f"layer {layer} {side}, {state}",
            f"{mean('effective_components'):.1f} of {len(rows[0]['usage'])}",
            f"{mean('dead_share'):.0%}",
            f"{mean('entropy'):.2f}",
            *(f"{mean(name, 'value'):.3f} ({mean(name, 'chance'):.3f})" for name in MEASURES),
        )
    console = Console()
    console.print(table)
    console.print("Means over heads; in brackets what shuffled categories give.", highlight=False)
    console.print(f"{folder / results.FILE_NAME}", soft_wrap=True, highlight=False)


def _layers(model: torch.nn.Module) -> list[GaussianMixtureAttention]:
    return [layer for layer in model.modules() if isinstance(layer, GaussianMixtureAttention)]


def _windows(cfg: DictConfig, splits: dict[str, Any]) -> range:
    """Whole ones: the last of a split is shorter."""
    return range(max(1, min(cfg.task.windows, len(splits["validation"]) - 1)))


def _padded(table: Any, rows: int, columns: int) -> list[list[int]]:
    """A contingency table with the categories and components that no token has."""
    full = torch.zeros(rows, columns, dtype=torch.int64)
    full[: table.shape[0], : table.shape[1]] = torch.from_numpy(table)
    return full.tolist()
