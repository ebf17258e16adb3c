"""``python -m experiments.generate checkpoint=... prompt=...``: text from a trained language model, as it comes."""

import sys
from itertools import islice
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.checkpoints import load_language_model
from experiments.config import CONF, refusing, register_resolvers
from experiments.errors import RefusedError
from gma.mixer import require

HELP = """Continue a text with a language model that python -m experiments.run task=wikitext103 has trained.

  python -m experiments.generate checkpoint=runs/wikitext103/gma/<run>/checkpoints/best.ckpt prompt="The river"

Keys, and what each is unless set:
"""


def read_arguments(arguments: list[str]) -> DictConfig:
    """``conf/generate.yaml`` with the command line's ``key=value`` on top.

    Raises:
        RefusedError: for a key that is not there, an argument that is no ``key=value``, or no checkpoint.
    """
    known = OmegaConf.load(CONF / "generate.yaml")
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in list(known):  # "in known" is false for a missing value
            raise RefusedError(f"{argument} is not known; allowed: {', '.join(f'{name}=' for name in known)}")
        # a prompt is text, whatever it looks like
        known[key] = value if key == "prompt" else OmegaConf.from_dotlist([f"value={value}"]).value
    if OmegaConf.is_missing(known, "checkpoint") or not known.checkpoint:
        raise RefusedError("checkpoint= is missing: name runs/wikitext103/<model>/<run>/checkpoints/best.ckpt")
    return known


def write(arguments: DictConfig) -> None:
    """Print the prompt and its continuation."""
    import torch
    from tokenizers.decoders import DecodeStream

    with refusing():
        for key in ("tokens", "seed"):
            value = arguments[key]
            require(isinstance(value, int) and value >= 0, key, value, "a whole number, at least 0")
    loaded = load_language_model(Path(arguments.checkpoint), arguments.cache_dir, arguments.data_dir)
    with refusing():
        tokenizer = loaded.data.tokenizer
        prompt = tokenizer.encode(arguments.prompt, add_special_tokens=False).ids or tokenizer.encode("\n").ids
        generator = torch.Generator().manual_seed(arguments.seed)
        choices = {key: arguments[key] for key in ("temperature", "top_k", "top_p")}
        tokens = loaded.model.generate(torch.tensor([prompt]), **choices, generator=generator)
    stream = DecodeStream(skip_special_tokens=False)  # holds back the bytes of half a character
    for token in prompt:  # so that it knows what stands before the first word
        stream.step(tokenizer, token)
    print(arguments.prompt, end="", flush=True)
    for token in islice(tokens, arguments.tokens):
        piece = stream.step(tokenizer, int(token)) or ""
        print(piece.replace(" <eos>", "\n").replace("<eos>", "\n"), end="", flush=True)
    print()


def main() -> None:
    """The command."""
    if not sys.argv[1:] or {"-h", "--help"} & set(sys.argv[1:]):
        print(HELP + (CONF / "generate.yaml").read_text())
        return
    register_resolvers()
    try:
        write(read_arguments(sys.argv[1:]))
    except (RefusedError, OmegaConfBaseException) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
