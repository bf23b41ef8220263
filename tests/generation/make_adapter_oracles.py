"""Make `adapters.json` and `adapters.npz` of `tests/generation/data`: logits computed by peft.

Run it in an environment with torch, transformers and peft, which the tests need not have:

    python tests/generation/make_adapter_oracles.py             # write everything anew
    python tests/generation/make_adapter_oracles.py --check     # compare with what is committed

`adapters.json` has the configurations of `oracle_adapters.py` as peft saves them, and the names and
shapes of the tensors that it writes. `adapters.npz` has the logits of a text for each, which peft
computes without merging.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.generation.adapter_folders import write_adapter
from tests.generation.checkpoints import DATA, Array, load_json, tokens, write_folder
from tests.generation.make_oracles import is_check, report, write_cases, wrong_values
from tests.generation.oracle_adapters import ADAPTERS, ADDED
from tests.generation.oracle_decoders import COLUMNS, LENGTHS

_UNUSED = ("auto_mapping", "base_model_name_or_path", "peft_version", "revision")


def base_model(name: str, folder: Path) -> Any:
    """A decoder of `oracle_decoders.py`, in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        write_folder(folder, load_json()[name]), dtype=torch.float32, attn_implementation="eager"
    )


def describe(model: Any, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A case: its adapter_config.json, and the tensors that peft writes for it."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    peft.get_peft_model(model, config).save_pretrained(folder)
    saved = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    with safe_open(folder / "adapter_model.safetensors", "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    kept = {k: v for k, v in sorted(saved.items()) if k not in _UNUSED and v not in (None, {}, [])}
    # peft keeps sets of them.
    kept |= {k: sorted(v) for k, v in kept.items() if isinstance(v, list)}
    return {"config": kept, "tensors": shapes}


def logits(model: Any) -> Array:
    """Of the second text."""
    text = torch.from_numpy(tokens(LENGTHS[1]).astype(np.int64))[None]
    with torch.no_grad():
        found: Array = model.eval()(text, use_cache=False).logits[0].numpy()
    return found


def make() -> tuple[dict[str, Any], dict[str, Array]]:
    """All cases, and the logits of each."""
    cases, arrays = {}, {}
    with tempfile.TemporaryDirectory() as root:
        folders = {}
        for name, (base, settings) in ADAPTERS.items():
            own = Path(root) / name
            cases[name] = describe(base_model(base, own / "base"), settings, own / "saved")
            folders[name] = write_adapter(own / "adapter", name, cases[name])
            plain = base_model(base, own / "base")
            before = logits(plain)
            after = logits(peft.PeftModel.from_pretrained(plain, folders[name]))
            print(f"{name}: {np.abs(after - before).std():.2f} of {before.std():.2f}")
            arrays[name] = after[:, COLUMNS]
        arrays["added"] = added(folders, Path(root) / "added")[:, COLUMNS]
    return cases, arrays


def added(folders: Mapping[str, Path], folder: Path) -> Array:
    """The logits of the sum of `ADDED`."""
    first, factors = ADDED
    plain = base_model(ADAPTERS[first].base, folder)
    model = peft.PeftModel.from_pretrained(plain, folders[first], adapter_name=first)
    for name in factors:
        if name != first:
            model.load_adapter(folders[name], adapter_name=name)
    model.base_model.set_adapter(list(factors))
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            for name, factor in factors.items():
                if name in module.scaling:
                    module.set_scale(name, factor)
    return logits(model)


def main() -> int:
    """The command line; answers the exit status."""
    check = is_check(__doc__)
    cases, arrays = make()
    if not check:
        write_cases("adapters.json", cases)
        np.savez_compressed(DATA / "adapters.npz", allow_pickle=False, **arrays)
        return 0
    wrong = []
    if json.loads((DATA / "adapters.json").read_text(encoding="utf-8")) != cases:
        wrong.append("adapters.json: other configurations or tensors")
    wrong += wrong_values("adapters.npz", arrays)
    return report(wrong)


if __name__ == "__main__":
    sys.exit(main())
