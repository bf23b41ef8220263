"""SampleTokens: distribution, large vocabularies, and rows without allowed tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clrt.errors import NumberError
from clrt.ir.op import Array
from clrt.ops.generation.sample_tokens import SampleTokens
from clrt.ops.generation.sampling import kept_weights
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, name_of, plan_graph, run_graph, run_plan, sample_graph
from tests.ops.samples import Sample
from tests.ops.samples.generation.sample_tokens import request
from tests.passes.helpers import graph_of

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=name_of)


def _draw(inputs: tuple[Array | None, ...], device: DeviceInfo) -> tuple[Array, Array]:
    plan = plan_graph(sample_graph(Sample(SampleTokens(), inputs)), device.caps)
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    token, logprob = run_plan(plan, feeds, device).values()
    return token, logprob


@DEVICES
@pytest.mark.parametrize(
    "settings", [{}, {"top_p": 0.8}, {"typical_p": 0.7, "temperature": 2.0}], ids=str
)
def test_sampled_tokens_follow_weight_distribution(
    settings: dict[str, Any], device: DeviceInfo
) -> None:
    draws = 20_000
    logits = np.random.default_rng(4).standard_normal(12).astype(np.float32)
    inputs = list(request(np.tile(logits, (draws, 1)), 9, **settings))
    inputs[4] = np.arange(draws, dtype=np.int32)
    token, _ = _draw(tuple(inputs), device)
    assert inputs[1] is not None
    weights = kept_weights(logits.astype(np.float64), inputs[1][0], 0)
    expected = draws * weights / weights.sum()
    found = np.bincount(token, minlength=12)
    kept = expected > 0
    assert not found[~kept].any()
    # Of 11 degrees of freedom at most; exceeded once in 1,000 times.
    assert ((found - expected)[kept] ** 2 / expected[kept]).sum() < 31.3


@DEVICES
@pytest.mark.parametrize("n", [49_152, 151_936])
def test_sampling_from_large_vocabulary_matches_reference(n: int, device: DeviceInfo) -> None:
    if device.caps.simulator:
        pytest.skip("a simulator takes minutes")
    logits = np.random.default_rng(n).standard_normal((7, n)).astype(np.float32) * 3
    settings = {
        "temperature": [0, 1, 1, 1, 0.8, 1.2, 3], "top_p": [1, 1, 0.9, 0.2, 0.95, 0.99, 1],
        "min_p": [0, 0, 0, 0, 0.05, 0, 0.001], "typical_p": [0, 0, 0, 0, 0.9, 0.5, 0],
    }  # fmt: skip
    inputs = list(request(logits, 3, repetition=1.2, **settings))
    assert inputs[2] is not None
    inputs[2][:, 0] = 0, 0, 0, 50, 200, 0, 5000
    token, logprob = _draw(tuple(inputs), device)
    expected = SampleTokens().reference(*inputs)
    np.testing.assert_array_equal(token, expected[0])
    np.testing.assert_allclose(logprob, expected[1], rtol=1e-5)


@DEVICES
def test_sampled_token_is_independent_of_batch(device: DeviceInfo) -> None:
    logits = np.random.default_rng(5).standard_normal((9, 700)).astype(np.float32)
    inputs = request(logits, 2, top_k=100, top_p=0.9, typical_p=0.8, frequency=0.1)
    token, logprob = _draw(inputs, device)
    for row in range(0, 9, 4):
        alone = _draw(tuple(x if x is None else x[row : row + 1] for x in inputs), device)
        assert (alone[0][0], alone[1][0]) == (token[row], logprob[row])


@DEVICES
@pytest.mark.parametrize("temperature", [0, 1])
def test_sampling_row_without_allowed_tokens_is_refused(
    temperature: float, device: DeviceInfo
) -> None:
    logits = np.zeros((3, 40), np.float32)
    logits[1] = [np.nan, -np.inf] * 20
    inputs = request(logits, temperature=temperature)
    said = "the row, from 1, that leaves no token is 2; each needs one"
    with pytest.raises(NumberError, match=said):
        _draw(inputs, device)
    with pytest.raises(NumberError, match=said):
        SampleTokens().reference(*inputs)
    mask = np.full((3, 2), 0xFFFFFFFF, np.uint32)
    mask[2] = 0
    inputs = request(np.zeros((3, 40), np.float32), temperature=temperature)
    with pytest.raises(NumberError, match="is 3; each needs one"):
        _draw((*inputs, mask), device)


@DEVICES
def test_top_log_probabilities_match_log_softmax_top_k(device: DeviceInfo) -> None:
    graph = graph_of(
        """
        const %k: int64[1] = [5]
        %all: float32[2,300] = LogSoftmax{axis=-1}(%logits)
        %best: float32[2,5], %tokens: int64[2,5] = TopK{axis=-1}(%all, %k)
        """,
        "%logits: float32[2,300]",
        "%best, %tokens",
    )
    logits = np.random.default_rng(6).standard_normal((2, 300)).astype(np.float32)
    results, plan = run_graph(graph, {"logits": logits}, device)
    best, tokens = results.values()
    assert not plan.host_steps
    wide = logits.astype(np.float64)
    wide -= np.log(np.exp(wide).sum(1, keepdims=True))
    order = np.argsort(-wide, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(tokens, order)
    np.testing.assert_allclose(best, np.take_along_axis(wide, order, 1), rtol=1e-5)
    token, logprob = _draw(request(logits, temperature=0), device)
    np.testing.assert_array_equal(token, tokens[:, 0])
    np.testing.assert_allclose(logprob, best[:, 0], rtol=1e-5)
