"""Kernel sources contain only clrt's own text: `Code` is built from literals in clrt."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import clrt
from clrt.ir.cl_code import Code, render_define
from clrt.kernels.spec import KernelSpec

_FOLDER = Path(clrt.__file__).parent
# The rows of the pointwise table are literals, too: it makes Code of its second argument.
_ROW = ("ops/pointwise/table.py", "_row")
# Where Code is made of something else than a literal, and why that is clrt's own text.
_OTHERWISE = {
    ("ir/cl_code.py", "Code(self.format(*map(render_define, args), **pieces))"),
    ("ir/cl_code.py", "Code(super().join((render_define(p) for p in parts)))"),
    ("ir/cl_code.py", "Code(self.replace(render_define(old), render_define(new)))"),
    ("ir/cl_code.py", "Code(int.__repr__(value))"),
    ("ir/cl_code.py", "Code(float(value).hex())"),
    ("ir/dtypes.py", "Code(d.value)"),  # members of an enum
    ("ops/pointwise/table.py", "Code(expr)"),  # arguments of `_row`
    ("ops/pointwise/table.py", "Code(int_expr)"),
    # Code that clrt has stored in a folder of the user's, as it stores native programs.
    ("plan/stored_template.py", "Code(value)"),
    ("plan/stored_template.py", "Code(option)"),
}


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    for file in sorted(_FOLDER.rglob("*.py")):
        place, text = file.relative_to(_FOLDER).as_posix(), file.read_text(encoding="utf-8")
        if "Code" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
                if name == "Code" or (place, name) == _ROW:
                    yield place, name, node


def test_code_is_built_from_literals() -> None:
    found = set()
    for file, name, call in calls():
        expressions = [k.value for k in call.keywords if k.arg == "int_expr"]
        given = [call.args[1 if name == "_row" else 0], *expressions]
        if not all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in given):
            found.add((file, ast.unparse(call)))
    assert found == _OTHERWISE


@pytest.mark.parametrize(
    "value",
    [
        *("1\n__kernel void f() {}", "1", b"1", None, [1], (1,), {}, object()),
        *(math.nan, math.inf, 1 << 64, np.float32(1), np.int64(1)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_defines_accept_only_numbers_and_code(value: object) -> None:
    with pytest.raises(TypeError, match="no part of a kernel's source"):
        render_define(value)
    with pytest.raises(TypeError):
        KernelSpec.of("tensor/fill.cl", "fill_bits", VALUE=value)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _ = KernelSpec("tensor/fill.cl", "fill_bits", (("VALUE", value),)).text  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Code("{}").substitute(value)  # type: ignore[arg-type]


def test_string_operations_lose_code_type() -> None:
    code = Code("a")
    for text in (code + code, f"{code}", code.upper(), code.replace("a", "b"), "".join([code])):
        with pytest.raises(TypeError):
            render_define(text)


def test_defines_render_numbers_canonically() -> None:
    values = (True, False, -3, 1 << 63, 0.1, -0.0)
    assert [render_define(v) for v in values] == [
        "1", "0", "-3", "9223372036854775808", "0x1.999999999999ap-4", "-0x0.0p+0",
    ]  # fmt: skip
    assert Code("{0} + {b}").substitute(1, b=Code("x")) == "1 + x"
    assert Code(", ").join([Code("a"), Code("b")]) == "a, b"
