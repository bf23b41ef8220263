"""Kernel parameters read from sources, and launches checked against them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.errors import ShapeError
from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.kernels.cl_preprocessor import Interface, read_interface
from clrt.kernels.kernel_signature import read_signature
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, Scratch, launch, unread_arg

FILL = KernelSpec.of("tensor/fill.cl", "fill_from", DATA_T=Code("uint"))
VALUE, DST = Scratch(1, DType.FLOAT32), Scratch(8, DType.INT32)


def params(source: str, entry: str = "f", **defines: str) -> str:
    return " ".join(read_interface(source, entry).params(defines))


def test_launch_orders_arguments_by_kernel_source() -> None:
    made = launch(FILL, (8,), (1,), 7, n=8, run=1, dst=BufferArg(DST, 3), value=VALUE)
    args = (BufferArg(VALUE), BufferArg(DST, 3), np.int32(8), np.int32(1))
    assert made == Launch(FILL, (8,), (1,), args, 7)
    assert isinstance(made.args[2], np.int32)
    assert made.accesses() == [(args[0], "read"), (args[1], "write")]


def test_unread_argument_has_no_access() -> None:
    made = launch(FILL, (8,), value=unread_arg(Scratch(2, DType.INT64)), dst=DST, n=8, run=1)
    assert len(made.buffers) == 2
    assert [(a.buffer, access) for a, access in made.accesses()] == [(DST, "write")]


def test_scalar_arguments_convert_to_declared_types() -> None:
    noise = KernelSpec.of("random/random.cl", "random")
    key = (1 << 32) - 1
    made = launch(noise, (1,), y=VALUE, n=1, key_low=key, key_high=0, a=0.5, b=np.float64(2))
    types = [np.int32, np.uint32, np.uint32, np.float32, np.float32]
    assert [type(a) for a in made.args[1:]] == types
    assert made.args[2] == key
    with pytest.raises(ShapeError, match="exceeds 32 bits"):
        launch(FILL, (8,), dst=DST, value=VALUE, n=1 << 31, run=1)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"dst": DST, "value": VALUE, "run": 1}, "missing n; unknown none"),
        ({"dst": DST, "value": VALUE, "n": 8, "m": 8, "run": 1}, "missing none; unknown m"),
        ({"dst": DST, "source": VALUE, "n": 8, "run": 1}, "missing value; unknown source"),
        ({"dst": 8, "value": VALUE, "n": DST, "run": 1}, "dst is a tensor of uint, not 8"),
        ({"dst": DST, "value": VALUE, "n": VALUE, "run": 1}, "n is int, not Scratch"),
        ({"dst": DST, "value": VALUE, "n": 8.0, "run": 1}, "n is int, not 8.0"),
        (
            {"dst": Scratch(8, DType.INT64), "value": VALUE, "n": 8, "run": 1},
            "dst is a tensor of uint",
        ),
    ],
    ids=str,
)
def test_launch_refuses_wrong_arguments(args: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=rf"tensor/fill.cl: .*fill_from.*{re.escape(says)}"):
        launch(FILL, (8,), **args)


def test_float_parameter_refuses_integer() -> None:
    noise = KernelSpec.of("random/random.cl", "random")
    with pytest.raises(TypeError, match="a is float, not 1"):
        launch(noise, (1,), y=VALUE, n=1, key_low=1, key_high=0, a=1, b=2.0)


def test_kernel_parameters_follow_preprocessor_defines() -> None:
    source = """
    #if HAS
    #define INPUT(k) , IN(float, x##k)  // a comment
    #else
    #define INPUT(k)
    #endif
    #define LIST(p) const int p##0, \\
                    const int p##1
    #ifndef KIND
    #define KIND 0
    #define MORE LIST(s)
    #elif KIND > 1 && defined(MANY)
    #define MORE LIST(many), LIST(s)
    #else
    #define MORE const float other
    #endif
    __kernel void f(OUT(T, y) INPUT(1), MORE) { }
    #define MORE wrong
    """
    assert params(source, T="float", HAS="0") == ("OUT ( float , y ) , const int s0 , const int s1")
    assert params(source, T="int", HAS="1", KIND="1") == (
        "OUT ( int , y ) , IN ( float , x1 ) , const float other"
    )
    assert params(source, T="int", HAS="0", KIND="2", MANY="").count("many") == 2


@pytest.mark.parametrize(
    ("test", "value"),
    [
        ("1 + 2 * 3 == 7", True),
        ("(1 + 2) * 3 == 7", False),
        ("!defined(A) && !defined B", False),
        ("defined(A) && B", True),
        ("UNKNOWN || -1 > 0", False),
        ("0x10 >= 16u && 7 % 4 != 3 - 1", True),
    ],
)
def test_preprocessor_conditions_follow_c_rules(test: str, value: bool) -> None:
    source = f"#define A\n#define B 1\n#if {test}\n#define P const int yes\n#endif\n"
    assert (params(f"{source}__kernel void f(P) {{}}") == "const int yes") is value


@pytest.mark.parametrize("declared", ["__global int *x", "int n", "const T n", "IN(T, x)", ""])
def test_unsupported_parameter_declarations_are_refused(
    declared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_source(monkeypatch, f"__kernel void f({declared}) {{}}")
    with pytest.raises(ValueError, match="parameters of f"):
        read_signature("f.cl", "f", {})


def test_duplicate_parameter_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_source(monkeypatch, "__kernel void g(IN(int, x), const int x) {}")
    with pytest.raises(ValueError, match="two parameters of one name"):
        read_signature("f.cl", "g", {})
    with pytest.raises(ValueError, match="no kernel h"):
        read_signature("f.cl", "h", {})


def _with_source(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def interface(source: str, entry: str) -> Interface:
        return read_interface(text, entry)

    monkeypatch.setattr("clrt.kernels.kernel_signature._interface", interface)


def test_launch_objects_are_created_only_in_spec() -> None:
    """Constructing `Launch` directly bypasses the argument checks.

    Stored launches passed these, and those that a template evaluates at other sizes.
    """
    folder = Path(clrt.__file__).parent
    made = [p.relative_to(folder).as_posix() for p in folder.rglob("*.py") if _makes_launches(p)]
    assert sorted(made) == ["kernels/spec.py", "plan/stored_template.py", "plan/template.py"]


def _makes_launches(path: Path) -> bool:
    text = path.read_text("utf-8")
    if "Launch" not in text:
        return False
    calls = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call))
    return any(isinstance(c.func, ast.Name) and c.func.id == "Launch" for c in calls)
