"""Launches of fused attention on GPUs: tiles of query rows, and keys split over work-groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from clrt.device.requires import Requires
from clrt.ir.cl_code import Define
from clrt.ir.graph import Value
from clrt.ir.symbolic_trace import clamp, pure
from clrt.kernels.spec import KernelSpec, Launch, Scratch, launch
from clrt.kernels.sub_group import sub_group_of
from clrt.kernels.thresholds import Thresholds, Tunable, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

# T_LANES, T_LINES: work-items of a work-group along the keys and along the query rows. T_RQ, T_RK:
# query rows and keys per work-item. T_TD: elements of a head per slice of Q and K in local memory.
GPU = tuned(
    "fused_attention_gpu",
    {"T_LINES": (8, 16), "T_RQ": (2, 4), "T_RK": (2, 4), "T_TD": (16, 32)},
    T_LANES=Tunable(16, "work-items", "Work-items per query row, each with T_RK keys of a tile."),
    T_LINES=Tunable(8, "work-items", "Work-items along the queries of a work-group."),
    T_RQ=Tunable(4, "queries", "Queries per work-item, as far as registers permit."),
    T_RK=Tunable(4, "keys", "Keys per work-item, as far as registers permit."),
    T_TD=Tunable(16, "elements", "Depth of heads in local memory at a time: fewer barriers."),
)
# Padding of each row of a tile in local memory, in elements, against bank conflicts.
_PAD = 4
# Numbers per query row in local memory besides Q and scores: q_at, mask_at, first_of, end_of.
_ROW_FLOATS = 4
# Minimum number of rows of V in local memory: the kernel reads softmax weights of 4 keys at a time.
_MIN_V_ROWS = 4
# Macros of other attention kernels that are arguments of this kernel, with names in lower case.
MASKING = ("CAUSAL", "AT_END", "WINDOW", "NAN_TO_ZERO")


class AttentionSplits(Thresholds):
    """Thresholds of the choice of tiles and key splits of attention on GPUs."""

    resident_groups: int = tunable(
        2,
        "work-groups per core",
        "Minimum that a core runs concurrently, in estimates of the time of a tile.",
    )
    split_groups: int = tunable(
        4, "work-groups per core", "Target of a split of the keys, so that every core has work."
    )
    split_tiles: int = tunable(
        2,
        "key tiles",
        "Minimum per split: below it, merging the splits costs more than they save.",
    )

    group: ClassVar = "attention_gpu_splits"


@dataclass(frozen=True)
class Attended:
    """Sizes, arguments and macros of one attention: softmax(scale Q K^T + mask) V.

    Attributes:
        y: Output tensor.
        v_size: Elements per head of V.
        batch: Batch size.
        queries: Number of query tokens.
        keys: Number of key tokens.
        kv_heads: Heads of keys and values.
        group: Query heads per head of keys and values.
        args: Kernel arguments by name, except y; among them `queries`, `key_count`, `heads` and
            `group`.
        defines: Kernel macros except tunables.
        flops: Floating-point operations, for the profile.
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
    """Returns the launches of fused attention: by large tiles, by small tiles, and of split keys.

    There is a launch of each kernel at every shape, but only the launch of the fastest kernel has
    work-groups. So a new shape needs no compilation.

    Args:
        heads: The attention.

    Raises:
        UnsupportedError: The device has too little local memory, or does not support large enough
            work-groups.
    """
    tunables, units = ctx.tunables(GPU), ctx.caps.cores
    lanes, lines, columns = tunables["T_LANES"], tunables["T_LINES"], heads.v_size
    # Registers limit the result elements of a work-item to T_RQ / 2 times its scores.
    max_rows = clamp(
        tunables["T_RK"] * tunables["T_RQ"] ** 2 // 2 * lanes // columns, 1, tunables["T_RQ"]
    )
    heads = replace(heads, defines={**heads.defines, **sub_group_of(ctx.caps)})
    tiles = _fitting_tiles(heads, tunables, max_rows, ctx)
    max_rows = tiles[0].tunables["T_RQ"]
    rows, pairs = heads.queries * heads.group, heads.batch * heads.kv_heads
    smallest = len(tiles) - 1
    shares = ctx.thresholds(AttentionSplits)
    chosen = smallest and takes_few(rows, pairs, units * shares.resident_groups, lines, max_rows)
    max_splits = heads.keys // (shares.split_tiles * tiles[smallest].keys)
    splits = (
        split_count(rows, pairs, units * shares.split_groups, lines, max_splits)
        if chosen == smallest
        else 1
    )
    launches = [
        tile.launch(heads, heads.y, 1, splits == 1 and chosen == index)
        for index, tile in enumerate(tiles)
    ]
    sums = ctx.scratch(splits * pairs * rows * (columns + 2) if splits > 1 else 1)
    launches.append(tiles[smallest].launch(heads, sums, splits, splits > 1))
    launches.append(_merge_launch(heads, sums, splits))
    return launches


def _fitting_tiles(
    heads: Attended, tunables: Mapping[str, int], max_rows: int, ctx: Lowering
) -> list[_AttentionTile]:
    """Returns the largest tile that fits local memory, then the tile of one row per work-item.

    Only one tile is returned if both are the same.

    Args:
        heads: The attention.
        tunables: Tunables of the attention kernel.
        max_rows: Maximum number of query rows per work-item.

    Raises:
        UnsupportedError: The smallest tile does not fit, or its work-group is too large.
    """
    rows = [max_rows >> halvings for halvings in range(max_rows.bit_length())]
    tiles = [_AttentionTile.of(heads, {**tunables, "T_RQ": r}) for r in rows]
    requirements = [t.requires for t in tiles]
    ctx.require(requirements[-1])
    fitting = [t for t, r in zip(tiles, requirements, strict=True) if r.missing(ctx.caps) is None]
    return [*fitting[:1], *fitting[1:][-1:]]


