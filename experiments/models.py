"""``python -m experiments.models task=lra scale=cpu``: size, arithmetic and decoding state of every model."""

import argparse
from dataclasses import dataclass

from omegaconf import DictConfig

from experiments.arguments import complaining_in_one_line
from experiments.config import CONF, refusing, register_resolvers
from experiments.errors import RefusedError

STATE_LENGTHS = (1_000, 16_000, 1_000_000)


@dataclass(frozen=True)
class Row:
    """One model at a task and scale.

    Attributes:
        model: its yaml. mlp_dim: feed-forward width. parameters: trainable numbers. ratio: to softmax attention's.
        products, elementwise: operations a token of a forward pass at the task's full length, see
            :class:`experiments.flops.CountOperations`.
        state: numbers held per sequence, over all blocks, after each of ``STATE_LENGTHS`` tokens; ``None`` without a
            causal form.
        refused: why this model cannot be had here, instead of all the above.
    """

    model: str
    mlp_dim: int = 0
    parameters: int = 0
    ratio: float = 0.0
    products: float = 0.0
    elementwise: float = 0.0
    state: tuple[int, ...] | None = None
    refused: str = ""


def describe(overrides: list[str]) -> list[Row]:
    """One row for every ``conf/model/*.yaml``, softmax attention first.

    Raises:
        RefusedError: if the overrides, or softmax attention under them, are refused.
    """
    names = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
    names.sort(key=lambda name: name != "sdpa")
    rows: list[Row] = []
    for name in names:
        try:
            rows.append(_describe(name, overrides, rows[0].parameters if rows else None))
        except RefusedError as error:
            if not rows:
                raise
            rows.append(Row(name, refused=str(error)))
    return rows


def _describe(name: str, overrides: list[str], reference: int | None) -> Row:
    import torch
    from hydra import compose, initialize_config_dir
    from torch._subclasses.fake_tensor import FakeTensorMode

    from experiments.build import build_data, build_model
    from experiments.flops import CountOperations
    from experiments.matching import count_parameters

    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", [*overrides, f"model={name}"])
    with refusing():
        data = build_data(cfg)
        with FakeTensorMode():  # shapes without numbers: any size at once
            model = build_model(cfg, data).eval()
            with torch.no_grad(), CountOperations() as count:
                model(
                    torch.zeros(1, data.length, data.channels)
                    if data.vocab_size is None
                    else torch.zeros(1, data.length, dtype=torch.int64)
                )
    parameters = count_parameters(model)
    ratio = parameters / (reference or parameters)
    per_token = (count.products / data.length, count.elementwise / data.length)
    return Row(name, model.mlp_dim, parameters, ratio, *per_token, decoding_state(cfg))


def decoding_state(cfg: DictConfig) -> tuple[int, ...] | None:
    """Numbers held per sequence by the causal form of the config's mixer, in all blocks, at ``STATE_LENGTHS``."""
    import torch
    from hydra.utils import instantiate

    cfg.task.causal = True
    try:
        with torch.device("meta"):
            mixer = instantiate(cfg.model)(cfg.backbone.dim)
    except ValueError:
        return None
    return tuple(cfg.backbone.depth * mixer.state_elements(length) for length in STATE_LENGTHS)


def show(rows: list[Row]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for heading in ("model", "parameters", "ratio", "mlp_dim", "matmul", "other", "1k", "16k", "1M"):
        table.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=True)
    for row in rows:
        if row.refused:
            table.add_row(row.model, *8 * ["-"])
            continue
        state = ["-"] * len(STATE_LENGTHS) if row.state is None else [short(count) for count in row.state]
        cost = [short(row.products), short(row.elementwise)]
        table.add_row(row.model, f"{row.parameters:,}", f"{row.ratio:.3f}", str(row.mlp_dim), *cost, *state)
    console = Console()
    console.print(table)
    for row in rows:
        if row.refused:
            console.print(f"{row.model}: {row.refused}", highlight=False)
    console.print(
        "ratio: parameters over those of sdpa. matmul: multiplications and additions in matrix products, forward, a"
        " token at the task's full length; other: all other arithmetic. 1k, 16k, 1M: numbers of decoding state per"
        " sequence after so many tokens, in all blocks; - without a causal form.",
        highlight=False,
    )


def short(number: float) -> str:
    """Three digits and a unit: 4352 is 4.35k."""
    for unit in ("", "k", "M"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}G"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.models",
        description="Parameters, arithmetic a token and decoding state of every model, at one task and scale.",
        epilog="Example: python -m experiments.models task=lra scale=paper match_parameters=false",
    )
    parser.add_argument("override", nargs="*", help="as of experiments.run: task=lra scale=cpu backbone.dim=128 ...")
    overrides = parser.parse_args().override
    register_resolvers()
    with complaining_in_one_line(overrides):
        show(describe(overrides))


if __name__ == "__main__":
    main()
