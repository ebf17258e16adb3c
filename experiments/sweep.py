"""``python -m experiments.sweep``: hyper-parameters by Optuna, each trial a run like any other."""

from omegaconf import DictConfig

from experiments.arguments import run_command

HELP = """Search hyper-parameters with Optuna: by validation metric, bad trials ended early, resumable.

  python -m experiments.sweep sweep=learning_rate task=lra/text trials=8
  python -m experiments.sweep sweep=gma_wikitext overrides=[train.steps=500,logger=csv]

A killed sweep goes on with the same command, and its trial where it stopped. Each study ends in runs/sweeps/<study>:
the best choice as a yaml that experiments.run takes (it prints how), the history, and how much each parameter mattered.
Keys, and what each is unless set:
"""


def work(arguments: DictConfig) -> None:
    """Search whatever is asked for."""
    from experiments import study  # heavy

    study.work(arguments)


if __name__ == "__main__":
    run_command("sweep", HELP, work)
