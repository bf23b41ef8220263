"""Folders of tiny LoRA adapters. Weights are noise seeded by the tensor names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from tests.generation.checkpoints import DATA, Array, load_json, noise
from tests.generation.oracle_adapters import ADAPTERS, GGUF_RANK, GgufAdapterCase

# How large a product is beside the matrix that it is added to.
_SHARE = 0.5
_BEFORE = "base_model.model."
_EMBEDDINGS, _HEAD = f"{_BEFORE}model.embed_tokens.", f"{_BEFORE}lm_head."


def load_adapters() -> dict[str, Any]:
    """By case: its adapter_config.json, and the shapes of the tensors by their names."""
    found: dict[str, Any] = json.loads((DATA / "adapters.json").read_text(encoding="utf-8"))
    return found


def adapter_tensors(name: str, case: dict[str, Any]) -> dict[str, Array]:
    """The tensors of an adapter, which may repeat some of its base model."""
    base = load_json()[ADAPTERS[name].base]["tensors"]
    made = {}
    for tensor, shape in case["tensors"].items():
        if tensor.endswith("base_layer.weight"):
            own = tensor.removeprefix(_BEFORE).replace("base_layer.", "")
            made[tensor] = noise(own if own in base else "model.embed_tokens.weight", tuple(shape))
            continue
        made[tensor] = noise(tensor, tuple(shape))
        if ".lora_B" in tensor or tensor.endswith("embedding_B"):
            made[tensor] *= np.float32(_SHARE)
    if case["config"].get("ensure_weight_tying"):
        for part, other in (("lora_A.weight", "B"), ("lora_B.weight", "A")):
            made[_HEAD + part] = made[f"{_EMBEDDINGS}lora_embedding_{other}"].T.copy()
    return made


def write_adapter(folder: Path, name: str, case: dict[str, Any]) -> Path:
    """The folder of a case of `load_adapters`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(case["config"]), encoding="utf-8")
    save_file(adapter_tensors(name, case), folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def small_adapter(folder: Path, module: str, up: Array, down: Array, **settings: object) -> Path:
    """An adapter of one module."""
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": len(down), "lora_alpha": len(down), **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    name = f"base_model.model.{module}"
    tensors = {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def write_gguf_adapter(
    file: Path, architecture: str, case: GgufAdapterCase, **changes: Any
) -> Path:
    """The file of a case, as llama.cpp's converter writes it.

    Args:
        changes: Other values of metadata, whose points are underscores.
    """
    writer = gguf.GGUFWriter(file, changes.pop("general_architecture", architecture))
    values = {"general_type": "adapter", "adapter_type": "lora", **changes}
    for name, value in values.items():
        writer.add_string(name.replace("_", ".", 1), value)
    if case.alpha:
        writer.add_float32("adapter.lora.alpha", case.alpha)
    for name, (*experts, rows, columns) in case.shapes.items():
        up, down = (*experts, rows, GGUF_RANK), (*experts, GGUF_RANK, columns)
        if name == "token_embd.weight":  # the first has a row for each token
            up, down = (columns, GGUF_RANK), (rows, GGUF_RANK)
        writer.add_tensor(f"{name}.lora_a", noise(f"{name}.lora_a", down))
        writer.add_tensor(f"{name}.lora_b", noise(f"{name}.lora_b", up) * np.float32(_SHARE))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
