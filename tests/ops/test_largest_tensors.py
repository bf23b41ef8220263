"""Last work-items of kernels over tensors of maximum size, without allocating them.

A tensor is a buffer and an offset. With an offset of minus 2^31 and some, the end of the tensor
lies in a small buffer; the kernel's real source computes the offsets, its work-items numbered as
the last ones of the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, IrOp, TensorType
from clrt.kernels.index_range import MAX_ELEMS
from clrt.kernels.spec import BufferArg, Launch
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.slice import Slice
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.quantize_linear import DequantizeLinear
from clrt.ops.pointwise.table import Neg, Where
from clrt.ops.tensor.constant_of_shape import ConstantOfShape
from clrt.plan.make_plan import make_plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.session import session_for
from tests.harness import quick_device
from tests.ops.gpu_kernels import GPU

TESTED = 4096
WINDOW = 1 << 16  # elements of each tensor that have memory, its last or its first
GUARD = 1 << 12  # behind them
UNWRITTEN = 77
EVEN = MAX_ELEMS - 1  # MAX_ELEMS is prime

Given = Mapping[str, Array]


@dataclass(frozen=True)
class Case:
    """One op over tensors of maximum size.

    Attributes:
        inputs: Their shapes and dtypes; constants of few elements as arrays.
        from_start: Names of inputs whose first elements the last ones of y are made of.
        expected: The last WINDOW elements of y, from the windows of the inputs.
    """

    op: IrOp
    inputs: Sequence[tuple[tuple[int, ...], DType] | Array]
    shape: tuple[int, ...]
    dtype: DType
    expected: Callable[[Given], Array]
    from_start: frozenset[str] = frozenset()


E = MAX_ELEMS
INT8 = DType.INT8
CASES = {
    "Neg": Case(Neg(), [((E,), INT8)], (E,), INT8, lambda x: -x["x0"]),
    "Cast": Case(
        Cast(DType.FLOAT32), [((E,), INT8)], (E,), DType.FLOAT32,
        lambda x: x["x0"].astype(np.float32),
    ),
    "Where": Case(
        Where(), [((E,), DType.BOOL), ((E,), INT8), ((1,), INT8)], (E,), INT8,
        lambda x: np.where(x["x0"], x["x1"], x["x2"][-1]),
    ),
    "Slice": Case(
        Slice(),
        [((E,), INT8), *(np.array([n]) for n in (-1, -(1 << 62), 0, -1))], (E,), INT8,
        lambda x: x["x0"][::-1], frozenset({"x0"}),
    ),
    "ConstantOfShape": Case(
        ConstantOfShape(5, INT8), [np.array([E])], (E,), INT8,
        lambda x: np.full(WINDOW, 5, np.int8),
    ),
    "Gather": Case(
        Gather(), [((1, EVEN // 6), INT8), ((6,), DType.INT64)], (6, EVEN // 6), INT8,
        lambda x: x["x0"],
    ),
    "DequantizeLinear": Case(
        DequantizeLinear(), [((E,), INT8), ((), DType.FLOAT32)], (E,), DType.FLOAT32,
        lambda x: x["x0"].astype(np.float32) * x["x1"][-1],
    ),
}  # fmt: skip


def _launch(case: Case, caps: DeviceCaps) -> Launch:
    values = []
    for i, given in enumerate(case.inputs):
        if isinstance(given, np.ndarray):
            type_ = TensorType(DType.of(given.dtype), given.shape, given)
        else:
            type_ = TensorType(given[1], given[0])
        values.append(Value(f"x{i}", type_))
    y = Value("y", TensorType(case.dtype, case.shape))
    inputs = [v for v in values if not v.is_constant]
    graph = Graph("g", inputs, [y], [Node("n", case.op, values, [y])])
    large = replace(caps, max_alloc_bytes=1 << 40, global_mem_bytes=1 << 40)
    (launch,) = launches_of(make_plan(specialise(graph, {}), large, lambda _: {}).steps)
    return launch


def _run_end(launch: Launch, windows: dict[str, Array], from_start: frozenset[str]) -> None:
    """Runs only the last work-groups of a launch, which write the last TESTED elements of y.

    Asserts that nothing is written behind y. Where the launch leaves the work-group size to the
    runtime, it is 64.

    Args:
        launch: The launch.
        windows: By name, the elements of each tensor that have memory, at most WINDOW: the last
            ones. y's are overwritten with the result.
        from_start: Names of the tensors whose first elements have memory instead.
    """
    first, *others = launch.global_size
    local = launch.local_size or (64, *(1 for _ in others))
    groups = -(-first // local[0])
    count = TESTED // (EVEN // (groups * prod(others))) + 2
    starts = [groups - count, *(n - 1 for n in others), 0, 0]
    group = f"(d == 0 ? {starts[0]} : d == 1 ? {starts[1]} : {starts[2]})"
    text = (
        f"#define get_group_id(d) (get_group_id(d) + {group})\n"
        f"#define get_global_id(d) (get_global_id(d) + (size_t){group} * get_local_size(d))\n"
    )
    session = session_for(quick_device())
    context = session.connection.context
    program = cl.Program(context, text + launch.kernel.text)
    kernel = getattr(program.build(list(launch.kernel.build_options)), launch.kernel.entry)
    queue = session.connection.new_queue()
    args: list[object] = []
    buffers = {}
    for arg in launch.args:
        if not isinstance(arg, BufferArg):
            args.append(arg)
            continue
        name = arg.buffer.name if isinstance(arg.buffer, Value) else "status"
        window = windows.get(name, np.zeros(GUARD, np.int64))
        elems = prod(arg.buffer.dims) if isinstance(arg.buffer, Value) else 1
        behind = np.full(GUARD, UNWRITTEN, window.dtype)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffers[name] = cl.Buffer(context, flags, hostbuf=np.concatenate([window, behind]))
        hidden = 0 if name in from_start else max(elems - len(window), 0)
        args += [buffers[name], np.int32(arg.offset - hidden)]
    kernel.set_args(*args)
    sizes = (count * local[0], *(1 for _ in others))
    cl.enqueue_nd_range_kernel(queue, kernel, sizes, local)
    found = np.empty(WINDOW + GUARD, windows["y"].dtype)
    cl.enqueue_copy(queue, found, buffers["y"])
    queue.finish()
    assert (found[WINDOW:] == UNWRITTEN).all()
    windows["y"][:] = found[:WINDOW]


@pytest.mark.filterwarnings("ignore:Non-empty compiler output")
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("name", CASES)
def test_last_elements_of_largest_tensors_are_written(name: str, kind: str) -> None:
    case = CASES[name]
    launch = _launch(case, GPU if kind == "gpu" else quick_device().caps)
    rng = np.random.default_rng(3)
    windows: dict[str, Array] = {}
    for i, given in enumerate(case.inputs):
        if not isinstance(given, np.ndarray):
            elems, dtype = prod(given[0]), given[1].numpy
            random = rng.integers(0, 2, min(elems, WINDOW)) * (name != "Gather")
            windows[f"x{i}"] = random.astype(dtype)
    windows["y"] = np.full(WINDOW, UNWRITTEN, case.dtype.numpy)
    _run_end(launch, windows, case.from_start)
    np.testing.assert_array_equal(windows["y"][-TESTED:], case.expected(windows)[-TESTED:])
