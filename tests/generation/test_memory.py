"""Memory use of language models: the weights file, the cache, and a fixed margin.

Measured is the peak resident memory of the process, including the pages of mapped files that it
read, minus its memory with a tiny model loaded before: the interpreter, the driver and its
programs. Compilers take much more, so that only a process that finds its programs in the cache is
measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.generation.checkpoints import write_folder
from tests.generation.test_compiled_models import compiled
from tests.generation.text_folders import TEXTS, write_texts
from tests.generation.tokenizers_of_tests import byte_level
from tests.harness import quick_device

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HIDDEN, INNER, VOCABULARY, LAYERS = 512, 1024, 16_000, 3
MARGIN_BYTES = 14 << 20
SCRIPT = """
import gc, json, sys
from pathlib import Path
from clrt.generation.text_generator import TextGenerator
from clrt.runtime.opencl.os_memory import return_freed

def taken(name):
    lines = Path("/proc/self/status").read_text().split("\\n")
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10

def run(source):
    with TextGenerator(source, device=int(sys.argv[1]), sequences=2, context=256) as model:
        model.generate([list(range(3, 37)) * 3] * 2, max_new_tokens=4)
        return model._scheduler.engine.cache.nbytes

run(sys.argv[2])
found = []
for source in sys.argv[3:]:
    gc.collect()
    return_freed()
    Path("/proc/self/clear_refs").write_text("5")  # the most is what there is now
    before = taken("VmRSS")
    cache = run(source)
    found.append([taken("VmHWM") - before, cache])
print(json.dumps(found))
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


@pytest.mark.lengthy
def test_process_memory_holds_weights_once(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "model", large_case())
    byte_level().save(str(model / "tokenizer.json"))
    file = compiled(model, tmp_path / "model.clrt")
    tiny, device = write_texts(tmp_path / "tiny"), quick_device()
    command = [sys.executable, "-c", SCRIPT, str(device.index), str(tiny), str(model), str(file)]
    for _ in range(2):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
    sizes = [(model / "model.safetensors").stat().st_size, file.stat().st_size]
    for (grown, cache), weights in zip(json.loads(result.stdout), sizes, strict=True):
        assert grown <= weights + cache + MARGIN_BYTES, (grown, weights, cache)
