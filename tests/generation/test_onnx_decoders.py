"""Decoders from ONNX files with a paged key/value cache, against ONNX Runtime."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.generation.engine import DecoderEngine
from clrt.generation.model_reader import read_language_model
from clrt.generation.onnx_decoder import read_onnx_decoder
from clrt.generation.options import Sampling, eos_tokens
from clrt.generation.sampler import TokenSampler
from clrt.generation.sequences import KvSequence, ScheduledSequence
from clrt.generation.text_generator import TextGenerator
from tests.generation.checkpoints import Array
from tests.generation.onnx_folders import load_configs, write_multi_head, write_onnx
from tests.generation.tokenizers_of_tests import byte_level
from tests.harness import quick_device

VOCABULARY, GIVEN, MADE = 37, 20, 20
TOKENS = np.random.default_rng(5).integers(0, VOCABULARY, GIVEN + MADE)
# The largest difference from logits that spread by 1; ONNX Runtime rounds float16 at each node.
TOLERANCE = {"genai_half": 0.05}
CASES = sorted(load_configs())


def plain(file: Path) -> bytes:
    """The model without what makes ONNX Runtime compute something else: activations in 8 bits, and
    caches of windows, which have to have room in advance.
    """
    model = onnx.load(file)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("accuracy_level", "sliding_window_cache"):
                attribute.i = 0
    return bytes(model.SerializeToString())


def expected(model: bytes) -> Array:
    """The logits behind the tokens given, and behind each one more."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    inputs, outputs = session.get_inputs(), [o.name for o in session.get_outputs()]
    half = any("float16" in i.type for i in inputs)
    kept = {
        i.name: np.zeros((1, i.shape[1], 0, 16), np.float16 if half else np.float32)
        for i in inputs
        if i.name.startswith("past")
    }
    found, done = [], 0
    for count in (GIVEN, *[1] * MADE):
        end = done + count
        feeds = {
            "input_ids": TOKENS[None, done:end],
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(done, end)[None],
        }
        given = {i.name: feeds[i.name] for i in inputs if i.name in feeds}
        results = dict(zip(outputs, session.run(outputs, {**given, **kept}), strict=True))
        kept = {n: results[re.sub(r"past(_key_values(?=\.))?", "present", n)] for n in kept}
        found.append(results["logits"][0, -1].astype(np.float32))
        done = end
    return np.array(found)


class Texts:
    """An engine with two texts, of which the second is the one that is looked at."""

    def __init__(self, source: Path) -> None:
        graph, self.facts = read_onnx_decoder(source)
        self.engine = DecoderEngine(graph, self.facts.context, device=quick_device())
        self.other = self.engine.open([3, 5, 7])
        self.text = self.engine.open(TOKENS[:GIVEN].tolist())

    def part(self, sequence: KvSequence, count: int) -> ScheduledSequence:
        whole = count == sequence.left
        samplers = [TokenSampler(Sampling(), self.facts.vocabulary)] if whole else ()
        return ScheduledSequence(sequence, count, samplers)

    def logits(self) -> Array:
        """As `expected`. The text is given in two parts, the other one's tokens between.

        A plan of one token serves all lengths, and nothing runs on the host.
        """
        model = self.engine.model
        plans: list[int] = []
        self.engine.step([self.part(self.text, 7), self.part(self.other, 2)])
        found = []
        for token in (*TOKENS[GIVEN:].tolist(), None):
            parts = [self.part(self.text, self.text.left)]
            if self.other.left:
                parts.insert(0, self.part(self.other, 1))
            found.append(self.engine.step(parts, ["logits"])["logits"][-1])
            plans.append(len(model._runner.planner.kept))
            self.text.tokens += [] if token is None else [token]
        assert plans[1] == plans[-1] and not model.host_nodes
        return np.array(found)


@pytest.mark.parametrize("case", CASES)
def test_onnx_decoder_logits_match_onnxruntime(case: str, tmp_path: Path) -> None:
    folder = write_onnx(tmp_path, case)
    model = plain(folder / "model.onnx")
    (folder / "model.onnx").write_bytes(model)
    texts = Texts(folder)
    assert (texts.facts.vocabulary, texts.facts.context) == (VOCABULARY, 64)
    wanted, found = expected(model), texts.logits()
    assert 0.3 < wanted.std() < 10
    assert np.abs(found - wanted).max() < TOLERANCE.get(case, 1e-4)


def test_onnx_multi_head_attention_decoder_matches_onnxruntime(tmp_path: Path) -> None:
    """Without a config file: the size of the rotary table sets the context."""
    folder = write_multi_head(tmp_path)
    texts = Texts(folder)
    assert (texts.facts.layers, texts.facts.heads, texts.facts.kv_heads) == (1, 2, 2)
    assert (texts.facts.context, texts.facts.family) == (64, "onnx")
    wanted = expected(plain(folder / "model.onnx"))
    assert np.abs(texts.logits() - wanted).max() < 1e-4


