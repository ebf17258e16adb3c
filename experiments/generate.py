"""``python -m experiments.generate checkpoint=... prompt=...``: text from a trained language model, as it comes."""

from itertools import islice
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from experiments.arguments import run_command
from experiments.config import refusing
from experiments.errors import RefusedError

HELP = """Continue a text with a language model that python -m experiments.run task=wikitext103 has trained.

  python -m experiments.generate checkpoint=runs/wikitext103/gma/<run>/checkpoints/best.ckpt prompt="The river"

Keys, and what each is unless set:
"""


def write(arguments: DictConfig) -> None:
    """Print the prompt and its continuation."""
    import torch  # heavy, and no business of --help
    from tokenizers.decoders import DecodeStream

    from experiments.checkpoints import load_language_model
    from gma.mixer import require

    if OmegaConf.is_missing(arguments, "checkpoint") or not arguments.checkpoint:
        raise RefusedError("checkpoint= is missing: name runs/wikitext103/<model>/<run>/checkpoints/best.ckpt")
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
    run_command("generate", HELP, write, text=("prompt",))


if __name__ == "__main__":
    main()
