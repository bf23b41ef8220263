"""Make `tests/generation/data/llama_cpp.npz` anew: what llama.cpp answers for tiny GGUF files.

Run it where the package `llama-cpp-python` is installed:

    python tests/generation/make_llama_cpp_oracles.py

For each case of `gguf_decoders.py` it has the logits of some places of a text.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.generation.checkpoints import DATA, Array, tokens
from tests.generation.gguf_decoders import CASES, PLACES, QUANTISED, UNANSWERED, case_file
from tests.generation.oracle_decoders import LENGTHS


def answer(file: Path) -> Array:
    """Logits of `PLACES`, with a cache of float32."""
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
    )
    model.eval(tokens(LENGTHS[0]).tolist())
    return np.array(model.scores[PLACES], np.float32)


def main() -> None:
    """Write the file."""
    made = {}
    for name in (*sorted(CASES.keys() - set(UNANSWERED)), *QUANTISED):
        with tempfile.TemporaryDirectory() as folder:
            made[name] = answer(case_file(name, Path(folder)))
    np.savez_compressed(DATA / "llama_cpp.npz", **made)


if __name__ == "__main__":
    main()
