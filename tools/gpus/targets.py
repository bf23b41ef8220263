"""Compiles kernels for GPU targets and reads the compilers' statistics."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from clrt.kernels.spec import KernelSpec

from .loops import AMD, AMD_PAIRED, INTEL, NVIDIA, Loop, Syntax, main_loop
from .toolchain import AMD_BUILTINS, CLANG, NVIDIA_BUILTINS, CompileError, find, run


@dataclass(frozen=True)
class Compiled:
    """A kernel on a target.

    Attributes:
        registers: 32-bit registers per work-item; on Intel, vector registers per thread.
        spilled: Spilled bytes; registers on AMD.
        stack: Private memory per work-item in bytes.
        local: Local memory per work-group in bytes.
        occupancy: Work-items of a compute unit's scheduler at a time, as `12 waves` or `SIMD16`.
        loop: Main loop, with the multiply-adds.
    """

    registers: int = 0
    spilled: int = 0
    stack: int = 0
    local: int = 0
    occupancy: str = ""
    loop: Loop | None = None

    @property
    def fits(self) -> bool:
        """Returns whether nothing spills."""
        return not self.spilled and not self.stack


Compile: TypeAlias = "Callable[[KernelSpec, int, Path], Compiled]"
# Those whose peak counts two float operations of one instruction.
_PAIRED = "gfx11", "gfx12"
_WARPS = {"sm_80": 64, "sm_89": 48, "sm_90": 64}
_LOCAL_KB = {"sm_80": 164, "sm_89": 100, "sm_90": 228}
_REGISTERS, _WARP, _RESERVED = 65536, 32, 1024
_MATRIX = "cl_intel_subgroup_matrix_multiply_accumulate"
_DPAS = f"-cl-feature=+{_MATRIX} -D{_MATRIX}=1"


def _clang(spec: KernelSpec, folder: Path, *options: str) -> str:
    source = folder / "kernel.cl"
    source.write_text(spec.text, "utf-8")
    header = ("-Xclang", "-finclude-default-header")
    common = ("-x", "cl", *spec.build_options, *header, "-w", "-O3", *options, str(source))
    return run([find(*CLANG), *common])


def compile_amd(target: str, spec: KernelSpec, items: int, folder: Path) -> Compiled:
    """Compiles for AMD by clang, with libclc."""
    assembly = folder / "kernel.s"
    log = _clang(
        spec,
        folder,
        *("-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-nogpulib", "-g1"),
        "-Rpass-analysis=kernel-resource-usage",
        *("-Xclang", "-mlink-builtin-bitcode", "-Xclang", find(AMD_BUILTINS)),
        *("-S", "-o", str(assembly)),
    )
    syntax = AMD_PAIRED if target.startswith(_PAIRED) else AMD
    return read_amd(log, assembly.read_text("utf-8"), syntax)


def read_amd(log: str, assembly: str, syntax: Syntax = AMD) -> Compiled:
    """Reads clang's remarks and its assembly."""
    pattern = r"remark:\s+([A-Za-z ]+?)(?: \[[^\]]*\])?: (\d+) \[-Rpass"
    found = {name: int(number) for name, number in re.findall(pattern, log)}
    return Compiled(
        found["VGPRs"] + found.get("AGPRs", 0),
        found["VGPRs Spill"] + found["SGPRs Spill"],
        found["ScratchSize"],
        found["LDS Size"],
        f"{found['Occupancy']} waves",
        main_loop(assembly.splitlines(), syntax),
    )


def compile_nvidia(target: str, spec: KernelSpec, items: int, folder: Path) -> Compiled:
    """Compiles for NVIDIA by clang with libclc, ptxas and nvdisasm."""
    ptx, binary = folder / "kernel.ptx", folder / "kernel.cubin"
    _clang(
        spec,
        folder,
        *("-target", "nvptx64-nvidia-nvcl", "-Xclang", "-target-cpu", "-Xclang", target),
        *("-Xclang", "-mlink-builtin-bitcode", "-Xclang", find(NVIDIA_BUILTINS)),
        *("-S", "-o", str(ptx)),
    )
    log = run([find("ptxas"), f"-arch={target}", "-O3", "-v", "-o", str(binary), str(ptx)])
    return read_nvidia(log, run([find("nvdisasm"), "-c", str(binary)]), target, items)


