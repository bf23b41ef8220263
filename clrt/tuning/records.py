"""Tunables per kernel and device: the record with the most matching facts wins."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from clrt.device.caps import DeviceCaps


@cache
def _records() -> list[dict[str, object]]:
    text = files("clrt.tuning").joinpath("records.json").read_text()
    loaded: list[dict[str, object]] = json.loads(text)
    return loaded


def tunables_for(kernel: str, caps: DeviceCaps) -> dict[str, int]:
    """The `T_` values of a kernel on a device; empty where only the source's defaults are known.

    A record names a kernel and, optionally, facts of the device (platform, kind, float_lanes); of
    those whose facts all hold, the one with the most is taken.
    """
    best: dict[str, int] = {}
    best_score = -1
    for record in _records():
        if record["kernel"] != kernel:
            continue
        facts = {
            "platform": caps.platform,
            "kind": caps.kind,
            "float_lanes": caps.float_lanes,
        }
        wanted = {k: v for k, v in record.items() if k in facts}
        if all(facts[k] == v for k, v in wanted.items()) and len(wanted) > best_score:
            values = record["tunables"]
            assert isinstance(values, dict)
            best, best_score = values, len(wanted)
    return best
