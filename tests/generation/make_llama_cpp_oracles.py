"""Make `llama_cpp.npz` and `llama_cpp_adapters.npz` of `tests/generation/data` anew.

Run it where the package `llama-cpp-python` is installed:

    python tests/generation/make_llama_cpp_oracles.py

They hold outputs of llama.cpp for tiny GGUF files: for each case of `gguf_decoders.py`, and of
adapters for each of `oracle_adapters.py`, the logits of some places of a text.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from clrt.formats.gguf.file import read_gguf
from tests.generation.adapter_folders import write_gguf_adapter
from tests.generation.checkpoints import DATA, Array, tokens
from tests.generation.gguf_decoders import CASES, PLACES, QUANTISED, UNANSWERED, case_file
from tests.generation.oracle_adapters import GGUF_ADAPTERS
from tests.generation.oracle_decoders import LENGTHS


def answer(file: Path, adapter: Path | None = None, factor: float = 1.0) -> Array:
    """Logits of `PLACES`, with a cache of float32.

    Args:
        adapter: Its file; None for none.
        factor: How much of it counts.
    """
    model = llama_cpp.Llama(
        str(file),
        n_ctx=LENGTHS[0],
        n_batch=LENGTHS[0],
        n_threads=1,
        logits_all=True,
        flash_attn=False,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
        lora_path=adapter and str(adapter),
        lora_scale=factor,
    )
    model.eval(tokens(LENGTHS[0]).tolist())
    return np.array(model.scores[PLACES], np.float32)


def main() -> None:
    """Write the files."""
    made = {}
    for name in (*sorted(CASES.keys() - set(UNANSWERED)), *QUANTISED):
        with tempfile.TemporaryDirectory() as folder:
            made[name] = answer(case_file(name, Path(folder)))
    np.savez_compressed(DATA / "llama_cpp.npz", **made)
    make_adapters()


def make_adapters() -> None:
    """Write the file of models with adapters."""
    made = {}
    for name, case in GGUF_ADAPTERS.items():
        with tempfile.TemporaryDirectory() as root:
            model = case_file(case.base, Path(root))
            architecture = read_gguf(model).metadata.text("general.architecture")
            adapter = write_gguf_adapter(Path(root) / "adapter.gguf", architecture, case)
            made[name] = answer(model, adapter, case.factor)
            print(name, float((made[name] - answer(model)).std()), float(made[name].std()))
    np.savez_compressed(DATA / "llama_cpp_adapters.npz", allow_pickle=False, **made)


if __name__ == "__main__":
    main()
