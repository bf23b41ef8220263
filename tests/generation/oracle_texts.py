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
