"""`RunRequest`: the checked arguments of a run, and the conversion of its results for users."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.ir.runtime_values import RuntimeValue
from clrt.runtime.execution.signature import Signature
from clrt.runtime.execution.state import State
from clrt.runtime.opencl.tensors import DeviceTensor, PooledBuffer

_NONE = frozenset[str]()


@dataclass(slots=True)
class RunRequest:
    """Checked arguments of `Model.run` or `Model.submit`.

    Attributes:
        feeds: Converted inputs by name, including the tensors of `state`.
        wanted: Names of the outputs to compute, and whether each stays on the device.
        donated: Names of inputs whose memory the run may overwrite.
        names: Names of the outputs to return, a subset of `wanted`.
        device_outputs: Whether the returned outputs stay on the device.
        held: Names of the model's outputs that are sequences, optionals or maps.
        state: State that feeds the run and receives its outputs; None if there is none.
        leases: Donated tensors and their memory.
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
        """Checks and converts the arguments of `Model.run`.

        Args:
            signature: Inputs and outputs of the model.
            inputs: Inputs by name, or the only input itself; with `state`, the remaining inputs.
            outputs: Names of the outputs to return; None for all that `state` does not receive.
            device_outputs: Whether the returned outputs stay on the device.
            donate: Names of the inputs to donate; inputs from `state` are always donated.
            state: State that feeds the run and receives its outputs; None if there is none.

        Raises:
            InputError: An argument does not match the model.
            DeviceError: A tensor is on another device.
        """
        kept: tuple[str, ...] = ()
        leases: tuple[tuple[DeviceTensor, PooledBuffer], ...]
        if state is not None:
            inputs, kept = state.feeds(inputs), tuple(state.pairs.values())
            donate = {*([donate] if isinstance(donate, str) else donate), *state}
            if outputs is None:
                outputs = [s.name for s in signature.outputs if s.name not in kept]
        names = signature.wanted(outputs)
        feeds = signature.feeds(inputs)
        wanted = dict.fromkeys(names, device_outputs)
        for name in kept:
            wanted[name] = True
        donated, leases = _NONE, ()
        if donate:
            donated = signature.donated(feeds, donate)
            tensors = [f for n in donated if isinstance(f := feeds[n], DeviceTensor)]
            leases = tuple((tensor, tensor.held()) for tensor in tensors)
        return cls(feeds, wanted, donated, names, device_outputs, signature.held, state, leases)

    def take_back(self) -> None:
        """Gives donated tensors their memory back, after an interrupted call."""
        for tensor, lease in self.leases:
            if tensor.lease is None and not tensor.is_released:
                tensor.lease = lease

    def for_user(self, results: Mapping[str, RuntimeValue]) -> dict[str, Any]:
        """Updates the state, and returns the outputs that the user requested, by name.

        Tensors become arrays unless `device_outputs`; sequences are lists, maps are dicts, and
        absent optionals are None.

        Args:
            results: Outputs of the run by name, for each name in `wanted`.
        """
        if self.state is not None:
            self.state.update(results)
        user: dict[str, Any] = {}
        for name in self.names:
            value = results[name]
            if type(value) is not np.ndarray or value.dtype.kind == "U" or name in self.held:
                value = _for_user(value, self.device_outputs, name in self.held)
            user[name] = value
        return user


def _for_user(value: RuntimeValue, device_outputs: bool, held: bool) -> Any:
    """Converts an output of a run for the user; strings become arrays of dtype object.

    Args:
        device_outputs: Whether device tensors are returned as they are; else as arrays.
        held: Whether the output is a sequence, optional or map. Its arrays are then copied, since
            they may be inputs or constants of the model.
    """
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
