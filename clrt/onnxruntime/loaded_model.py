"""`LoadedFile`: an ONNX file of a session, and the models loaded from it."""

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

# Bytes 4 to 8 of a file in ONNX Runtime's own format.
_ORT_FORMAT = b"ORTM"


class LoadedFile:
    """An ONNX file and the models loaded from it for a device.

    An initializer that is also an input is a constant until a run passes a value for it. Then a
    second model is loaded, in which the initializer is an input.

    Attributes:
        model: Model in which all initializers are constants.
        inputs: Description of each input of the session.
        outputs: Description of each output of the session.
        overridable: Description of each initializer that is also an input.
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
        """Returns the metadata of the ONNX file."""
        metadata = self._file.metadata
        return ModelMetadata(
            metadata.producer,
            metadata.domain,
            metadata.version,
            metadata.description,
            metadata.graph_name,
            metadata.graph_description,
            dict(metadata.properties),
        )

    def model_for(self, given: frozenset[str]) -> Model:
        """Returns the model with some overridable initializers as inputs, loading it if needed.

        Args:
            given: Names of the initializers to have as inputs.

        Raises:
            StatusError: The model is invalid, or cannot run on the device.
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
        """Reloads the model with an independent symbol for each dim.

        ONNX Runtime ignores the names of dims, so that dims of one name may have different sizes.

        Args:
            refused: Model that rejected inputs with such sizes.

        Returns:
            True if `refused` has been replaced, so that the run can be repeated. False if the dims
            of `refused` are independent already.
        """
        with self._lock:
            if refused in self._models.values():
                if self._is_separate:
                    return False
                LOG.info(
                    "The shapes of inputs contradict their dim names; loading without dim names."
                )
                self._is_separate = True
                self._file.separate_dims()
                self._models.clear()
                self.model = self.model_for(frozenset())
            return True

    def close(self) -> None:
        """Frees the device memory of all models loaded from the file."""
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
        """Yields descriptions of the outputs: declared types, and declared or inferred shapes."""
        names = _names_of_dims(self._file.inputs, self.model)
        for value, spec in zip(self._file.outputs, self.model.outputs, strict=True):
            inferred = None if spec.shape is None else [_dim(d, names) for d in spec.shape]
            yield NodeArg(value.name, value.type, _merged(value.shape, inferred))

    def _save(self, path: Path) -> None:
        graph = self._file.graph(values=self._values)
        optimize(graph, self._options.optimize_level)
        save_model(graph, path)


def _read(source: str | bytes | os.PathLike[str], options: SessionOptions) -> OnnxFile:
    """Reads an ONNX file from a path or bytes; raises ONNX Runtime's exceptions."""
    if isinstance(source, (str, os.PathLike)):
        path_or_bytes: Path | bytes = Path(os.fspath(source))
    elif isinstance(source, bytes):
        path_or_bytes = source
    else:
        raise WrongType(f"Unable to load from type '{type(source)}'")
    try:
        given = options.given
        return OnnxFile(path_or_bytes, given.sizes, given.denoted, given.files)
    except ClrtError as error:
        if _head(path_or_bytes)[4:8] == _ORT_FORMAT:
            raise exceptions.NotImplemented(
                "The model is in ONNX Runtime's own format, which clrt does not read; load the "
                "ONNX file that it was made from."
            ) from error
        raise of_file(error, path_or_bytes) from error


def _head(source: Path | bytes) -> bytes:
    """Returns the first 8 bytes of a model file or of bytes; b"" if there is no such file."""
    if isinstance(source, bytes):
        return source[:8]
    if not os.path.isfile(source):  # False for paths for which Path.is_file raises
        return b""
    with source.open("rb") as file:
        return file.read(8)


def _node_arg(value: FileValue) -> NodeArg:
    return NodeArg(value.name, value.type, list(value.shape or ()))


def _names_of_dims(declared: Sequence[FileValue], model: Model) -> dict[str, str | None]:
    """Returns the name in the ONNX file of each symbol of clrt's model; None for unnamed dims.

    Args:
        declared: Inputs as the ONNX file declares them.
        model: Model that clrt loaded from the file.
    """
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
