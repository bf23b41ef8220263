"""Generates OpenCL C for a loop body over small tensors: one statement per node, in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from clrt.ir.cl_code import Code
from clrt.ir.dtypes import FLOAT_STORAGES, DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import ElementwiseInstruction, TensorType
from clrt.kernels.strided import broadcast_strides
from clrt.kernels.variant import Lowering
from clrt.ops.checks import normalize_axis
from clrt.ops.control.loop_moves import LoopCopy, strided_copies
from clrt.ops.index_checks import index_status
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.gemm import Gemm
from clrt.ops.matmul.matmul import MatMul, MatrixProduct
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import View
from clrt.ops.norm.softmax import SoftmaxBase, around_axis, split
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.fused import Fused, compute_type, render, steps_of
from clrt.ops.reduce.argmax import ArgExtremum
from clrt.ops.reduce.reduction import Reduce, reduced_axes, reduction_expressions, reduction_types
from clrt.util.fast_dataclass import dataclass

_PLAIN = frozenset(d for d in DType if d.storage == "plain" and d is not DType.STRING)
_DTYPES = _PLAIN | FLOAT_STORAGES


_PRODUCTS = (MatMul, Gemm, FusedMatMul)
# Multiply-adds that cost as much as one other operation, because they are vectorized.
_FMAS_PER_OPERATION = 4


def node_work(node: Node) -> int | None:
    """Returns the cost of a node in one iteration of a KernelLoop; None if it is unsupported.

    The unit is an operation on one element. Several multiply-adds of a matrix product count as one
    operation, and views as none.

    Args:
        node: Node with static shapes.
    """
    op = node.op
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    if any(not v.type.is_static or v.type.on_host or v.dtype not in _DTYPES for v in values):
        return None
    if any(0 in v.dims for v in values):
        return None
    n = sum(prod(v.dims) for v in node.outputs)
    if isinstance(op, View):
        return 0 if node.output.dtype is node.arg(0).dtype else None
    if isinstance(op, (Pointwise, Fused)):
        steps = steps_of(op, len(node.inputs))
        return n * len(steps) if _is_rendered(steps, node.inputs) else None
    if isinstance(op, Reduce):
        x = node.arg(0)
        fits = op.reduces(x.dtype) and reduced_axes(node, "any").fits
        return prod(x.dims) * (1 + op.shift) if fits else None
    if type(op) in _PRODUCTS:
        return _product_work(node)
    if isinstance(op, SoftmaxBase):
        return 3 * n if node.output.dtype in FLOAT_STORAGES else None
    if isinstance(op, ArgExtremum):
        x = node.arg(0)
        fits = bool(x.dims) and x.dtype is not DType.BOOL and not op.select_last_index
        return prod(x.dims) if fits else None
    return n if isinstance(op, Gather) or strided_copies(node) is not None else None


def _is_rendered(steps: tuple[ElementwiseInstruction, ...], inputs: Sequence[Value | None]) -> bool:
    """Returns whether an elementwise program has C code for the dtypes of its inputs.

    Returns False if an input is None.
    """
    dtypes = [v.dtype for v in inputs if v is not None]
    return len(dtypes) == len(inputs) and not isinstance(render(steps, dtypes), str)


def _product_work(node: Node) -> int | None:
    """Returns the cost of a matrix product in a KernelLoop, in operations; None if unsupported."""
    op, a, b = node.op_as(MatrixProduct), node.arg(0), node.arg(1)
    extras, steps = op.extras(node), op.program(node.input_types)
    floats = all(v.dtype is DType.FLOAT32 for v in (a, b))
    if not floats or len(b.dims) > 2 or op.transposed()[0]:
        return None
    n = prod(node.output.dims)
    if any(len(v.dims) > len(node.output.dims) for v in extras) or op.rounds_a() is not None:
        return None
    fits = not steps or _is_rendered(steps, [a, *extras])
    return n * (-(-a.dims[-1] // _FMAS_PER_OPERATION) + len(steps)) if fits else None


@dataclass(frozen=True)
class _Slot:
    """Memory of a tensor in the generated kernel.

    Attributes:
        pointer: C expression of the address of its first element.
        count: C expression of its number of elements.
        dtype: Dtype of its elements.
    """

    pointer: Code
    count: Code
    dtype: DType

    def load(self, index: Code) -> Code:
        """Returns the C expression that reads the element at `index`, in the compute type."""
        return Code("LOAD_AS({}, {}, {})").substitute(self.dtype.storage, self.pointer, index)

    def store(self, index: Code, value: Code) -> Code:
        """Returns the C statement that writes `value` to the element at `index`."""
        text = Code("STORE_AS({}, {}, {}, {});")
        return text.substitute(self.dtype.storage, self.pointer, index, value)


class LoopCode:
    """Generates the parameters and statements of kernel `kernel_loop` for one loop body.

    Attributes:
        parameters: C parameter declarations, each with a leading comma.
        args: Kernel arguments by parameter name.
        setup: Statements before the loop.
        body: Statements in each iteration.
        next: Statements at the end of each iteration.
    """

    def __init__(self) -> None:
        self.parameters: list[Code] = []
        self.args: dict[str, Any] = {}
        self.setup: list[Code] = []
        self.body: list[Code] = []
        self.next: list[Code] = []
        self._slots: dict[Value, _Slot] = {}
        self._count = 0
        # C type -> total elements and last slot of its scratch buffer.
        self._scratch: dict[Code, tuple[int, _Slot]] = {}

    def defines(self, goes_on: Code) -> dict[str, Code]:
        """Returns the macros of kernel_loop.cl that hold the generated code.

        Args:
            goes_on: C expression of the next loop condition.
        """
        join = Code(" ").join
        return {
            "TENSORS": Code("").join(self.parameters),
            "SETUP": join(self.setup),
            "BODY": join(self.body),
            "NEXT": join(self.next),
            "GOES_ON": goes_on,
        }

    @property
    def parameter_bytes(self) -> int:
        """Size of the kernel parameters in bytes; a tensor counts as 16, for pointer and offset."""
        sizes = (4 if isinstance(value, (int, float)) else 16 for value in self.args.values())
        return sum(sizes) + 16 * len(self._scratch)

    def allocate(self, ctx: Lowering) -> None:
        """Allocates the scratch buffers of the loop body; call it after all nodes are added."""
        for kind, (elems, slot) in self._scratch.items():
            name = Code("m_{}").substitute(kind)
            self.parameters.append(Code(", OUT({}, {})").substitute(kind, name))
            self.args[name] = ctx.scratch(elems, slot.dtype)

    def number(self, value: int | float) -> Code:
        """Adds a number as a kernel argument and returns the argument's name.

        A number is an argument and not a constant in the code, so that loop bodies of other sizes
        use the same kernel.
        """
        name = self._name(Code("k{}"))
        kind = Code("float") if isinstance(value, float) else Code("IDX_T")
        self.parameters.append(Code(", const {} {}").substitute(kind, name))
        self.args[name] = value
        return name

    def tensor(self, value: Value, access: Code, formal: Value | None = None) -> _Slot:
        """Adds a tensor as a kernel argument.

        Args:
            value: Tensor outside the loop.
            access: IN or OUT.
            formal: Input of the loop body to bind to the tensor; its shape gives the element count.
                None to bind none and count the elements of `value`.

        Returns:
            Address, element count and dtype of the tensor in the kernel.
        """
        name = self._name(Code("x{}"))
        self.parameters.append(Code(", {}({}, {})").substitute(access, value.dtype.cl, name))
        self.args[name] = value
        shape = value if formal is None else formal
        slot = _Slot(Code("AT({})").substitute(name), self.number(prod(shape.dims)), value.dtype)
        if formal is not None:
            self._slots[formal] = slot
        return slot

    def row(self, formal: Value, whole: Value, backwards: bool) -> None:
        """Binds a loop body input to one row of a scanned tensor per iteration.

        Args:
            formal: Input of the loop body.
            whole: Tensor whose rows along axis 0 are scanned.
            backwards: Whether rows are read from the last to the first.
        """
        slot = self.tensor(whole, Code("IN"), formal)
        place = Code("at")
        if backwards:
            place = Code("({} - at)").substitute(self.number(whole.dims[0] - 1))
        pointer = Code("({} + {} * {})").substitute(slot.pointer, place, slot.count)
        self._slots[formal] = _Slot(pointer, slot.count, slot.dtype)

    def variable(self, formal: Value, value: Code) -> None:
        """Binds a loop body input to a one-element scratch tensor that each iteration sets.

        Args:
            formal: Input of the loop body.
            value: C expression of the element, evaluated in each iteration.
        """
        slot = self._allocate(formal)
        self._slots[formal] = slot
        self.body.append(Code("if (LANE == 0) {} MEET").substitute(slot.store(Code("0"), value)))

    def state(self, formal: Value, start: Value, result: Value) -> None:
        """Binds a loop body input to the buffer of a loop output.

        The buffer holds the state in all iterations.

        Args:
            formal: Input of the loop body.
            start: Initial state, which is copied to `result` before the loop.
            result: Output of the loop node.
        """
        slot = self.tensor(result, Code("OUT"), formal)
        source = self.tensor(start, Code("IN"))
        self.setup.append(_copy_statement(slot, source))

    def carry(self, formals: Sequence[Value], values: Sequence[Value]) -> None:
        """Adds the copies of the next states into their buffers at the end of an iteration.

        Args:
            formals: Loop body inputs that were bound by `state`.
            values: Next value of each state: outputs of the loop body.
        """
        carried = {self._slots[f].pointer for f in formals}
        for formal, value in zip(formals, values, strict=True):
            slot, source = self._slots[formal], self._slots[value]
            if slot == source:
                continue
            if source.pointer in carried:  # this step overwrites the state: copy it first
                copy = self._allocate(value)
                self.body.append(_copy_statement(copy, source))
                self.body.append(Code("MEET"))
                source = copy
            self.next.append(_copy_statement(slot, source))

    def stack(self, value: Value, stack: Value, backwards: bool) -> None:
        """Adds the copy of a loop body output to one row of a stack per iteration.

        Args:
            value: Output of the loop body.
            stack: Output of the loop node.
            backwards: Whether the first iteration writes the last row.
        """
        slot = self.tensor(stack, Code("OUT"))
        source = self._slots[value]
        turn = Code("(most - 1 - done)") if backwards else Code("done")
        pointer = Code("({} + {} * {})").substitute(slot.pointer, turn, source.count)
        self.next.append(_copy_statement(_Slot(pointer, source.count, slot.dtype), source))

    def first_element(self, value: Value) -> Code:
        """Returns the C expression of the first element of a loop body's value."""
        return self._slots[value].load(Code("0"))

    def add(self, graph: Graph) -> None:
        """Adds the statements of all nodes of a loop body; call it after its inputs are bound."""
        for node in graph.nodes:
            op = node.op
            if isinstance(op, View):
                self._slots[node.output] = self._slots[node.arg(0)]
                continue
            for value in node.outputs:
                self._slots[value] = self._allocate(value)
            slot = self._slots[node.output]
            copies = strided_copies(node)
            if copies is not None:
                for copy in copies:
                    self._each(self.number(prod(copy.dims)), self._copy(copy))
            elif isinstance(op, Reduce):
                self._each(slot.count, self._reduction(node, op, slot))
            elif isinstance(op, SoftmaxBase):
                outer, along, step = split(op, node.arg(0))
                lines = self.number(outer * step)
                self._each(lines, self._softmax(node, op.log, slot, (along, step)))
            elif isinstance(op, ArgExtremum):
                self._each(slot.count, self._extremum(node, op, slot))
            elif isinstance(op, Gather):
                self._each(slot.count, self._gather(node, op, slot))
            elif isinstance(op, MatrixProduct):
                self._multiply(node, op, slot)
            else:
                operands = [(self._slots[v], v.dims) for v in node.inputs if v is not None]
                steps = steps_of(op, len(operands))  # type: ignore[arg-type]
                self._each(slot.count, self._elementwise(steps, operands, slot, node.output.dims))

    def _each(self, count: Code, statement: Code) -> None:
        """Adds a statement that runs for i = 0, …, count - 1, distributed over the work-items.

        Args:
            count: C expression.
            statement: C statements that use i.
        """
        self.body.append(Code("EACH(i, {}) {{ {} }} MEET").substitute(count, statement))

    def _name(self, template: Code) -> Code:
        """Returns a new unique C name: `template` with a number filled in."""
        self._count += 1
        return template.substitute(self._count)

    def _allocate(self, value: Value) -> _Slot:
        """Reserves scratch memory for a value of the loop body.

        Returns:
            Address, element count and dtype of the memory in the kernel.
        """
        kind, n = value.dtype.cl, prod(value.dims)
        elems, last = self._scratch.get(kind, (0, None))
        pointer = Code("AT(m_{})").substitute(kind)
        if last is not None:
            pointer = Code("({} + {})").substitute(last.pointer, last.count)
        slot = _Slot(pointer, self.number(n), value.dtype)
        self._scratch[kind] = elems + n, slot
        return slot

    def _elementwise(
        self,
        steps: tuple[ElementwiseInstruction, ...],
        operands: Sequence[tuple[_Slot, Sequence[int]]],
        slot: _Slot,
        y: Sequence[int],
    ) -> Code:
        """Returns C statements that compute output element i of an elementwise program.

        Args:
            steps: Elementwise program.
            operands: Slot and shape of each operand; shapes broadcast to `y`.
            slot: Output tensor.
            y: Output shape.
        """
        program = render(steps, [operand.dtype for operand, _ in operands])
        assert not isinstance(program, str)
        flat = all(tuple(dims) == tuple(y) or prod(dims) == 1 for _, dims in operands)
        lines = [] if flat else self._coordinates(y)
        for k, (operand, dims) in enumerate(operands):
            index = Code("0") if prod(dims) == 1 else Code("i")
            if not flat and prod(dims) > 1:
                index = self._strided(broadcast_strides(dims, y))
            read, kind = operand.load(index), compute_type(operand.dtype)
            lines.append(Code("const {} v{} = {};").substitute(kind, k, read))
        for k, number in enumerate(program.numbers):
            lines.append(Code("const float c{} = {};").substitute(k, self.number(float(number))))
        lines += [program.body, slot.store(Code("i"), program.result)]
        return Code(" ").join(lines)

    def _copy(self, copy: LoopCopy) -> Code:
        """Returns C statements that copy element i of a strided copy."""
        dims = copy.dims or (1,)
        source, target = (
            Code("{} + {}").substitute(self.number(v.offset), self._strided(v.steps or (0,)))
            for v in (copy.source, copy.target)
        )
        read = self._slots[copy.source.value].load(source)
        written = self._slots[copy.target.value].store(target, read)
        return Code(" ").join([*self._coordinates(dims), written])

    def _multiply(self, node: Node, op: MatrixProduct, slot: _Slot) -> None:
        """Adds the statements of a matrix product and its epilogue.

        Args:
            node: Node of the product.
            op: The node's op.
            slot: Output tensor.
        """
        a, b, y = node.arg(0), node.arg(1), node.output
        steps, product = op.program(node.input_types), slot
        if steps:
            product = self._allocate(Value("product", TensorType(DType.FLOAT32, y.dims)))
        transposed_b = op.transposed()[1] or len(b.dims) == 1
        entry = Code("multiply_transposed") if transposed_b else Code("multiply")
        m = prod(a.dims[:-1])
        sizes = m, prod(y.dims) // m, a.dims[-1]
        pointers = (self._slots[a].pointer, self._slots[b].pointer, product.pointer)
        text = Code("{}({}, {}, {}, {}, {}, {}); MEET")
        self.body.append(text.substitute(entry, *pointers, *map(self.number, sizes)))
        if steps:
            operands = [(product, y.dims), *((self._slots[v], v.dims) for v in op.extras(node))]
            self._each(slot.count, self._elementwise(steps, operands, slot, y.dims))

    def _coordinates(self, dims: Sequence[int]) -> list[Code]:
        """Returns C statements that split the flat index i into coordinates of shape `dims`.

        The coordinates are the C variables j0, j1, …
        """
        lines = [Code("IDX_T left_ = i;")]
        for axis in range(len(dims) - 1, 0, -1):
            size = self.number(dims[axis])
            line = Code("const IDX_T j{0} = left_ % {1}; left_ /= {1};")
            lines.append(line.substitute(axis, size))
        return [*lines, Code("const IDX_T j0 = left_;")]

    def _strided(self, steps: Sequence[int]) -> Code:
        """Returns the C expression j0 * steps[0] + j1 * steps[1] + …, the offset of an element.

        Args:
            steps: Stride along each axis, in elements.
        """
        parts = [Code("j{} * {}").substitute(k, self.number(s)) for k, s in enumerate(steps)]
        return Code(" + ").join(parts)

    def _reduction(self, node: Node, op: Reduce, slot: _Slot) -> Code:
        """Returns C statements that compute output element i of a reduction.

        Args:
            node: Node of the reduction.
            op: The node's op.
            slot: Output tensor.
        """
        x = self._slots[node.arg(0)]
        view = reduced_axes(node, "any").args()
        of = {name: self.number(size) for name, size in view.items()}
        expressions = reduction_expressions(op, node.arg(0).dtype)
        kind = reduction_types(node.arg(0).dtype)["ACC_T"]
        loops = Code(
            "for (IDX_T j0 = 0; j0 < {r0}; ++j0) for (IDX_T j1 = 0; j1 < {r1}; ++j1)"
            " for (IDX_T j2 = 0; j2 < {r2}; ++j2)"
        ).substitute(**of)
        shift = Code(
            "{kind} top = -INFINITY; {loops} {{ const {kind} x = {read};"
            " top = x > top || x != x ? x : top; }} top = top - top == 0 ? top : 0;"
        )
        text = Code(
            "const IDX_T from = i / {d2} / {d1} * {s0} + i / {d2} % {d1} * {s1} + i % {d2} * {s2};"
            " {shift} {kind} a = {init}; {loops} {{ const {kind} x = {read}{less}; a = {step}; }}"
            " const {kind} n = ({kind})({r0} * {r1} * {r2}); {store}"
        )
        read = x.load(Code("from + j0 * {t0} + j1 * {t1} + j2 * {t2}").substitute(**of))
        finished = Code("{} + top") if op.shift else Code("{}")
        return text.substitute(
            **of,
            kind=kind,
            loops=loops,
            shift=shift.substitute(kind=kind, loops=loops, read=read) if op.shift else Code(""),
            less=Code(" - top") if op.shift else Code(""),
            init=expressions["INIT"],
            step=expressions["STEP(a, x)"],
            read=read,
            store=slot.store(Code("i"), finished.substitute(expressions["FINISH(a, n)"])),
        )

    def _softmax(self, node: Node, log: bool, slot: _Slot, sizes: tuple[int, int]) -> Code:
        """Returns C statements that normalize the i-th 1-D slice along the axis of a softmax.

        Args:
            node: Softmax or LogSoftmax node.
            log: Whether to compute LogSoftmax.
            slot: Output tensor.
            sizes: Number of elements of a slice, and their stride in elements of the tensor.
        """
        n, step = map(self.number, sizes)
        place = Code("from + j * {}").substitute(step)
        read = self._slots[node.arg(0)].load(place)
        result = Code("({} - top) - c_log(sum)") if log else Code("c_exp({} - top) / sum")
        each = Code("for (IDX_T j = 0; j < {}; ++j)").substitute(n)
        text = Code(
            "const IDX_T from = i / {1} * ({0} * {1}) + i % {1};"
            " F top = -INFINITY; {2} top = c_max(top, {3});"
            " F sum = 0.0f; {2} sum += c_exp({3} - top); {2} {4}"
        )
        return text.substitute(n, step, each, read, slot.store(place, result.substitute(read)))

    def _extremum(self, node: Node, op: ArgExtremum, slot: _Slot) -> Code:
        """Returns C statements that find the extremum of the i-th 1-D slice along the op's axis.

        The statements write the index of the extremum. If the slice contains NaN, the first NaN is
        the extremum.

        Args:
            node: ArgMax or ArgMin node.
            op: The node's op.
            slot: Output tensor.
        """
        x = node.arg(0)
        _, along, step = around_axis(x.dims, normalize_axis(op.axis, len(x.dims), op))
        text = Code(
            "const IDX_T from = i / {1} * ({0} * {1}) + i % {1}; IDX_T found = 0; {2} best = {3};"
            " for (IDX_T j = 1; j < {0}; ++j) {{ const {2} v = {4};"
            " if (best == best && (v {5} best || v != v)) best = v, found = j; }} {6}"
        )
        n, s, source = self.number(along), self.number(step), self._slots[x]
        reads = source.load(Code("from")), source.load(Code("from + j * {}").substitute(s))
        stored = slot.store(Code("i"), Code("found"))
        return text.substitute(n, s, compute_type(x.dtype), *reads, op.better, stored)

    def _gather(self, node: Node, op: Gather, slot: _Slot) -> Code:
        """Returns the C statement that computes output element i of a Gather.

        The call also adds a kernel argument: the status word that reports indices out of range.

        Args:
            node: Gather node.
            op: The node's op.
            slot: Output tensor.
        """
        x, indices = node.arg(0), node.arg(1)
        axis = normalize_axis(op.axis, len(x.dims), op)
        status = self._name(Code("status{}"))
        self.parameters.append(Code(", OUT(long, {})").substitute(status))
        self.args[status] = index_status(node, 1, (x.dims[axis],), f"axis {axis} of '{x.name}'")
        n, inner = self.number(x.dims[axis]), self.number(prod(x.dims[axis + 1 :]))
        rows = self.number(prod(indices.dims))
        index = self._slots[indices].load(Code("i / {} % {}").substitute(inner, rows))
        place = Code("clrt_index((long)({}), {}, AT({}))").substitute(index, n, status)
        text = Code("(i / {0} / {1} * {2} + {3}) * {0} + i % {0}")
        source = text.substitute(inner, rows, n, place)
        return slot.store(Code("i"), self._slots[x].load(source))


def _copy_statement(target: _Slot, source: _Slot) -> Code:
    """Returns the C statement that copies `source` to `target`, divided among the work-items."""
    i = Code("i")
    return Code("EACH(i, {}) {}").substitute(target.count, target.store(i, source.load(i)))
