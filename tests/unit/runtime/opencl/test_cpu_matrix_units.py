"""Detection of CPU int8 dot instructions and of the AMX matrix unit."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from clrt.device.caps import (
    AMX_BFLOAT16,
    AVX2_INT8,
    AVX_VNNI_INT8,
    VNNI_INT8,
    DeviceCaps,
    MatrixShape,
)
from clrt.device.quirks import quirks_of
from clrt.runtime.opencl.cpu_matrix_units import matrix_shapes


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Fakes x86-64 Linux: CPU flags, and the result of the AMX permission request."""
    asked = SimpleNamespace(flags="fpu amx_bf16 amx_tile amx_int8", code=0)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "read_text", lambda *_: f"flags : {asked.flags}")
    system = SimpleNamespace(syscall=lambda *_: asked.code)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: system)
    matrix_shapes.cache_clear()
    yield asked
    matrix_shapes.cache_clear()


def test_amx_is_reported_if_cpu_and_system_allow(answer: SimpleNamespace) -> None:
    assert matrix_shapes() == {AMX_BFLOAT16}


@pytest.mark.parametrize("flags", ["", "fpu avx512f", "amx_tile amx_int8", "amx_bf16"])
def test_amx_is_absent_without_cpu_flags(answer: SimpleNamespace, flags: str) -> None:
    answer.flags = flags
    assert matrix_shapes() == frozenset()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx avx2 fma", []),
        ("avx2 fma f16c", [AVX2_INT8]),
        ("avx2 fma f16c avx_vnni", [AVX_VNNI_INT8]),
        ("avx2 fma f16c avx512f avx512bw avx512vl", [AVX2_INT8]),
        ("avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_vnni", [VNNI_INT8]),
    ],
)
def test_best_int8_dot_instruction_is_chosen(
    answer: SimpleNamespace, flags: str, expected: list[MatrixShape]
) -> None:
    answer.flags = flags
    assert matrix_shapes() == set(expected)


def test_amx_is_absent_if_system_refuses(answer: SimpleNamespace) -> None:
    answer.code = -1
    assert matrix_shapes() == frozenset()


@pytest.mark.parametrize(("system", "machine"), [("win32", "x86_64"), ("linux", "aarch64")])
def test_matrix_units_are_absent_off_linux_x86_64(
    answer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert matrix_shapes() == frozenset()


def test_only_cpu_compilers_accept_assembler() -> None:
    for name, takes in (
        ("Portable Computing Language", True),
        ("Intel(R) OpenCL", True),
        ("Intel(R) OpenCL Graphics", False),
        ("rusticl", False),
    ):
        caps = DeviceCaps(name, "cpu", "vendor", "1", "cpu")
        assert ("takes-assembler" in quirks_of(caps)) is takes
