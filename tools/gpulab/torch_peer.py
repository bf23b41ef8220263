"""torch as a peer, if installed: products and models, on the same kind of device."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from benchmark.inputs import BERT_BASE, MINILM
from benchmark.runtimes import is_installed
from benchmark.turns import time_turn
from gpus.decoders import SMOLLM2

Times: TypeAlias = "dict[str, float]"


def torch_device(is_cpu: bool) -> str:
    """Returns the torch device of clrt's kind; "" if there is none, or no torch."""
    if not is_installed("torch"):
        return ""
    if is_cpu:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else ""


def time_products(size: int, is_cpu: bool, seconds: float) -> Times:
    """Seconds of products of square matrices, by dtype; those that torch has no kernel for fail."""
    device = torch_device(is_cpu)
    if not device:
        return {}
    import torch

    found: Times = {}
    for kind, dtype in (("fp32", "float32"), ("tf32", "float32"), ("fp16", "float16")):
        if kind != "fp32" and device == "cpu":
            continue  # it has no kernel for fp16 that ends in a minute, and no tf32
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        a, b = (torch.randn(size, size).to(device, getattr(torch, dtype)) for _ in range(2))
        with suppress(RuntimeError):
            found[kind] = _median(lambda x=a, y=b: x @ y, device, seconds)  # type: ignore[misc]
    a, b = (torch.randint(-128, 128, (size, size), dtype=torch.int8) for _ in range(2))
    a, b = a.to(device), b.to(device).t().contiguous().t()
    with suppress(RuntimeError):
        found["int8"] = _median(lambda: torch._int_mm(a, b), device, seconds)
    return found


def time_model(title: str, is_cpu: bool, seconds: float) -> Times:
    """Milliseconds of a model of the same geometry with random weights, eager, by dtype."""
    device = torch_device(is_cpu)
    if not device or not is_installed("transformers"):
        return {}
    import torch

    name, _, what = title.partition(", ")
    found: Times = {}
    for kind, dtype in (("fp32", torch.float32), ("fp16", torch.float16)):
        if kind == "fp16" and device == "cpu":
            continue
        with torch.inference_mode():
            run = _forward(name, what, device, dtype)
            if run is not None:
                found[kind] = 1e3 * _median(run, device, seconds)
    return found


def _forward(name: str, what: str, device: str, dtype: Any) -> Callable[[], object] | None:
    """A run of a model on inputs that lie on the device; None for a model that is not made here."""
    import torch
    import transformers as known

    if name in (MINILM, BERT_BASE):
        small = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
        config = known.BertConfig(**(small if name == MINILM else {}))
        batch, sequence = map(int, what.split(" x "))
        ids = torch.zeros(batch, sequence, dtype=torch.int64, device=device)
        model = known.BertModel(config).to(device, dtype).eval()
        return lambda: model(ids)
    if name == "ResNet-50":
        net = known.ResNetForImageClassification(known.ResNetConfig(num_labels=1000))
        images = torch.zeros(int(what.split()[-1]), 3, 224, 224, dtype=dtype, device=device)
        net = net.to(device, dtype).eval()
        return lambda: net(images)
    if name == "GPT-2":
        return _decoding(known.GPT2LMHeadModel(known.GPT2Config()), what, device, dtype)
    if name.startswith("SmolLM2"):
        geometry = {k: v for k, v in SMOLLM2.items() if k != "model_type"}
        config = known.LlamaConfig(**geometry, tie_word_embeddings=True)
        return _decoding(known.LlamaForCausalLM(config), what, device, dtype)
    return None


def _decoding(model: Any, what: str, device: str, dtype: Any) -> Callable[[], object]:
    """A token behind 511 others, or a prompt of 128 behind 384, as clrt's plans have it."""
    import torch

    model = model.to(device, dtype).eval()
    tokens = 1 if what == "a token" else 128
    before = torch.zeros(1, 512 - tokens, dtype=torch.int64, device=device)
    new = torch.zeros(1, tokens, dtype=torch.int64, device=device)
    cache = model(before, use_cache=True).past_key_values

    def run() -> object:
        found = model(new, past_key_values=cache, use_cache=True)
        cache.crop(-tokens)
        return found

    return run


def _median(run: Callable[[], object], device: str, seconds: float) -> float:
    """Returns the median seconds of a run, synchronized."""
    import torch

    def whole() -> None:
        run()
        if device == "cuda":
            torch.cuda.synchronize()

    whole()
    return statistics.median(time_turn(whole, seconds))
