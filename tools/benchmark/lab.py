"""Times kernels on a clrt device, in a process of its own, without host copies.

Times are those of many launches enqueued at once, from the first enqueue to the end of the queue,
over their number: inputs lie on the device, outputs stay there. Launch overhead that the device
cannot hide is part of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import numpy as np

from .runtimes import Runtime
from .turns import WARM_SECONDS, Handler, repeat

# A wait for the queue takes up to 20 us; the batch between two waits makes that nothing.
_BATCH_SECONDS = 0.01
_MOST_LAUNCHES = 500
# Threads that have slept for longer have to be warmed up again.
_NAP_SECONDS = 0.02

Shapes: TypeAlias = "dict[str, tuple[int, ...]]"


class Lab:
    """Session of a device, and the model loaded last.

    Attributes:
        reference_size: (M, N, K) of the MatMul that products are compared with in each turn.
        copies_by_kernel: Whether a kernel copies faster than clEnqueueCopyBuffer.
        copies: Bytes read -> seconds of a copy by a kernel.
    """

    def __init__(self, device: str) -> None:
        from clrt.runtime.opencl.devices import choose_device
        from clrt.runtime.opencl.session import session_for

        self.info = choose_device(device)
        self.session = session_for(self.info)
        self.reference_size = (2048, 1536, 1536)
        self.copies_by_kernel = True
        self.copies: dict[int, float] = {}
        self._busy_until = 0.0
        self._key: Hashable = None
        self._model: Any = None

    def load(self, source: Any) -> Any:
        """Loads a `clrt.Model` on the device."""
        import clrt

        return clrt.load(source, device=self.info.index, strict=True)

    def model(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The model of what `make` gives; kept until another is asked for."""
        if key != self._key:
            if self._model is not None:
                self._model.close()
            self._model, self._key = self.load(make()), key
        return self._model

    def bind(self, model: Any, shapes: Shapes, around: float = 0.0, by_unit: bool = True) -> Any:
        """A plan of the model with random numbers up to 1 from `around` (or zeros) in the arena.

        Args:
            by_unit: Whether products may go by a CPU's matrix unit.
        """
        bound = model.bind(shapes, {} if by_unit else self._without_unit())
        rng = np.random.default_rng(0)
        feeds = {}
        for spec in model.inputs:
            shape, dtype = shapes[spec.name], spec.dtype.numpy
            if np.dtype(dtype).kind == "f":
                feeds[spec.name] = (rng.random(shape, np.float32) * 2 - 1 + around).astype(dtype)
            else:
                feeds[spec.name] = np.zeros(shape, dtype)
        self.fill(bound, feeds)
        return bound

    def fill(self, bound: Any, feeds: dict[str, Any]) -> None:
        """Runs a plan once, so that what its launches find in the arena is of these inputs."""
        from clrt.runtime.execution.execution import run_and_hold

        run_and_hold(bound, feeds)

    def _without_unit(self) -> dict[str, dict[str, int]]:
        from clrt.kernels.tuning_records import record_for

        return {"gemm_cpu": {**record_for("gemm_cpu", self.info.caps), "T_UP": 0}}

    def time_bound(self, bound: Any, seconds: float) -> float:
        """Measures the seconds of all launches of a plan, median over the batches of one turn."""
        import pyopencl as cl

        queue = self.session.queue
        steps = [(k.kernel, k.global_size, k.local_size) for _, k in launches_of(bound)]

        def enqueue() -> None:
            for kernel, global_size, local_size in steps:
                cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)

        return self.time_launches(enqueue, len(steps), seconds)

    def time_launches(self, enqueue: Callable[[], None], launches: int, seconds: float) -> float:
        """Seconds per call of `enqueue`, which enqueues so many launches: median over batches."""

        def batch(repeats: int) -> None:
            for _ in range(repeats):
                enqueue()
            self.session.queue.finish()

        batch(1)
        (once,) = repeat(lambda: batch(1), 0)
        repeats = max(1, min(int(_BATCH_SECONDS / once), _MOST_LAUNCHES // launches))
        if time.perf_counter() - self._busy_until > _NAP_SECONDS:
            repeat(lambda: batch(repeats), WARM_SECONDS)
        times = repeat(lambda: batch(repeats), seconds)
        self._busy_until = time.perf_counter()
        return statistics.median(times) / repeats


def make_lab(device: str) -> Handler:
    """A worker's handler: its requests are jobs, functions of the lab."""
    lab = Lab(device)
    return lambda job: job(lab)


def lab_makers(runtimes: list[Runtime]) -> dict[str, tuple[Any, ...]]:
    """Returns a lab per clrt runtime, for `open_workers`."""
    return {r.name: (make_lab, r.device) for r in runtimes}


def launches_of(bound: Any) -> list[tuple[Any, Any]]:
    """Each launch of a bound plan with its kernel, arguments set, global and local size."""
    bound.bind()
    launches = [x for step in bound.plan.steps for x in getattr(step, "launches", ())]
    return list(zip(launches, bound.steps, strict=True))
