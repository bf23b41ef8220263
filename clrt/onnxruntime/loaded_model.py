"""A file of ONNX Runtime's as models of clrt: one, or more where a run asks for another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

from clrt.errors import ClrtError
from clrt.models.onnx.export.exporter import save_model
from clrt.models.onnx.file import FileValue, OnnxFile
from clrt.onnxruntime import exceptions
from clrt.onnxruntime.exceptions import (
    InvalidArgument,
    ModelLoadCanceled,
    WrongType,
    of_file,
    of_load,
)
from clrt.onnxruntime.options import LOG, SessionOptions
from clrt.onnxruntime.types import ModelMetadata, NodeArg, array_type
from clrt.passes.pipeline import optimize
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo

# Where the name of ONNX Runtime's own format stands in a file of it.
_ORT_FORMAT = b"ORTM"


class LoadedFile:
    """An ONNX file on a device.

    An initializer that is an input, too, is a constant until a run gives it a value: then there
    is a second model that has it as an input.

    Attributes:
        inputs, overridable, outputs: As ONNX Runtime shows them.
    """

    def __init__(
        self, source: str | bytes | os.PathLike[str], options: SessionOptions, device: DeviceInfo
    ) -> None:
        if options.given.is_load_cancelled:
            raise ModelLoadCanceled("The flag for it was set in the SessionOptions.")
        self._options = options
        self._device = device
        self._models: dict[frozenset[str], Model] = {}
        self._is_separate = False
        self._lock = RLock()
        self._file = _read(source, options)
        self._values = options.values()
        self._check_values()
        self.model = self.model_for(frozenset())
        self.inputs = [_node_arg(v) for v in self._file.inputs]
        self.overridable = [_node_arg(v) for v in self._file.overridable]
        self.outputs = list(self._outputs())
        if options.optimized_model_filepath:
            self._save(Path(options.optimized_model_filepath))

    def metadata(self) -> ModelMetadata:
        """What the file says of its model."""
        told = self._file.metadata
        return ModelMetadata(
            told.producer,
            told.domain,
            told.version,
            told.description,
            told.graph_name,
            told.graph_description,
            dict(told.properties),
        )

    def model_for(self, given: frozenset[str]) -> Model:
        """The model with some overridable initializers as inputs.

        Raises:
            ClrtError: One of ONNX Runtime's: the model is not valid, or cannot run here.
        """
        with self._lock:
            if given not in self._models:
                try:
                    graph = self._file.graph(given, self._values)
                    level = self._options.optimize_level
                    self._models[given] = load(graph, device=self._device, optimize_level=level)
                except ClrtError as error:
                    raise of_load(error) from error
            return self._models[given]

    def separate_dims(self, refused: Model) -> bool:
        """Lets each dim have a size of its own, for inputs that contradict their dims' names.

        ONNX Runtime does not look at these names.

        Args:
            refused: The model that did not take such inputs.

        Returns:
            Whether there is another model now.
        """
        with self._lock:
            if refused in self._models.values():
                if self._is_separate:
                    return False
                LOG.info("Inputs contradict the names of their dims; loading without these.")
                self._is_separate = True
                self._file.separate_dims()
                self._models.clear()
                self.model = self.model_for(frozenset())
            return True

    def close(self) -> None:
        """Frees the device memory."""
        for model in self._models.values():
            model.close()

    def _check_values(self) -> None:
        for name, value in self._values.items():
            wanted = self._file.constant(name)
            if wanted is None:
                raise InvalidArgument(f"The model has no initializer '{name}'.")
            if wanted != (array_type(value), value.shape):
                raise InvalidArgument(
                    f"Initializer '{name}' is {wanted[0]} {list(wanted[1])}, but its value is "
                    f"{array_type(value)} {list(value.shape)}."
                )

    def _outputs(self) -> Iterator[NodeArg]:
        """The outputs: as the file declares them, and where it does not, as they are inferred."""
        names = _names_of_dims(self._file.inputs, self.model)
        for value, spec in zip(self._file.outputs, self.model.outputs, strict=True):
            inferred = None if spec.shape is None else [_dim(d, names) for d in spec.shape]
            yield NodeArg(value.name, value.type, _merged(value.shape, inferred))

    def _save(self, path: Path) -> None:
        graph = self._file.graph(values=self._values)
        optimize(graph, self._options.optimize_level)
        save_model(graph, path)


def _read(source: str | bytes | os.PathLike[str], options: SessionOptions) -> OnnxFile:
    if isinstance(source, (str, os.PathLike)):
        given: Path | bytes = Path(os.fspath(source))
    elif isinstance(source, bytes):
        given = source
    else:
        raise WrongType(f"Unable to load from type '{type(source)}'")
    try:
        return OnnxFile(given, options.given.sizes, options.given.denoted, options.given.files)
    except ClrtError as error:
        if _head(given)[4:8] == _ORT_FORMAT:
            raise exceptions.NotImplemented(
                "The model is in ONNX Runtime's own format, which clrt does not read; load the "
                "ONNX file that it was made of."
            ) from error
        raise of_file(error, given) from error


def _head(source: Path | bytes) -> bytes:
    if isinstance(source, bytes):
        return source[:8]
    if not os.path.isfile(source):  # where Path's raises, False
        return b""
    with source.open("rb") as file:
        return file.read(8)


def _node_arg(value: FileValue) -> NodeArg:
    return NodeArg(value.name, value.type, list(value.shape or ()))


def _names_of_dims(declared: Sequence[FileValue], model: Model) -> dict[str, str | None]:
    """The name that the file has for each of clrt's symbols."""
    return {
        str(symbol): name if isinstance(name, str) else None
        for value, spec in zip(declared, model.inputs, strict=True)
        for name, symbol in zip(value.shape or (), spec.shape or (), strict=False)
    }


def _dim(dim: int | str, names: dict[str, str | None]) -> int | str | None:
    return dim if isinstance(dim, int) else names.get(dim)


def _merged(declared: Any, inferred: list[int | str | None] | None) -> list[int | str | None]:
    if declared is None or inferred is None or len(declared) != len(inferred):
        return list(inferred or ()) if declared is None else list(declared)
    pairs = zip(declared, inferred, strict=True)
    return [i if isinstance(i, int) or d is None else d for d, i in pairs]
