"""Simplification of exported masks: gathers by index grids, and early broadcasts."""

from __future__ import annotations

import pytest

from clrt.passes.canonicalize_views import CanonicalizeViews
from clrt.passes.driver import run_pass
from clrt.passes.eliminate_dead import EliminateDead
from clrt.passes.fold_constants import FoldConstants
from clrt.passes.remove_identity import RemoveIdentity
from clrt.passes.simplify_affine_gathers import SimplifyAffineGathers
from clrt.passes.sink_expand import SinkExpand
from clrt.passes.sink_slice import SinkSlice
from tests.passes.helpers import check, check_miss, graph_of

MASK = "%x: bool[B,S]"
POSITIONS = """const %zero: int64[] = 0
    const %one: int64[] = 1
    const %batch: int64[] = B
    const %length: int64[] = S
    %rows: int64[B] = Range(%zero, %batch, %one)
    %columns: int64[S] = Range(%zero, %length, %one)
    const %axes_rows: int64[3] = [1, 2, 3]
    const %axes_columns: int64[3] = [0, 1, 2]
    %r: int64[B,1,1,1] = Unsqueeze(%rows, %axes_rows)
    %c: int64[1,1,1,S] = Unsqueeze(%columns, %axes_columns)
"""


def test_gather_nd_of_all_positions_becomes_reshape() -> None:
    check(
        [SimplifyAffineGathers(), EliminateDead()],
        MASK,
        POSITIONS
        + """const %grid: int64[4] = [B, 1, 1, S]
        const %last: int64[1] = [-1]
        %r1: int64[B,1,1,S] = Expand(%r, %grid)
        %c1: int64[B,1,1,S] = Expand(%c, %grid)
        %r2: int64[B,1,1,S,1] = Unsqueeze(%r1, %last)
        %c2: int64[B,1,1,S,1] = Unsqueeze(%c1, %last)
        %indices: int64[B,1,1,S,2] = Concat{axis=-1}(%r2, %c2)
        %y: bool[B,1,1,S] = GatherND(%x, %indices)""",
        """const %grid: int64[4] = [B, 1, 1, S]
        %y: bool[B,1,1,S] = Reshape{allowzero=1}(%x, %grid)""",
    )


def test_gather_by_row_major_positions_becomes_reshape() -> None:
    check(
        [CanonicalizeViews(), SimplifyAffineGathers(), CanonicalizeViews(), EliminateDead()],
        MASK,
        POSITIONS
        + """%flat: bool[B*S,1] = Flatten{axis=2}(%x)
        %start: int64[B,1,1,1] = Mul(%r, %length)
        %place: int64[B,1,1,S] = Add(%c, %start)
        %y: bool[B,1,1,S,1] = Gather(%flat, %place)""",
        """const %grid: int64[5] = [B, 1, 1, S, 1]
        %y: bool[B,1,1,S,1] = Reshape{allowzero=1}(%x, %grid)""",
    )


def test_strided_gather_is_kept() -> None:
    check_miss(
        SimplifyAffineGathers(),
        "%x: float32[S,2]",
        """const %zero: int64[] = 0
        const %two: int64[] = 2
        const %length: int64[] = S
        const %one: int64[] = 1
        %half: int64[] = Div(%length, %two)
        %columns: int64[floordiv(S, 2)] = Range(%zero, %half, %one)
        %places: int64[floordiv(S, 2)] = Mul(%columns, %two)
        %y: float32[floordiv(S, 2),2] = Gather(%x, %places)""",
        "step by 2",
    )


def test_comparison_of_index_range_is_folded() -> None:
    check(
        [SimplifyAffineGathers(), RemoveIdentity(), EliminateDead()],
        "%x: bool[B,1,1,S]",
        POSITIONS
        + """%known: bool[1,1,1,S] = GreaterOrEqual(%c, %zero)
        %both: bool[B,1,1,S] = And(%known, %x)
        %y: bool[B,1,1,S] = Not(%both)""",
        "%y: bool[B,1,1,S] = Not(%x)",
    )


