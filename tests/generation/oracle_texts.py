"""The decoder whose texts are compared with transformers, and its prompts."""

from __future__ import annotations

from typing import Any

VOCABULARY = 450
# Long enough for pages of several texts, with room to be too long.
CONTEXT = 320

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 80,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
}

#: Tokens by name. Of these the greedy text has 200 tokens.
PROMPTS = {
    "short": [17, 4, 201],
    "one": [300],
    "page": list(range(100, 132)),
    "long": [(7 * k) % VOCABULARY for k in range(90)],
}
GREEDY = 200

#: Prompt, beams, tokens at most, and tokens that end a text.
BEAMS: dict[str, tuple[str, int, int, list[int]]] = {
    "without_end": ("short", 3, 40, []),
    "one_end": ("page", 4, 60, [33]),
    "many_ends": ("long", 3, 60, list(range(5, 450, 37))),
    "ends_at_once": ("one", 2, 8, list(range(0, 450, 2))),
}

#: Of "phi3_long", whose rotary angles change beyond 32 tokens: lengths of prompts, new tokens
#: behind each, and lengths of texts that are scored.
LONG_PROMPTS, LONG_STEPS, LONG_SCORED = (20, 31, 32, 33, 40), 14, (12, 32, 33, 50)

#: What generation_config.json says of tokens: each is done greedily and by beams behind the prompt
#: "short", whose greedy text has 24 of the tokens below.
RULES_TOKENS = 24
RULE_ENDS = list(range(2, VOCABULARY, 23))
RULES: dict[str, dict[str, Any]] = {
    "ngram": {"no_repeat_ngram_size": 2},
    "single": {"no_repeat_ngram_size": 1},
    "prompt_ngram": {"encoder_no_repeat_ngram_size": 1},
    "suppressed": {"suppress_tokens": list(range(0, VOCABULARY, 3))},
    "not_first": {"begin_suppress_tokens": list(range(0, VOCABULARY, 2))},
    "bad_words": {"bad_words_ids": [[k, j] for k in range(0, 450, 2) for j in range(0, 450, 5)]},
    "bias": {"sequence_bias": [[[k], 3.0] for k in range(0, 450, 7)] + [[[4, 201, 7], 9.0]]},
    "min_new": {"min_new_tokens": 12, "eos_token_id": RULE_ENDS},
    "min_length": {"min_length": 14, "eos_token_id": RULE_ENDS},
    "forced_end": {"forced_eos_token_id": 7},
    "one_of_forced_ends": {"forced_eos_token_id": [9, 8]},
    "length": {"max_length": 13},
    "penalty": {"repetition_penalty": 1.5, "suppress_tokens": [1, 2, 3]},
    "all": {
        "no_repeat_ngram_size": 3,
        "min_length": 9,
        "forced_eos_token_id": 5,
        "renormalize_logits": True,
        "suppress_tokens": list(range(0, VOCABULARY, 4)),
        "eos_token_id": RULE_ENDS,
    },
    "forced_begin": {"forced_bos_token_id": 33, "begin_suppress_tokens": list(range(0, 450, 2))},
}
BEAM_RULES: dict[str, dict[str, Any]] = {
    f"{name}_{early}": {"length_penalty": power, "early_stopping": early, "eos_token_id": RULE_ENDS}
    for early in (False, True, "never")
    for name, power in (("longer", 2.5), ("no_length", 0.0), ("shorter", -1.0))
}
