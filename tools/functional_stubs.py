"""Writes `clrt/functional/typed.pyi`: what type checkers and editors know of `clrt.functional`.

The functions of ops are made when they are first used, of ONNX's schemas.
"""

from __future__ import annotations

import argparse
import inspect
import subprocess
import sys
from pathlib import Path

from clrt.functional import common
from clrt.functional.operators import function_of, names_in
from clrt.models.onnx.op_schemas import Attribute, FormalParameter, OpSchemaInfo, op_schemas

TARGET = Path(__file__).parents[1] / "clrt/functional/typed.pyi"
HEAD = '''\
"""Made by tools/functional_stubs.py: arrays give arrays, a tensor on a device gives those."""

# Of two that fit the first is meant: all is on the host.
# mypy: disable-error-code="overload-overlap"
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, overload

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.runtime.opencl.tensors import DeviceTensor

_Host: TypeAlias = Array | np.generic | bool | int | float | str | Sequence[Any]
_Operand: TypeAlias = _Host | DeviceTensor
_Device: TypeAlias = str | int | None
_Dtype: TypeAlias = int | DType | np.dtype[Any] | type
_Sizes: TypeAlias = int | Sequence[int]
'''
KINDS = {
    "int": "int",
    "ints": "Sequence[int]",
    "float": "float",
    "floats": "Sequence[float]",
    "string": "str",
    "strings": "Sequence[str]",
}
# Attributes that mean a dtype.
DTYPES = {"dtype", "to", "output_dtype", "output_datatype", "stash_type", "softmax_precision"}
ALIASES = {"Device": "_Device", "Sizes": "_Sizes"}


def stub() -> str:
    """The text of the file, as ruff formats it."""
    parts = [HEAD]
    parts += [_usual(name) for name in common.__all__]
    parts += [_op(op_schemas()["", name]) for name in names_in("")]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", TARGET.name, "-"],
        input="\n".join(parts),
        capture_output=True,
        text=True,
        check=True,
        cwd=TARGET.parents[2],
    )
    return done.stdout


def _usual(name: str) -> str:
    """A function of `common`: those that take Any take operands."""
    found = []
    for operand, result in (("_Host", "Array"), ("_Operand", "DeviceTensor")):
        parameters = []
        for each in inspect.signature(getattr(common, name)).parameters.values():
            kind = _own_kind(str(each.annotation), operand, each.default is None)
            parameters.append((each, kind))
        found.append(_overload(name, parameters, result))
    return "\n".join(found)


def _own_kind(annotation: str, operand: str, optional: bool) -> str:
    if annotation == "Any":
        return f"{operand} | None" if optional else operand
    if annotation == "Sequence[Any]":
        return f"Sequence[{operand}]"
    for name, alias in ALIASES.items():
        annotation = annotation.replace(name, alias)
    return annotation


def _op(form: OpSchemaInfo) -> str:
    """An op: on the host, on a device, and with as many outputs as are asked for."""
    always = [f for f in form.outputs or () if f.option == "single"] or list(form.outputs or ())
    more = form.outputs is None or len(always) < len(form.outputs) or _open(always)
    names = {f.name: f for f in form.inputs or ()}
    if form.inputs == () or any(map(_is_tensor, names.values())) or form.inputs is None:
        found = [_signature(form, "_Host", _result(always, "Array"), False)]
        if names or form.inputs is None:
            found.append(_signature(form, "_Operand", _result(always, "DeviceTensor"), False))
    else:  # what is in the sequences tells
        found = [_signature(form, "_Operand", "Any", False)]
    if more:
        found.append(_signature(form, "_Operand", "Any", True))
    return "\n".join(found) if len(found) > 1 else found[0].replace("@overload\n", "")


def _open(formals: list[FormalParameter]) -> bool:
    return any(f.option == "variadic" for f in formals)


def _result(formals: list[FormalParameter], kind: str) -> str:
    if not formals or _open(formals) or any(not _is_tensor(f) for f in formals):
        return "Any"
    return kind if len(formals) == 1 else f"tuple[{', '.join([kind] * len(formals))}]"


def _is_tensor(formal: FormalParameter) -> bool:
    return all(t.startswith("tensor(") for t in formal.types)


def _signature(form: OpSchemaInfo, operand: str, result: str, asks: bool) -> str:
    formals = {f.name: f for f in form.inputs or ()}
    parameters = []
    for each in inspect.signature(function_of("", form.name)).parameters.values():
        if each.name == "outputs":
            if asks:
                each, kind = each.replace(default=inspect.Parameter.empty), "int"
                parameters.append((each, kind))
            continue
        if each.name == "device":
            kind = "_Device"
        elif each.name in form.attributes:
            kind = _attribute_kind(form.attributes[each.name], each.default is None)
        else:
            formal = formals.get(each.name)
            kind = operand if formal is None or _is_tensor(formal) else "Any"
            kind += " | None" if each.default is None and kind != "Any" else ""
        parameters.append((each, kind))
    return _overload(form.name, parameters, result)


def _attribute_kind(attribute: Attribute, optional: bool) -> str:
    is_dtype = attribute.kind == "int" and attribute.name in DTYPES
    kind = "_Dtype" if is_dtype else KINDS.get(attribute.kind, "Any")
    return f"{kind} | None" if optional and kind != "Any" else kind


def _overload(name: str, parameters: list[tuple[inspect.Parameter, str]], result: str) -> str:
    parts = []
    for each, kind in parameters:
        keyword = each.kind == inspect.Parameter.KEYWORD_ONLY
        if keyword and "*" not in parts and not any(p.startswith("*") for p in parts):
            parts.append("*")
        star = "*" if each.kind == inspect.Parameter.VAR_POSITIONAL else ""
        has = each.default is not inspect.Parameter.empty
        parts.append(f"{star}{each.name}: {kind}{f' = {each.default!r}' if has else ''}")
    return f"@overload\ndef {name}({', '.join(parts)}) -> {result}: ..."


def main() -> None:
    """Writes the file; with --check it fails where the file differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = stub()
    if parser.parse_args().check:
        sys.exit(f"{TARGET} is not what {__file__} makes; run it." if text != _there() else 0)
    TARGET.write_text(text, "utf-8")


def _there() -> str:
    return TARGET.read_text("utf-8") if TARGET.exists() else ""


if __name__ == "__main__":
    main()
