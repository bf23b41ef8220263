"""Keys of generation_config.json that clrt supports, ignores or refuses.

`KEYS` has every key of transformers' GenerationConfig. Other keys are model-specific, and
transformers ignores them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from clrt.errors import ModelError
from clrt.models.huggingface.model_files import read_optional

GENERATION_CONFIG, GENAI_CONFIG = "generation_config.json", "genai_config.json"
# Default top_k of transformers if a folder with `do_sample` does not set it.
_DEFAULT_TOP_K = 50


class Key(NamedTuple):
    """Treatment of a key of generation_config.json by clrt.

    Attributes:
        treatment: "option" if the key names a field of `Sampling`, "read" if another part of clrt
            reads the key, "harmless" if the key does not affect texts, or "refused".
        neutral: Values of a refused key that have no effect and are accepted, besides null.
        drawing: Whether the key has an effect only if tokens are drawn (`do_sample`).
    """

    treatment: Literal["option", "read", "harmless", "refused"]
    neutral: tuple[Any, ...] = ()
    drawing: bool = False


_OPTIONS = (
    *("max_new_tokens", "max_length", "min_length", "min_new_tokens", "repetition_penalty"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens"),
    *("begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "sequence_bias"),
    *("num_return_sequences", "num_beams", "length_penalty", "early_stopping"),
    "renormalize_logits",
)
_SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "typical_p")
_READ = ("do_sample", "stop_strings", "eos_token_id", "bos_token_id", "decoder_start_token_id")
_HARMLESS = (
    # Execution and outputs.
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config"),
    *("disable_compile", "continuous_batching_config", "prefill_chunk_size", "low_memory"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    *("return_dict_in_generate", "pad_token_id", "transformers_version", "_from_model_config"),
    # clrt always treats NaN logits as -inf.
    "remove_invalid_values",
    # Speculative decoding, which does not change the text.
    *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "use_mtp"),
    *("assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind"),
    *("assistant_ensemble_weight", "target_lookbehind", "prompt_lookup_num_tokens"),
    *("max_matching_ngram_size", "speculation_type"),
)
KEYS: Mapping[str, Key] = {
    **dict.fromkeys(_OPTIONS, Key("option")),
    **dict.fromkeys(_SAMPLING_OPTIONS, Key("option", drawing=True)),
    **dict.fromkeys(_READ, Key("read")),
    **dict.fromkeys(_HARMLESS, Key("harmless")),
    "guidance_scale": Key("refused", (1,)),
    "encoder_repetition_penalty": Key("refused", (1,)),
    "exponential_decay_length_penalty": Key("refused"),
    "token_healing": Key("refused", (False,)),
    "watermarking_config": Key("refused"),
    "max_time": Key("refused"),
    "penalty_alpha": Key("refused", (0,)),
    "dola_layers": Key("refused"),
    "diversity_penalty": Key("refused", (0,)),
    "num_beam_groups": Key("refused", (1,)),
    "constraints": Key("refused", ([],)),
    "force_words_ids": Key("refused", ([],)),
    "top_h": Key("refused", drawing=True),
    "epsilon_cutoff": Key("refused", (0,), drawing=True),
    "eta_cutoff": Key("refused", (0,), drawing=True),
}
"""Each key of transformers' GenerationConfig."""


class ProposedOptions(NamedTuple):
    """Sampling options that a model's own files propose.

    Attributes:
        file: File that proposes the options.
        options: Values of `Sampling`'s fields by name, not yet checked.
        refusal: Why clrt does not support the options, and the remedy; "" if clrt supports them.
    """

    file: Path
    options: dict[str, Any]
    refusal: str = ""


def read_proposed(folder: Path) -> ProposedOptions:
    """Reads the sampling options of a model folder.

    The options come from generation_config.json, else genai_config.json, else config.json.

    Raises:
        ModelError: A file is damaged, or `do_sample` is not a boolean.
    """
    file, genai = folder / GENERATION_CONFIG, folder / GENAI_CONFIG
    if file.exists():
        return proposed_by(read_optional(file), file)
    if genai.exists():
        search = read_optional(genai).get("search", {})
        return proposed_by(search if isinstance(search, dict) else {}, genai)
    file = folder / "config.json"
    return proposed_by(read_optional(file), file)


def proposed_by(config: Mapping[str, Any], file: Path) -> ProposedOptions:
    """Returns the sampling options that a parsed generation_config.json proposes.

    Args:
        config: Contents of the file.
        file: Path of the file.

    Raises:
        ModelError: `do_sample` is not a boolean.
    """
    draws = config.get("do_sample") or False
    if not isinstance(draws, bool):
        raise ModelError(f"'{file}' has do_sample {draws!r}; expected true or false.")
    options = {
        name: config[name]
        for name, key in KEYS.items()
        if key.treatment == "option" and config.get(name) is not None and (draws or not key.drawing)
    }
    if config.get("stop_strings") is not None:
        options["stop"] = config["stop_strings"]
    if "max_new_tokens" in options:
        options.pop("max_length", None)
    elif "max_length" in options and file.name != GENAI_CONFIG:
        # In generation_config.json max_length bounds the text; in genai_config.json it sizes the
        # cache.
        options["max_new_tokens"] = options["max_length"]
    if draws:
        options = {"temperature": 1.0, "top_k": _DEFAULT_TOP_K, **options}
    return ProposedOptions(file, options, _refusal(config, file, draws))


def active_keys(config: Mapping[str, Any], draws: bool = False) -> list[str]:
    """Returns the keys of a generation_config.json that have an effect and that clrt refuses.

    Args:
        config: Contents of the file.
        draws: Whether tokens are drawn (`do_sample`).
    """
    return [
        name
        for name, key in KEYS.items()
        if key.treatment == "refused"
        and (draws or not key.drawing)
        and config.get(name) is not None
        and config[name] not in key.neutral
    ]


def _refusal(config: Mapping[str, Any], file: Path, draws: bool) -> str:
    """Returns the error message for an unsupported key that is in effect; "" if there is none."""
    refused = active_keys(config, draws)
    if not refused:
        return ""
    return (
        f"'{file}' has {refused[0]} {config[refused[0]]!r:.60}, which clrt does not support; "
        "give `sampling=clrt.Sampling(...)` to choose in its place, or take the key out of the "
        "file."
    )
