"""What commands share: ``key=value`` read on top of ``conf/<command>.yaml``, and complaints in one line."""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.config import CONF, explain, register_resolvers
from experiments.errors import RefusedError


@contextmanager
def complaining_in_one_line(overrides: Sequence[str]) -> Iterator[None]:
    """End the process with ``error: ...`` for a request that cannot be composed from ``overrides``, or is refused."""
    try:
        yield
    except RefusedError as error:
        sys.exit(f"error: {error}")
    except (HydraException, OmegaConfBaseException) as error:
        sys.exit(f"error: {explain(error, overrides)}")


def run_command(
    name: str, description: str, act: Callable[[DictConfig], int | None], text: Collection[str] = ()
) -> None:
    """Call ``act`` with the command line's arguments and exit with the status it returns.

    ``--help`` prints ``description`` and the keys with their defaults. A complaint about the request ends in one line.
    """
    words, defaults = sys.argv[1:], CONF / f"{name}.yaml"
    if {"-h", "--help"} & set(words):
        print(description + defaults.read_text())
        return
    register_resolvers()
    overrides: list[str] = []
    try:
        with complaining_in_one_line(overrides):
            arguments = read_arguments(name, words, text)
            overrides += arguments.get("overrides", ())
            sys.exit(act(arguments) or 0)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


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
        try:
            given = value if key in text else OmegaConf.from_dotlist([f"value={value}"]).value
        except YAMLError as error:
            raise RefusedError(f"{argument} cannot be read: {str(error).splitlines()[0]}") from error
        several = OmegaConf.is_list(known[key]) if not OmegaConf.is_missing(known, key) else False
        known[key] = [given] if several and not OmegaConf.is_list(given) else given
    return known
