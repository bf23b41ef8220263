"""Converts preprocessor_config.json of transformers' classes to `Preprocessor`'s arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from clrt.errors import InputError
from clrt.models.huggingface.model_files import read_object
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import expanded
from clrt.vision.configs import RGB

NAME = "preprocessor_config.json"
_HALF = (0.5, 0.5, 0.5)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_KIND = re.compile(r"(\w+?)(?:ImageProcessor|FeatureExtractor)(?:Fast|Pil)?")
# Options that no supported model needs; ignoring them would give wrong inputs.
_REFUSED = ("do_thumbnail", "do_align_long_axis", "do_flip", "do_crop_margin", "do_split_image",
            "do_image_splitting", "do_pan_and_scan", "do_random_crop")  # fmt: skip


@dataclass(frozen=True)
class _ProcessorClass:
    """An image processor class of transformers.

    Attributes:
        defaults: Default values of the configuration's options.
        square: Whether an integer `size` sets both edges; if not, it sets the shortest edge.
        settle: Returns arguments of `Preprocessor` specific to the class, which override the
            common ones; None if there are none.
        pads: Whether `do_pad` adds borders at the right and bottom.
    """

    defaults: Mapping[str, Any]
    square: bool = True
    settle: Callable[[_Config], dict[str, Any]] | None = None
    pads: bool = True


class _Config:
    """Contents of a preprocessor_config.json; its methods check values and supply defaults.

    Args:
        given: Contents of the file.
        kind: Image processor class.
        name: Name of the file, the subject of error messages.

    Raises:
        InputError: Raised by methods: a value has the wrong type or range.
    """

    def __init__(self, given: Mapping[str, Any], kind: _ProcessorClass, name: str) -> None:
        self.name, self.kind = name, kind
        self._values = {**kind.defaults, **{k: v for k, v in given.items() if v is not None}}

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def flag(self, key: str, default: bool) -> bool:
        """Returns the boolean option `key`; `default` if it is missing."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def number(self, key: str, default: float) -> float:
        """Returns option `key`, a number above 0; `default` if it is missing."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise self.wrong(key, value, "a number above 0")
        return value

    def whole(self, key: str, default: int = 1) -> int:
        """Returns option `key`, an integer above 0; `default` if it is missing."""
        value = self.number(key, default)
        if value != int(value):
            raise self.wrong(key, value, "a whole number above 0")
        return int(value)

    def colours(self, key: str) -> RGB:
        """Returns option `key`, three numbers; one number stands for all three color channels."""
        value = self.get(key)
        values = [value] * 3 if isinstance(value, (int, float)) else value
        numbers = isinstance(values, Sequence) and all(isinstance(v, (int, float)) for v in values)
        if not numbers or len(values) != 3:
            raise self.wrong(key, value, "three numbers")
        return cast(RGB, tuple(map(float, values)))

    def size(self, key: str) -> dict[str, int]:
        """Returns option `key`, an image size, as edge name -> pixels.

        The edge names are one of these sets: `height` and `width`; `max_height` and `max_width`;
        `shortest_edge`; `longest_edge`; `shortest_edge` and `longest_edge`.
        """
        value = self.get(key)
        edges: Any = value
        if isinstance(value, int) and not isinstance(value, bool):
            square = self.kind.square or key != "size"
            edges = {"height": value, "width": value} if square else {"shortest_edge": value}
        elif isinstance(value, (list, tuple)) and len(value) == 2:
            edges = dict(zip(("height", "width"), value, strict=True))
        known = isinstance(edges, dict) and frozenset(edges) in _EDGES
        if not known or not all(isinstance(v, int) and 0 < v < 1 << 16 for v in edges.values()):
            raise self.wrong(key, value, "a number of pixels, or a height and width")
        return cast("dict[str, int]", edges)

    def wrong(self, key: str, value: Any, expected: str) -> InputError:
        return InputError(f"{self.name}: {key} is {value!r:.80}; expected {expected}.")


_EDGES = {
    frozenset(names)
    for names in (("height", "width"), ("shortest_edge",), ("shortest_edge", "longest_edge"),
                  ("max_height", "max_width"), ("longest_edge",))
}  # fmt: skip


def arguments_of(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `Preprocessor` for a preprocessor_config.json.

    Args:
        source: The file, its folder, or its contents.

    Raises:
        InputError: The image processor or an option is not supported.
        ModelError: The file is missing, or not JSON.
    """
    name, values = "The config", source
    if not isinstance(source, Mapping):
        path = expanded(Path(source))
        path = path / NAME if os.path.isdir(path) else path
        name, values = f"'{path}'", read_object(path)
    assert isinstance(values, Mapping)
    kind_name = _kind_of(values, name)
    config = _Config(values, _KINDS[kind_name], name)
    for key in _REFUSED:
        if config.flag(key, False):
            raise InputError(
                f"{name}: {key} is true, which is not supported; preprocess without it."
            )
    return _common(config)


