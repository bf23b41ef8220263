"""Other runtimes of language models: how fast each reads prompts and writes tokens.

Each uses a thread per core and its own defaults otherwise, greedy, one text at a time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .runtimes import THREADS
from .turns import WorkerError

# Tokens a second, by what is measured and the tokens of the prompt.
Speeds: TypeAlias = "dict[tuple[str, int], float]"
# Times of the tokens of a text that continues a prompt: `(prompt, tokens) -> seconds`.
Write: TypeAlias = "Callable[[NDArray[np.int64], int], list[float]]"
PREFILL, DECODE = "prefill", "decode"
# As `clrt bench --generate` has them.
PROMPTS, CONTEXTS, WRITTEN = (128, 512), (128, 1024), 32
# All vocabularies have these.
_LARGEST_TOKEN = 250
_REPEATS = 3


def llama_cpp_speeds(program: Path, file: Path) -> Speeds:
    """A GGUF file by llama.cpp's own program, `llama-bench`. Its threads spin."""
    base = [str(program), "-m", str(file), "-t", str(THREADS), "-r", "2", "-o", "json"]
    prompts = _listed(PROMPTS), "0", "0"
    contexts = "0", str(WRITTEN), _listed(CONTEXTS)
    speeds: Speeds = {}
    for prompt, written, depth in (prompts, contexts):
        for row in json.loads(output_of([*base, "-p", prompt, "-n", written, "-d", depth])):
            is_prefill = written == "0"
            tokens = row["n_prompt"] if is_prefill else row["n_depth"]
            speeds[PREFILL if is_prefill else DECODE, tokens] = row["avg_ts"]
    return speeds


def genai_speeds(folder: Path) -> Speeds:
    """A folder of onnxruntime-genai's builder, by that package."""
    import onnxruntime_genai as genai

    config = genai.Config(str(folder))
    threads = {"session_options": {"intra_op_num_threads": THREADS}}
    config.overlay(json.dumps({"model": {"decoder": threads}}))
    model = genai.Model(config)

    def write(prompt: NDArray[np.int64], tokens: int) -> list[float]:
        options = genai.GeneratorParams(model)
        length = len(prompt) + tokens
        options.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = genai.Generator(model, options)
        times = [time.perf_counter()]
        generator.append_tokens(prompt[None].astype(np.int32))
        for _ in range(tokens):
            generator.generate_next_token()
            times.append(time.perf_counter())
        return _between(times)

    return _measure(write)


def has_openvino_model(model: Path) -> bool:
    """Whether OpenVINO GenAI may read a model: a GGUF file, or what optimum-intel has exported."""
    return model.is_file() or (model / "openvino_model.xml").is_file()


def openvino_speeds(source: Path) -> Speeds:
    """A GGUF file, or a folder, by OpenVINO GenAI.

    What has f32 in its name has sums and a cache of 32 bits.
    """
    import openvino
    import openvino_genai

    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": THREADS}
    if "f32" in source.stem.lower():
        settings |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    pipeline = openvino_genai.LLMPipeline(str(source), "CPU", **settings)

    class Clock(openvino_genai.StreamerBase):  # type: ignore[misc]
        """When each token came."""

        def __init__(self) -> None:
            super().__init__()
            self.times = [time.perf_counter()]

        def write(self, token: int | list[int]) -> Any:
            count = 1 if isinstance(token, int) else len(token)
            self.times += [time.perf_counter()] * count
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """Nothing is held back."""

    def write(prompt: NDArray[np.int64], tokens: int) -> list[float]:
        options = openvino_genai.GenerationConfig(
            max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, ignore_eos=True
        )
        ids, mask = prompt[None], np.ones_like(prompt[None])
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(mask))
        clock = Clock()
        pipeline.generate(inputs, options, clock)
        return _between(clock.times)

    return _measure(write)


def _measure(write: Write) -> Speeds:
    """The medians of some texts each, behind one that is not counted."""
    rng = np.random.default_rng(0)
    write(_prompt(rng, PROMPTS[0]), 2)
    speeds: Speeds = {}
    for count in PROMPTS:
        firsts = [write(_prompt(rng, count), 1)[0] for _ in range(_REPEATS)]
        speeds[PREFILL, count] = count / statistics.median(firsts)
    for count in CONTEXTS:
        texts = [write(_prompt(rng, count), WRITTEN + 1)[1:] for _ in range(_REPEATS)]
        speeds[DECODE, count] = 1 / statistics.median(statistics.mean(t) for t in texts)
    return speeds


def _prompt(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    return rng.integers(1, _LARGEST_TOKEN, count)


def _between(times: Sequence[float]) -> list[float]:
    return [float(d) for d in np.diff(times)]


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def output_of(arguments: Sequence[str]) -> str:
    """What a program prints.

    Raises:
        WorkerError: It failed.
    """
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkerError(f"{arguments[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
