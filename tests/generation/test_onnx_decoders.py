"""Decoders from ONNX files with their past in pages, against ONNX Runtime with its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from clrt.generation.engine import CachedSequence, Engine, StepPart
from clrt.generation.onnx_decoder import read_onnx_decoder
from clrt.generation.options import Sampling
from clrt.generation.sampler import TokenSampler
from tests.generation.checkpoints import Array
from tests.generation.onnx_folders import load_configs, write_onnx
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
        kept = {n: results[n.replace("past_key_values", "present")] for n in kept}
        found.append(results["logits"][0, -1].astype(np.float32))
        done = end
    return np.array(found)


class Texts:
    """An engine with two texts, of which the second is the one that is looked at."""

    def __init__(self, source: Path) -> None:
        graph, self.facts = read_onnx_decoder(source)
        self.engine = Engine(graph, self.facts.context, device=quick_device())
        self.other = self.engine.open([3, 5, 7])
        self.text = self.engine.open(TOKENS[:GIVEN].tolist())

    def part(self, sequence: CachedSequence, count: int) -> StepPart:
        whole = count == sequence.left
        samplers = [TokenSampler(Sampling(), self.facts.vocabulary)] if whole else ()
        return StepPart(sequence, count, samplers)

    def logits(self) -> Array:
        """As `expected`. The text is given in two parts, the other one's tokens between."""
        self.engine.step([self.part(self.text, 7), self.part(self.other, 2)])
        found = []
        for token in (*TOKENS[GIVEN:].tolist(), None):
            parts = [self.part(self.text, self.text.left)]
            if self.other.left:
                parts.insert(0, self.part(self.other, 1))
            found.append(self.engine.step(parts, ["logits"])["logits"][-1])
            self.text.tokens += [] if token is None else [token]
        return np.array(found)


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    folder = write_onnx(tmp_path, case)
    model = plain(folder / "model.onnx")
    (folder / "model.onnx").write_bytes(model)
    texts = Texts(folder)
    assert (texts.facts.vocabulary, texts.facts.context) == (VOCABULARY, 64)
    wanted, found = expected(model), texts.logits()
    assert 0.3 < wanted.std() < 10
    assert np.abs(found - wanted).max() < TOLERANCE.get(case, 1e-4)
