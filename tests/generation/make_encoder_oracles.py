"""Make `encoder_decoders.json` and `.npz` in `tests/generation/data/`: outputs of transformers.

Run it in an environment with torch and transformers, which the tests need not have:

    python tests/generation/make_encoder_oracles.py             # write everything anew
    python tests/generation/make_encoder_oracles.py --check     # compare with what is committed

The JSON has the configurations of `oracle_sources.py` as transformers saves them, the names and
shapes of tensors, greedy texts and those of beams. Weights are noise (`checkpoints.py`). The arrays
are logits of a text for each source, and means of the encoder's states.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.generation.checkpoints import DATA, Array, write_folder
from tests.generation.make_oracles import describe, is_check, report, write_cases, wrong_values
from tests.generation.oracle_sources import (
    BEAM_TOKENS,
    BEAMS,
    COLUMNS,
    ENCODER_DECODERS,
    GREEDY,
    PENALTY,
    SOURCES,
    WITH_HEAD,
    source,
    text,
)

FILE = "encoder_decoders"
_AUTO = transformers.AutoModelForSeq2SeqLM


def load(name: str, case: dict[str, Any], folder: Path) -> Any:
    """The model of a case, in float32."""
    write_folder(folder, case)
    model, found = _AUTO.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {k: v for k, v in found.items() if v}
    if wrong or (model.lm_head.weight is model.shared.weight) == (name in WITH_HEAD):
        raise SystemExit(f"{name}: transformers reads other tensors than the file has: {wrong}")
    return model.eval()


def answers(model: Any, length: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """Texts for a source, and its logits and mean state."""
    given = torch.tensor([source(length)])
    options = dict(attention_mask=torch.ones_like(given), do_sample=False, pad_token_id=0)
    greedy = model.generate(
        given,
        max_new_tokens=GREEDY,
        repetition_penalty=PENALTY,
        eos_token_id=None,
        **options,
    )
    beams = model.generate(
        given,
        num_beams=BEAMS,
        num_return_sequences=BEAMS,
        max_new_tokens=BEAM_TOKENS,
        eos_token_id=None,
        **options,
    )
    with torch.no_grad():
        logits = model(input_ids=given, decoder_input_ids=torch.tensor([text(length)])).logits[0]
        states = model.get_encoder()(given).last_hidden_state[0]
    spread = float(logits.std())
    if not 0.1 < spread < 10:
        raise SystemExit(f"Logits spread by {spread}.")
    texts = {"greedy": greedy[0, 1:].tolist(), "beams": beams[:, 1:].tolist()}
    return texts, {"logits": logits.numpy()[:, COLUMNS], "mean": states.mean(0).numpy()}


def make() -> tuple[dict[str, Any], dict[str, Array]]:
    """All cases, and the arrays `NAME/SOURCE/WHAT` of each."""
    cases, arrays = {}, {}
    for name, settings in ENCODER_DECODERS.items():
        with tempfile.TemporaryDirectory() as folder:
            case = describe(settings, Path(folder) / "saved", _AUTO)
            if name in WITH_HEAD:
                case["tensors"]["lm_head.weight"] = case["tensors"]["shared.weight"]
            model = load(name, case, Path(folder) / name)
        case["texts"] = []
        for k, length in enumerate(SOURCES):
            texts, found = answers(model, length)
            case["texts"].append(texts)
            arrays |= {f"{name}/{k}/{what}": array for what, array in found.items()}
            print(f"{name}: {len(set(texts['greedy']))} different tokens")
        cases[name] = case
    return cases, arrays


def main() -> int:
    """The command line; answers the exit status."""
    check = is_check(__doc__)
    cases, arrays = make()
    if not check:
        write_cases(f"{FILE}.json", cases)
        np.savez_compressed(DATA / f"{FILE}.npz", allow_pickle=False, **arrays)
        return 0
    wrong = wrong_values(f"{FILE}.npz", arrays)
    if json.loads((DATA / f"{FILE}.json").read_text(encoding="utf-8")) != cases:
        wrong.append(f"{FILE}.json: other configurations, tensors or texts")
    return report(wrong)


if __name__ == "__main__":
    sys.exit(main())
