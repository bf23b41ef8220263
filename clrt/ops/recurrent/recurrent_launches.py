"""Launches of LSTM, GRU and RNN, one time step at a time.

One GEMM multiplies the inputs of all steps by W. Each step is then a GEMM of the last states and R,
and a kernel for the gates of both directions and all sequences, with a work-item per state.
"""

from __future__ import annotations

from collections.abc import Callable

from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.kernels import gemm_variants
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand
from clrt.kernels.spec import Buffer, BufferArg, KernelSpec, Launch, Scratch, launch, optional
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.index_checks import check_launch
from clrt.ops.movement.common import fill_launch
from clrt.ops.pointwise.fused import Literal, compute_type, render
from clrt.ops.recurrent.recurrent import Recurrent

_ACTIVATION = Code("static {0} act_{1}(const IDX_T d, {0} v) {{ {2} const {0} v0 = v; {3} }}")


class RecurrentLaunches:
    """Emits the launches of a recurrent node.

    The states are kept in the outputs Y_h and Y_c if the node has them, else in scratch memory.
    Each step reads and writes the same buffers, so that the GEMM launches are the same in all
    steps, and R is packed once.

    Attributes:
        gate_dtype: Dtype of the gates: float64 for float64, else float32.
        directions: Number of directions, D.
        hidden: Hidden size, H.
        time: Number of time steps, T.
        batch: Number of sequences, B.
        state_elems: Elements of a state tensor.
        state_strides: Strides of the states over directions and sequences, in elements.
    """

    def __init__(self, node: Node, ctx: Lowering, emit: gemm_variants.EmitProduct) -> None:
        op = node.op_as(Recurrent)
        self.op, self.node, self.ctx, self._emit = op, node, ctx, emit
        x, r = node.arg(0), node.arg(2)
        self.dtype = x.dtype
        self.gate_dtype = DType.FLOAT64 if x.dtype is DType.FLOAT64 else DType.FLOAT32
        self.directions, self.hidden = r.dims[0], r.dims[op.hidden_axis]
        self.time, self.batch = (x.dims[1], x.dims[0]) if op.layout else x.dims[:2]
        self.state_elems = self.directions * self.batch * self.hidden
        if op.layout:
            self.state_strides = (self.hidden, self.directions * self.hidden)
        else:
            self.state_strides = (self.batch * self.hidden, self.hidden)

    def launches(self) -> list[Launch]:
        """Returns all launches of the node; [] if the state tensors have no elements."""
        op, node = self.op, self.node
        if not self.state_elems:
            return []
        states: list[Buffer] = []
        launches: list[Launch] = []
        for index in range(op.states):
            output = node.outputs[index + 1] if index + 1 < len(node.outputs) else None
            states.append(output or self.ctx.scratch(self.state_elems, self.dtype))
            launches.append(self._start(states[-1], node.input(5 + index)))
        if node.input(4) is not None:
            launches.append(check_launch(node, 4, self.time, "a sequence length"))
        if not self.time:
            return launches
        gx, product = self.multiply_inputs()
        launches += product
        setup, step = self.step(gx, states)
        launches += setup
        for s in range(self.time):
            launches += step(s)
        return launches

    def multiply_inputs(self) -> tuple[Scratch, list[Launch]]:
        """Multiplies X of all time steps by W.

        Returns:
            Scratch memory of the products, `[D, T B, G H]` for D directions, T time steps, B
            sequences, G gates and hidden size H; and the launches that write it.
        """
        x, w = self.node.arg(0), self.node.arg(1)
        depth, wide, rows = x.dims[2], self.op.gates * self.hidden, self.time * self.batch
        gx = self.gate_scratch(self.directions * rows * wide)
        inputs = MatrixOperand(BufferArg(x), (0, depth, 1))
        return gx, self._product(gx, inputs, w, rows, wide, depth)

    def step(
        self, gx: Scratch, states: list[Buffer]
    ) -> tuple[list[Launch], Callable[[int], list[Launch]]]:
        """Returns the launches that run once, and a function that emits the launches of a step.

        The function takes the index of the time step, from 0 on.

        Args:
            gx: Products of X and W of all time steps, from `multiply_inputs`.
            states: State tensors, which each step overwrites: the hidden state and, for LSTM, the
                cell state.
        """
        gh = self.gate_scratch(self.state_elems * self.op.gates)
        setup, product = self.recur(gh, states[0], self.node.arg(2), self.op.gates)
        tensors = {"gh": gh, **dict(zip(("hidden", "cell"), states, strict=False))}
        return setup, lambda s: [*product, self.kernel(self.op.entry, s, gx, **tensors)]

    def gate_scratch(self, elems: int) -> Scratch:
        """Allocates scratch memory of `elems` elements of the dtype `gate_dtype`."""
        return self.ctx.scratch(elems, self.gate_dtype)

    def recur(
        self, y: Scratch, state: Buffer, r: Buffer, gates: int
    ) -> tuple[list[Launch], list[Launch]]:
        """Emits the product y = state R^T of a time step.

        Args:
            y: Output, `[D, B, gates * H]`, for D directions, B sequences and hidden size H.
            state: State tensor, read with the strides `state_strides`.
            r: Recurrent weights, `[D, gates * H, H]`.
            gates: Number of gates.

        Returns:
            The launches that run once because they do not depend on the state (such as packing R),
            and the launches of each step.
        """
        view = MatrixOperand(BufferArg(state), (*self.state_strides, 1))
        launches = self._product(y, view, r, self.batch, gates * self.hidden, self.hidden)
        once, per_step, changing = list[Launch](), list[Launch](), {state}
        for launch_ in launches:
            buffers = [(arg.buffer, access) for arg, access in launch_.accesses()]
            if any(b in changing and access != "write" for b, access in buffers):
                changing.update(b for b, access in buffers if access != "read")
                per_step.append(launch_)
            else:
                once.append(launch_)
        return once, per_step

    def _product(
        self, y: Scratch, a: MatrixOperand, weights: Buffer, m: int, n: int, k: int
    ) -> list[Launch]:
        """Returns the launches of the product of A and the transposed weights of each direction.

        Args:
            y: Output, `[directions, m, n]`.
            a: Matrix A of each direction, `[m, k]`, with its strides.
            weights: W or R, `[directions, n, k]` in the layout of `weight_steps`.
            m: Rows of A.
            n: Gates times hidden size.
            k: Columns of A, the summed axis.
        """
        b = MatrixOperand(BufferArg(weights), (n * k, *self.weight_steps(n, k)))
        accumulator = compute_type(self.dtype)
        batch = (self.directions,)
        product = GemmProblem(y, self.dtype, batch, m, n, k, a, b, accumulator=accumulator)
        return self._emit(product, self.ctx)

    def weight_steps(self, n: int, k: int) -> tuple[int, int]:
        """Returns the strides of W or R along k (the summed axis) and along n, in elements.

        Args:
            n: Gates times hidden size.
            k: Columns of the weights: the input size for W, the hidden size for R.
        """
        return 1, k

    def _start(self, state: Buffer, first: Value | None) -> Launch:
        """Returns the launch that sets `state` to `first`, or to zeros if `first` is None."""
        if first is None:
            return fill_launch(BufferArg(state), self.dtype, self.state_elems, 0, self.ctx)
        (copy,) = copy_launches(
            self.ctx,
            BufferArg(first),
            BufferArg(state),
            self.dtype,
            (self.state_elems,),
            (1,),
            (1,),
        )
        return copy

    def kernel(self, entry: str, step: int, gx: Scratch, **tensors: Buffer) -> Launch:
        """Returns the launch of the gate kernel of one time step, for all sequences and directions.

        Args:
            entry: Entry point of the kernel.
            step: Index of the time step, from 0 on.
            gx: Products of X and W of all time steps, from `multiply_inputs`.
            tensors: Kernel arguments of the states and of products with R, such as `hidden`, `cell`
                and `gh`.
        """
        op, node, y = self.op, self.node, self.node.output
        lens = node.input(4)
        optionals = optional(bias=node.input(3), lens=lens, peephole=node.input(7))
        kernel = KernelSpec.of(
            f"recurrent/{op.entry}.cl",
            entry,
            DATA_T=self.dtype.cl,
            STORAGE=self.dtype.storage,
            GATE_T=self.gate_dtype.cl,
            FUNCTIONS=self.functions(),
            VW=1,
            LENS_T=(DType.INT32 if lens is None else lens.dtype).cl,
            F_BIAS=int("bias" in optionals),
            F_LENS=int("lens" in optionals),
            F_PEEPHOLE=int("peephole" in optionals),
            **op.features(),
        )
        return launch(
            kernel,
            (self.hidden, self.batch, self.directions),
            y=BufferArg(y, 0, self.state_elems),
            gx=BufferArg(gx, 0, self.state_elems * op.gates),
            step=step,
            **tensors,
            **optionals,
            **self.sizes,
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Kernel arguments of sizes and strides (in elements), by name."""
        op = self.op
        first, second, third, _ = contiguous_strides(self.node.output.dims)
        y_steps = (second, third, first) if op.layout else (first, second, third)
        x_steps = (1, self.time) if op.layout else (self.batch, 1)
        names = ("x_t", "x_b", "state_d", "state_b", "y_t", "y_d", "y_b")
        steps = dict(zip(names, (*x_steps, *self.state_strides, *y_steps), strict=True))
        reverse = int(op.direction == "reverse")
        return {"reverse": reverse, "T": self.time, "B": self.batch, "H": self.hidden, **steps}

    def functions(self) -> Code:
        """Returns OpenCL C functions act_0, act_1, …, one per activation.

        The arguments of a function are the direction and the operand.

        Raises:
            UnsupportedError: Kernels do not support an activation.
        """
        clip = self.op.clip
        kind = compute_type(self.gate_dtype)
        high, low = (Literal(v, self.gate_dtype).cl() for v in (clip, -clip))
        clip_code = Code("v = PICK(v > {0}, {0}, v); v = PICK(v < {1}, {1}, v);").substitute(
            *(Code("({0})({1})").substitute(kind, limit) for limit in (high, low))
        )
        code = []
        for index, steps in enumerate(zip(*self.op.functions(self.gate_dtype), strict=True)):
            bodies = []
            for program in steps:
                rendered = render(program, [self.gate_dtype], takes_numbers=False)
                if isinstance(rendered, str):
                    raise UnsupportedError(rendered)
                body = Code("{{ {} return {}; }}").substitute(rendered.body, rendered.result)
                bodies.append(body)
            clips = clip_code if self.op.clips(index) else Code("")
            both = Code("if (d) {1} {0}") if len(set(bodies)) > 1 else Code("{0}")
            code.append(_ACTIVATION.substitute(kind, index, clips, both.substitute(*bodies)))
        return Code(" ").join(code)


def variants(
    walk: Callable[[Node, Lowering, gemm_variants.EmitProduct], RecurrentLaunches],
    typed: bool = True,
) -> tuple[Variant, ...]:
    """Returns the variants of a recurrent op, one per GEMM kernel.

    Args:
        walk: Returns the `RecurrentLaunches` of a node that use the given emit function of a GEMM
            kernel.
        typed: Whether to include variants for dtypes that are not computed in float32.
    """
    return gemm_variants.variants(
        lambda emit: lambda node, ctx: walk(node, ctx, emit).launches(), typed=typed
    )
