"""Makes the committed test data `tests/audio/data/whisper.*`: outputs of tiny Whisper models.

Run it in an environment with torch and transformers, which the tests need not have:

    python tests/audio/make_whisper_oracles.py             # write everything anew
    python tests/audio/make_whisper_oracles.py --check     # compare with what is committed

The JSON has the segments of each case of `oracle_whispers.py`: start, end and tokens. The arrays
are features of sounds, and the encoder's mean states and logits of a text, of frames of noise. So
are weights (`whisper_folders.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.audio.oracle_whispers import (
    CASES,
    ENGLISH,
    FEATURES,
    LOGITS,
    PROMPT,
    SECONDS,
    SILENT,
)
from tests.audio.sounds import RATE
from tests.audio.whisper_folders import (
    DATA,
    ENGLISH_ONLY,
    TOKENS,
    frames,
    sound,
    text_tokens,
    tokenizer,
    write_whisper,
)

_LEAST = 30 * RATE


def extractor(folder: Path) -> Any:
    """The feature extractor of a folder."""
    return transformers.WhisperFeatureExtractor.from_pretrained(folder)


def features(given: Any, samples: Any) -> dict[str, Any]:
    """Returns the inputs of transformers' `generate` for a sound, by name.

    Args:
        given: Feature extractor (`extractor`).
        samples: Mono samples at RATE; more than 30 seconds are not truncated.
    """
    options = dict(sampling_rate=RATE, return_tensors="pt", return_attention_mask=True)
    if len(samples) > _LEAST:
        options |= dict(truncation=False, padding="longest")
    return dict(given(samples, **options))


def load(folder: Path) -> Any:
    """The model of a folder, in float32."""
    model, found = transformers.WhisperForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {k: v for k, v in found.items() if v}
    if wrong:
        raise SystemExit(f"transformers reads other tensors than the file has: {wrong}")
    return model.eval()


def heard(model: Any, given: Any, name: str) -> list[dict[str, Any]]:
    """The segments of a case."""
    seconds, seed, options = CASES[name]
    asked: dict[str, Any] = {"return_timestamps": options.get("timestamps", True)}
    if name != ENGLISH:
        asked |= {"task": options.get("task", "transcribe"), "language": options.get("language")}
        if asked["language"] is not None:
            asked["language"] = asked["language"].lower()
    if options.get("prompt") is not None:
        own = tokenizer().encode(f" {PROMPT}").ids
        asked["prompt_ids"] = torch.tensor([TOKENS["<|startofprev|>"], *own])
    if seconds > 30:
        asked["condition_on_prev_tokens"] = options.get("condition_on_previous_text", True)
    if name == SILENT[0]:
        _, logprob, no_speech = SILENT
        asked |= dict(logprob_threshold=logprob, no_speech_threshold=no_speech)
    inputs = features(given, sound(seconds, seed))
    with torch.no_grad():
        found = model.generate(
            **inputs,
            return_segments=True,
            do_sample=False,
            num_beams=1,
            temperature=(0.0,),
            **asked,
        )
    return [
        {
            "start": round(float(s["start"]), 2),
            "end": round(float(s["end"]), 2),
            "tokens": [t for t in s["tokens"].tolist() if t != TOKENS["<|endoftext|>"]],
        }
        for s in found["segments"][0]
    ]


def make() -> tuple[dict[str, Any], dict[str, Any]]:
    """All cases, and the arrays."""
    cases, arrays = {}, {}
    with tempfile.TemporaryDirectory() as place:
        for mels in (80, 128):
            given = extractor(write_whisper(Path(place) / f"mels{mels}", mels))
            for k, seconds in enumerate(SECONDS):
                made = features(given, sound(seconds))["input_features"][0].numpy()
                arrays[f"features/{mels}/{k}"] = made[FEATURES]
        folder = Path(place) / "mels80"
        given, model = extractor(folder), load(folder)
        inputs = torch.from_numpy(frames().T.copy())[None]
        with torch.no_grad():
            states = model.get_encoder()(inputs).last_hidden_state[0]
            text = torch.tensor([text_tokens()])
            logits = model(input_features=inputs, decoder_input_ids=text).logits[0]
        print(f"logits spread by {float(logits.std()):.2f}")
        arrays |= {"states": states.mean(0).numpy(), "logits": logits.numpy()[:, LOGITS]}
        english = load(write_whisper(Path(place) / ENGLISH, **ENGLISH_ONLY))
        for name in CASES:
            cases[name] = heard(english if name == ENGLISH else model, given, name)
            print(name, [(s["start"], s["end"], len(s["tokens"])) for s in cases[name]])
    return cases, arrays


def main() -> int:
    """The command line; answers the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    cases, arrays = make()
    if not check:
        DATA.mkdir(exist_ok=True)
        lines = json.dumps(cases, separators=(",", ":")).replace('],"', '],\n"')
        (DATA / "whisper.json").write_text(lines + "\n", encoding="utf-8")
        np.savez_compressed(DATA / "whisper.npz", allow_pickle=False, **arrays)
        return 0
    wrong = []
    if json.loads((DATA / "whisper.json").read_text(encoding="utf-8")) != cases:
        wrong.append("whisper.json: other segments")
    with np.load(DATA / "whisper.npz") as old:
        if sorted(old) != sorted(arrays):
            wrong.append("whisper.npz: other arrays")
        elif not all(np.allclose(a, old[n], 1e-4, 1e-4) for n, a in arrays.items()):
            wrong.append("whisper.npz: other values")
    print("\n".join(wrong) or "The committed files are as made anew.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
