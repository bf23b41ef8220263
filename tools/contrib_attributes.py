"""Writes the attributes of ops that ONNX has no schema for, as ONNX Runtime declares them.

clrt.models.onnx.attributes checks models against the file. Usage:

    python tools/contrib_attributes.py clrt/models/onnx/contrib_attributes.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from clrt.ops import REGISTRY
from clrt.ops.decompositions.registry import imported_ops

# Ops of old exporters that ONNX Runtime does not declare.
_OTHERS = {
    ("", "ConstantFill"): {
        "dtype": "INT",
        "extra_shape": "INTS",
        "input_as_shape": "INT",
        "shape": "INTS",
        "value": "FLOAT",
    },
    ("com.microsoft", "SimplifiedLayerNormalization"): {
        "axis": "INT",
        "epsilon": "FLOAT",
        "stash_type": "INT",
    },
}


def contrib_attributes() -> dict[str, dict[str, dict[str, str]]]:
    """Per domain, op and attribute the ONNX type; `!` behind it where the attribute is required."""
    declared: dict[tuple[str, str], dict[str, str]] = {}
    for schema in get_all_operator_schema():
        found = declared.setdefault((schema.domain, schema.name), {})
        for name, attribute in schema.attributes.items():
            found[name] = f"{attribute.type.name}{'!' if attribute.required else ''}"
    table: dict[str, dict[str, dict[str, str]]] = {}
    for domain, op in sorted({*imported_ops(), *REGISTRY.all_classes()}):
        if domain != "clrt" and not onnx.defs.has(op, domain):
            attributes = declared.get((domain, op)) or _OTHERS.get((domain, op), {})
            table.setdefault(domain, {})[op] = dict(sorted(attributes.items()))
    return table


if __name__ == "__main__":
    text = json.dumps(contrib_attributes(), indent=1, sort_keys=True)
    Path(sys.argv[1]).write_text(text + "\n", encoding="utf-8")
