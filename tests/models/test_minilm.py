"""all-MiniLM-L6-v2, real weights: three exports and the graph built from safetensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import onnx
import pytest

import clrt
from clrt.ir.op import Array
from clrt.models.encoders.checkpoint_graph import import_checkpoint
from clrt.models.onnx.export.exporter import export_model
from tests.harness import all_devices, name_of
from tests.models.fixtures import load_minilm, minilm_names
from tests.models.oracle import (
    compare,
    expected,
    model_folder,
    outputs_of,
    relative_error,
    session_of,
    text_feeds,
)

SHAPES = ((1, 1), (1, 16), (3, 37), (8, 128), (2, 512))
# All sources become the same launches: what two of them give at the large shapes holds for all.
LARGE = ("safetensors", "minilm_dynamo20")
NAMES = ["input_ids", "attention_mask", "token_type_ids"]
VOCABULARY = 30522
MAX_LAUNCHES = 50


def _proto(name: str) -> onnx.ModelProto:
    if name == "safetensors":
        return export_model(import_checkpoint(model_folder()))
    return load_minilm(name, model_folder())


# First, before the fixtures of the others hold a model and a session.
def test_safetensors_graph_matches_onnx_export() -> None:
    feeds = text_feeds(NAMES, 3, 37, False, VOCABULARY)
    left = expected(_proto("safetensors"), feeds)["last_hidden_state"]
    right = expected(_proto("minilm_torchscript17"), feeds)["last_hidden_state"]
    assert relative_error(left, right) <= 5e-5


@pytest.fixture(scope="module", params=["safetensors", *minilm_names()])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def proto(name: str) -> onnx.ModelProto:
    return _proto(name)


@pytest.fixture(scope="module")
def outputs(proto: onnx.ModelProto) -> Callable[[tuple[int, int], bool], dict[str, Array]]:
    """Returns ONNX Runtime's outputs by shape and padding, the same for all devices."""
    session = session_of(proto)

    @cache
    def compute(shape: tuple[int, int], padded: bool) -> dict[str, Array]:
        return outputs_of(session, text_feeds(NAMES, *shape, padded, VOCABULARY))

    return compute


@pytest.fixture(scope="module", params=all_devices(), ids=name_of)
def model(
    request: pytest.FixtureRequest, name: str, proto: onnx.ModelProto
) -> Iterator[clrt.Model]:
    source = model_folder() if name == "safetensors" else proto
    with clrt.load(source, device=request.param.index, strict=True) as model:
        yield model


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_minilm_matches_onnxruntime(
    name: str,
    model: clrt.Model,
    outputs: Callable[[tuple[int, int], bool], dict[str, Array]],
    shape: tuple[int, int],
) -> None:
    if np.prod(shape) > 1000 and name not in LARGE:
        pytest.skip("large shapes of two sources are enough")
    for padded in (False, True):
        feeds = text_feeds(NAMES, *shape, padded, VOCABULARY)
        compare(model, outputs(shape, padded), feeds)


def test_forward_has_few_launches_and_no_host_steps(model: clrt.Model) -> None:
    for shape in SHAPES:
        plan = model.plan(dict.fromkeys(NAMES, shape))
        assert plan.launches <= MAX_LAUNCHES
        assert not plan.host_steps


def test_arena_size_is_near_live_bytes(model: clrt.Model) -> None:
    for shape in SHAPES:
        plan = model.plan(dict.fromkeys(NAMES, shape))
        assert plan.arena.nbytes <= 1.10 * plan.live_bytes


def test_repeated_runs_allocate_nothing(model: clrt.Model) -> None:
    feeds = text_feeds(NAMES, 3, 37, True, VOCABULARY)
    model.run(feeds)
    session = model._session
    before = session.allocations, session.allocated_bytes
    for _ in range(3):
        model.run(feeds)
    assert (session.allocations, session.allocated_bytes) == before
    kept = model.run(feeds, device_outputs=True)
    del kept
    before = session.allocations, session.allocated_bytes
    model.run(feeds, device_outputs=True)
    assert (session.allocations, session.allocated_bytes) == before


def test_new_shape_compiles_nothing(model: clrt.Model) -> None:
    model.run(text_feeds(NAMES, 2, 24, True, VOCABULARY))
    before = model._session.programs.requests
    for shape in ((1, 1), (5, 7), (4, 130), (1, 33)):
        model.run(text_feeds(NAMES, *shape, True, VOCABULARY))
    assert model._session.programs.requests == before


def test_device_output_matches_host_output(model: clrt.Model) -> None:
    feeds = text_feeds(NAMES, 2, 16, False, VOCABULARY)
    hidden = model.run(feeds, ["last_hidden_state"], device_outputs=True)["last_hidden_state"]
    assert isinstance(hidden, clrt.DeviceTensor)
    np.testing.assert_array_equal(hidden.numpy(), model.run(feeds)["last_hidden_state"])
