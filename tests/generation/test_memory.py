"""How much memory models take: their file, their cache, and little besides.

What counts is the most that the process had in memory, with the pages of mapped files that it read,
less what it had with a tiny model before: the interpreter, the driver and its compiler.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.generation.checkpoints import write_folder
from tests.generation.gguf_decoders import convert
from tests.generation.test_compiled_models import compiled
from tests.generation.test_gguf_models import TOKENS
from tests.generation.text_folders import TEXTS, write_texts
from tests.generation.tokenizers_of_tests import byte_level

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HIDDEN, INNER, VOCABULARY, LAYERS = 512, 1024, 16_000, 3
MARGIN_BYTES = 14 << 20
SCRIPT = """
import gc, json, sys
from clrt.generation.text_generator import TextGenerator

def most():
    lines = open("/proc/self/status").read().split("\\n")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10

device, tiny, large = sys.argv[1:]
with TextGenerator(tiny, device=int(device)) as model:
    model.generate([list(range(3, 37)) * 3] * 2, max_new_tokens=4)
gc.collect()
before = most()
with TextGenerator(large, device=int(device), sequences=2, context=256) as model:
    made = model.generate([list(range(3, 37)) * 3] * 2, max_new_tokens=4)
    engine = model._scheduler.engine
    cache = sum(slab.nbytes for slab in engine._slabs)
print(json.dumps([most() - before, cache]))
"""


def large_case() -> dict[str, Any]:
    """A Llama whose embeddings, which are its head, too, are most of it."""
    config = {
        **TEXTS["config"],
        **{"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS},
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64},
        **{"vocab_size": VOCABULARY, "tie_word_embeddings": True},
    }
    tensors: dict[str, list[int]] = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN]}
    tensors["model.norm.weight"] = [HIDDEN]
    for layer in range(LAYERS):
        path = f"model.layers.{layer}"
        for name, shape in {
            "self_attn.q_proj": [HIDDEN, HIDDEN],
            "self_attn.k_proj": [256, HIDDEN],
            "self_attn.v_proj": [256, HIDDEN],
            "self_attn.o_proj": [HIDDEN, HIDDEN],
            "mlp.gate_proj": [INNER, HIDDEN],
            "mlp.up_proj": [INNER, HIDDEN],
            "mlp.down_proj": [HIDDEN, INNER],
            "input_layernorm": [HIDDEN],
            "post_attention_layernorm": [HIDDEN],
        }.items():
            tensors[f"{path}.{name}.weight"] = shape
    return {"config": config, "tensors": tensors}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """By kind a model, and the bytes of its file."""
    folder = tmp_path_factory.mktemp("large")
    model = write_folder(folder / "model", large_case())
    byte_level().save(str(model / "tokenizer.json"))
    gguf = convert(model, folder / "model.gguf", **TOKENS)
    file = compiled(model, folder / "model.clrt")
    weights = (model / "model.safetensors").stat().st_size
    sizes = {"gguf": (gguf, gguf.stat().st_size), "compiled": (file, file.stat().st_size)}
    return {"folder": (model, weights), **sizes}


@pytest.mark.parametrize("kind", ["folder", "gguf", "compiled"])
def test_weights_lie_once(
    kind: str, sources: dict[str, tuple[Path, int]], tmp_path: Path
) -> None:
    from tests.harness import quick_device

    source, weights = sources[kind]
    tiny, device = write_texts(tmp_path), quick_device()
    command = [sys.executable, "-c", SCRIPT, str(device.index), str(tiny), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    grown, cache = json.loads(result.stdout)
    assert grown <= weights + cache + MARGIN_BYTES, (grown, weights, cache)
    print(kind, grown>>20, weights>>20, cache>>20)
