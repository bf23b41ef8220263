"""What a user asks of a run, checked, and what becomes of its results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.ops.base import RuntimeValue
from clrt.runtime.execution.signature import Signature
from clrt.runtime.execution.state import State
from clrt.runtime.opencl.tensors import DeviceTensor, PooledBuffer


@dataclass(slots=True)
class RunRequest:
    """A call of `Model.run` or `Model.submit`.

    Attributes:
        wanted: Outputs that are computed, and whether each stays on the device.
        donated: Names of inputs whose memory the run may use up.
        names: Outputs for the user.
        device_outputs: Whether these stay on the device.
        held: Outputs that are, or are from, a container.
        state: Takes over the others.
        leases: The memory of the inputs that are donated.
    """

    feeds: Mapping[str, RuntimeValue]
    wanted: Mapping[str, bool]
    donated: frozenset[str]
    names: Sequence[str]
    device_outputs: bool
    held: frozenset[str]
    state: State | None
    leases: tuple[tuple[DeviceTensor, PooledBuffer], ...]

    @classmethod
    def of(
        cls,
        signature: Signature,
        inputs: Mapping[str, Any] | Any,
        outputs: Sequence[str] | None,
        device_outputs: bool,
        donate: Collection[str],
        state: State | None = None,
    ) -> RunRequest:
        """A call with the arguments of `Model.run`.

        Raises:
            InputError, ShapeError, DeviceError: One does not fit.
        """
        kept: tuple[str, ...] = ()
        if state is not None:
            inputs, kept = state.feeds(inputs), tuple(state.pairs.values())
            donate = {*([donate] if isinstance(donate, str) else donate), *state}
            if outputs is None:
                outputs = [s.name for s in signature.outputs if s.name not in kept]
        names = signature.wanted(outputs)
        feeds = signature.feeds(inputs)
        donated = signature.donated(feeds, donate) if donate else frozenset[str]()
        wanted = dict.fromkeys(names, device_outputs)
        for name in kept:
            wanted[name] = True
        given = [f for n in donated if isinstance(f := feeds[n], DeviceTensor)]
        leases = tuple((tensor, tensor.held()) for tensor in given)
        return cls(feeds, wanted, donated, names, device_outputs, signature.held, state, leases)

    def take_back(self) -> None:
        """Of a call that was broken off, wherever: what was donated is the caller's again."""
        for tensor, lease in self.leases:
            if tensor.lease is None and not tensor.is_released:
                tensor.lease = lease

    def for_user(self, results: Mapping[str, RuntimeValue]) -> dict[str, Any]:
        """The results as `Model.run` returns them."""
        if self.state is not None:
            self.state.update(results)
        return {n: _for_user(results[n], self.device_outputs, n in self.held) for n in self.names}


def _for_user(value: RuntimeValue, device_outputs: bool, held: bool) -> Any:
    """A result as `run` returns it: strings as objects, sequences as lists, maps as dicts.

    Args:
        held: Whether it is, or is from, a container: these hold inputs and constants themselves.
    """
    if type(value) is np.ndarray and value.dtype.kind != "U" and not held:
        return value
    if isinstance(value, list):
        return [_for_user(item, device_outputs, held) for item in value]
    if isinstance(value, DeviceTensor):
        return value if device_outputs else value.numpy()
    if isinstance(value, dict):
        return dict(value)
    if value is None:
        return None
    assert isinstance(value, np.ndarray)
    return value.astype(object) if value.dtype.kind == "U" else value.copy() if held else value
