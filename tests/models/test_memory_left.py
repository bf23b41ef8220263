"""Closing a model returns its memory to the system, including pages of a mapped file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from clrt.runtime.opencl.devices import DeviceInfo
from clrt.tools.convert import Options, convert, write
from tests.harness import all_devices

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

ROWS = 4096
MODEL_MIB = 64
CODE = """
import sys
from pathlib import Path
import numpy as np
import clrt

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256

clrt.load, clrt.devices()  # modules, and those that planning imports
import clrt.runtime.execution.plan_maker
import clrt.runtime.model.open_model
from clrt.ops import REGISTRY
REGISTRY.all_classes()
for _ in range(2):
    before = resident()
    model = clrt.load(sys.argv[1], device=int(sys.argv[2]))
    model.run(np.ones((8, int(sys.argv[3])), np.float32))
    running = resident()
    model.close()
    print(before, running, resident())
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a compiled model of 64 MiB."""
    folder = tmp_path_factory.mktemp("left")
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g '
        f"(float[8,{ROWS}] x, float[{ROWS},{ROWS}] w) => (float[8,{ROWS}] y) {{y = MatMul(x, w)}}"
    )
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((ROWS, ROWS)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    write(convert(model.SerializeToString(), Options()), folder / "m.clrt", [])
    return folder / "m.clrt"


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
def test_closed_model_returns_process_memory(device: DeviceInfo, path: Path) -> None:
    command = [sys.executable, "-c", CODE, str(path), str(device.index), str(ROWS)]
    subprocess.run(command, check=True, timeout=300)  # which compiles: compilers keep memory
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    for line in done.stdout.splitlines():
        before, running, closed = map(int, line.split())
        assert running > before + MODEL_MIB / 2
        assert closed < before + 30
