"""The program cache: hits in memory and on disk, damaged entries rebuilt, private folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest

from clrt.errors import InputError, KernelBuildError
from clrt.ir.code import Code
from clrt.kernels.spec import KernelSpec
from clrt.runtime.devices import DeviceInfo
from clrt.runtime.programs import ProgramCache
from clrt.runtime.source import read_source, render_source
from tests.harness import all_devices

SPEC = KernelSpec.of("elementwise.cl", "elementwise_flat", VW=1)


@pytest.fixture(params=all_devices(), ids=lambda d: d.platform.split()[0])
def device(request: pytest.FixtureRequest) -> DeviceInfo:
    return request.param  # type: ignore[no-any-return]


def _cache(device: DeviceInfo, folder: Path) -> ProgramCache:
    return ProgramCache(cl.Context([device.handle]), device.handle, device.caps, folder)


def _doubles(cache: ProgramCache, *, save: bool = True) -> bool:
    queue = cl.CommandQueue(cache.context)
    x = np.arange(5, dtype=np.float32)
    source = cl.Buffer(cache.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
    target = cl.Buffer(cache.context, cl.mem_flags.READ_WRITE, x.nbytes)
    kernel = cache.kernel(SPEC)
    zero = np.int32(0)
    kernel.set_args(target, zero, source, zero, np.int32(5))
    cl.enqueue_nd_range_kernel(queue, kernel, (64,), (64,))
    result = np.empty_like(x)
    cl.enqueue_copy(queue, result, target)
    if save:
        cache.save()
    return bool(np.array_equal(result, x + x))


def test_second_process_finds_the_binary(device: DeviceInfo, tmp_path: Path) -> None:
    first = _cache(device, tmp_path / "cache")
    assert _doubles(first)
    assert _doubles(first)
    assert first.builds == 1
    second = _cache(device, tmp_path / "cache")
    assert _doubles(second)
    assert second.builds == 0


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 4000])
def test_damaged_entry_is_rebuilt(device: DeviceInfo, tmp_path: Path, damage: bytes) -> None:
    _doubles(_cache(device, tmp_path))
    (entry,) = tmp_path.glob("*.clbin")
    entry.write_bytes(damage)
    cache = _cache(device, tmp_path)
    assert _doubles(cache)
    assert cache.builds == 1
    assert entry.read_bytes() != damage


def test_folder_open_to_others_is_not_trusted(device: DeviceInfo, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    cache = _cache(device, folder)
    assert _doubles(cache, save=False)
    with pytest.raises(InputError, match=r"Other users can write to .* chmod go-w"):
        cache.save()
    assert not list(folder.iterdir())
    folder.chmod(0o700)
    assert _doubles(cache)
    assert len(list(folder.iterdir())) == 1


def test_folder_that_cannot_be_made(device: DeviceInfo, tmp_path: Path) -> None:
    """Kernels are to be had all the same; only who asks for the files is told."""
    (tmp_path / "file").touch()
    cache = _cache(device, tmp_path / "file" / "cache")
    assert cache.kernel(SPEC)
    with pytest.raises(InputError, match="cannot be made: Not a directory"):
        cache.save()


def test_build_error_names_kernel_device_and_log(device: DeviceInfo, tmp_path: Path) -> None:
    oops, empty = Code("oops"), Code("")
    spec = KernelSpec.of("elementwise.cl", "elementwise_flat", BODY=oops, READS=empty,
                         RESULT=oops, INPUTS=empty, OUT_T=Code("float"), VW=1)  # fmt: skip
    with pytest.raises(KernelBuildError, match=r"elementwise_flat.*does not compile for") as info:
        _cache(device, tmp_path).kernel(spec)
    assert "oops" in info.value.log


def test_sources_expand_includes_once() -> None:
    text = read_source("elementwise.cl")
    assert "#include" not in text
    assert text.count("Conventions of every clrt kernel") == 1
    assert render_source(SPEC).startswith("#define VW 1\n")
