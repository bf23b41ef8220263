"""Device choice of a Ray actor, for drivers that follow Ray's visible GPUs or not."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from clrt.device.caps import DeviceCaps
from clrt.errors import DeviceError
from clrt.ray import resources
from clrt.ray.cluster import ActorResources, share_of
from clrt.runtime.opencl import devices as devices_module
from clrt.runtime.opencl.devices import DeviceInfo


def make(index: int, platform: str, kind: str = "gpu", usable: bool = True) -> DeviceInfo:
    caps = DeviceCaps(platform, f"{platform} {kind} {index}", "", "", kind)
    return DeviceInfo(index, caps, usable, "", False, None)


CPU, IGPU = make(0, "Portable", "cpu"), make(1, "Intel", "igpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[DeviceInfo]:
    """List of OpenCL devices, filled by tests."""
    there: list[DeviceInfo] = []
    for module in (resources, devices_module):
        monkeypatch.setattr(module, "devices", lambda: there)
    return there


def place(monkeypatch: pytest.MonkeyPatch, gpus: list[str] | None) -> None:
    """Fakes a Ray actor with the given GPUs, or Ray's driver process if None."""
    context = SimpleNamespace(
        get_actor_id=lambda: None if gpus is None else "actor",
        get_task_id=lambda: None,
        get_accelerator_ids=lambda: {"GPU": gpus, "TPU": []},
    )
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("granted", "shown", "wanted"),
    [
        # Drivers that show what Ray left visible.
        (["0"], ["A"], 2),
        (["3"], ["A"], 2),
        (["2", "3"], ["A", "A"], 2),
        (["MIG-4d7a"], ["A"], 2),
        # Such that show all.
        (["0"], ["A", "A", "A"], 2),
        (["2"], ["A", "A", "A"], 4),
        (["1", "2"], ["A", "A", "A"], 3),
        # The same GPUs by two implementations.
        (["1"], ["A", "A", "B", "B"], 3),
    ],
)
def test_granted_gpu_maps_to_opencl_device(
    machine: list[DeviceInfo],
    monkeypatch: pytest.MonkeyPatch,
    granted: list[str],
    shown: list[str],
    wanted: int,
) -> None:
    place(monkeypatch, granted)
    machine += [CPU, IGPU, *(make(2 + i, name) for i, name in enumerate(shown))]
    assert resources.device_for_actor() == wanted


@pytest.mark.parametrize("granted", ["MIG-4d7a", "7"])
def test_unmatched_granted_gpu_is_reported(
    machine: list[DeviceInfo], monkeypatch: pytest.MonkeyPatch, granted: str
) -> None:
    place(monkeypatch, [granted])
    machine += [CPU, make(1, "A"), make(2, "A")]
    with pytest.raises(DeviceError, match=f"gave this actor GPU {granted}.*name one by device="):
        resources.device_for_actor()
    machine[:] = [CPU]
    with pytest.raises(DeviceError, match="No OpenCL device matches 'gpu'"):
        resources.device_for_actor()


def test_unusable_gpu_is_skipped(
    machine: list[DeviceInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    place(monkeypatch, ["5"])
    machine += [CPU, make(1, "A", usable=False), make(2, "A")]
    assert resources.device_for_actor() == 2


def test_actor_without_gpu_uses_cpu(
    machine: list[DeviceInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine += [CPU, make(1, "A")]
    place(monkeypatch, [])
    assert resources.device_for_actor() == "cpu"


def test_user_device_choice_overrides_ray(
    machine: list[DeviceInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine += [CPU, make(1, "A")]
    place(monkeypatch, ["0"])
    assert resources.device_for_actor("cpu") == "cpu"
    assert resources.device_for_actor(0) == 0
    monkeypatch.setenv("CLRT_DEVICE", "cpu")
    assert resources.device_for_actor() is None


def test_no_device_is_chosen_outside_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, None)
    assert resources.device_for_actor() is None
    monkeypatch.delitem(sys.modules, "ray")
    assert resources.device_for_actor() is None


def node(alive: bool = True, **resources: float) -> dict[str, object]:
    return {"Alive": alive, "Resources": {"memory": 1e9, **resources}}


def test_cluster_share_counts_cpus_gpus_and_actors() -> None:
    cpus = [node(CPU=8), node(CPU=16), node(alive=False, CPU=2), node(), node(CPU=0)]
    assert share_of(cpus, None) == ActorResources(8, 0, 3)
    gpus = [node(CPU=8), node(CPU=16, GPU=4), node(CPU=2, GPU=1)]
    assert share_of(gpus, None) == share_of(gpus, "gpu") == ActorResources(1, 1, 5)
    assert share_of(gpus, "cpu") == ActorResources(2, 0, 13)
    with pytest.raises(DeviceError, match="has a free CPU"):
        share_of([node()], None)