def read_nvidia(log: str, assembly: str, target: str, items: int) -> Compiled:
    """Reads ptxas' report and nvdisasm's assembly."""
    registers = _number(r"Used (\d+) registers", log)
    local = _number(r"(\d+) bytes smem", log)
    return Compiled(
        registers,
        _number(r"(\d+) bytes spill stores", log),
        _number(r"(\d+) bytes stack frame", log),
        local,
        f"{resident_warps(target, registers, local, items)} warps",
        main_loop(assembly.splitlines(), NVIDIA),
    )


def resident_warps(target: str, registers: int, local: int, items: int) -> int:
    """How many warps a multiprocessor holds at a time, by NVIDIA's occupancy calculator.

    A warp gets registers by 256, a work-group local memory with 1 KB for the system.
    """
    warps = -(-items // _WARP)
    of_warp = -(-registers * _WARP // 256) * 256
    groups = min(
        _WARPS[target] // warps,
        _REGISTERS // (of_warp * warps),
        (_LOCAL_KB[target] << 10) // (local + _RESERVED),
    )
    return groups * warps


def compile_intel(target: str, spec: KernelSpec, items: int, folder: Path) -> Compiled:
    """Compiles for Intel by ocloc, whose compiler writes assembly to a given folder."""
    source, dump = folder / "kernel.cl", folder / "dump"
    source.write_text(spec.text, "utf-8")
    dump.mkdir()
    options = " ".join((*spec.build_options, "-w"))
    # What a driver tells its compiler of devices with such units, ocloc is not told.
    internal = ("-internal_options", _DPAS) if "intel_sub_group" in spec.text else ()
    log = run(
        [
            *(find("ocloc"), "compile", "-file", str(source), "-device", target),
            *("-options", options, "-output", "kernel", "-out_dir", str(folder), *internal),
        ],
        IGC_ShaderDumpEnable="1",
        IGC_DumpToCustomDir=str(dump),
    )
    # The widest SIMD comes first, and a second try before the first one, in whose place it is.
    kept = sorted(dump.glob("*.asm"))
    if not kept:
        raise CompileError(f"ocloc made no assembly: {log.strip()[-1500:]}")
    return read_intel(kept[0].name, kept[0].read_text("utf-8", errors="replace"))


def read_intel(name: str, assembly: str) -> Compiled:
    """Reads an assembly file of Intel's compiler, by its name and text."""
    return Compiled(
        _number(r"numGRF=(\d+)", assembly),
        _number(r"^//\.spill size (\d+)", assembly),
        _number(r"^//\.private memory size (\d+)", assembly),
        0,
        f"SIMD{_number(r'simd([0-9]+)', name)}",
        main_loop(assembly.splitlines(), INTEL),
    )


def compile_strict(spec: KernelSpec, items: int, folder: Path) -> Compiled:
    """Checks that a kernel is OpenCL C 1.2 without extensions, as Apple's compiler has it."""
    target = ("-target", "spir64-unknown-unknown", "-Xclang", "-cl-ext=-all")
    _clang(spec, folder, *target, "-fsyntax-only")
    return Compiled()


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text, re.MULTILINE)
    return int(found[1]) if found else 0


STRICT = "strict"
_FAMILIES: dict[Callable[[str, KernelSpec, int, Path], Compiled], tuple[str, ...]] = {
    compile_amd: ("gfx90a", "gfx1030", "gfx1100", "gfx1201"),
    compile_nvidia: ("sm_80", "sm_89", "sm_90"),
    compile_intel: ("skl", "tgllp", "dg2", "pvc"),
}
TARGETS: dict[str, Compile] = {
    **{name: partial(how, name) for how, names in _FAMILIES.items() for name in names},
    STRICT: compile_strict,
}
