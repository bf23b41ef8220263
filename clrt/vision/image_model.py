"""Base class of image models: files, preprocessing, batches and labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from clrt.errors import InputError, ModelError, explain_missing_extra
from clrt.ir.op import Array
from clrt.models.sources import onnx_file
from clrt.runtime.execution.signature import TensorSpec
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.files import expanded
from clrt.vision.companions import read_companions
from clrt.vision.configs import labels_of
from clrt.vision.exports import Export, read_export
from clrt.vision.frames import Frame, Size
from clrt.vision.image_inputs import ImageLike, Picture, pictures
from clrt.vision.preprocessor import Preprocessor
from clrt.vision.presets import NAME, kind_of

M = TypeVar("M", bound="ImageModel")

# Outputs of transformers' models: their names determine their meaning, whatever their shape.
_NAMED = frozenset(
    ("logits", "pred_boxes", "pred_masks", "masks_queries_logits", "class_queries_logits",
     "pooler_output", "last_hidden_state", "image_embeds", "text_embeds", "logits_per_image",
     "logits_per_text", "predicted_depth", "reconstruction", "auxiliary_logits", "cls_logits",
     "distillation_logits", "order_logits", "image_features", "feature_maps", "iou_scores"),
)  # fmt: skip


def model_path(source: str | os.PathLike[str]) -> Path:
    """Returns the file or folder of a model, by path or by name in Hugging Face's cache.

    Raises:
        ModelError: There is no such file, folder or cached name.
        UnsupportedError: Finding a name needs the extra `text`, which is not installed.
    """
    path = expanded(Path(source))
    if os.path.exists(path):  # False for paths on which Path.exists raises
        return path
    if path.suffix or path.is_absolute():
        raise ModelError(f"No file or folder '{source}' exists; give the path of a model.")
    with explain_missing_extra("A model by its name"):
        from clrt.models.locate import find_model

    return find_model(str(source), organisation="")  # image models have no default organization


class ImageModel:
    """Base class of image models: loads the files, preprocesses images and runs batches.

    As a context manager it frees its device memory on exit.

    Attributes:
        model: The loaded model.
        preprocessor: Converts images to the model's input.
        labels: Class names by index.
        config: Contents of the model's config.json.
        export: Ultralytics' metadata of the file; None if it has none.
    """

    # Names of supported inputs besides the images.
    _extra_inputs: ClassVar[tuple[str, ...]] = ("pixel_mask",)

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        device: str | int | DeviceInfo | None = None,
        preprocessor: Preprocessor | None = None,
        labels: Mapping[int, str] | Sequence[str] | None = None,
        batch_size: int = 16,
    ) -> None:
        """Loads a model.

        Args:
            source: A Hugging Face folder with `onnx/model.onnx` or `model.onnx`, an ONNX file in
                such a folder, or a compiled model that `clrt-convert` made from either.
            device: As in `clrt.load`.
            preprocessor: Preprocessor; None creates it from the folder's
                `preprocessor_config.json`.
            labels: Class names; None for `id2label` of the folder's `config.json`.
            batch_size: Number of images per run.

        Raises:
            ModelError: A file is missing or damaged.
            InputError: The model does not take images only, or there is no preprocessor.
            UnsupportedError: The model needs an op or a feature that clrt does not support.
            DeviceError: The requested device is absent, or its driver fails.
        """
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size!r}; expected 1 or more.")
        path = model_path(source)
        companions = read_companions(path)
        self.config = companions.config
        self.model = load(self._file(path), device=device)
        self.export: Export | None = read_export(self.model.properties)
        if labels is None:
            export_names = {} if self.export is None else self.export.names
            self.labels = labels_of(self.config) or dict(export_names)
        else:
            self.labels = dict(labels if isinstance(labels, Mapping) else enumerate(labels))
        self._input = _image_input(self.model, self._extra_inputs)
        self._batch_size = batch_size
        preprocessor_config = companions.preprocessor
        self._processor = "" if preprocessor_config is None else kind_of(preprocessor_config)
        self._resolve_outputs()
        if preprocessor is None:
            chosen = (
                self._default_preprocessor(path)
                if preprocessor_config is None
                else Preprocessor.from_config(preprocessor_config)
            )
        else:
            chosen = preprocessor
        self.preprocessor = self._with_input_layout(chosen)

    def _resolve_outputs(self) -> None:
        """Selects the model outputs that the class decodes; the constructor calls it once.

        Does nothing here; subclasses override it.

        Raises:
            InputError, UnsupportedError: The class cannot decode the model's outputs.
        """

    def _file(self, path: Path) -> Path:
        return onnx_file(path) or path

    def _default_preprocessor(self, path: Path) -> Preprocessor:
        raise InputError(
            f"No {NAME} is beside '{path}'; copy the model's there, or pass a Preprocessor."
        )

    @property
    def canvas(self) -> Size | None:
        """Height and width of the model's input in pixels; None if either is dynamic."""
        shape = self._input.shape or ()
        edges = shape[1:3] if shape[-1:] == (3,) else shape[2:4]
        high, wide = edges if len(edges) == 2 else (None, None)
        return (high, wide) if isinstance(high, int) and isinstance(wide, int) else None

    def _with_input_layout(self, preprocessor: Preprocessor) -> Preprocessor:
        """Returns `preprocessor` with `channels_last` set if the model's input is `[..., 3]`.

        `channels_last` is unchanged for other inputs, and for an input whose second dim is also 3.
        """
        shape = self._input.shape or ()
        last = shape[-1:] == (3,) and shape[1:2] != (3,)
        return replace(preprocessor, channels_last=last or preprocessor.channels_last)

    def close(self) -> None:
        """Frees the device memory; the model cannot run afterwards."""
        self.model.close()

    def __enter__(self: M) -> M:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def label(self, number: int) -> str:
        """Returns the name of class `number`, or the number as text if the class has no name."""
        return self.labels.get(number, str(number))

    def _open_images(self, images: ImageLike | Sequence[ImageLike]) -> tuple[list[Picture], bool]:
        return pictures(images)

    def _run_images(
        self, images: Sequence[Picture], outputs: Sequence[str]
    ) -> Iterator[tuple[Frame, dict[str, Array]]]:
        """Preprocesses images and runs the model on them in batches.

        Args:
            images: Opened images.
            outputs: Names of the model outputs to read.

        Yields:
            For each image its placement in the model's input, and the outputs by name, without
            batch axis.
        """
        fixed = (self._input.shape or (None,))[0]
        size = fixed if isinstance(fixed, int) else self._batch_size
        for start in range(0, len(images), size):
            group = list(images[start : start + size])
            missing = size - len(group) if isinstance(fixed, int) else 0
            for frames, outputs_by_name in self._batches([*group, *group[-1:] * missing], outputs):
                for index, frame in enumerate(frames[: len(images) - start]):
                    yield frame, {name: array[index] for name, array in outputs_by_name.items()}

    def _batches(
        self, images: list[Picture], outputs: Sequence[str]
    ) -> Iterator[tuple[Sequence[Frame], dict[str, Array]]]:
        """Runs images as one batch, or one by one if their preprocessed sizes differ.

        A preprocessor with `pad` always makes one batch.

        Args:
            images: Opened images of one batch.
            outputs: Names of the model outputs to read.

        Yields:
            For each run the placements of its images, and the outputs by name, with batch axis.
        """
        canvases = {self.preprocessor.frame(p.size).canvas for p in images}
        groups = [images] if len(canvases) == 1 or self.preprocessor.pad else [[p] for p in images]
        for group in groups:
            batch = self.preprocessor.prepared(group, self.model.device)
            self._check_canvas(batch.frames[0])
            feeds: dict[str, Any] = {self._input.name: batch.pixels, **self._extras()}
            for spec in self.model.inputs:
                if spec.name == "pixel_mask":
                    feeds[spec.name] = _mask(batch.pixel_mask, spec)
            results = self.model.run(feeds, list(outputs))
            yield batch.frames, {k: np.asarray(v) for k, v in results.items()}

    def _extras(self) -> dict[str, Any]:
        """Returns further model inputs by name, besides images and pixel mask; {} here."""
        return {}

    def _check_canvas(self, frame: Frame) -> None:
        if self.canvas is not None and frame.canvas != self.canvas:
            (high, wide), (given_high, given_wide) = self.canvas, frame.canvas
            raise InputError(
                f"The model takes images of {high} x {wide}, but its preprocessor returns "
                f"{given_high} x {given_wide}; pass a Preprocessor of that size."
            )

    def _output(self, names: Sequence[str], rank: int, what: str) -> str:
        """Returns the name of a model output.

        Args:
            names: Names to look for. The first output with one of these names, and with `rank` axes
                or an unknown rank, is selected. If there is none, the only output with `rank` axes
                is selected; outputs with other well-known names (`_NAMED`) do not count.
            rank: Number of axes of the output.
            what: Content of the output, for the message.

        Raises:
            InputError: No output has one of the names, and none or several have `rank` axes.
        """
        specs = self.model.outputs
        named = [s.name for s in specs if s.name in names and len(s.shape or ()) in (0, rank)]
        others = (s for s in specs if s.shape is not None and s.name not in _NAMED)
        fitting = named or [s.name for s in others if len(s.shape or ()) == rank]
        if len(fitting) == 1 or named:
            return fitting[0]
        listing = ", ".join(map(str, specs))
        raise InputError(f"The model has no output for {what}; its outputs are: {listing}.")


