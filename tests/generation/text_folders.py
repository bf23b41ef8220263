"""Complete model folders of tiny decoders, for text generators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from clrt.generation.text_generator import TextGenerator
from tests.generation.checkpoints import DATA, write_folder
from tests.generation.tokenizers_of_tests import byte_level
from tests.harness import quick_device

TEXTS: dict[str, Any] = json.loads((DATA / "texts.json").read_text(encoding="utf-8"))
ENCODER_TEXTS: dict[str, Any] = json.loads(
    (DATA / "encoder_decoders.json").read_text(encoding="utf-8")
)
END = byte_level().token_to_id("<|im_end|>")


def write_texts(
    folder: Path,
    ends: list[int] | None = None,
    template: str | None = "chatml",
    sampling: dict[str, Any] | None = None,
) -> Path:
    """The folder of the decoder of `oracle_texts.py`.

    Args:
        ends: Tokens that end a text.
        template: Name of its chat template.
        sampling: What generation_config.json proposes besides.
    """
    write_folder(folder, TEXTS)
    byte_level().save(str(folder / "tokenizer.json"))
    config = {"eos_token_id": ends or None, **(sampling or {})}
    (folder / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    if template is not None:
        source = (DATA / f"{template}.jinja").read_text(encoding="utf-8")
        (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
    return folder


def write_encoder_decoder(folder: Path, name: str = "t5", ends: list[int] | None = None) -> Path:
    """The folder of a case of `oracle_sources.py`.

    Args:
        ends: Tokens that end a text.
    """
    write_folder(folder, ENCODER_TEXTS[name])
    byte_level().save(str(folder / "tokenizer.json"))
    config = json.dumps({"eos_token_id": ends, "decoder_start_token_id": 0})
    (folder / "generation_config.json").write_text(config, encoding="utf-8")
    return folder


def make_generator(folder: Path, **options: Any) -> TextGenerator:
    """On the device with the quickest compiler."""
    return TextGenerator(folder, device=quick_device(), **options)


def pages_in_use(generator: TextGenerator) -> int:
    """Of its cache."""
    return generator._scheduler.engine.cache.pool.in_use


def computed(generator: TextGenerator) -> int:
    """Tokens that it ran so far."""
    return generator._scheduler.engine.computed


def random_prompts(count: int, longest: int) -> list[list[int]]:
    """Tokens of prompts of different lengths."""
    draw = np.random.default_rng(count)
    lengths = draw.integers(1, longest, count)
    return [draw.integers(3, TEXTS["config"]["vocab_size"], n).tolist() for n in lengths]
