"""Device listing and selection by get_ep_devices and provider selection policies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import clrt
import clrt.onnxruntime as ort
from clrt.onnxruntime import ep_devices
from clrt.onnxruntime.exceptions import Fail, InvalidArgument, NotImplemented
from tests.models.onnx_text import parsed

NEG = parsed("g (float[n] x) => (float[n] y) { y = Neg(x) }")
CPU = "CPUExecutionProvider"
Policy = ort.OrtExecutionProviderDevicePolicy


def _device(options: Any, **given: Any) -> tuple[int, list[str]]:
    """The index of the device that a session with these options computes on, and its providers."""
    made = ort.InferenceSession(NEG, options, **given)
    assert made.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [-1, -1]
    return made._loaded.model.device.index, made.get_providers()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> int:
    """A CPU device that is taken for a GPU; gives its index."""
    own = clrt.devices()
    cpu = next(d for d in own if d.is_default)
    caps = replace(cpu.caps, kind="gpu")
    changed = [replace(d, caps=caps) if d is cpu else d for d in own]
    for module in ("ep_devices", "providers"):
        monkeypatch.setattr(f"clrt.onnxruntime.{module}.devices", lambda: changed)
    return cpu.index


def test_ep_devices_list_and_select_each_usable_device() -> None:
    usable = {d.index for d in clrt.devices() if d.usable and not d.caps.simulator}
    found = ort.get_ep_devices()
    assert {d.device.device_id for d in found if d.ep_name == "ClrtExecutionProvider"} == usable
    assert {d.ep_name for d in found} <= set(ort.get_available_providers())
    for device in found:
        options = ort.SessionOptions()
        options.add_provider_for_devices([device], {})
        assert options.has_providers()
        index, names = _device(options)
        assert index == device.device.device_id and names[0] == device.ep_name
        kind = clrt.devices()[index].kind
        assert (device.device.type == ort.OrtHardwareDeviceType.CPU) == (kind == "cpu")


def test_ep_devices_list_gpu_under_each_gpu_provider(gpu: int) -> None:
    found = [d for d in ort.get_ep_devices() if d.device.type == ort.OrtHardwareDeviceType.GPU]
    assert {d.device.device_id for d in found} == {gpu}
    assert {"CUDAExecutionProvider", "DmlExecutionProvider"} < {d.ep_name for d in found}
    options = ort.SessionOptions()
    options.set_provider_selection_policy(Policy.PREFER_GPU)
    assert options.given.pick is not None and options.given.pick().device.index == gpu


def test_selection_policy_picks_device_or_warns() -> None:
    cpus = {d.index for d in clrt.devices() if d.kind == "cpu"}
    options = ort.SessionOptions()
    options.set_provider_selection_policy(Policy.PREFER_CPU)
    index, names = _device(options)
    assert index in cpus and names == [CPU]
    default = next(d.index for d in clrt.devices() if d.is_default)
    options.set_provider_selection_policy(Policy.MAX_PERFORMANCE)
    assert _device(options)[0] == default
    with pytest.warns(UserWarning, match="PREFER_NPU: there is no such device"):
        options.set_provider_selection_policy(Policy.PREFER_NPU)
    for policy in (Policy.MAX_EFFICIENCY, Policy.MIN_OVERALL_POWER):
        with pytest.raises(NotImplemented, match="depends on power"):
            options.set_provider_selection_policy(policy)
    with pytest.raises(InvalidArgument, match="is not an OrtExecutionProviderDevicePolicy"):
        options.set_provider_selection_policy(99)


def test_selection_delegate_picks_device() -> None:
    options = ort.SessionOptions()
    last: list[Any] = []

    def select(found: Any, model: Any, runtime: Any, most: int) -> Any:
        last[:] = found[-1:]
        return last

    options.set_provider_selection_policy_delegate(select)
    assert _device(options)[0] == last[0].device.device_id
    options.set_provider_selection_policy_delegate(lambda *_: [])
    with pytest.raises(Fail, match="returned no device"):
        ort.InferenceSession(NEG, options)


def test_invalid_device_selections_are_refused() -> None:
    options = ort.SessionOptions()
    found = ort.get_ep_devices()
    with pytest.raises(InvalidArgument, match="one or more"):
        options.add_provider_for_devices([], {})
    with pytest.raises(InvalidArgument, match="not one of get_ep_devices"):
        options.add_provider_for_devices(["cuda"], {})
    own = [d for d in found if d.ep_name == "ClrtExecutionProvider"]
    other = next(d for d in found if d.ep_name == CPU)
    with pytest.raises(InvalidArgument, match="one execution provider"):
        options.add_provider_for_devices([own[0], other], {})
    twin = replace(own[0], info=replace(own[0].info, index=99))
    with pytest.raises(Fail, match="one device"):
        options.add_provider_for_devices([own[0], twin], {})
    with pytest.raises(NotImplemented, match="works only with ONNX Runtime"):
        ep_devices.register_execution_provider_library("npu", "npu.so")
    assert not options.has_providers()


def test_session_providers_override_selected_devices() -> None:
    options = ort.SessionOptions()
    options.add_provider_for_devices(ort.get_ep_devices()[:1], {})
    with pytest.warns(UserWarning, match="those of the session count"):
        assert _device(options, providers=[CPU])[1] == [CPU]
