"""Make the committed test data under `tests/generation/data/`: outputs of tiny decoders.

Run it in an environment with torch and transformers, which the tests need not have:

    python tests/generation/make_oracles.py             # write everything anew
    python tests/generation/make_oracles.py --check     # compare with what is committed

`decoders.json` has the configurations of `oracle_decoders.py` as transformers saves them, and the
names and shapes of the tensors that it writes. Weights are noise (`checkpoints.py`).
`decoders.npz` has the logits of two texts for each. `rotaries.npz` has frequencies of rotary
embeddings. `texts.json` has the decoder of `oracle_texts.py`, its greedy texts and those of beams,
and perplexities. `longrope.json` has greedy texts and scores of the case "phi3_long", whose angles
change with the length of a text. `rules.json` has texts by what generation_config.json says.
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
from safetensors import safe_open
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.generation.checkpoints import DATA, Array, tokens, write_folder
from tests.generation.oracle_decoders import (
    COLUMNS,
    DECODERS,
    LENGTHS,
    ROTARIES,
    ROTARY_HEAD,
    ROTARY_PLACES,
)
from tests.generation.oracle_texts import (
    BEAM_RULES,
    BEAMS,
    GREEDY,
    LLAMA,
    LONG_PROMPTS,
    LONG_SCORED,
    LONG_STEPS,
    PROMPTS,
    RULES,
    RULES_TOKENS,
)

_UNUSED = ("transformers_version", "use_cache", "initializer_range", "architectures")
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def describe(
    settings: dict[str, Any], folder: Path, auto: Any = transformers.AutoModelForCausalLM
) -> dict[str, Any]:
    """A case: its config.json, and the tensors that transformers writes for it.

    Args:
        auto: Makes a model of a configuration.
    """
    values = {**settings, **dict.fromkeys(_TOKENS)}
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    model = auto.from_config(config)
    model.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with safe_open(folder / "model.safetensors", "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    kept = {k: v for k, v in sorted(saved.items()) if k not in _UNUSED}
    return {"config": kept, "tensors": shapes}


def answer(case: dict[str, Any], folder: Path, attention: str) -> list[Array]:
    """The logits of both texts, computed in float32."""
    write_folder(folder, case)
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, output_loading_info=True
    )
    wrong = {k: v for k, v in found.items() if v}
    if wrong:
        raise SystemExit(f"{folder.name}: transformers reads other tensors than it writes: {wrong}")
    texts = [torch.from_numpy(tokens(length).astype(np.int64))[None] for length in LENGTHS]
    with torch.no_grad():
        logits = [model.eval()(text, use_cache=False).logits[0].numpy() for text in texts]
    if not all(0.1 < float(x.std()) < 10 for x in logits):
        raise SystemExit(f"{folder.name}: logits spread by {[float(x.std()) for x in logits]}.")
    return logits


def make() -> tuple[dict[str, Any], dict[str, Array]]:
    """All cases, and the logits `NAME/TEXT` of each."""
    cases, logits = {}, {}
    for name, settings in DECODERS.items():
        own = {**settings}
        attention = own.pop("attention", "eager")
        with tempfile.TemporaryDirectory() as folder:
            cases[name] = describe(own, Path(folder) / "saved")
            found = answer(cases[name], Path(folder) / name, attention)
        logits |= {f"{name}/{k}": array[:, COLUMNS] for k, array in enumerate(found)}
        print(f"{name}: logits spread by {found[0].std():.2f}")
    return cases, logits


def make_rotaries() -> dict[str, Array]:
    """The frequencies of each case of `ROTARIES`, and behind them the factor of cosines."""
    made = {}
    for name, (rope, context) in ROTARIES.items():
        config = transformers.LlamaConfig(
            hidden_size=ROTARY_HEAD,
            num_attention_heads=1,
            max_position_embeddings=ROTARY_PLACES,
            rope_parameters={**rope},
        )
        if rope["rope_type"] == "default":
            # Without a function of its own there; models do it alike.
            compute = ROPE_INIT_FUNCTIONS["linear"]
            config.rope_parameters["factor"] = 1.0
        else:
            compute = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
        frequencies, factor = compute(config, "cpu", seq_len=context)
        made[name] = np.append(frequencies.numpy(), np.float32(factor))
    return made


def until(ends: list[int], row: list[int]) -> list[int]:
    """A text without what fills it up behind the token that ends it."""
    at = next((k for k, token in enumerate(row) if token in ends), len(row))
    return row[: at + 1]


def make_texts() -> dict[str, Any]:
    """The texts of `oracle_texts.py`."""
    with tempfile.TemporaryDirectory() as folder:
        case = describe(LLAMA, Path(folder) / "saved")
        write_folder(Path(folder) / "model", case)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            Path(folder) / "model", dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def generated(prompt: str, **options: Any) -> list[list[int]]:
        given = torch.tensor([PROMPTS[prompt]])
        found = model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, pad_token_id=0, **options
        )
        return [row[len(PROMPTS[prompt]) :] for row in found.tolist()]

    def perplexity(prompt: str) -> float:
        given = torch.tensor([PROMPTS[prompt]])
        with torch.no_grad():
            return float(model(given, labels=given).loss.exp())

    beams = {}
    for name, (prompt, count, most, ends) in BEAMS.items():
        options = dict(num_beams=count, num_return_sequences=count, max_new_tokens=most)
        rows = generated(prompt, eos_token_id=ends or None, **options)
        beams[name] = [until(ends, row) for row in rows]
    return {
        **case,
        "greedy": {p: generated(p, max_new_tokens=GREEDY)[0] for p in PROMPTS},
        "beams": beams,
        "perplexities": {p: perplexity(p) for p in PROMPTS if len(PROMPTS[p]) > 1},
    }


def make_long_texts(case: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens behind beginnings of one text, and log-probabilities of other beginnings."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), case)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    text = torch.from_numpy(tokens(LENGTHS[0]).astype(np.int64))[None]
    made: dict[str, Any] = {"greedy": {}, "scores": {}}
    for length in LONG_PROMPTS:
        found = model.generate(
            text[:, :length],
            attention_mask=torch.ones_like(text[:, :length]),
            max_new_tokens=LONG_STEPS,
            do_sample=False,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        row = found.sequences[0, length:].tolist()
        scores = torch.stack(found.scores)[:, 0].log_softmax(-1)
        logprobs = scores[torch.arange(len(row)), row].tolist()
        made["greedy"][str(length)] = {"tokens": row, "logprobs": [round(p, 5) for p in logprobs]}
    for length in LONG_SCORED:
        with torch.no_grad():
            rows = model(text[:, :length], use_cache=False).logits[0].log_softmax(-1)
        scores = rows[torch.arange(length - 1), text[0, 1:length]].tolist()
        made["scores"][str(length)] = [round(p, 5) for p in scores]
    return made


def make_rules() -> dict[str, Any]:
    """Texts of `RULES`, greedy and by beams, and of `BEAM_RULES` by beams."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), describe(LLAMA, Path(folder) / "saved"))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def text(prompt: str, config: dict[str, Any]) -> list[int]:
        given = torch.tensor([PROMPTS[prompt]])
        more = {} if "max_length" in config else {"max_new_tokens": RULES_TOKENS}
        model.generation_config = transformers.GenerationConfig(**config)
        row = model.generate(given, attention_mask=torch.ones_like(given), pad_token_id=0, **more)[
            0
        ].tolist()
        return until(config.get("eos_token_id", []), row[len(PROMPTS[prompt]) :])

    made: dict[str, Any] = {"greedy": {}, "beams": {}}
    for name, config in RULES.items():
        prompt = "one" if name == "forced_begin" else "short"
        made["greedy"][name] = text(prompt, config)
        if name != "one_of_forced_ends":  # beams with these have one score
            made["beams"][name] = text(prompt, {**config, "num_beams": 3})
    for name, config in BEAM_RULES.items():
        made["beams"][name] = text("short", {**config, "num_beams": 3})
    return made


