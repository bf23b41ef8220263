"""Make the committed ONNX decoders under `tests/generation/data/`, without their weights.

Run it in an environment with torch, transformers and onnxruntime-genai, which tests need not have:

    python tests/generation/make_onnx.py

onnxruntime-genai's builder makes the files whose names begin with "genai"; torch exports the
others, with the names and the shapes of optimum. What comes out depends on versions of both, so it
is not compared: the tests compare clrt with ONNX Runtime on the committed files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.generation.checkpoints import DATA
from tests.generation.onnx_folders import stripped
from tests.generation.tokenizers_of_tests import byte_level

_SMALL: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA = {"model_type": "llama", **_SMALL}
_GEMMA = {
    "model_type": "gemma2",
    **_SMALL,
    "sliding_window": 9,
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}
_GPT_OSS = {
    "model_type": "gpt_oss",
    **_SMALL,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 9,
}
_LONGROPE = {
    "model_type": "phi3",
    **_SMALL,
    "original_max_position_embeddings": 16,
    "rope_scaling": {
        "type": "longrope",
        "rope_type": "longrope",
        "short_factor": [1 + 0.05 * k for k in range(8)],
        "long_factor": [1.5 + 0.5 * k for k in range(8)],
    },
    "sliding_window": None,
}
_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 37,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: Settings, precision and options of the builder, by case.
BUILT: dict[str, tuple[dict[str, Any], str, str, dict[str, str]]] = {
    "genai_float": (_LLAMA, "fp32", "cpu", {}),
    "genai_int4": (_LLAMA, "int4", "cpu", {}),
    "genai_tied": ({**_LLAMA, "tie_word_embeddings": True}, "int4", "cpu", {}),
    "genai_half": (_LLAMA, "fp16", "cuda", {}),
    "genai_last": (_LLAMA, "fp32", "cpu", {"prune_lm_head": "true"}),
    "genai_gemma2": (_GEMMA, "fp32", "cpu", {}),
    "genai_gpt_oss": (_GPT_OSS, "fp32", "cpu", {}),
    "genai_longrope": (_LONGROPE, "fp32", "cpu", {}),
}
EXPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "torch_llama": (_LLAMA, "eager"),
    "torch_qwen3": ({**_LLAMA, "model_type": "qwen3"}, "sdpa"),
    "torch_gemma2": (_GEMMA, "eager"),
    "torch_gpt2": (_GPT2, "eager"),
}


def save(settings: dict[str, Any], folder: Path, attention: str = "eager") -> Any:
    """A model of these settings with weights of its own, which are not kept."""
    values = dict(settings)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    made.save_pretrained(folder)
    return made.eval()


def build(case: str, source: Path, folder: Path) -> None:
    """Has onnxruntime-genai make a folder."""
    settings, precision, target, options = BUILT[case]
    save(settings, source)
    byte_level().save(str(source / "tokenizer.json"))
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", folder]
    command += ["-p", precision, "-e", target, "-c", source]
    if options:
        command += ["--extra_options", *(f"{name}={value}" for name, value in options.items())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class WithPast(torch.nn.Module):
    """A model whose cache is inputs and outputs, and whose mask is made within."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *past: Any) -> Any:
        config = self.model.config
        cache = transformers.DynamicCache()
        for layer in range(config.num_hidden_layers):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        before, new = past[0].shape[2], input_ids.shape[1]
        distance = torch.arange(new)[:, None] + before - torch.arange(before + new)[None]
        seen = (distance >= 0)[None, None] & (attention_mask[:, None, None, :] != 0)
        lowest = torch.finfo(torch.float32).min
        mask: Any = torch.where(seen, 0.0, lowest)
        kinds = getattr(config, "layer_types", None) or []
        if len(set(kinds)) > 1:
            near = seen & (distance < config.sliding_window)[None, None]
            mask = {"full_attention": mask, "sliding_attention": torch.where(near, 0.0, lowest)}
        given = {"attention_mask": mask, "position_ids": position_ids, "use_cache": True}
        found = self.model(input_ids=input_ids, past_key_values=cache, **given)
        kept = [part for one in found.past_key_values.layers for part in (one.keys, one.values)]
        return (found.logits, *kept)


def export(model: Any, file: Path) -> None:
    """Writes a model with the names that optimum gives."""
    config = model.config
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    size = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    parts = [f"{n}.{w}" for n in range(config.num_hidden_layers) for w in ("key", "value")]
    batch, new, before = 2, 3, 5
    past = [torch.randn(batch, heads, before, size) for _ in parts]
    places = torch.arange(before, before + new)[None].repeat(batch, 1)
    ones = torch.ones(batch, before + new, dtype=torch.long)
    text = {0: "batch_size", 1: "sequence_length"}
    axes: dict[str, dict[int, str]] = {"input_ids": text, "position_ids": text, "logits": text}
    axes["attention_mask"] = {0: "batch_size", 1: "past_sequence_length + sequence_length"}
    for part in parts:
        axes[f"past_key_values.{part}"] = {0: "batch_size", 2: "past_sequence_length"}
        axes[f"present.{part}"] = {0: "batch_size", 2: "past_sequence_length + sequence_length"}
    torch.onnx.export(
        WithPast(model),
        (torch.ones(batch, new, dtype=torch.long), ones, places, *past),
        str(file),
        input_names=["input_ids", "attention_mask", "position_ids"]
        + [f"past_key_values.{part}" for part in parts],
        output_names=["logits"] + [f"present.{part}" for part in parts],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )


def main() -> None:
    """Writes all cases."""
    torch.manual_seed(0)
    graphs, configs = {}, {}
    for case in (*BUILT, *EXPORTED):
        with tempfile.TemporaryDirectory() as place:
            source, folder = Path(place) / "hf", Path(place) / "onnx"
            folder.mkdir()
            if case in BUILT:
                build(case, source, folder)
                name = "genai_config.json"
            else:
                export(save(EXPORTED[case][0], source, EXPORTED[case][1]), folder / "model.onnx")
                name = "config.json"
                (folder / name).write_text((source / name).read_text())
            model = onnx.load(folder / "model.onnx")
            configs[case] = {name: json.loads((folder / name).read_text())}
            graphs[case] = np.frombuffer(stripped(model), np.uint8)
            print(f"{case}: {len(graphs[case])} bytes")
    np.savez_compressed(DATA / "onnx_decoders.npz", allow_pickle=False, **graphs)
    text = json.dumps(configs, separators=(",", ":")).replace("}},", "}},\n")
    (DATA / "onnx_decoders.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
