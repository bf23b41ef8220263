"""Folders of tiny Whisper models that alternate text and timestamps, and sounds for them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.audio.oracle_whispers import TEXT_TOKENS
from tests.audio.sounds import RATE
from tests.generation.checkpoints import noise
from tests.generation.tokenizers_of_tests import TEXTS

HIDDEN, HEADS, FEED, LAYERS, PLACES, CONTEXT = 64, 4, 128, 2, 1500, 96
WORDS = 300
LANGUAGES = ("en", "de", "fr", "zh")
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
TOKENS = {text: WORDS + k for k, text in enumerate(SPECIAL)}
END, START = TOKENS["<|endoftext|>"], TOKENS["<|startoftranscript|>"]
FIRST_TIME = WORDS + len(SPECIAL)
VOCABULARY = FIRST_TIME + PLACES + 1
DATA = Path(__file__).parent / "data"
#: What generation_config.json of a model has that knows English alone.
ENGLISH_ONLY = {"is_multilingual": False, "lang_to_id": None, "task_to_id": None}


@cache
def tokenizer() -> Tokenizer:
    """Of bytes and a few words, with Whisper's special tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    made.train_from_iterator(TEXTS, trainer)
    made.add_special_tokens(list(SPECIAL))
    made.add_tokens([AddedToken(f"<|{k / 50:.2f}|>") for k in range(PLACES + 1)])
    return made


@cache
def unreadable() -> list[int]:
    """Tokens whose text is no plain letters, and those that are no text and no time."""
    texts = ((token, tokenizer().decode([token])) for token in range(WORDS))
    wrong = [token for token, text in texts if not (text.isascii() and text.isprintable())]
    return [*wrong, *(t for text, t in TOKENS.items() if text not in SPECIAL[:1])]


def config(mels: int = 80, **changes: Any) -> dict[str, Any]:
    """A config.json."""
    sizes = {
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", FEED))
    }
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "activation_function": "gelu",
        "d_model": HIDDEN,
        "vocab_size": VOCABULARY,
        "num_mel_bins": mels,
        "max_source_positions": PLACES,
        "max_target_positions": CONTEXT,
        "decoder_start_token_id": START,
        "pad_token_id": END,
        "bos_token_id": END,
        "eos_token_id": END,
        **sizes,
        **changes,
    }


def generation_config(**changes: Any) -> dict[str, Any]:
    """A generation_config.json."""
    codes = {f"<|{code}|>": TOKENS[f"<|{code}|>"] for code in LANGUAGES}
    return {
        "decoder_start_token_id": START,
        "pad_token_id": END,
        "bos_token_id": END,
        "eos_token_id": END,
        "is_multilingual": True,
        "lang_to_id": codes,
        "task_to_id": {t: TOKENS[f"<|{t}|>"] for t in ("transcribe", "translate")},
        "no_timestamps_token_id": FIRST_TIME - 1,
        "prev_sot_token_id": TOKENS["<|startofprev|>"],
        "suppress_tokens": unreadable(),
        "begin_suppress_tokens": [END, 5],
        "max_initial_timestamp_index": 50,
        "max_length": CONTEXT,
        **changes,
    }


def shapes(mels: int = 80) -> dict[str, tuple[int, ...]]:
    """Tensors by their names in the file."""
    made: dict[str, tuple[int, ...]] = {
        "model.encoder.conv1.weight": (HIDDEN, mels, 3),
        "model.encoder.conv1.bias": (HIDDEN,),
        "model.encoder.conv2.weight": (HIDDEN, HIDDEN, 3),
        "model.encoder.conv2.bias": (HIDDEN,),
        "model.encoder.embed_positions.weight": (PLACES, HIDDEN),
        "model.decoder.embed_positions.weight": (CONTEXT, HIDDEN),
        "model.decoder.embed_tokens.weight": (VOCABULARY, HIDDEN),
    }
    norms = []
    for part, attentions in (("encoder", 1), ("decoder", 2)):
        norms.append(f"model.{part}.layer_norm")
        for layer in range(LAYERS):
            path = f"model.{part}.layers.{layer}"
            norms += [f"{path}.self_attn_layer_norm", f"{path}.final_layer_norm"]
            norms += [f"{path}.encoder_attn_layer_norm"] * (attentions - 1)
            for attention in ("self_attn", "encoder_attn")[:attentions]:
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    made[f"{path}.{attention}.{name}.weight"] = (HIDDEN, HIDDEN)
                    if name != "k_proj":
                        made[f"{path}.{attention}.{name}.bias"] = (HIDDEN,)
            made |= {f"{path}.fc1.weight": (FEED, HIDDEN), f"{path}.fc1.bias": (FEED,)}
            made |= {f"{path}.fc2.weight": (HIDDEN, FEED), f"{path}.fc2.bias": (HIDDEN,)}
    return made | {f"{norm}.{kind}": (HIDDEN,) for norm in norms for kind in ("weight", "bias")}


# How far logits of words, times and the end lie apart, so that texts are longer than times.
SPREAD = {"words": 2.2, "times": 0.3, "end": 3.0}


def tensors(mels: int = 80) -> dict[str, NDArray[np.float32]]:
    """Returns random weights by their names in the file.

    Cross-attention is scaled up, so that the tokens depend on the sound. Rows of the token
    embedding, which also give the logits, are scaled by SPREAD.
    """
    made = {name: noise(name, shape) for name, shape in shapes(mels).items()}
    for name in made:
        if "encoder_attn.q_proj.weight" in name or "encoder_attn.out_proj.weight" in name:
            made[name] *= np.float32(3)
    table = made["model.decoder.embed_tokens.weight"]
    table[:WORDS] *= np.float32(SPREAD["words"])
    table[FIRST_TIME:] *= np.float32(SPREAD["times"])
    table[END] *= np.float32(SPREAD["end"])
    return made


def write_whisper(folder: Path, mels: int = 80, **generation: Any) -> Path:
    """A folder.

    Args:
        mels: Bands of its features.
        generation: Changes of generation_config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    features = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": mels}
    files = {
        "config": config(mels),
        "generation_config": generation_config(**generation),
        "preprocessor_config": features,
    }
    for name, values in files.items():
        values = {k: v for k, v in values.items() if v is not None}
        (folder / f"{name}.json").write_text(json.dumps(values), "utf-8")
    tokenizer().save(str(folder / "tokenizer.json"))
    save_file(tensors(mels), folder / "model.safetensors", {"format": "pt"})
    return folder


def text_tokens() -> list[int]:
    """A text that begins as texts do, and whose tokens are drawn."""
    drawn = np.random.default_rng(11).integers(0, WORDS, TEXT_TOKENS).tolist()
    return [START, TOKENS["<|en|>"], TOKENS["<|transcribe|>"], FIRST_TIME + 3, *drawn]


def frames(mels: int = 80) -> NDArray[np.float32]:
    """Features of a window [frames, mels]: noise, as large as features are."""
    return np.random.default_rng(13).uniform(-1, 1.5, (2 * PLACES, mels)).astype(np.float32)


def sound(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """Tones that change about three times a second, and breaks."""
    draw = np.random.default_rng(seed)
    parts, left = [], round(seconds * RATE)
    while left > 0:
        count = min(int(draw.integers(2000, 8000)), left)
        t = np.arange(count) / RATE
        tone = sum(
            draw.uniform(0.05, 0.3) * np.sin(2 * np.pi * draw.uniform(80, 6000) * t)
            for _ in range(3)
        )
        parts.append(tone * (draw.random() > 0.2))
        left -= count
    return np.concatenate(parts).astype(np.float32)
