"""State: tensors that stay on a device from run to run, such as the cache of a language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clrt.errors import InputError
from clrt.runtime.opencl.tensors import DeviceTensor


class State(Mapping[str, DeviceTensor]):
    """Inputs of a model that hold what outputs of the run before were; see `Model.new_state`.

    A run may write to their memory: where an output is computed in the place of its input, as by
    TensorScatter, nothing is copied and nothing allocated. One run uses a state at a time.

    Attributes:
        pairs: Names of inputs, and of the outputs that take their place.
    """

    def __init__(self, pairs: Mapping[str, str], tensors: Mapping[str, DeviceTensor]) -> None:
        self.pairs = dict(pairs)
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> DeviceTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        held = ", ".join(f"{n}: {t.dtype}{list(t.shape)}" for n, t in self._tensors.items())
        return f"<clrt.State {held}>"

    def feeds(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a run with those that the state holds.

        Raises:
            InputError: One of them is given, too.
        """
        if not isinstance(inputs, Mapping):
            raise InputError("Pass the inputs beside a state as a dict by name.")
        for name in inputs:
            if name in self._tensors:
                raise InputError(f"Input '{name}' is given, and the state holds it; leave it out.")
        return {**inputs, **self._tensors}

    def update(self, results: Mapping[str, Any]) -> None:
        """Takes over the outputs of a run."""
        self._tensors = {name: results[output] for name, output in self.pairs.items()}
