"""Cases for tiny Whisper models, and which parts of transformers' results are compared."""

from __future__ import annotations

from typing import Any

#: Seconds of the sounds whose features are compared: a part of a window, and more than two.
SECONDS = (7.3, 71.6)
#: Those of the features that are committed, by mel band and frame.
FEATURES = (slice(None, None, 3), slice(0, None, 97))
#: The text whose logits are compared, behind the start of a text, and those that are committed.
TEXT_TOKENS, LOGITS = 24, slice(0, None, 53)
#: Names that a prompt may have.
PROMPT = "the model of the graph"

#: By case: seconds of a sound, what draws it, and the options of `Transcriber.transcribe`.
CASES: dict[str, tuple[float, int, dict[str, Any]]] = {
    "short": (30.0, 3, {"condition_on_previous_text": False}),
    "long": (71.6, 1, {"condition_on_previous_text": False}),
    "other": (36.0, 10, {"condition_on_previous_text": False}),
    "conditioned": (71.6, 2, {}),
    "prompted": (71.6, 4, {"condition_on_previous_text": False, "prompt": PROMPT}),
    "both": (71.6, 5, {"prompt": PROMPT}),
    "translated": (33.0, 6, {"task": "translate", "language": "German"}),
    "timeless": (12.0, 7, {"timestamps": False, "language": "fr"}),
    "silent": (95.0, 8, {"condition_on_previous_text": False}),
    "english": (40.0, 9, {}),
}
#: The case of a model that knows English alone.
ENGLISH = "english"
#: The log-probability and the probability of silence that decide in the case "silent".
SILENT = ("silent", -1.7, 2e-4)
