"""Embeddings of images, and of texts in the same space."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError, explain_missing_extra
from clrt.ir.op import Array
from clrt.models.huggingface.model_files import file_exists, read_optional
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.files import check_link
from clrt.vision.companions import beside
from clrt.vision.image_inputs import ImageLike, Picture
from clrt.vision.image_model import ImageModel, model_path
from clrt.vision.preprocessor import Preprocessor

if TYPE_CHECKING:
    from clrt.text.tokenize import TextTokenizer

# Default maximum number of text tokens: of CLIP, and of SigLIP.
_POSITIONS = 77
_SIGLIP_POSITIONS = 64
_TEXT_INPUTS = ("input_ids", "attention_mask", "position_ids")
_IMAGES, _TEXTS = "vision_model.onnx", "text_model.onnx"


class ImageEncoder(ImageModel):
    """Computes embeddings of images, and of texts for models such as CLIP and SigLIP.

    A model folder has `onnx/vision_model.onnx` and `onnx/text_model.onnx`, or one `model.onnx` for
    images and texts. Models for images alone, such as DINOv2, do not encode texts.
    """

    _extra_inputs = ("pixel_mask", *_TEXT_INPUTS)

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        device: str | int | DeviceInfo | None = None,
        preprocessor: Preprocessor | None = None,
        batch_size: int = 16,
    ) -> None:
        """Loads a model.

        Args:
            source: A Hugging Face folder, or an ONNX file in one.
            device: As in `clrt.load`.
            preprocessor: Preprocessor; None creates it from the folder's
                `preprocessor_config.json`.
            batch_size: Number of images or texts per run.

        Raises:
            ModelError: A file is missing or damaged.
            InputError: The model does not take images, or there is no preprocessor.
            UnsupportedError: The model or its preprocessor is not supported.
            DeviceError: The requested device is absent, or its driver fails.
        """
        self._path = model_path(source)
        args: dict[str, Any] = {"device": device, "preprocessor": preprocessor}
        super().__init__(source, **args, batch_size=batch_size)
        self._texts: Model | None = None
        self._uses_mask = True
        self._tokenizer: TextTokenizer | None = None

    def _file(self, path: Path) -> Path:
        return _model_file(path, _IMAGES) or super()._file(path)

    def close(self) -> None:
        """Frees the device memory; the models cannot run afterwards."""
        super().close()
        if self._texts is not None:
            self._texts.close()

    def encode(
        self, images: ImageLike | Sequence[ImageLike], normalize: bool = True
    ) -> NDArray[np.float32]:
        """Computes the embeddings of images.

        Args:
            images: Images in the forms of `Preprocessor.prepare`.
            normalize: Whether to scale embeddings to unit length.

        Returns:
            float32 `[images, size]`, or `[size]` for one image that is not in a list.

        Raises:
            InputError: An image cannot be read, or the model has no output of embeddings.
            DeviceError: The driver fails.
        """
        opened, alone = self._open_images(images)
        vectors = self.encode_pictures(opened, normalize)
        return vectors[0] if alone else vectors

    def encode_pictures(
        self, opened: Sequence[Picture], normalize: bool = True
    ) -> NDArray[np.float32]:
        """Computes the embeddings of opened images, float32 `[images, size]`.

        Args:
            opened: Opened images.
            normalize: Whether to scale embeddings to unit length.
        """
        names = {s.name for s in self.model.outputs}
        name: str | None
        name = next((n for n in ("image_embeds", "pooler_output") if n in names), None)
        ranks = {s.name: len(s.shape or ()) for s in self.model.outputs}
        if name is None and ranks.get("last_hidden_state") in (0, 3):
            vectors = [
                o["last_hidden_state"][0]
                for _, o in self._run_images(opened, ["last_hidden_state"])
            ]
        else:
            known = name or self._output((), 2, "vectors, [images, size]")
            vectors = [outputs[known] for _, outputs in self._run_images(opened, [known])]
        return _normalized(np.stack(vectors), normalize)

    def encode_text(
        self, texts: str | Sequence[str], normalize: bool = True
    ) -> NDArray[np.float32]:
        """Computes the embeddings of texts, comparable with embeddings of images.

        Args:
            texts: A text, or a list of texts.
            normalize: Whether to scale embeddings to unit length.

        Returns:
            float32 `[texts, size]`, or `[size]` for one text that is not in a list.

        Raises:
            InputError: The model does not encode texts, or a text is not valid Unicode.
            ModelError: The tokenizer's file is missing or damaged.
            UnsupportedError: The extra `text` is not installed.
        """
        text_list = [texts] if isinstance(texts, str) else list(texts)
        if not text_list:
            raise InputError("The list of texts is empty; pass at least one.")
        model, tokenizer = self._text_parts()
        batches = [
            self._text_run(model, tokenizer, text_list[k : k + self._batch_size])
            for k in range(0, len(text_list), self._batch_size)
        ]
        vectors = _normalized(np.concatenate(batches), normalize)
        return vectors[0] if isinstance(texts, str) else vectors

    def _text_parts(self) -> tuple[Model, TextTokenizer]:
        """Returns the text model and its tokenizer, loaded at the first call.

        Raises:
            InputError: The model does not encode texts.
        """
        if self._texts is None:
            file = _model_file(self._path, _TEXTS)
            if file is not None:
                self._texts = load(file, device=self.model.device)
            elif any(s.name == "input_ids" for s in self.model.inputs):
                self._texts = self.model
            else:
                raise InputError(
                    f"'{self._path}' has no {_TEXTS}, and its model has no text input; use a "
                    "model with both, such as CLIP."
                )
        if self._tokenizer is None:
            with explain_missing_extra("Vectors of texts"):
                from clrt.text.config import TextConfig
                from clrt.text.tokenize import TextTokenizer
                from clrt.text.tokenizer_files import tokenizer_steps
            folder = (beside(self._path, "tokenizer.json") or self._path / "tokenizer.json").parent
            tokenizer_config = read_optional(folder / "tokenizer_config.json")
            input_names = tokenizer_config.get("model_input_names")
            self._uses_mask = not isinstance(input_names, list) or "attention_mask" in input_names
            steps = tokenizer_steps(folder, tokenizer_config)
            lower = self.config.get("model_type") == "siglip2"
            config = TextConfig(
                folder, self._path, max_length=self._positions(), lower_case=lower, **steps
            )
            self._tokenizer = TextTokenizer(config)
        return self._texts, self._tokenizer

    def _positions(self) -> int:
        """Returns the maximum number of tokens of a text, from config.json or else a default."""
        inner = self.config.get("text_config")
        values: Mapping[str, Any] = inner if isinstance(inner, dict) else self.config
        default = _SIGLIP_POSITIONS if self._pads_whole() else _POSITIONS
        positions = values.get("max_position_embeddings", default)
        return positions if isinstance(positions, int) and positions > 2 else default

    def _pads_whole(self) -> bool:
        """Returns whether texts are padded to the maximum length, as SigLIP was trained."""
        return "siglip" in str(self.config.get("model_type", ""))

    def _text_run(self, model: Model, tokenizer: TextTokenizer, texts: list[str]) -> Array:
        from clrt.text.feeds import model_feeds

        tokens = tokenizer.encode(texts)
        length = self._positions() if self._pads_whole() else max(map(len, tokens))
        specs = [s for s in model.inputs if s.name in _TEXT_INPUTS[:2]]
        left = tokenizer.pads_left
        feeds: dict[str, Any] = {**model_feeds(tokens, length, tokenizer.pad_id, specs, left)}
        if not self._uses_mask and "attention_mask" in feeds:  # the model attends to padding
            feeds["attention_mask"] = np.ones_like(feeds["attention_mask"])
        if model is self.model:
            feeds[self._input.name] = _blank_image(self._input.shape or (), self.preprocessor)
        names = {s.name for s in model.outputs}
        name = next((n for n in ("text_embeds", "pooler_output") if n in names), None)
        if name is None:
            raise InputError(
                f"The text model has no output text_embeds or pooler_output; it has "
                f"{sorted(names)}."
            )
        return np.asarray(model.run(feeds, [name])[name])[: len(texts)]

    def _extras(self) -> dict[str, Any]:
        """Returns placeholder text inputs by name, with dynamic dims of 1; {} if there are none."""
        feeds = {}
        for spec in self.model.inputs:
            if spec.name in _TEXT_INPUTS:
                dims = [d if isinstance(d, int) else 1 for d in spec.shape or (1, 1)]
                feeds[spec.name] = np.ones(dims, spec.dtype.numpy)
        return feeds


def _model_file(path: Path, name: str) -> Path | None:
    """Returns the path of ONNX file `name` of a model; None if it is missing.

    Args:
        path: The model's folder, or its vision or text model file. For other files the result is
            None.
        name: Name of the file to look for.
    """
    if path.is_dir():
        candidates = (path / "onnx" / name, path / name)
    elif path.name in (_IMAGES, _TEXTS):
        candidates = (path.parent / name,) * 2
    else:
        return None
    file = next((f for f in candidates if file_exists(f)), None)
    if file is not None:
        check_link(file, path if path.is_dir() else path.parent)
    return file


def _blank_image(shape: Sequence[int | str], preprocessor: Preprocessor) -> Array:
    size = preprocessor.crop or preprocessor.size or (224, 224)
    dims = [1, 3, *size] if len(shape) != 4 else [*shape]
    sizes = dict(enumerate((1, 3, *size)))
    return np.zeros([d if isinstance(d, int) else sizes[k] for k, d in enumerate(dims)], np.float32)


def _normalized(vectors: Array, normalize: bool) -> NDArray[np.float32]:
    result = vectors.astype(np.float32)
    if normalize:
        result = result / np.maximum(np.linalg.norm(result, axis=-1, keepdims=True), 1e-12)
    return result.astype(np.float32)