@dataclass(frozen=True)
class _AttentionTile:
    """Tile of scores and results that a work-group computes.

    Attributes:
        rows: Query rows per work-group.
        keys: Keys that a work-group reads per iteration.
        columns: Columns of V (elements per head), rounded up to a multiple of T_LANES.
        tunables: Tunables of the kernel, with T_RQ rows per work-item and T_TV rows of V in local
            memory.
    """

    rows: int
    keys: int
    columns: int
    tunables: Mapping[str, int]

    @classmethod
    def of(cls, heads: Attended, tunables: Mapping[str, int]) -> _AttentionTile:
        lanes, depth = tunables["T_LANES"], tunables["T_TD"]
        keys, columns = lanes * tunables["T_RK"], round_up(heads.v_size, lanes)
        # V reuses the local memory of K: all rows of the key tile, or a power-of-two fraction.
        v_rows = keys
        while v_rows > _MIN_V_ROWS and v_rows * columns > keys * depth:
            v_rows //= 2
        return cls(
            tunables["T_LINES"] * tunables["T_RQ"], keys, columns, {**tunables, "T_TV": v_rows}
        )

    @property
    def requires(self) -> Requires:
        """Work-group size and local memory that the attention kernel needs for this tile."""
        depth = self.tunables["T_TD"] + _PAD
        k_or_v = max(self.keys * depth, self.tunables["T_TV"] * self.columns)
        scores = self.keys + _PAD + self.tunables["T_LANES"] + _PAD
        nbytes = 4 * (self.rows * (depth + scores + _ROW_FLOATS) + k_or_v + 1)
        items = self.tunables["T_LANES"] * self.tunables["T_LINES"]
        return Requires(work_group_size=items, local_mem_bytes=nbytes)

    def launch(self, heads: Attended, y: Value | Scratch, splits: int, chosen: bool) -> Launch:
        """Returns the launch of the attention kernel.

        Args:
            heads: The attention.
            y: Output tensor; scratch memory for partial results if the keys are split.
            splits: Number of splits of the keys.
            chosen: Whether to compute anything: a launch that is not chosen has no work-groups.
        """
        split = isinstance(y, Scratch)
        lanes, lines = self.tunables["T_LANES"], self.tunables["T_LINES"]
        defines = {**heads.defines, **self.tunables, "SPLIT_KEYS": int(split)}
        for name in MASKING:
            del defines[name]
        kernel = KernelSpec.of("attention/fused_attention_gpu.cl", GPU.entry, **defines)
        groups = ceil_div(heads.queries * heads.group, self.rows)
        grid = (groups * lanes, heads.kv_heads * lines, heads.batch * splits)
        size = grid if chosen else (0, 0, 0)
        extra: dict[str, Define] = {"parts": splits} if split else {}
        extra |= {name.lower(): value for name, value in heads.defines.items() if name in MASKING}
        return launch(kernel, size, (lanes, lines, 1), heads.flops, y=y, **heads.args, **extra)


def _merge_launch(heads: Attended, sums: Scratch, splits: int) -> Launch:
    """Returns the launch that merges the partial results of split keys.

    Args:
        heads: The attention.
        sums: Partial results of all splits.
        splits: Number of splits of the keys; if 1, the launch has no work-groups.
    """
    names = ("S_D", "S_DV", "NAN_TO_ZERO", "DATA_T", "STORAGE")
    defines = {name: heads.defines[name] for name in names}
    kernel = KernelSpec.of("attention/attention_reduce_splits.cl", "attention_joined", **defines)
    args = {name: heads.args[name] for name in ("queries", "key_count", "heads", "group")}
    rows, pairs = heads.queries * heads.group, heads.batch * heads.kv_heads
    size = (heads.v_size, rows, pairs) if splits > 1 else (0, 0, 0)
    flops = 2 * splits * rows * pairs * heads.v_size
    return launch(kernel, size, None, flops, y=heads.y, sums=sums, parts=splits, **args)


@pure
def takes_few(rows: int, pairs: int, min_groups: int, lines: int, max_rows: int) -> int:
    """Returns 1 if tiles with one row per work-item are faster than with `max_rows` rows, else 0.

    Large tiles read less memory; small tiles leave no compute unit idle.

    Args:
        rows: Query rows per head of keys: queries times query heads that share the head.
        pairs: Batch size times heads of keys.
        min_groups: Number of work-groups that the device runs concurrently.
        lines: Work-items of a work-group along the rows (T_LINES).
        max_rows: Rows per work-item of the large tile.
    """

    def time(tile: int) -> int:
        groups = ceil_div(rows, lines * tile) * pairs
        # Cycles of a work-item for four elements of four keys: products, reads and bookkeeping.
        return max(groups, min_groups) * (16 * tile + tile + 14)

    return int(time(1) < time(max_rows))


@pure
def split_count(rows: int, pairs: int, target_groups: int, lines: int, max_splits: int) -> int:
    """Returns the number of splits of the keys that gives each compute unit work.

    Args:
        rows: Query rows per head of keys: queries times query heads that share the head.
        pairs: Batch size times heads of keys.
        target_groups: Number of work-groups to aim for.
        lines: Work-items of a work-group along the rows (T_LINES).
        max_splits: Maximum number of splits; numbers below 1 count as 1.
    """
    groups = ceil_div(rows, lines) * pairs
    return clamp(target_groups // groups, 1, max(1, max_splits))
