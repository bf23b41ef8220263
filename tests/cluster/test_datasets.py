"""`clrt.ray.Embed` and `Predict` in Ray datasets, and their devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.models.compiled import CompiledModel, write_compiled
from clrt.models.sources import read_graph
from clrt.passes.pipeline import optimize
from clrt.ray import Embed, Predict
from tests.models.onnx_text import parsed
from tests.unit.text.jobs.corpus import make_texts

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


def test_ray_dataset_embed_and_predict_match_local_results(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    ray.init(address=cluster.address, log_to_driver=False)
    texts = make_texts(500)
    rows = [{"id": i, "text": t} for i, t in enumerate(texts)] + [{"id": 500, "text": None}]
    found = (
        ray.data.from_items(rows, override_num_blocks=9)
        .map_batches(Embed, fn_constructor_args=(model,), batch_size=64, concurrency=2, num_cpus=1)
        .take_all()
    )
    assert sorted(r["id"] for r in found) == list(range(501))
    by_id = {r["id"]: r for r in found}
    with clrt.SentenceEncoder(model, device="cpu") as encoder:
        wanted = encoder.encode(texts)
    np.testing.assert_allclose([by_id[i]["vector"] for i in range(500)], wanted, atol=1e-6)
    assert by_id[500]["error"] == "'text' is null" and by_id[0]["error"] == ""

    graph = read_graph(parsed("g (float[n, 2] x) => (float[n, 2] y) { y = Mul(x, x) }"))
    optimize(graph)
    write_compiled(CompiledModel(graph), tmp_path / "square.clrt", "")
    squares = (
        ray.data.from_items([{"id": i, "x": [i, 0.5]} for i in range(100)])
        .map_batches(Predict, fn_constructor_args=(tmp_path / "square.clrt",), concurrency=2)
        .take_all()
    )
    assert {r["id"]: list(r["y"]) for r in squares} == {i: [i**2, 0.25] for i in range(100)}


class ActorDevices:
    """Says which GPUs an actor of this share gets, and what its model would run on."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        from clrt.ray import resources

        try:
            device = str(resources.device_for_actor())
        except clrt.DeviceError as error:
            device = str(error)
        count = len(batch["id"])
        granted = ",".join(resources._granted_gpus() or ["none"])
        return {"granted": [granted] * count, "device": [device] * count}


def test_ray_actors_use_device_of_their_gpu_share(cluster: Any) -> None:
    cluster.add_node(num_cpus=2, num_gpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    for gpus, granted in ((0.5, {"0"}), (0, {"none"})):
        rows = ray.data.range(8, override_num_blocks=8).map_batches(
            ActorDevices, batch_size=1, concurrency=2, num_cpus=0.5, num_gpus=gpus
        )
        found = rows.take_all()
        assert {r["granted"] for r in found} == granted
        has_gpu = any(d.kind in ("gpu", "igpu") for d in clrt.devices())
        for row in found:
            if not gpus:
                assert row["device"] == "cpu"
            elif has_gpu:
                assert clrt.devices()[int(row["device"])].kind in ("gpu", "igpu")
            else:
                assert "No OpenCL device matches 'gpu'" in row["device"]
