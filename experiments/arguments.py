"""``key=value`` arguments of the smaller commands, whose defaults stand in ``conf/<command>.yaml``."""

from collections.abc import Collection, Sequence

from omegaconf import DictConfig, OmegaConf

from experiments.config import CONF
from experiments.errors import RefusedError


def read_arguments(command: str, arguments: Sequence[str], text: Collection[str] = ()) -> DictConfig:
    """``conf/<command>.yaml`` with the command line's ``key=value`` on top; keys in ``text`` are taken as text.

    Raises:
        RefusedError: for a key that is not there, or an argument that is no ``key=value``.
    """
    known = OmegaConf.load(CONF / f"{command}.yaml")
    assert isinstance(known, DictConfig)
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in list(known):  # "in known" is false for a missing value
            raise RefusedError(f"{argument} is not known; allowed: {', '.join(f'{name}=' for name in known)}")
        known[key] = value if key in text else OmegaConf.from_dotlist([f"value={value}"]).value
    return known
