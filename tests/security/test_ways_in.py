"""Model files that once injected code into kernels: refused on every device, without running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pyopencl as cl
import pytest
from onnx import TensorProto, helper

import clrt
from clrt.errors import ModelError
from clrt.models.compiled import CompiledModel, write_compiled
from clrt.models.sources import read_graph
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices
from tests.security.mutate_compiled import TakenApart

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
# Makes a folder as soon as a kernel asks for its place: by a system call of Linux on x86-64 where
# PoCL compiles it, by a function of the C library where Intel's runtime does.
PAYLOADS = {
    "Portable": """0
static long planted(void) {{
  long made;
  __asm__ volatile("syscall" : "=a"(made) : "a"(83L), "D"((long)"{marker}"), "S"(511L)
                   : "rcx", "r11", "memory");
  return made;
}}
#define get_global_id(d) (planted(), get_global_id(d))""",
    "Intel(R)": """0
int system(__constant char *);
#define get_global_id(d) (system("mkdir {marker}"), get_global_id(d))""",
}


def payload(device: DeviceInfo, marker: Path) -> str:
    return PAYLOADS[device.platform.split()[0]].format(marker=marker)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


@DEVICES
def test_injected_payload_runs_if_compiled(device: DeviceInfo, marker: Path) -> None:
    """Proves that the payload works, so that the other tests can fail."""
    context = cl.Context([device.handle])
    kernel = "__kernel void f(__global int *x) { x[get_global_id(0)] = 0; }"
    source = f"#define X {payload(device, marker)}\n{kernel}"
    program = cl.Program(context, source).build(cache_dir=False)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4)
    queue = cl.CommandQueue(context)
    program.f(queue, (1,), (1,), buffer)
    queue.finish()
    assert marker.is_dir()


def _run(file: Path, device: DeviceInfo) -> None:
    with clrt.load(file, device=device.index) as model:
        model.run(np.ones((1, 2, 4, 4), np.float32))


def _model(node: onnx.NodeProto, *functions: onnx.FunctionProto) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    imports = [helper.make_opsetid(d, v) for d, v in _IMPORTS.items()]
    graph = helper.make_graph([node], "graph", [x], [y])
    model = helper.make_model(graph, opset_imports=imports, functions=functions)
    return bytes(model.SerializeToString())


_IMPORTS = {"": 22, "ai.onnx.ml": 5, "clrt": 1, "com.microsoft": 1, "own": 1}


def _node(op: str, domain: str = "", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, ["x"], ["y"], name="planted", domain=domain, **attributes)


def _max_pool(text: str) -> bytes:
    return _model(_node("MaxPool", kernel_shape=[2, 2], storage_order=text))


def _lp_pool(text: str) -> bytes:
    return _model(_node("LpPool", kernel_shape=[2, 2], p=text))


def _trees(text: str) -> bytes:
    return _model(_node("TreeEnsemble", "ai.onnx.ml", aggregate_function=text))


def _own_domain(text: str) -> bytes:
    return _model(_node("LpNormalization", "clrt", p=text))


def _function(text: str) -> bytes:
    """The text is an attribute of a call, and the body's node refers to it."""
    inner = helper.make_node("MaxPool", ["x"], ["y"], name="inner", kernel_shape=[2, 2])
    reference = inner.attribute.add(name="storage_order", type=onnx.AttributeProto.INT)
    reference.ref_attr_name = "order"
    imports = [helper.make_opsetid("", 22)]
    body = helper.make_function("own", "Pool", ["x"], ["y"], [inner], imports, ["order"])
    return _model(_node("Pool", "own", order=text), body)


def _contrib(text: str) -> bytes:
    return _model(_node("QLinearGlobalAveragePool", "com.microsoft", channels_last=text))


WAYS: tuple[Callable[[str], bytes], ...] = (
    _max_pool, _lp_pool, _trees, _own_domain, _function, _contrib,
)  # fmt: skip


@DEVICES
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
def test_onnx_file_runs_no_code(
    way: Callable[[str], bytes], device: DeviceInfo, marker: Path, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(way(payload(device, marker)))
    with pytest.raises(ModelError, match=r"model\.onnx.*(planted|inner)") as info:
        _run(file, device)
    assert len(str(info.value)) < 600
    assert not marker.exists()


@DEVICES
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LpNormalization{axis=1}", "LpNormalization{{axis=1, p={text}}}"),
        ("LpNormalization{axis=1}", "LpNormalization{{axis={text}}}"),
        ("LpNormalization{axis=1}", "LpPool{{kernel_shape=[1, 1], p={text}}}"),
        ("LpNormalization{axis=1}", "MaxPool{{kernel_shape=[1, 1], storage_order={text}}}"),
        ("LpNormalization{axis=1}", "clrt.Fused{{steps=[LeakyRelu{{alpha={text}}}(0)]}}"),
    ],
)
def test_compiled_file_runs_no_code(
    old: str, new: str, device: DeviceInfo, marker: Path, tmp_path: Path
) -> None:
    source, file = tmp_path / "model.onnx", tmp_path / "model.clrt"
    source.write_bytes(_model(_node("LpNormalization", axis=1)))
    write_compiled(CompiledModel(read_graph(source)), file, "a test")
    text = json.dumps(payload(device, marker))

    apart = TakenApart.of(file.read_bytes())
    assert old in apart.metadata["graph"]
    apart.metadata["graph"] = apart.metadata["graph"].replace(old, new.format(text=text))
    file.write_bytes(apart.encode())
    with pytest.raises(ModelError, match=r"model\.clrt.*attribute") as info:
        _run(file, device)
    assert len(str(info.value)) < 600
    assert not marker.exists()