def kind_of(source: str | os.PathLike[str] | Mapping[str, Any]) -> str:
    """Returns the prefix of the image processor class in a configuration, such as "Detr".

    Args:
        source: A preprocessor_config.json, or its contents.

    Returns:
        "" if the configuration names no image processor.

    Raises:
        ModelError: The file is missing, or not JSON.
    """
    values = source if isinstance(source, Mapping) else read_object(Path(source))
    class_name = values.get("image_processor_type", values.get("feature_extractor_type"))
    match = _KIND.fullmatch(str(class_name))
    return "" if match is None else match[1]


def is_known_kind(config: Mapping[str, Any]) -> bool:
    """Returns whether a preprocessor_config.json names a supported image processor class."""
    return kind_of(config) in _KINDS


def _kind_of(given: Mapping[str, Any], name: str) -> str:
    class_name = given.get("image_processor_type", given.get("feature_extractor_type"))
    if class_name is None:
        raise InputError(
            f"{name} has no image_processor_type; add it: one of "
            f"{', '.join(f'{k}ImageProcessor' for k in _KINDS)}."
        )
    match = _KIND.fullmatch(str(class_name))
    if match is None or match[1] not in _KINDS:
        raise InputError(
            f"{name} is for {class_name!s:.80}, which is not supported (supported are "
            f"{', '.join(_KINDS)}); create a Preprocessor from arguments."
        )
    return match[1]


def _common(config: _Config) -> dict[str, Any]:
    """Returns all arguments of `Preprocessor` for a configuration, also class-specific ones."""
    args: dict[str, Any] = {"size": None, "resample": config.get("resample")}
    if config.flag("do_resize", True):
        args |= _sizes(config)
    if config.flag("do_center_crop", False):
        edges = config.size("crop_size")
        if set(edges) != {"height", "width"}:
            raise config.wrong("crop_size", edges, "a height and width")
        args["crop"] = edges["height"], edges["width"]
    rescales = config.flag("do_rescale", True)
    args["scale"] = config.number("rescale_factor", 1 / 255) if rescales else 1.0
    if config.kind.pads and config.flag("do_pad", False):
        args |= {"pad": True, "fill": None}
        if config.get("pad_size") is not None:
            edges = config.size("pad_size")
            if set(edges) != {"height", "width"}:
                raise config.wrong("pad_size", edges, "a height and width")
            args["pad_size"] = edges["height"], edges["width"]
    if config.flag("do_normalize", True):
        args |= {"mean": config.colours("image_mean"), "std": config.colours("image_std")}
    if config.kind.settle is not None:
        args |= config.kind.settle(config)
    return args


def _sizes(config: _Config) -> dict[str, Any]:
    edges = config.size("size")
    if "height" in edges:
        return {"size": (edges["height"], edges["width"])}
    if "max_height" in edges:
        return {"size": (edges["max_height"], edges["max_width"]), "fit": "within"}
    if "shortest_edge" not in edges:
        raise config.wrong("size", edges, "a shortest edge, or a height and width")
    longest = edges.get("longest_edge", config.get("max_size"))
    return {"size": (edges["shortest_edge"],) * 2, "fit": "shortest", "longest": longest}


def _convnext(config: _Config) -> dict[str, Any]:
    """Returns the size arguments of `Preprocessor` for ConvNeXT; {} if `do_resize` is off.

    If the configured size is at least 384 pixels, images are stretched to it. Otherwise images are
    resized to the size divided by `crop_pct`, and the center is cropped.
    """
    if not config.flag("do_resize", True):
        return {}
    edges = config.size("size")
    edge = edges.get("shortest_edge", edges.get("height", 0))
    if edge >= 384:
        return {"size": (edge, edge), "fit": "exact"}
    larger = int(edge / config.number("crop_pct", 224 / 256))
    return {"size": (larger, larger), "fit": "shortest", "crop": (edge, edge)}


