"""Serves several requests at once in an asyncio program: runs of a model beside a clock that ticks.

    python examples/async_app.py MODEL [--device cpu]

MODEL is an ONNX file or a folder of a text encoder, such as all-MiniLM-L6-v2. `run_async` leaves
the event loop free; `asyncio.wait_for`, or cancelling the task, ends a run between two kernels.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import numpy as np

import clrt


async def clock(seconds: float) -> int:
    """Counts hundredths of a second until it is cancelled, to show that the loop is free."""
    ticks = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await asyncio.sleep(0.01)
        ticks += 1
    return ticks


async def serve(model: clrt.Model, requests: int) -> None:
    """Runs requests of different lengths, all under way together, each with a deadline."""
    generator = np.random.default_rng(0)
    ticking = asyncio.create_task(clock(0.5))
    runs = []
    for length in generator.integers(8, 64, requests):
        ids = generator.integers(1000, 20000, (1, length), dtype=np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        if "token_type_ids" in {spec.name for spec in model.inputs}:
            feeds["token_type_ids"] = np.zeros_like(ids)
        runs.append(asyncio.wait_for(model.run_async(feeds), timeout=60))
    start = time.perf_counter()
    results = await asyncio.gather(*runs)
    print(f"{len(results)} requests in {time.perf_counter() - start:.2f} s,", end=" ")
    print(f"shapes {[next(iter(r.values())).shape for r in results]}")
    print(f"meanwhile the clock ticked {await ticking} times")


def main() -> None:
    parser = argparse.ArgumentParser(description="Concurrent runs of one model.")
    parser.add_argument("model", help="an ONNX file or a folder")
    parser.add_argument("--device", help="auto, cpu, gpu, part of a device name, or an index")
    args = parser.parse_args()
    with clrt.load(args.model, device=args.device) as model:
        asyncio.run(serve(model, requests=8))


if __name__ == "__main__":
    try:
        main()
    except clrt.ClrtError as error:
        sys.exit(f"error: {error}")