def _image_input(model: Model, known: Sequence[str]) -> TensorSpec:
    images = [s for s in model.inputs if s.shape is not None and len(s.shape) == 4]
    image_input = next(
        (s for s in images if s.name == "pixel_values"), images[0] if images else None
    )
    others = [s for s in model.inputs if s is not image_input and s.name not in known]
    if image_input is None or others or 3 not in (image_input.shape or ()):
        listing = ", ".join(map(str, model.inputs))
        raise InputError(
            "Expected a model with the single input [images, 3, height, width]; its inputs are "
            f"{listing}."
        )
    return image_input


def _mask(mask: Array, spec: TensorSpec) -> Array:
    """Converts a pixel mask to the dtype of model input `spec`, and to its size if that is fixed.

    DETR's exporters fix the size at 64.

    Args:
        mask: int `[images, height, width]`: 1 for pixels of the image, 0 for the border.
        spec: The model's input "pixel_mask".
    """
    shape = spec.shape or ()
    if len(shape) == 3 and all(isinstance(d, int) for d in shape[1:]):
        high, wide = int(shape[1]), int(shape[2])
        rows = np.arange(high) * mask.shape[1] // high
        mask = mask[:, rows][:, :, np.arange(wide) * mask.shape[2] // wide]
    return mask.astype(spec.dtype.numpy)
