"""Metadata of Ultralytics in ONNX files."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import field

from clrt.errors import ModelError
from clrt.util.fast_dataclass import dataclass
from clrt.vision.frames import Size

_STRING = r"""'(?:[^'\\]|\\.){0,4096}'|"(?:[^"\\]|\\.){0,4096}\""""
_ENTRY = re.compile(rf"\s*(?:(\d{{1,6}})\s*:)?\s*({_STRING})\s*(?:,|$)")
_PAIR = re.compile(r"[\[(]\s*(\d{1,5})\s*,\s*(\d{1,5})\s*[\])]")
_TRUE = re.compile(r"'nms'\s*:\s*True\b")


@dataclass(frozen=True)
class Export:
    """Metadata that Ultralytics' exporter stores in an ONNX file.

    Attributes:
        task: "detect", "segment", "pose", "obb", "classify", …; "" in files of YOLOv5's own
            exporter.
        names: Class names by index.
        suppressed: Whether the model suppresses overlapping boxes itself, and outputs one class
            per box; None if unknown.
        is_rtdetr: Whether the head is RT-DETR's, with boxes relative to the input's size.
        size: Height and width of the input; None if unknown.
        keypoints: Keypoint values per box of a pose head (points times coordinates); 0 for other
            heads.
    """

    task: str
    names: Mapping[int, str] = field(default_factory=dict)
    suppressed: bool | None = None
    is_rtdetr: bool = False
    size: Size | None = None
    keypoints: int = 0


def read_export(properties: Mapping[str, str]) -> Export | None:
    """Parses Ultralytics' metadata of a model; returns None if the model has none.

    Args:
        properties: Metadata of the ONNX file, by key.

    Raises:
        ModelError: The class names are damaged.
    """
    if "names" not in properties or not {"task", "stride"} & properties.keys():
        return None
    keypoints, size = (_PAIR.fullmatch(properties.get(k, "")) for k in ("kpt_shape", "imgsz"))
    description = f"{properties.get('head', '')} {properties.get('description', '')}".lower()
    ends = properties.get("end2end")
    suppressed = None if ends is None else ends == "True"
    if _TRUE.search(properties.get("args", "")) or properties.get("head") == "RTDETRDecoder":
        suppressed = True
    return Export(
        properties.get("task", ""),
        _names(properties["names"]),
        suppressed,
        "rtdetr" in description or "rt-detr" in description,
        (int(size[1]), int(size[2])) if size and int(size[1]) and int(size[2]) else None,
        int(keypoints[1]) * int(keypoints[2]) if keypoints else 0,
    )


def _names(text: str) -> dict[int, str]:
    """Parses class names written as Python's repr: `{0: 'cat', 1: "dog"}` or `['cat', 'dog']`.

    Raises:
        ModelError: The text has another form.
    """
    inner = text.strip()
    names: dict[int, str] = {}
    if inner[:1] + inner[-1:] not in ("{}", "[]"):
        raise _damaged(text)
    place, end = 1, len(inner) - 1
    while inner[place:end].strip():
        match = _ENTRY.match(inner, place, end)
        if match is None or (match[1] is None) != (inner[0] == "["):
            raise _damaged(text)
        try:
            name = ast.literal_eval(match[2])
        except (SyntaxError, ValueError) as error:
            raise _damaged(text) from error
        names[len(names) if match[1] is None else int(match[1])] = name
        place = match.end()
    return names


def _damaged(text: str) -> ModelError:
    return ModelError(
        f"The file's metadata has names {text!r:.80}; expected a map such as {{0: 'cat'}}; export "
        "the model again, or pass labels=."
    )
