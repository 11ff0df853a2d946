"""The options of the command line that become `Wishes`: one place for the commands that plan or load a model."""

import argparse

from engine.config import KvType, Wishes
from engine.units import parse_bytes


def add_wishes(parser: argparse.ArgumentParser, of_limit: str = "") -> None:
    """The options that `wishes_of` reads. `of_limit` is what else a person should know of the one on graphics memory."""
    parser.add_argument("--expert-ram", metavar="AMOUNT", help="RAM for experts: 3GB, or a share of them such as 30%%")
    text = "graphics memory for the model: 8GB, a share of what is free for it such as 50%%, or 0 for none"
    parser.add_argument("--vram-limit", metavar="AMOUNT", help=f"{text}{of_limit}")
    parser.add_argument("--context", type=int, metavar="N", help="tokens of context")
    parser.add_argument("--prefill-chunk", type=int, metavar="N", help="tokens of a prompt that are read at once")
    parser.add_argument(
        "--kv", choices=[kind.value for kind in KvType], help="how keys and values of what was read are kept (bf16)"
    )


def wishes_of(options: argparse.Namespace) -> Wishes:
    """Raises `EngineError` for an amount that cannot be read."""
    check_amounts(options)
    kv_type = KvType(options.kv) if options.kv else None
    return Wishes(options.expert_ram, options.context, options.prefill_chunk, kv_type, options.vram_limit)


def check_amounts(options: argparse.Namespace) -> None:
    """Raises `EngineError` for one that cannot be read."""
    for text in (options.expert_ram, options.vram_limit):
        if text is not None:
            parse_bytes(text, whole=100)
