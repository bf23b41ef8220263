"""Program cache: hits in memory and on disk, damaged entries, private folder."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clrt.errors import InputError, KernelBuildError
from clrt.ir.cl_code import Code
from clrt.kernels.kernel_source import read_source
from clrt.kernels.spec import KernelSpec
from clrt.runtime.opencl import programs
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.program_writer import Saver
from clrt.runtime.opencl.programs import _EXACT, _MAX_RECENT_PROGRAMS, ProgramCache
from tests.harness import all_devices, quick_device

SPEC = KernelSpec.of("pointwise/elementwise.cl", "elementwise_flat", VW=1)


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


def test_program_binary_is_reused_from_disk(device: DeviceInfo, tmp_path: Path) -> None:
    first = _cache(device, tmp_path / "cache")
    assert _doubles(first)
    assert _doubles(first)
    assert first.builds == 1
    second = _cache(device, tmp_path / "cache")
    assert _doubles(second)
    assert second.builds == 0


def test_shipped_programs_are_read_but_not_written(
    device: DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    _doubles(_cache(device, shipped))
    before = {p.name: p.read_bytes() for p in shipped.iterdir()}
    monkeypatch.setattr(programs, "_SHIPPED_PROGRAMS", shipped)
    cache = _cache(device, tmp_path / "cache")
    assert _doubles(cache)
    assert cache.builds == 0
    assert {p.name: p.read_bytes() for p in shipped.iterdir()} == before
    shipped.chmod(0o777)  # anybody might have put native code there
    cache = _cache(device, tmp_path / "other")
    assert _doubles(cache)
    assert cache.builds == 1


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 4000])
def test_damaged_cache_entry_is_rebuilt(device: DeviceInfo, tmp_path: Path, damage: bytes) -> None:
    _doubles(_cache(device, tmp_path))
    (entry,) = tmp_path.glob("*.clbin")
    entry.write_bytes(damage)
    cache = _cache(device, tmp_path)
    assert _doubles(cache)
    assert cache.builds == 1
    assert entry.read_bytes() != damage


def test_language_version_and_options_select_program(device: DeviceInfo, tmp_path: Path) -> None:
    first = _cache(device, tmp_path)
    newest = SPEC.compiled(device.caps.opencl_c)
    exact = SPEC.compiled((1, 2), Code("-cl-fp32-correctly-rounded-divide-sqrt"))
    defined = SPEC.compiled((1, 2), Code("-DOTHER=1"))
    assert device.caps.opencl_c >= (1, 2)
    assert len({SPEC, newest, exact, defined}) == 4 - (device.caps.opencl_c == (1, 2))
    for _ in range(2):
        for spec in (SPEC, newest, defined):
            first.kernel(spec)
    assert first.builds == len({SPEC, newest, defined})
    first.save()
    again = _cache(device, tmp_path)
    again.kernel(defined)
    assert again.builds == 0


def test_plain_string_compiler_options_are_refused(device: DeviceInfo, tmp_path: Path) -> None:
    text = "-DTAKEN_FROM_A_MODEL"
    spec = SPEC.compiled((1, 2), text)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _cache(device, tmp_path).kernel(spec)


def test_renamed_cache_entry_is_rebuilt(device: DeviceInfo, tmp_path: Path) -> None:
    other = KernelSpec.of("pointwise/elementwise.cl", "elementwise_flat", VW=1, OTHER=1)
    first = _cache(device, tmp_path)
    keys = [first._key(spec.text, first._options(spec)) for spec in (SPEC, other)]
    first.kernel(SPEC)
    first.save()
    (tmp_path / f"{keys[0]}.clbin").rename(tmp_path / f"{keys[1]}.clbin")
    cache = _cache(device, tmp_path)
    cache.kernel(other)
    assert cache.builds == 1


def _link(entry: Path) -> None:
    entry.rename(entry.with_suffix(".there"))
    entry.symlink_to(entry.with_suffix(".there"))


def _pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


@pytest.mark.skipif(os.name != "posix", reason="no pipes, and no modes")
@pytest.mark.parametrize("spoil", [_link, _pipe, lambda entry: entry.chmod(0o620)],
                         ids=["link", "pipe", "open_to_others"])  # fmt: skip
def test_link_pipe_or_shared_cache_entry_is_rebuilt(
    device: DeviceInfo, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """Reading a pipe would block; a link may lead to a folder writable by others."""
    _doubles(_cache(device, tmp_path))
    (entry,) = tmp_path.glob("*.clbin")
    spoil(entry)
    cache = _cache(device, tmp_path)
    assert _doubles(cache)
    assert cache.builds == 1
    assert entry.is_file() and not entry.is_symlink()
    again = _cache(device, tmp_path)
    assert _doubles(again)
    assert again.builds == 0


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners")
def test_cache_entry_of_other_user_is_not_read(
    device: DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _doubles(_cache(device, tmp_path))
    (entry,) = tmp_path.glob("*.clbin")
    real = os.fstat

    def fstat(number: int) -> os.stat_result:
        found = list(real(number))
        found[4] = os.getuid() + 1
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", fstat)
    cache = _cache(device, tmp_path)
    assert cache._load(entry.stem, cache._options(SPEC)) is None


def test_unused_programs_are_evicted(device: DeviceInfo, tmp_path: Path) -> None:
    cache = _cache(device, tmp_path)
    held: dict[KernelSpec, cl.Program] = {}
    cache.kernel(SPEC, held)
    specs = [
        KernelSpec.of("pointwise/elementwise.cl", "elementwise_flat", VW=1, N=n)
        for n in range(_MAX_RECENT_PROGRAMS + 1)
    ]
    for spec in specs:
        cache.kernel(spec)
    cache.save()
    gc.collect()
    assert len(cache._programs) == _MAX_RECENT_PROGRAMS + 1
    requests = cache.requests
    cache.kernel(SPEC, held)
    cache.kernel(SPEC)
    cache.kernel(specs[-1])
    assert cache.requests == requests
    held.clear()
    cache.kernel(specs[0])
    gc.collect()
    assert len(cache._programs) == _MAX_RECENT_PROGRAMS


def test_slow_program_writes_wait_for_process_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do not wait for the driver to produce binaries."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr("clrt.runtime.opencl.program_writer._END_S", 2.0)
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr("clrt.runtime.opencl.program_writer.atexit.register", ends.append)
    written: list[str] = []

    def write(key: str, _: object) -> None:
        written.append(key)
        now[0] += 0.8

    threads = threading.active_count()
    saver = Saver(write, True)
    for number in range(5):
        saver.add(str(number), None)
    assert written == [] and threading.active_count() == threads
    (end,) = ends
    end()  # for two seconds, as the next process finds the others in the driver's cache
    assert written == ["0", "1", "2"]
    saver.save()
    assert written == ["0", "1", "2", "3", "4"]


def test_programs_are_written_at_process_exit(device: DeviceInfo, tmp_path: Path) -> None:
    code = (
        "import sys, clrt; from tests.unit.runtime.opencl.test_programs import SPEC, _cache;"
        "from pathlib import Path;"
        "_cache(clrt.devices()[int(sys.argv[1])], Path(sys.argv[2])).kernel(SPEC)"
    )
    command = [sys.executable, "-c", code, str(device.index), str(tmp_path)]
    subprocess.run(command, check=True, timeout=300, cwd=Path(__file__).parents[3])
    assert list(tmp_path.glob("*.clbin"))


def test_pending_program_writes_are_bounded() -> None:
    def refuse(key: str, _: object) -> None:
        raise InputError("no")

    saver = Saver(refuse, False)
    for n in range(100):
        saver.add(str(n), None)
    assert len(saver._waiting) == 16
    with pytest.raises(InputError):
        saver.save()


def test_cache_folder_writable_by_others_is_not_used(device: DeviceInfo, tmp_path: Path) -> None:
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


def test_uncreatable_cache_folder_fails_only_on_save(device: DeviceInfo, tmp_path: Path) -> None:
    """Kernels still compile; only saving raises."""
    (tmp_path / "file").touch()
    cache = _cache(device, tmp_path / "file" / "cache")
    assert cache.kernel(SPEC)
    with pytest.raises(InputError, match="cannot be created: Not a directory"):
        cache.save()


def test_build_error_names_kernel_device_and_log(device: DeviceInfo, tmp_path: Path) -> None:
    oops, empty = Code("oops"), Code("")
    spec = KernelSpec.of("pointwise/elementwise.cl", "elementwise_flat", BODY=oops, READS=empty,
                         RESULT=oops, INPUTS=empty, OUT_T=Code("float"), VW=1)  # fmt: skip
    with pytest.raises(KernelBuildError, match=r"elementwise_flat.*does not compile for") as info:
        _cache(device, tmp_path).kernel(spec)
    assert "oops" in info.value.log


def test_sources_expand_includes_once() -> None:
    text = read_source("pointwise/elementwise.cl")
    assert "#include" not in text
    assert text.count("Conventions of every clrt kernel") == 1
    assert SPEC.text.startswith("#define VW 1\n")


@pytest.mark.parametrize(
    ("kind", "config", "asks"), [("gpu", 191, True), ("gpu", 63, False), ("cpu", 191, False)]
)
def test_gpu_programs_request_exact_division(
    kind: str, config: int, asks: bool, tmp_path: Path
) -> None:
    """Without the option NVIDIA's quotients are inexact, which shifts quantised values."""
    caps = replace(quick_device().caps, kind=kind)
    cache = ProgramCache(None, SimpleNamespace(single_fp_config=config), caps, tmp_path)
    assert (_EXACT in cache._options(SPEC)) is asks
