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
        options = dict(long_beyond=self.facts.long_beyond, device=quick_device())
        self.engine = DecoderEngine(graph, self.facts.context, **options)
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


class Anew:
    """ONNX Runtime on whole texts: it keeps no keys."""

    def __init__(self, model: bytes) -> None:
        self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.none = {
            i.name: np.zeros((1, i.shape[1], 0, 16), np.float32)
            for i in self.session.get_inputs()
            if i.name.startswith("past")
        }

    def logits(self, tokens: list[int]) -> Array:
        """Behind each token."""
        ids = np.array([tokens], np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), **self.none}
        found: Array = self.session.run(["logits"], feeds)[0][0]
        return found

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The likeliest tokens but 2."""
        tokens = list(prompt)
        for _ in range(count):
            logits = np.where(np.arange(VOCABULARY) == 2, -np.inf, self.logits(tokens)[-1])
            tokens.append(int(np.argmax(logits)))
        return tokens[len(prompt) :]

    def scores(self, tokens: list[int]) -> Array:
        """The logarithm of the probability of each token but the first."""
        logits = self.logits(tokens)[:-1].astype(np.float64)
        odds = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return np.asarray(odds[np.arange(len(odds)), tokens[1:]])


def test_onnx_text_generator_matches_onnxruntime(tmp_path: Path) -> None:
    """From a folder with external data."""
    folder = write_onnx(tmp_path, "genai_float", external=True)
    byte_level().save(str(folder / "tokenizer.json"))
    prompt, count = [3, 14, 15, 9, 2], 8
    wanted = Anew(plain(folder / "model.onnx")).greedy(prompt, count)
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


LONG_BEYOND = 16  # of the case genai_longrope


def test_onnx_longrope_tables_follow_length_of_each_sequence(tmp_path: Path) -> None:
    """Sequences of one batch stay below the original length, cross it, and start beyond it."""
    folder = write_onnx(tmp_path, "genai_longrope")
    byte_level().save(str(folder / "tokenizer.json"))
    prompts, count = [TOKENS[:n].tolist() for n in (5, 11, 16, 17, 30)], 10
    anew = Anew(plain(folder / "model.onnx"))
    wanted = [anew.greedy(prompt, count) for prompt in prompts]
    options = dict(max_new_tokens=count, logit_bias={2: -1e9})
    with TextGenerator(folder, device=quick_device()) as made:
        found = made.generate(prompts, **options)
        assert [list(one.tokens) for one in found] == wanted
        assert list(made.generate(prompts[1], **options).tokens) == wanted[1]
        for prompt in prompts:
            assert np.abs(made.score(prompt) - anew.scores(prompt)).max() < 1e-4


def node_of(model: onnx.ModelProto, op: str) -> onnx.NodeProto:
    """The first node of an op."""
    return next(n for n in model.graph.node if n.op_type == op)


def compare(op: str, bound: int, *, bound_first: bool = False) -> Callable[[onnx.ModelProto], None]:
    """A change: lengths are compared with `bound` by another op."""

    def change(model: onnx.ModelProto) -> None:
        node = node_of(model, "Greater")
        number = onnx.numpy_helper.from_array(np.array(bound, np.int64), "bound")
        model.graph.initializer.append(number)
        inputs = [node.input[0], "bound"]
        del node.input[:]
        node.op_type = op
        node.input.extend(inputs[::-1] if bound_first else inputs)

    return change


def swapped(change: Callable[[onnx.ModelProto], None]) -> Callable[[onnx.ModelProto], None]:
    """A change that swaps the branches, too."""

    def change_both(model: onnx.ModelProto) -> None:
        change(model)
        for attribute in node_of(model, "If").attribute:
            other = {"then_branch": "else_branch", "else_branch": "then_branch"}
            attribute.name = other[attribute.name]

    return change_both


def negated(model: onnx.ModelProto) -> None:
    node = node_of(model, "If")
    index = list(model.graph.node).index(node)
    model.graph.node.insert(index, onnx.helper.make_node("Not", [node.input[0]], ["negated"]))
    node = node_of(model, "If")
    node.input[0] = "negated"


def tables_outside(model: onnx.ModelProto) -> None:
    """The branches read their tables from the main graph."""
    for attribute in node_of(model, "If").attribute:
        for node in attribute.g.node:
            tensor = node.attribute[0].t
            tensor.name = f"outer_{node.output[0]}"
            model.graph.initializer.append(tensor)
            node.CopyFrom(onnx.helper.make_node("Identity", [tensor.name], node.output))


@pytest.mark.parametrize(
    "change",
    [
        compare("GreaterOrEqual", 17),
        compare("Less", 16, bound_first=True),
        compare("LessOrEqual", 17, bound_first=True),
        swapped(compare("Less", 17)),
        swapped(compare("LessOrEqual", 16)),
        swapped(negated),
        tables_outside,
    ],
)
def test_onnx_longrope_condition_may_have_any_form(
    change: Callable[[onnx.ModelProto], None], tmp_path: Path
) -> None:
    """Each has the same tables, the short ones first, and the same limit."""

    def read(folder: Path) -> tuple[int, int, list[Array]]:
        graph, facts = read_onnx_decoder(folder)
        tables = [v.numbers for v in graph.constants() if v.shape == (16 + 64, 8)]
        return facts.long_beyond, facts.places, [t for t in tables if t is not None]

    beyond, places, wanted = read(write_onnx(tmp_path / "original", "genai_longrope"))
    assert (beyond, places, len(wanted)) == (LONG_BEYOND, 64, 2)
    folder = changed(write_onnx(tmp_path / "changed", "genai_longrope"), change)
    *limits, found = read(folder)
    assert limits == [LONG_BEYOND, 64]
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_onnx_longrope_context_ends_with_long_table(tmp_path: Path) -> None:
    """The table for long sequences has no rows beyond 16."""
    change = swapped(compare("Greater", 16))
    facts = read_onnx_decoder(changed(write_onnx(tmp_path, "genai_longrope"), change))[1]
    assert (facts.long_beyond, facts.places, facts.context) == (16, 16, 16)


def by_new_tokens(model: onnx.ModelProto) -> None:
    """The number of new tokens chooses the tables."""
    node = node_of(model, "Greater")
    shape = onnx.helper.make_node("Shape", ["input_ids"], ["new_tokens"], start=1)
    model.graph.node.insert(0, shape)
    node.input[0] = "new_tokens"


def computed_table(model: onnx.ModelProto) -> None:
    """A branch has a table that depends on the number of past tokens."""
    length = node_of(model, "Greater").input[0]
    graph = node_of(model, "If").attribute[0].g
    name = graph.node[0].output[0]
    graph.node[0].output[0] = "plain"
    cast = onnx.helper.make_node("Cast", [length], ["length"], to=onnx.TensorProto.FLOAT)
    graph.node.extend([cast, onnx.helper.make_node("Mul", ["plain", "length"], [name])])


@pytest.mark.parametrize(
    "change",
    [
        compare("Equal", 16),
        compare("Greater", 0),
        compare("Greater", 17),  # the table of 16 rows is too short
        compare("Greater", 1 << 40),
        by_new_tokens,
        computed_table,
    ],
)
def test_onnx_if_that_does_not_choose_by_length_is_refused(
    change: Callable[[onnx.ModelProto], None], tmp_path: Path
) -> None:
    folder = changed(write_onnx(tmp_path, "genai_longrope"), change)
    with pytest.raises(UnsupportedError, match=r"'(cos|sin)_cache' depends on the number of past"):
        read_onnx_decoder(folder)