def test_expand_sinks_below_where_with_scalars() -> None:
    check(
        SinkExpand(),
        "%x: bool[B,1,1,S]",
        """const %shape: int64[4] = [B, 1, S, S]
        %a: bool[B,1,S,S] = Expand(%x, %shape)
        const %zero: float32[] = 0.0
        const %low: float32[] = -inf
        %y: float32[B,1,S,S] = Where(%a, %zero, %low)""",
        """const %shape: int64[4] = [B, 1, S, S]
        const %zero: float32[] = 0.0
        const %low: float32[] = -inf
        %a: float32[B,1,1,S] = Where(%x, %zero, %low)
        %y: float32[B,1,S,S] = Expand(%a, %shape)""",
    )


def test_expand_is_removed_if_other_operand_broadcasts() -> None:
    check(
        SinkExpand(),
        "%x: float32[1,S], %z: float32[B,S]",
        """const %shape: int64[2] = [B, S]
        %a: float32[B,S] = Expand(%x, %shape)
        %y: float32[B,S] = Add(%a, %z)""",
        "%y: float32[B,S] = Add(%x, %z)",
    )


def test_needed_expand_is_kept() -> None:
    check_miss(
        SinkExpand(),
        "%x: float32[1,S], %z: float32[S]",
        """const %shape: int64[2] = [B, S]
        %a: float32[B,S] = Expand(%x, %shape)
        %y: float32[B,S] = Add(%a, %z)""".replace("B", "3"),
        "neither",
    )


def test_position_embedding_gather_becomes_slice() -> None:
    check(
        [SinkSlice(), FoldConstants()],
        "%x: float32[1,S,2]",
        """const %table: float32[6,2] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
        const %rows: int64[1,6] = [2, 0, 1, 5, 4, 3]
        const %begin: int64[1] = [0]
        const %end: int64[1] = [S]
        const %axis: int64[1] = [-1]
        %part: int64[1,min(S, 6)] = Slice(%rows, %begin, %end, %axis)
        %found: float32[1,min(S, 6),2] = Gather(%table, %part)
        %y: float32[1,S,2] = Add(%found, %x)""",
        """const %all: float32[1,6,2] = [5, 6, 1, 2, 3, 4, 11, 12, 9, 10, 7, 8]
        const %begin: int64[1] = [0]
        const %end: int64[1] = [S]
        const %axis: int64[1] = [1]
        %found: float32[1,min(S, 6),2] = Slice(%all, %begin, %end, %axis)
        %y: float32[1,S,2] = Add(%found, %x)""",
    )


def test_gather_by_constant_or_symbolic_positions_becomes_reshape() -> None:
    """With a batch of 3 the grid rows are constants; a symbolic length stays a Range."""
    check(
        [CanonicalizeViews(), SimplifyAffineGathers(), CanonicalizeViews(), EliminateDead()],
        "%x: bool[3,S]",
        """%flat: bool[3*S,1] = Flatten{axis=2}(%x)
        const %zero: int64[] = 0
        const %one: int64[] = 1
        const %length: int64[] = S
        const %start: int64[3,1,1,1] = [0, S, 2*S]
        %columns: int64[S] = Range(%zero, %length, %one)
        %place: int64[3,1,1,S] = Add(%columns, %start)
        %y: bool[3,1,1,S,1] = Gather(%flat, %place)""",
        """const %grid: int64[5] = [3, 1, 1, S, 1]
        %y: bool[3,1,1,S,1] = Reshape{allowzero=1}(%x, %grid)""",
    )
    check(
        [SimplifyAffineGathers(), EliminateDead()],
        "%x: bool[2,3]",
        """const %indices: int64[2,3,2] = [0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2]
        %z: bool[2,3] = GatherND(%x, %indices)
        %y: bool[2,3] = Not(%z)""",
        "%y: bool[2,3] = Not(%x)",
    )


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [("[0, 2, 4]", "step by 2"), ("[1, 2, 3]", "not over all rows"), ("[0, 1, 3]", None)],
)
def test_gather_by_unordered_constants_is_kept(numbers: str, reason: str | None) -> None:
    graph = graph_of(
        f"""const %places: int64[3] = {numbers}
        %y: float32[3,2] = Gather(%x, %places)""",
        "%x: float32[5,2]",
    )
    record = run_pass(graph, SimplifyAffineGathers())
    assert not record.hits
    assert [reason in r for _, r in record.misses] == ([] if reason is None else [True])
