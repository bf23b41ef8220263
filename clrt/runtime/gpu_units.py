"""The matrix units of a GPU, found by trying: what its compiler takes, and what multiplies right."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

from clrt.device.caps import MatrixShape
from clrt.device.units import DPAS_8, DPAS_16, MFMA, MMA, WMMA, WMMA_12
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.kernels.gemm_gpu import tile_launches
from clrt.kernels.gemm_unit import UnitWay, plain_kernel
from clrt.kernels.product import MatrixView, Product
from clrt.kernels.spec import BufferArg, Launch, Scratch
from clrt.runtime.driver import cl

# By how extensions begin that a device has.
_CANDIDATES = {
    "cl_nv_": (MMA,),
    "cl_amd_": (WMMA, WMMA_12, MFMA),
    "cl_intel_subgroup_matrix_multiply_accumulate": (DPAS_8, DPAS_16),
}
# A size that is no multiple of a tile's.
_M, _N, _K = 35, 37, 45


@cache
def gpu_units(device: cl.Device) -> frozenset[MatrixShape]:
    """The units of a device of another kind than a CPU."""
    names = device.extensions.split()
    families = [
        family
        for start, candidates in _CANDIDATES.items()
        if any(name.startswith(start) for name in names)
        for family in candidates
    ]
    found: set[MatrixShape] = set()
    for first, *others in families:
        if works(device, first):
            found |= {first, *(u for u in others if works(device, u))}
    return frozenset(found)


def works(device: cl.Device, unit: MatrixShape) -> bool:
    """Whether a small product by a unit compiles, runs and is right."""
    dtype = DType(unit.operands)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, size).astype(dtype.numpy) for size in ((_M, _K), (_K, _N)))
    launch = _product(unit, dtype)
    try:
        found = _run(device, launch, (a, b))
    except cl.Error:
        return False
    return bool(np.array_equal(found, a.astype(np.float32) @ b.astype(np.float32)))


def _product(unit: MatrixShape, dtype: DType) -> Launch:
    """The product of two buffers."""
    a, b, y = Scratch(_M * _K, dtype), Scratch(_K * _N, dtype), Scratch(_M * _N, DType.FLOAT32)
    views = (MatrixView(BufferArg(x), (0, 0, n, 1)) for x, n in ((a, _K), (b, _N)))
    product = Product(y, dtype, (1, 1), _M, _N, _K, *views)
    (launch,) = tile_launches(product, [plain_kernel(product, UnitWay(unit))], 0)
    return launch


def _run(device: cl.Device, launch: Launch, operands: Iterable[Array]) -> Array:
    """The result, the first buffer of a launch, from the others."""
    context = cl.Context([device])
    queue = cl.CommandQueue(context, device)
    spec = launch.kernel
    program = cl.Program(context, spec.text).build([*spec.build_options, "-w"], cache_dir=False)
    kernel = cl.Kernel(program, spec.entry)
    flags = cl.mem_flags
    result = np.zeros((_M, _N), np.float32)
    arrays = iter((result, *operands))
    arguments: list[object] = []
    for arg in launch.args:
        if isinstance(arg, BufferArg):
            array = np.ascontiguousarray(next(arrays)).view(np.uint8)
            buffer = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=array)
            arguments += [buffer, np.int32(arg.offset)]
        else:
            arguments.append(arg)
    kernel.set_args(*arguments)
    cl.enqueue_nd_range_kernel(queue, kernel, launch.global_size, launch.local_size)
    cl.enqueue_copy(queue, result, arguments[0])
    return result
