"""Ultralytics' exports: what the metadata of an ONNX file says of its head."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from clrt.errors import ModelError
from clrt.vision.frames import Size

_STRING = r"""'(?:[^'\\]|\\.){0,4096}'|"(?:[^"\\]|\\.){0,4096}\""""
_ENTRY = re.compile(rf"\s*(?:(\d{{1,6}})\s*:)?\s*({_STRING})\s*(?:,|$)")
_PAIR = re.compile(r"[\[(]\s*(\d{1,5})\s*,\s*(\d{1,5})\s*[\])]")
_TRUE = re.compile(r"'nms'\s*:\s*True\b")


@dataclass(frozen=True)
class Export:
    """Metadata that Ultralytics writes beside a model.

    Attributes:
        task: "detect", "segment", "pose", "obb", "classify", …; "" in files of YOLOv5's own
            exporter, which names none.
        names: The names of classes by number.
        suppressed: Whether the output has one class per box, and none that overlap; None where the
            file does not say.
        is_rtdetr: Whether the head is RT-DETR's: boxes of queries, relative to the input's size.
        size: Height and width of the input.
        keypoints: Numbers per box that a pose head adds: points times coordinates; 0 without.
    """

    task: str
    names: Mapping[int, str] = field(default_factory=dict)
    suppressed: bool | None = None
    is_rtdetr: bool = False
    size: Size | None = None
    keypoints: int = 0


def read_export(properties: Mapping[str, str]) -> Export | None:
    """What Ultralytics wrote into a file; None where it is not one of theirs.

    Raises:
        ModelError: The names of classes are damaged.
    """
    if "names" not in properties or not {"task", "stride"} & properties.keys():
        return None
    keypoints, size = (_PAIR.fullmatch(properties.get(k, "")) for k in ("kpt_shape", "imgsz"))
    said = f"{properties.get('head', '')} {properties.get('description', '')}".lower()
    ends = properties.get("end2end")
    suppressed = None if ends is None else ends == "True"
    if _TRUE.search(properties.get("args", "")) or properties.get("head") == "RTDETRDecoder":
        suppressed = True
    return Export(
        properties.get("task", ""),
        _names(properties["names"]),
        suppressed,
        "rtdetr" in said or "rt-detr" in said,
        (int(size[1]), int(size[2])) if size and int(size[1]) and int(size[2]) else None,
        int(keypoints[1]) * int(keypoints[2]) if keypoints else 0,
    )


def _names(text: str) -> dict[int, str]:
    """The names of `{0: 'cat', 1: "dog"}` or `['cat', 'dog']`, as Python's repr writes them."""
    inner = text.strip()
    names: dict[int, str] = {}
    if inner[:1] + inner[-1:] not in ("{}", "[]"):
        raise _damaged(text)
    place, end = 1, len(inner) - 1
    while inner[place:end].strip():
        found = _ENTRY.match(inner, place, end)
        if found is None or (found[1] is None) != (inner[0] == "["):
            raise _damaged(text)
        try:
            name = ast.literal_eval(found[2])
        except (SyntaxError, ValueError) as error:
            raise _damaged(text) from error
        names[len(names) if found[1] is None else int(found[1])] = name
        place = found.end()
    return names


def _damaged(text: str) -> ModelError:
    return ModelError(
        f"The file's metadata has names {text!r:.80}; expected a map such as {{0: 'cat'}}; export "
        "the model again, or pass labels=."
    )