def wrong_values(file: str, made: dict[str, Array]) -> list[str]:
    """Returns a message per array of `made` that `file` lacks or holds with other values."""
    found = []
    with np.load(DATA / file) as old:
        for name, array in made.items():
            if name not in old:
                found.append(f"{file}: {name} is not committed")
            elif not np.allclose(array, old[name], 1e-4, 1e-5):
                found.append(f"{file}: {name} has other values")
    return found


def is_check(about: str | None) -> bool:
    """Whether a command is to compare instead of writing. Also makes torch repeatable.

    Args:
        about: What the command says of itself.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    found: bool = parser.parse_args().check
    return found


def report(wrong: list[str]) -> int:
    """Says what differs from the committed files; the exit status."""
    print("\n".join(wrong) or "The committed files are as made anew.")
    return 1 if wrong else 0


def write_cases(file: str, cases: dict[str, Any]) -> None:
    """Writes cases as JSON, with lines that are not too long to compare."""
    text = json.dumps(cases, indent=None, separators=(",", ":")).replace('},"', '},\n"')
    (DATA / file).write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """The command line; answers the exit status."""
    check = is_check(__doc__)
    cases, logits = make()
    arrays = {"decoders.npz": logits, "rotaries.npz": make_rotaries()}
    if not check:
        DATA.mkdir(exist_ok=True)
        write_cases("decoders.json", cases)
        texts = json.dumps(make_texts(), separators=(",", ":"))
        (DATA / "texts.json").write_text(texts + "\n", encoding="utf-8")
        long = json.dumps(make_long_texts(cases["phi3_long"]), separators=(",", ":"))
        (DATA / "longrope.json").write_text(long + "\n", encoding="utf-8")
        rules = json.dumps(make_rules(), separators=(",", ":"))
        (DATA / "rules.json").write_text(rules + "\n", encoding="utf-8")
        for file, made in arrays.items():
            np.savez_compressed(DATA / file, allow_pickle=False, **made)
        return 0
    wrong = []
    if json.loads((DATA / "decoders.json").read_text(encoding="utf-8")) != cases:
        wrong.append("decoders.json: other configurations or tensors")
    if json.loads((DATA / "texts.json").read_text(encoding="utf-8")) != make_texts():
        wrong.append("texts.json: other texts")
    long = json.loads((DATA / "longrope.json").read_text(encoding="utf-8"))
    if long != make_long_texts(cases["phi3_long"]):
        wrong.append("longrope.json: other texts")
    if json.loads((DATA / "rules.json").read_text(encoding="utf-8")) != make_rules():
        wrong.append("rules.json: other texts")
    for file, made in arrays.items():
        wrong += wrong_values(file, made)
    return report(wrong)


if __name__ == "__main__":
    sys.exit(main())