def _dpt(config: _Config) -> dict[str, Any]:
    """Returns the arguments of `Preprocessor` for DPT: multiples of edges, and padding."""
    args: dict[str, Any] = {
        "multiple": config.whole("ensure_multiple_of"),
        "keep_aspect": config.flag("keep_aspect_ratio", False),
    }
    if config.flag("do_pad", False):
        args |= {"pad_multiple": config.whole("size_divisor"), "fill": None}
    return args


def _detr(config: _Config) -> dict[str, Any]:
    args = _sizes(config) if config.flag("do_resize", True) else {}
    if args.get("fit") == "shortest":
        args["fit"] = "edges"
    return {**args, "fill": None}


def _yolos(config: _Config) -> dict[str, Any]:
    args = _detr(config)
    return {**args, "multiple": 16} if args.get("fit") == "edges" else args


def _mobilevit(config: _Config) -> dict[str, Any]:
    return {"bgr": config.flag("do_flip_channel_order", True)}


def _kind(
    size: Any, resample: int, colours: tuple[RGB, RGB], square: bool = True,
    settle: Callable[[_Config], dict[str, Any]] | None = None, pads: bool = True, **more: Any,
) -> _ProcessorClass:  # fmt: skip
    """Returns an image processor class, with the default values of its options.

    Args:
        size: Default of the option `size`.
        resample: Default filter, by Pillow's number of it.
        colours: Default mean and standard deviation of the color channels.
        square: Whether an integer `size` sets both edges; if not, it sets the shortest edge.
        settle: Returns arguments of `Preprocessor` specific to the class; None for none.
        pads: Whether `do_pad` adds borders at the right and bottom.
        more: Defaults of other options, by name.
    """
    mean, std = colours
    defaults = {"size": size, "resample": resample, "image_mean": mean, "image_std": std}
    return _ProcessorClass({**defaults, **more}, square, settle, pads)


_EDGES_OF_DETR = {"shortest_edge": 800, "longest_edge": 1333}
_PADDED: dict[str, Any] = {"do_pad": True}
_CROPPED: dict[str, Any] = {"do_center_crop": True, "crop_size": 224}
_KINDS: dict[str, _ProcessorClass] = {
    "ViT": _kind(224, 2, (_HALF, _HALF)),
    "DeiT": _kind(256, 3, _IMAGENET, **_CROPPED),
    "Beit": _kind(256, 3, (_HALF, _HALF), pads=False, **_CROPPED),
    "CLIP": _kind(224, 3, _CLIP, False, **_CROPPED),
    "ChineseCLIP": _kind(224, 3, _CLIP, False, **_CROPPED),
    "Siglip": _kind(224, 3, (_HALF, _HALF)),
    "Bit": _kind(224, 3, _CLIP, False, **_CROPPED),
    "ConvNext": _kind({"shortest_edge": 384}, 3, _IMAGENET, False, _convnext, False),
    "Segformer": _kind(512, 2, _IMAGENET, pads=False),
    "MobileNetV1": _kind(256, 2, (_HALF, _HALF), False, **_CROPPED),
    "MobileNetV2": _kind(256, 2, (_HALF, _HALF), False, pads=False, **_CROPPED),
    "MobileViT": _kind(224, 2, (_HALF, _HALF), False, _mobilevit, False, do_normalize=False,
                       do_center_crop=True, crop_size=256),
    "DPT": _kind(384, 3, (_HALF, _HALF), True, _dpt, False),
    "Detr": _kind(_EDGES_OF_DETR, 2, _IMAGENET, False, _detr, **_PADDED),
    "ConditionalDetr": _kind(_EDGES_OF_DETR, 2, _IMAGENET, False, _detr, **_PADDED),
    "DeformableDetr": _kind(_EDGES_OF_DETR, 2, _IMAGENET, False, _detr, **_PADDED),
    "Yolos": _kind(_EDGES_OF_DETR, 2, _IMAGENET, False, _yolos, **_PADDED),
    "RTDetr": _kind(640, 2, _IMAGENET, True, _detr, do_normalize=False, do_pad=False),
}  # fmt: skip
