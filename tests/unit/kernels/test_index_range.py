"""Offsets near 2^31: kernels either index the largest tensors or refuse them."""

from __future__ import annotations

import re

import pytest

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import IrOp, TensorType
from clrt.kernels.index_range import MARGIN_ELEMS, MAX_ELEMS, WHOLE_RANGE
from clrt.kernels.kernel_source import read_source
from clrt.ops.norm.softmax import Softmax
from clrt.ops.pointwise.table import Neg
from clrt.plan.make_plan import make_plan
from clrt.plan.specialise import specialise
from tests.ops.gpu_kernels import CPU, GPU, KERNELS

# Sums that may pass 2^31 where the number on the right does not, and ids that do when narrowed.
_PASSES = {
    "UP_TO(first, count, total) in place of the lesser of a sum": r"min\(\w+ \+ \w+, ",
    "i <= n - step in place of i + step <= n": r"\w+ \+ \w+ <= \w+;",
    "(n - 1) / step + 1 in place of (n + step - 1) / step": r"\+ \w+ - 1\) / ",
    "the id compared as size_t before it is narrowed": r"IDX_T (\w+) = get_global_id\(0\);"
    r"\s+if \(\1 >=",
}


@pytest.mark.parametrize("source", sorted(WHOLE_RANGE))
def test_whole_range_kernels_avoid_index_overflow(source: str) -> None:
    kernels = re.sub(r"//.*", "", read_source(source))
    found = [rule for rule, form in _PASSES.items() if re.search(form, kernels)]
    assert not found


def test_padded_global_ids_are_checked_before_scaling() -> None:
    """A launch of whole work-groups has ids behind the last one: times an argument they may pass
    2^31, and then look as if they were inside.
    """
    found = []
    for path in sorted(KERNELS.rglob("*.cl")):
        for kernel in path.read_text("utf-8").split("__kernel")[1:]:
            exact = re.search("SINGLE_ITEM|reqd_work_group_size|GROUP|ITEM\\n", kernel[:80])
            scaled = re.search(r"get_global_id\(0\) \* [a-z]\w*(?! >= \(size_t\))\b", kernel)
            compared = re.search(r"get_global_id\(0\) \* [a-z]\w* >= \(size_t\)", kernel)
            if scaled and not exact and not compared:
                found.append(f"{path.name}: {scaled[0]}")
    assert not found


def _plan(op: IrOp, elems: int, gpu: bool) -> None:
    type_ = TensorType(DType.INT8 if isinstance(op, Neg) else DType.FLOAT32, (elems,))
    x, y = Value("x", type_), Value("y", type_)
    caps = GPU if gpu else CPU
    graph = Graph("g", [x], [y], [Node("n", op, [x], [y])])
    large = {"max_alloc_bytes": 16 << 30, "global_mem_bytes": 64 << 30}
    make_plan(specialise(graph, {}), type(caps)(**{**vars(caps), **large}), lambda _: {})


@pytest.mark.parametrize("gpu", [False, True])
def test_tensors_past_kernel_index_limit_are_refused(gpu: bool) -> None:
    """Kernels that need a margin refuse tensors inside it; others accept the largest tensor."""
    _plan(Neg(), MAX_ELEMS, gpu)
    _plan(Softmax(), MAX_ELEMS - MARGIN_ELEMS, gpu)
    with pytest.raises(ShapeError, match=r"^Softmax 'n': a tensor has 2147352576 elements"):
        _plan(Softmax(), MAX_ELEMS - MARGIN_ELEMS + 1, gpu)
