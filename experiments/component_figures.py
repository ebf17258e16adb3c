"""Figures of what components do: categories, usage, responsibilities along a text, affinity, the routing space.

Shapes: N tokens of the text, K components, R routing width.
"""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch import Tensor

from experiments.checkpoints import Loaded
from experiments.report.figures import categories, most_telling, usage
from experiments.results import Measurement
from gma import GaussianMixtureAttention
from gma.ops import reference

TEXT = 48  # tokens of the figures along a text


def draw(result: Measurement, loaded: Loaded, tokens: Tensor, folder: Path) -> list[Path]:
    """Write every figure into ``folder``; those along a text are of the first of ``tokens`` (N,)."""
    best = most_telling(result)
    tokens = tokens[:TEXT]
    pieces = [loaded.data.tokenizer.decode([token], skip_special_tokens=False) for token in tokens.tolist()]
    pieces = [piece.replace("\n", "\\n").replace("$", r"\$") for piece in pieces]
    row = best[-1]
    layer, gammas, vectors = look(loaded.model, tokens, row["layer"], row["head"])
    title = f"layer {row['layer']}, head {row['head']}"
    affinity = reference.affinity(*(gamma[None, None] for gamma in gammas), causal=True)[0, 0]
    figures = {
        "categories": categories(best),
        "usage": usage(result.rows),
        "responsibilities": _along_text(gammas[0].T, pieces, f"responsibilities of queries, {title}", "component"),
        "affinity": _along_text(affinity, pieces, f"implied affinity, {title}", "query"),
        "routing_space": _routing_space(layer, row["head"], vectors, f"queries and keys of the text, {title}"),
    }
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=150)
    return paths


@torch.no_grad()
def look(
    model: torch.nn.Module, tokens: Tensor, layer_index: int, head: int
) -> tuple[GaussianMixtureAttention, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A layer, and of one of its heads on ``tokens`` (N,): responsibilities (N, K), queries and keys (N, R)."""
    layers = [module for module in model.modules() if isinstance(module, GaussianMixtureAttention)]
    layer, seen = layers[layer_index], []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        model(tokens.unsqueeze(0))
    finally:
        hook.remove()
    queries, keys = layer.responsibilities(seen[0])
    projected = [layer.split_heads(projection(seen[0])) for projection in (layer.q_proj, layer.k_proj)]
    return layer, (queries[0, head], keys[0, head]), (projected[0][0, head], projected[1][0, head])


def _along_text(image: Tensor, pieces: list[str], title: str, ylabel: str) -> Figure:
    figure = Figure(figsize=(11, 4), layout="constrained")
    axis = figure.subplots()
    shown = axis.imshow(image.numpy(), cmap="magma", aspect="auto", vmin=0)
    axis.set(title=title, ylabel=ylabel)
    axis.set_xticks(range(len(pieces)), pieces, rotation=90, fontsize=7)
    figure.colorbar(shown, ax=axis)
    return figure


@torch.no_grad()
def _routing_space(layer: GaussianMixtureAttention, head: int, vectors: tuple[Tensor, Tensor], title: str) -> Figure:
    """The plane in which the means differ most; an ellipse is one standard deviation of a component in it."""
    means, variances = layer.mixture.means[head], layer.mixture.variances[head]
    centre = means.mean(0)
    plane = torch.linalg.svd(means - centre, full_matrices=False).Vh[:2]  # (2, R)
    figure = Figure(figsize=(7, 6), layout="constrained")
    axis: Axes = figure.subplots()
    for points, label, marker in zip(vectors, ("queries", "keys"), ("o", "x"), strict=True):
        axis.scatter(*((points - centre) @ plane.T).T.numpy(), s=12, marker=marker, label=label)
    priors = layer.mixture.log_priors[head].exp()
    for mean, variance, prior in zip((means - centre) @ plane.T, variances, priors / priors.max(), strict=True):
        values, axes = torch.linalg.eigh((plane * variance) @ plane.T)
        angle = float(torch.rad2deg(torch.atan2(axes[1, 1], axes[0, 1])))
        width, height = (2 * values.flip(0).sqrt()).tolist()
        axis.add_patch(Ellipse(mean.tolist(), width, height, angle=angle, fill=False, alpha=0.2 + 0.8 * float(prior)))
    axis.autoscale_view()
    axis.set(title=title, xlabel="first principal direction of the means", ylabel="second")
    axis.legend()
    return figure
