"""Runs at many shapes: most plans are instantiated from templates with patched kernel arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import clrt
from clrt.ir.op import Array
from clrt.plan.template import InstantiatedPlan
from tests.models.decoders import HEAD, KV_HEADS, VOCABULARY, decoder
from tests.models.fixtures import load_family
from tests.models.onnx_text import DEVICES
from tests.models.oracle import check, session_of, text_feeds

LAYERS = 2


def sized(model: clrt.Model) -> int:
    """Returns the number of kept plans instantiated from a template."""
    return sum(isinstance(s.plan, InstantiatedPlan) for s in model._runner.planner.kept.values())


def decoder_feeds(past: int, length: int, batch: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(past * 100 + length)
    feeds: dict[str, Array] = {
        "input_ids": rng.integers(0, VOCABULARY, (batch, length)),
        "attention_mask": np.ones((batch, past + length), np.int64),
    }
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            state = rng.standard_normal((batch, KV_HEADS, past, HEAD), np.float32)
            feeds[f"past.{layer}.{kind}"] = state
    return feeds


@DEVICES
def test_growing_device_cache_uses_plan_templates(device: clrt.DeviceInfo) -> None:
    model = clrt.load(decoder(LAYERS), device=device.index, strict=True)
    session = session_of(decoder(LAYERS))
    names = [o.name for o in session.get_outputs()]
    feeds = decoder_feeds(0, 20)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 12)
    theirs, ours = dict(feeds), dict(feeds)
    for step, token in enumerate(ids):
        expected = dict(zip(names, session.run(None, theirs), strict=True))
        found = model.run(ours, device_outputs=True)
        np.testing.assert_allclose(found["logits"].numpy(), expected["logits"], 1e-4, 1e-5)
        given = {"input_ids": token.reshape(1, 1), "attention_mask": np.ones((1, 21 + step))}
        given = {name: array.astype(np.int64) for name, array in given.items()}
        theirs = given | {n.replace("present", "past"): expected[n] for n in names[1:]}
        ours = given | {n.replace("present", "past"): found[n] for n in names[1:]}
    assert sized(model) >= len(ids) - 3


@DEVICES
def test_recurring_decoder_shapes_match_onnxruntime(device: clrt.DeviceInfo) -> None:
    proto = decoder(LAYERS)
    model = clrt.load(proto, device=device.index, strict=True)
    session = session_of(proto)
    # New shapes, kernels taken over and taken back, arenas that move.
    for past in (30, 31, 32, 33, 31, 33, 32, 31, 30, 300, 31, 299, 33, 301, 32, 299, 300):
        check(model, session, decoder_feeds(past, 1))
    assert sized(model) >= 4


@DEVICES
def test_varying_encoder_shapes_match_onnxruntime(device: clrt.DeviceInfo) -> None:
    proto = load_family("bert_dynamo20")
    session = session_of(proto)
    with clrt.load(proto, device=device.index, strict=True) as model:
        names = [s.name for s in model.inputs]
        for batch, length in (
            (2, 17),
            (2, 18),
            (4, 9),
            (3, 12),
            (2, 17),
            (4, 66),
            (5, 70),
            (3, 12),
        ):
            check(model, session, text_feeds(names, batch, length, True, 200))
        assert sized(model) >= 3
        plan = model.explain({n: (4, 10) for n in names})
        assert plan is not None


@DEVICES
def test_index_error_in_template_plan_names_input(device: clrt.DeviceInfo) -> None:
    model = clrt.load(decoder(LAYERS), device=device.index, strict=True)
    for past in (30, 31, 32):
        model.run(decoder_feeds(past, 1))
    wrong = decoder_feeds(33, 1)
    wrong["input_ids"] = np.array([[VOCABULARY + 7]])
    with pytest.raises(clrt.InputError, match=rf"'input_ids' is {VOCABULARY + 7}; allowed"):
        model.run(wrong)
    check(model, session_of(decoder(LAYERS)), decoder_feeds(33, 1))
    check(model, session_of(decoder(LAYERS)), decoder_feeds(34, 1))
    assert sized(model) >= 3


@DEVICES
def test_concurrent_runs_at_new_shapes_match_onnxruntime(device: clrt.DeviceInfo) -> None:
    model = clrt.load(decoder(LAYERS), device=device.index, strict=True)
    session = onnxruntime.InferenceSession(decoder(LAYERS).SerializeToString())
    pasts = (30, 31, 32, 33, 34, 35, 31, 36, 33)
    runs = [model.submit(decoder_feeds(past, 1)) for past in pasts]
    for past, run in zip(pasts, runs, strict=True):
        expected = session.run(None, decoder_feeds(past, 1))
        for found, array in zip(run.wait().values(), expected, strict=True):
            np.testing.assert_allclose(found, array, 1e-4, 1e-5)


# Sizes at which a node needs no kernel: a Transpose that moves a 1 is a view, an empty tensor takes
# no copy. The first run compiles these kernels all the same.
IDLE = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 4, S] x, float[N, K] e) => (float[4, N, S] y, float[N, L] z) {
  t = Transpose <perm = [1, 0, 2]> (x)
  y = Relu (t)
  z = Concat <axis = 1> (e, e)
}
"""


@DEVICES
@pytest.mark.parametrize("first", [(1, 5, 0), (1, 1, 0)])
def test_first_shape_compiles_kernels_of_later_shapes(
    device: clrt.DeviceInfo, first: tuple[int, int, int], tmp_path: Path
) -> None:
    proto = onnx.parser.parse_model(IDLE)
    session = session_of(proto)
    # Programs of its own: those of other tests are known.
    model = clrt.load(proto, device=device.index, strict=True, cache_dir=tmp_path)

    def feeds(n: int, s: int, k: int) -> dict[str, Array]:
        rng = np.random.default_rng(n)
        shapes = {"x": (n, 4, s), "e": (n, k)}
        return {name: rng.standard_normal(d).astype(np.float32) for name, d in shapes.items()}

    model.run(feeds(*first))
    before = model._session.programs.requests
    for sizes in ((3, 5, 2), (2, 7, 3), (1, 4, 1), (6, 2, 9)):
        check(model, session, feeds(*sizes))
    assert model._session.programs.requests == before


@DEVICES
def test_new_shape_is_expected_to_run_as_long_as_the_last(device: clrt.DeviceInfo) -> None:
    with clrt.load(decoder(LAYERS), device=device.index, strict=True) as model:
        for past in (30, 31, 32):
            model.run(decoder_feeds(past, 1))
        planner, room = model._runner.planner, model._runner.room
        *_, last = planner.kept.values()
        (donor,) = last.bound.values()
        donor.seconds_a_run = 1.0
        shapes = {name: array.shape for name, array in decoder_feeds(33, 1).items()}
        with room.lock:
            bound = room._acquire(planner.stage(planner.graph, shapes))
        assert bound is not None and not bound.ready
        assert 1 < bound.expected_s < 1.1