def greedy(model: bytes, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens, each from all before it anew."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    none = {
        i.name: np.zeros((1, i.shape[1], 0, 16), np.float32)
        for i in session.get_inputs()
        if i.name.startswith("past")
    }
    tokens = list(prompt)
    for _ in range(count):
        ids = np.array([tokens], np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), **none}
        tokens.append(int(np.argmax(session.run(["logits"], feeds)[0][0, -1])))
    return tokens[len(prompt) :]


def test_onnx_text_generator_matches_onnxruntime(tmp_path: Path) -> None:
    """From a folder with external data."""
    folder = write_onnx(tmp_path, "genai_float", external=True)
    byte_level().save(str(folder / "tokenizer.json"))
    prompt, count = [3, 14, 15, 9, 2], 8
    wanted = greedy(plain(folder / "model.onnx"), prompt, count)
    with TextGenerator(folder, device=quick_device()) as made:
        assert made.context == 64
        assert made._model.ends == {2}
        assert made._model.sampling == Sampling(max_length=64, early_stopping=True)
        found = made.generate(prompt, max_new_tokens=count, logit_bias={2: -1e9})
        assert list(found.tokens) == wanted
        assert made.embed([prompt]).shape == (1, 64)


def test_onnx_subfolder_uses_configs_of_parent_folder(tmp_path: Path) -> None:
    inner = write_onnx(tmp_path / "onnx", "torch_gpt2")
    (inner / "config.json").rename(tmp_path / "config.json")
    byte_level().save(str(tmp_path / "tokenizer.json"))
    for source in (tmp_path, inner / "model.onnx"):
        assert read_onnx_decoder(source)[1].context == 64
        model = read_language_model(source, None, "float16")
        assert (model.context, model.decoder.family) == (64, "gpt2")
    with pytest.raises(InputError, match="the model has positions 1 to 64"):
        read_language_model(tmp_path, 65, "float32")


def changed(folder: Path, change: Callable[[onnx.ModelProto], object]) -> Path:
    """The folder with a model that is changed."""
    model = onnx.load(folder / "model.onnx")
    change(model)
    onnx.save(model, folder / "model.onnx")
    return folder


def without_present(model: onnx.ModelProto) -> None:
    del model.graph.output[-1]


def with_an_input(model: onnx.ModelProto) -> None:
    made = onnx.helper.make_tensor_value_info("pixel_values", onnx.TensorProto.FLOAT, [1, 3])
    model.graph.input.append(made)


def with_fixed_sizes(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7


@pytest.mark.parametrize(
    "change, message",
    [
        (without_present, "for the past of 2 layers, and outputs for the past of 1"),
        (with_an_input, "Apart from its past it has pixel_values"),
        (with_fixed_sizes, r"'input_ids' has the dims \['\?', 7\]"),
    ],
)
def test_onnx_files_without_decoder_interface_are_refused(
    change: Callable[[onnx.ModelProto], object], message: str, tmp_path: Path
) -> None:
    folder = changed(write_onnx(tmp_path, "torch_gpt2"), change)
    with pytest.raises(UnsupportedError, match=message):
        read_onnx_decoder(folder)


def test_onnx_decoder_of_unknown_head_size_is_refused(tmp_path: Path) -> None:
    folder = write_onnx(tmp_path, "genai_float")
    (folder / "genai_config.json").unlink()
    with pytest.raises(ModelError, match="has heads of unknown size"):
        read_onnx_decoder(folder)


@pytest.mark.parametrize("value", [None, 7, "x", [], {"decoder": 3}, {"decoder": {"filename": 3}}])
def test_invalid_genai_config_is_refused(value: object, tmp_path: Path) -> None:
    folder = write_onnx(tmp_path, "genai_float")
    (folder / "genai_config.json").write_text(json.dumps({"model": value}), "utf-8")
    with pytest.raises(ModelError, match=r"genai_config\.json"):
        read_onnx_decoder(folder)


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/passwd", ""])
def test_genai_filename_out_of_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder = write_onnx(tmp_path, "genai_float")
    config = {"model": {"decoder": {"filename": name}}}
    (folder / "genai_config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError, match="the name of a file beside it"):
        read_onnx_decoder(folder)


def test_genai_config_sets_sampling_and_end_tokens(tmp_path: Path) -> None:
    config = {
        "model": {"eos_token_id": [4, 5]},
        "search": {"do_sample": True, "temperature": 0.5, "top_k": 7, "max_length": 9},
    }
    (tmp_path / "genai_config.json").write_text(json.dumps(config), "utf-8")
    assert Sampling.from_folder(tmp_path) == Sampling(temperature=0.5, top_k=7, max_length=9)
    assert eos_tokens(tmp_path) == (4, 5)
