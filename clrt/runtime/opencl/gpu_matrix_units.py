"""Detects the matrix units of a GPU by test kernels that must compile and multiply correctly."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

import clrt
from clrt.device.caps import MatrixShape
from clrt.device.gpu_matrix_shapes import DPAS_8, DPAS_16, GPU_UNITS, MFMA, MMA, WMMA, WMMA_12
from clrt.errors import InputError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.kernels.gemm_gpu import tile_launches
from clrt.kernels.gemm_matrix_unit_gpu import MatrixUnitConfig, plain_kernel
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand
from clrt.kernels.spec import BufferArg, Launch, Scratch
from clrt.runtime.opencl.driver import cl
from clrt.util.env_vars import cache_dir
from clrt.util.files import atomic_write, make_cache_folder, parse_json, read_regular

# Families whose kernels use inline assembler.
_ASSEMBLER_FAMILIES = (MMA,)
# Prefix of an extension that the device reports -> families of matrix units to test.
_CANDIDATES = {
    "cl_nv_": (MMA,),
    "cl_amd_": (WMMA, WMMA_12, MFMA),
    "cl_intel_subgroup_matrix_multiply_accumulate": (DPAS_8, DPAS_16),
}
# Size of the test product; not a multiple of any tile.
_M, _N, _K = 35, 37, 45
_MAX_FILE_BYTES = 1 << 16


@cache
def gpu_units(device: cl.Device, takes_assembler: bool = True) -> frozenset[MatrixShape]:
    """Returns the matrix-unit shapes that work on a GPU or accelerator.

    Each shape is tested by a kernel; the results are cached on disk. Empty if there is no matrix
    unit.

    Args:
        takes_assembler: Whether to test units that kernels use through inline assembler.
    """
    names = device.extensions.split()
    families = [
        family
        for start, candidates in _CANDIDATES.items()
        if any(name.startswith(start) for name in names)
        for family in candidates
        if takes_assembler or family not in _ASSEMBLER_FAMILIES
    ]
    if not families:
        return frozenset()
    facts = (device.platform.name, device.name, device.driver_version, clrt.__version__)
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:40]
    path = cache_dir() / "devices" / f"{digest}.units.json"
    return remembered(path, lambda: _test_families(device, families))


def remembered(path: Path, find: Callable[[], frozenset[MatrixShape]]) -> frozenset[MatrixShape]:
    """Returns matrix-unit shapes from a cache file; else calls `find` and writes the file.

    A missing or damaged file, or one that other users can write, counts as absent. Without a
    writable folder, no file is written.

    Args:
        path: Cache file, in JSON.
        find: Returns the shapes that work, by testing them.
    """
    by_name = {str(unit): unit for unit in GPU_UNITS}
    with suppress(OSError, ValueError, TypeError, KeyError):
        return frozenset(by_name[name] for name in parse_json(_read(path)))
    shapes = find()
    with suppress(OSError, InputError):
        make_cache_folder(path.parent)
        with atomic_write(path) as stream:
            stream.write(json.dumps(sorted(map(str, shapes))).encode())
    return shapes


def _read(path: Path) -> bytes:
    return read_regular(path, _MAX_FILE_BYTES, private=True)


def _test_families(
    device: cl.Device, families: Iterable[tuple[MatrixShape, ...]]
) -> frozenset[MatrixShape]:
    """Returns the matrix-unit shapes that work on a device.

    Args:
        families: Groups of shapes. If the first shape of a group does not work, the other shapes
            of the group are not tested and count as not working.
    """
    working: set[MatrixShape] = set()
    for first, *others in families:
        if works(device, first):
            working |= {first, *(u for u in others if works(device, u))}
    return frozenset(working)


def works(device: cl.Device, unit: MatrixShape) -> bool:
    """Returns whether a small matrix product on a matrix unit compiles, runs and is correct."""
    dtype = DType(unit.operands)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, size).astype(dtype.numpy) for size in ((_M, _K), (_K, _N)))
    try:
        result = _run(device, _product(unit, dtype), (a, b))
    except cl.Error:
        return False
    return bool(np.array_equal(result, a.astype(np.float32) @ b.astype(np.float32)))


def _product(unit: MatrixShape, dtype: DType) -> Launch:
    """Returns the launch of the `[_M, _K] x [_K, _N]` test product on a matrix unit.

    Args:
        unit: Shape of the matrix unit.
        dtype: Dtype of both operands; the result is float32.
    """
    a, b, y = Scratch(_M * _K, dtype), Scratch(_K * _N, dtype), Scratch(_M * _N, DType.FLOAT32)
    left, right = (MatrixOperand(BufferArg(x), (0, 0, n, 1)) for x, n in ((a, _K), (b, _N)))
    product = GemmProblem(y, dtype, (1, 1), _M, _N, _K, left, right)
    (launch,) = tile_launches(product, [plain_kernel(product, MatrixUnitConfig(unit))], 0)
    return launch


def _run(device: cl.Device, launch: Launch, operands: Iterable[Array]) -> Array:
    """Runs the launch of the test product in a new context; returns its result, float32[_M, _N].

    Args:
        operands: The two matrices, in the order of the launch's buffer arguments. (The result,
            which comes first in the launch, is not among them.)
    """
    context = cl.Context([device])
    queue = cl.CommandQueue(context, device)
    spec = launch.kernel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
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
