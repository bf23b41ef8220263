"""Attention on GPUs: tiles of queries by how many the device runs at once, keys in parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clrt.device.requires import Requires
from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.ir.symbolic_trace import clamp, pure
from clrt.kernels.spec import KernelSpec, Launch, Scratch, launch
from clrt.kernels.sub_group import sub_group_of
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.math import ceil_div, round_up

# T_LANES, T_LINES: work-items of a group, along the keys and along the rows.
GPU = tuned(
    "fused_attention_gpu",
    {"T_LINES": (8, 16), "T_RQ": (2, 4), "T_RK": (2, 4), "T_TD": (16, 32)},
    T_LANES=16,
    T_LINES=8,
    T_RQ=4,
    T_RK=4,
    T_TD=16,
)
# Work-groups that a compute unit runs at once at least, and those that it should have; and tiles of
# keys that a part has at least, or the launch that joins the parts costs more than they save.
_LEAST_GROUPS = 2
_GROUPS = 4
_PART_TILES = 2
# Elements that rows of tiles are apart besides; rows of V that one read of weights is for.
_PAD = 4
# Of each row in local memory.
_NUMBERS = 4
_LEAST_VALUES = 4
# Defines of other kernels that are arguments of this one, in small letters.
MASKING = ("CAUSAL", "AT_END", "WINDOW", "NAN_TO_ZERO")


@dataclass(frozen=True)
class Attended:
    """What is attended.

    Attributes:
        v_size: Columns of a head of V.
        group: Heads of queries that share one of keys and values.
        args: Of the kernels, but for y; `queries`, `key_count`, `heads` and `group` among them.
        defines: Of the kernels, but for tunables.
    """

    y: Value
    v_size: int
    batch: int
    queries: int
    keys: int
    kv_heads: int
    group: int
    args: Mapping[str, Any]
    defines: Mapping[str, Define]
    flops: int


def emit_gpu(heads: Attended, ctx: Lowering) -> list[Launch]:
    """Tiles of many rows, of few, or of few by parts of the keys, which are then joined.

    The kernels that are not taken are launched without work-groups: sizes change from call to call,
    and none may compile a kernel.

    Raises:
        UnsupportedError: The device has too little local memory, or too small work-groups.
    """
    tunables, units = ctx.tunables(GPU), ctx.caps.cores
    lanes, lines, columns = tunables["T_LANES"], tunables["T_LINES"], heads.v_size
    # A work-item has registers for T_RQ / 2 times as many elements of the result as of the scores.
    most = clamp(
        tunables["T_RK"] * tunables["T_RQ"] ** 2 // 2 * lanes // columns, 1, tunables["T_RQ"]
    )
    heads = replace(heads, defines={**heads.defines, **sub_group_of(ctx.caps)})
    tiles = _fitting_tiles(heads, tunables, most, ctx)
    most = tiles[0].tunables["T_RQ"]
    rows, pairs = heads.queries * heads.group, heads.batch * heads.kv_heads
    few = len(tiles) - 1
    taken = few and takes_few(rows, pairs, units, lines, most)
    parts = (
        split_count(rows, pairs, units, lines, heads.keys, tiles[few].keys) if taken == few else 1
    )
    launches = [
        tile.launch(heads, heads.y, 1, parts == 1 and taken == index)
        for index, tile in enumerate(tiles)
    ]
    sums = ctx.scratch(parts * pairs * rows * (columns + 2) if parts > 1 else 1)
    launches.append(tiles[few].launch(heads, sums, parts, parts > 1))
    launches.append(_joined(heads, sums, parts))
    return launches


def _fitting_tiles(
    heads: Attended, tunables: Mapping[str, int], most: int, ctx: Lowering
) -> list[_AttentionTile]:
    """The largest tile that fits local memory, and that of one row of a work-item.

    Args:
        most: Rows of a work-item at most.

    Raises:
        UnsupportedError: Not even the smallest one does, or work-groups are too large.
    """
    rows = [most >> halved for halved in range(most.bit_length())]
    tiles = [_AttentionTile.of(heads, {**tunables, "T_RQ": r}) for r in rows]
    needs = [t.requires for t in tiles]
    ctx.require(needs[-1])
    fitting = [t for t, n in zip(tiles, needs, strict=True) if n.missing(ctx.caps) is None]
    return [*fitting[:1], *fitting[1:][-1:]]


@dataclass(frozen=True)
class _AttentionTile:
    """The kernel for work-items of some rows.

    Attributes:
        rows, keys: Of a work-group at a time.
        columns: Of the result, whole runs of all work-items.
    """

    rows: int
    keys: int
    columns: int
    tunables: Mapping[str, int]

    @classmethod
    def of(cls, heads: Attended, tunables: Mapping[str, int]) -> _AttentionTile:
        lanes, depth = tunables["T_LANES"], tunables["T_TD"]
        keys, columns = lanes * tunables["T_RK"], round_up(heads.v_size, lanes)
        # V takes the place of K in local memory: the tile, or as many halves of it as fit there.
        values = keys
        while values > _LEAST_VALUES and values * columns > keys * depth:
            values //= 2
        return cls(
            tunables["T_LINES"] * tunables["T_RQ"], keys, columns, {**tunables, "T_TV": values}
        )

    @property
    def requires(self) -> Requires:
        """What a work-group takes."""
        depth = self.tunables["T_TD"] + _PAD
        kept = max(self.keys * depth, self.tunables["T_TV"] * self.columns)
        scores = self.keys + _PAD + self.tunables["T_LANES"] + _PAD
        nbytes = 4 * (self.rows * (depth + scores + _NUMBERS) + kept + 1)
        items = self.tunables["T_LANES"] * self.tunables["T_LINES"]
        return Requires(work_group_size=items, local_mem_bytes=nbytes)

    def launch(self, heads: Attended, y: Value | Scratch, parts: int, taken: bool) -> Launch:
        """By parts where the result is scratch memory."""
        split = isinstance(y, Scratch)
        lanes, lines = self.tunables["T_LANES"], self.tunables["T_LINES"]
        defines = {**heads.defines, **self.tunables, "PARTS": int(split)}
        for name in MASKING:
            del defines[name]
        kernel = KernelSpec.of("attention/fused_attention_gpu.cl", GPU.entry, **defines)
        groups = ceil_div(heads.queries * heads.group, self.rows)
        grid = (groups * lanes, heads.kv_heads * lines, heads.batch * parts)
        size = grid if taken else (0, 0, 0)
        more: dict[str, Define] = {"parts": parts} if split else {}
        more |= {name.lower(): value for name, value in heads.defines.items() if name in MASKING}
        return launch(kernel, size, (lanes, lines, 1), heads.flops, y=y, **heads.args, **more)


def _joined(heads: Attended, sums: Scratch, parts: int) -> Launch:
    """The launch that adds up the parts; none of one."""
    names = ("S_D", "S_DV", "NAN_TO_ZERO", "DATA_T", "STORAGE")
    defines = {name: heads.defines[name] for name in names}
    kernel = KernelSpec.of("attention/attention_joined.cl", "attention_joined", **defines)
    args = {name: heads.args[name] for name in ("queries", "key_count", "heads", "group")}
    rows, pairs = heads.queries * heads.group, heads.batch * heads.kv_heads
    size = (heads.v_size, rows, pairs) if parts > 1 else (0, 0, 0)
    flops = 2 * parts * rows * pairs * heads.v_size
    return launch(kernel, size, None, flops, y=heads.y, sums=sums, parts=parts, **args)


@pure
def takes_few(rows: int, pairs: int, units: int, lines: int, most: int) -> int:
    """1 where tiles of one row of a work-item take less time than those of `most`; else 0.

    Large ones read less, small ones leave no unit idle.

    Args:
        pairs: Batches by heads of keys, each with so many rows.
    """

    def time(tile: int) -> int:
        groups = ceil_div(rows, lines * tile) * pairs
        # Of a work-item for four elements of four keys: products, reads and bookkeeping.
        return max(groups, _LEAST_GROUPS * units) * (16 * tile + tile + 14)

    return int(time(1) < time(most))


@pure
def split_count(rows: int, pairs: int, units: int, lines: int, keys: int, tile: int) -> int:
    """Into how many parts the keys go, so that each unit has work.

    Args:
        tile: Keys that a work-group takes at a time.
    """
    groups = ceil_div(rows, lines) * pairs
    return clamp(_GROUPS * units // groups, 1, max(1, keys // (_PART_TILES * tile)))
