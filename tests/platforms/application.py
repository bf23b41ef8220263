"""Typical application code, run in a process disguised as another operating system.

    python -X warn_default_encoding -m tests.platforms.application SYSTEM FOLDER DEVICE

FOLDER holds the files written by `test_disguised.py`. Each check prints its name after it has
passed.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import warnings
from pathlib import Path

# What clrt imports while it works: these packages must meet the system that they were built for.
PACKAGES = """
    atexit concurrent.futures contextvars ctypes decimal difflib fractions gc hashlib html
    importlib.metadata importlib.resources inspect json multiprocessing.pool secrets shutil
    statistics subprocess uuid webbrowser zipfile zoneinfo numpy numpy.lib.stride_tricks
    numpy.random onnx onnx.external_data_helper onnx.helper onnx.inliner onnx.numpy_helper
    onnx.parser onnx.reference onnx.shape_inference onnx.version_converter ml_dtypes
    platformdirs pyopencl rich.console rich.progress rich.table rich.text rich.traceback
    tokenizers tqdm.auto typer typer.main typer.testing xxhash
"""


def main(system: str, folder: Path, device: str) -> None:
    for package in PACKAGES.split():
        importlib.import_module(package)
    if system != "linux":
        from tests.platforms.disguise import disguise

        disguise(system)
        _find_intel_runtime()
    warnings.filterwarnings("error", category=EncodingWarning, module=r"clrt(\.|$)")
    os.environ["CLRT_DEVICE"] = device
    for check in (loads, encodes, converts, keeps_open_files, caches, explains):
        check(folder)
        print(check.__name__)


def _find_intel_runtime() -> None:
    """Locates Intel's runtime where pip installs it on Linux, since drivers are Linux's."""
    from clrt.runtime.opencl import icd_loader

    library = Path(sys.prefix, "lib", "libintelocl.so")
    icd_loader.intel_library = lambda: library if library.is_file() else None


def loads(folder: Path) -> None:
    """Loads a model with external weights."""
    import numpy as np

    import clrt

    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    with clrt.load(folder / "model.onnx") as model:
        np.testing.assert_allclose(model.run({"x": x})["y"], y, rtol=1e-5)
    assert clrt.load((folder / "small.onnx").read_bytes()).run([1.0])["y"].tolist() == [2.0]


def encodes(folder: Path) -> None:
    import numpy as np

    import clrt

    vectors, stderr = np.load(folder / "vectors.npy"), sys.stderr
    with clrt.SentenceEncoder(folder / "encoder") as encoder:
        for sys.stderr in (None, stderr):  # type: ignore[assignment]  None where there is a window
            for shown in (None, True):
                found = encoder.encode(["a b c", "d"], batch_size=1, show_progress_bar=shown)
                np.testing.assert_allclose(found, vectors, rtol=1e-5, atol=1e-6)


def converts(folder: Path) -> None:
    import numpy as np

    import clrt

    for _ in range(2):  # the second time over what is there
        status, said = _convert(folder)
        assert status == 0, said
    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    with clrt.load(folder / "model.clrt") as model:
        np.testing.assert_allclose(model.run({"x": x})["y"], y, rtol=1e-5)
    assert sorted(p.name for p in folder.glob("*model*")) == [
        "model.clrt",
        "model.onnx",
        "model.weights",
    ]


def keeps_open_files(folder: Path) -> None:
    """Replacing a file that a model reads fails on Windows and succeeds elsewhere."""
    import clrt

    gc.collect()
    model = clrt.load(folder / "model.clrt")
    before = model.run({"x": [[1.0] * 64]})["y"]
    status, said = _convert(folder)
    if sys.platform == "win32":
        assert status == 1
        assert "a program has it open" in said and "release that model" in said, said
    else:
        assert status == 0, said
    assert (model.run({"x": [[1.0] * 64]})["y"] == before).all()
    model.close()
    del model
    gc.collect()
    status, said = _convert(folder)
    assert status == 0, said


def _convert(folder: Path) -> tuple[int, str]:
    """Returns the exit code of `clrt-convert` and, if nonzero, its output."""
    from typer.testing import CliRunner

    from clrt.cli.convert import app

    result = CliRunner().invoke(app, [str(folder / "model.onnx"), "-o", str(folder / "model.clrt")])
    return result.exit_code, f"{result.output}{result.exception!r}" if result.exit_code else ""


def caches(folder: Path) -> None:
    """Writes compiled programs and tuning records and reads them back."""
    from clrt.kernels import tuning_records as records
    from clrt.kernels.spec import KernelSpec
    from clrt.runtime.opencl.devices import choose_device
    from clrt.runtime.opencl.driver import cl
    from clrt.runtime.opencl.programs import ProgramCache
    from clrt.util.env_vars import DEVICE

    device = choose_device(DEVICE.get())
    builds = []
    for _ in range(2):
        context = cl.Context([device.handle])
        cache = ProgramCache(context, device.handle, device.caps, folder / "cache")
        cache.kernel(KernelSpec.of("pointwise/elementwise.cl", "elementwise_flat", VW=1))
        cache.save()
        builds.append(cache.builds)
    assert builds == [1, 0]
    os.environ["CLRT_CACHE_DIR"] = str(folder / "cache")
    records.save([records.new_record("k", device.caps, {"T_A": 1})])
    records.save([records.new_record("k", device.caps, {"T_A": 2})])
    assert records.record_for("k", device.caps) == {"T_A": 2}


def explains(folder: Path) -> None:
    """Printed text is encodable in the encoding of standard output."""
    from typer.testing import CliRunner

    import clrt
    from clrt.cli.main import app

    with clrt.load(folder / "model.onnx") as model:
        print(model.explain({"x": (2, 64)}))
        profile = model.profile({"x": [[1.0] * 64]}, 2)
        print(profile)
        profile.save_trace(folder / "trace.json")
        profile.save_html(folder / "page.html")
    name = str(folder / "model.onnx")
    for arguments in (["devices"], ["inspect", name], ["explain", name], ["profile", name]):
        result = CliRunner(charset="cp1252").invoke(app, arguments)
        assert result.exit_code == 0, result.output


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
