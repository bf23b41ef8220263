"""`State`: tensors that stay on a device from run to run, such as a language model's KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clrt.errors import InputError
from clrt.runtime.opencl.tensors import DeviceTensor


class State(Mapping[str, DeviceTensor]):
    """Device tensors by input name, replaced after each run by outputs of that run.

    Created by `Model.new_state`. Runs may overwrite the tensors' memory: an output that is computed
    in place of its input, such as TensorScatter's, needs no copy and no allocation. Only one run at
    a time may use a state.

    Attributes:
        pairs: By input name, the name of the output whose tensor replaces it after a run.
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
        tensors = ", ".join(f"{n}: {t.dtype}{list(t.shape)}" for n, t in self._tensors.items())
        return f"<clrt.State {tensors}>"

    def feeds(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all inputs of a run by name: `inputs` and the tensors of the state.

        Args:
            inputs: Inputs that the state does not hold, by name.

        Raises:
            InputError: `inputs` is not a dict, or has an input that the state holds.
        """
        if not isinstance(inputs, Mapping):
            raise InputError("Pass the inputs beside a state as a dict by name.")
        for name in inputs:
            if name in self._tensors:
                raise InputError(f"Input '{name}' is part of the state; leave it out.")
        return {**inputs, **self._tensors}

    def update(self, results: Mapping[str, Any]) -> None:
        """Replaces the tensors of the state by outputs of a run.

        Args:
            results: Outputs by name, at least those named in `pairs`.
        """
        self._tensors = {name: results[output] for name, output in self.pairs.items()}
