"""Optimum's ORTModelFor* classes on the models of make_models.py, whose folder is argument 1."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from optimum import onnxruntime as ort

rng = np.random.default_rng(3)


def ids(rows: int, columns: int, below: int) -> torch.Tensor:
    return torch.tensor(rng.integers(4, below, (rows, columns)))


def numbers(*shape: int) -> torch.Tensor:
    return torch.tensor(rng.standard_normal(shape).astype(np.float32))


def texts(columns: int) -> dict[str, torch.Tensor]:
    """Two texts of different lengths."""
    mask = torch.ones(2, columns, dtype=torch.int64)
    mask[1, columns // 2 :] = 0
    zeros = torch.zeros_like(mask)
    return {"input_ids": ids(2, columns, 15), "attention_mask": mask, "token_type_ids": zeros}


def arrays(output: object, *names: str) -> list[object]:
    return [np.asarray(getattr(output, n).detach()).tolist() for n in names]


def answer(name: str, folder: str) -> list[object]:
    if name == "bert":
        model = ort.ORTModelForFeatureExtraction.from_pretrained(folder)
        return [arrays(model(**texts(c)), "last_hidden_state") for c in (6, 9)]
    if name == "answers":
        model = ort.ORTModelForQuestionAnswering.from_pretrained(folder)
        return arrays(model(**texts(8)), "start_logits", "end_logits")
    if name == "vit":
        model = ort.ORTModelForImageClassification.from_pretrained(folder)
        return [arrays(model(pixel_values=numbers(n, 3, 32, 32)), "logits") for n in (1, 2)]
    if name == "ctc":
        model = ort.ORTModelForCTC.from_pretrained(folder)
        return [arrays(model(input_values=numbers(1, n)), "logits") for n in (400, 640)]
    if name == "gpt2":
        model = ort.ORTModelForCausalLM.from_pretrained(folder)
        prompt = ids(2, 5, 50)
        made = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
        logits = model(prompt, attention_mask=torch.ones_like(prompt))
        return [made.tolist(), arrays(logits, "logits")]
    if name == "t5":
        model = ort.ORTModelForSeq2SeqLM.from_pretrained(folder)
        made = model.generate(ids(2, 6, 50), max_new_tokens=8, num_beams=2)
        return made.tolist()
    model = ort.ORTModelForSpeechSeq2Seq.from_pretrained(folder)
    made = model.generate(input_features=numbers(1, 16, 3000), max_new_tokens=6)
    return made.tolist()


NAMES = ("bert", "answers", "vit", "ctc", "gpt2", "t5", "whisper")
found = {name: answer(name, str(Path(sys.argv[1], name))) for name in NAMES}
json.dump(found, sys.stdout)
