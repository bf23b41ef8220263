"""Fusion of LayerNorm, RMSNorm, GELU and Swish from elementary ops."""

from __future__ import annotations

import pytest

from clrt.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from clrt.passes.eliminate_dead import EliminateDead
from clrt.passes.fuse_gelu import FuseGelu
from clrt.passes.fuse_layer_norm import FuseLayerNorm
from clrt.passes.fuse_swish import FuseSwish
from clrt.passes.simplify_algebra import SimplifyAlgebra
from tests.passes.helpers import apply, canonical, check, check_miss, graph_of

X = "%x: float32[B,S,8], %s: float32[8], %b: float32[8]"
MEAN = """const %axes: int64[1] = [-1]
const %two: float32[] = 2.0
const %one: float32[] = 1.0
const %eps: float32[] = 0.5
%mean: float32[B,S,1] = ReduceMean(%x, %axes)
%c: float32[B,S,8] = Sub(%x, %mean)
"""
VARIANCE = """%var: float32[B,S,1] = ReduceMean(%sq, %axes)
%safe: float32[B,S,1] = Add(%var, %eps)
%root: float32[B,S,1] = Sqrt(%safe)
"""
AFFINE = """
%scaled: float32[B,S,8] = Mul(%n, %s)
%y: float32[B,S,8] = Add(%scaled, %b)"""


@pytest.mark.parametrize("square", ["Pow(%c, %two)", "Mul(%c, %c)"], ids=["pow", "product"])
@pytest.mark.parametrize(
    "quotient",
    [
        "%n: float32[B,S,8] = Div(%c, %root)",
        "%i: float32[B,S,1] = Reciprocal(%root) %n: float32[B,S,8] = Mul(%i, %c)",
        "%i: float32[B,S,1] = Div(%one, %root) %n: float32[B,S,8] = Mul(%c, %i)",
    ],
    ids=["div", "reciprocal", "one_over"],
)
def test_layer_norm_is_fused(square: str, quotient: str) -> None:
    check(
        FuseLayerNorm(),
        X,
        MEAN + f"%sq: float32[B,S,8] = {square}\n" + VARIANCE + quotient + AFFINE,
        "%y: float32[B,S,8] = LayerNormalization{epsilon=0.5}(%x, %s, %b)",
    )


def test_layer_norm_with_two_subtractions_is_fused() -> None:
    check(
        FuseLayerNorm(),
        X,
        MEAN
        + """%d: float32[B,S,8] = Sub(%x, %mean)
        %sq: float32[B,S,8] = Mul(%d, %d)
        """
        + VARIANCE
        + "%n: float32[B,S,8] = Div(%c, %root)"
        + AFFINE,
        "%y: float32[B,S,8] = LayerNormalization{epsilon=0.5}(%x, %s, %b)",
    )


def test_layer_norm_without_scale_is_fused() -> None:
    check(
        FuseLayerNorm(),
        X,
        MEAN
        + "%sq: float32[B,S,8] = Mul(%c, %c)\n"
        + VARIANCE
        + "%y: float32[B,S,8] = Div(%c, %root)",
        """const %one: float32[8] = [1, 1, 1, 1, 1, 1, 1, 1]
        %y: float32[B,S,8] = LayerNormalization{epsilon=0.5}(%x, %one)""",
    )


def test_rms_norm_is_fused() -> None:
    check(
        FuseLayerNorm(),
        X,
        """const %axes: int64[1] = [2]
        const %eps: float32[] = 0.5
        %sq: float32[B,S,8] = Mul(%x, %x)
        """
        + VARIANCE
        + """%i: float32[B,S,1] = Reciprocal(%root)
        %n: float32[B,S,8] = Mul(%x, %i)
        %y: float32[B,S,8] = Mul(%s, %n)""",
        "%y: float32[B,S,8] = RMSNormalization{epsilon=0.5}(%x, %s)",
    )


def test_norm_not_over_last_axis_is_kept() -> None:
    check_miss(
        FuseLayerNorm(),
        X,
        """const %axes: int64[1] = [1]
        const %eps: float32[] = 0.5
        %mean: float32[B,1,8] = ReduceMean(%x, %axes)
        %c: float32[B,S,8] = Sub(%x, %mean)
        %sq: float32[B,S,8] = Mul(%c, %c)
        %var: float32[B,1,8] = ReduceMean(%sq, %axes)
        %safe: float32[B,1,8] = Add(%var, %eps)
        %root: float32[B,1,8] = Sqrt(%safe)
        %y: float32[B,S,8] = Div(%c, %root)""",
        "not over the last axis",
    )


def test_norm_with_reused_parts_is_kept() -> None:
    check_miss(
        FuseLayerNorm(),
        X,
        MEAN
        + "%sq: float32[B,S,8] = Mul(%c, %c)\n"
        + VARIANCE
        + "%n: float32[B,S,8] = Div(%c, %root) %y: float32[B,S,8] = Add(%n, %root)",
        "used elsewhere",
    )


def test_float64_norm_is_kept() -> None:
    text = MEAN + "%sq: float32[B,S,8] = Mul(%c, %c)\n" + VARIANCE
    text += "%y: float32[B,S,8] = Div(%c, %root)"
    inputs = X.replace("float32", "float64")
    check_miss(FuseLayerNorm(), inputs, text.replace("float32", "float64"), "float64")


def gelu_of(terms: str) -> str:
    constants = {"half": 0.5, "one": 1.0, "k": 0.70710678, "r": 1.41421356, "t": 0.79788456}
    lines = [f"const %{k}: float32[] = {v}" for k, v in constants.items()]
    lines += ["const %c: float32[] = 0.044715", "const %three: float32[] = 3.0"]
    return "\n".join(
        [*lines, *(f"%{t.replace('=', ': float32[B,S,8] =')}" for t in terms.split(";"))]
    )


ERF = "a=Div(%x, %r);e=Erf(%a);p=Add(%e, %one)"


@pytest.mark.parametrize(
    "terms",
    [
        ERF + ";h=Mul(%half, %p);y=Mul(%x, %h)",
        ERF + ";h=Mul(%x, %p);y=Mul(%h, %half)",
        ERF + ";h=Mul(%x, %half);y=Mul(%p, %h)",
        ERF + ";h=Div(%x, %two);y=Mul(%h, %p)".replace("Div(%x, %two)", "Mul(%half, %x)"),
        "a=Mul(%k, %x);e=Erf(%a);p=Add(%one, %e);h=Mul(%p, %half);y=Mul(%h, %x)",
    ],
)
def test_erf_gelu_is_fused(terms: str) -> None:
    before = gelu_of(terms)
    check(FuseGelu(), "%x: float32[B,S,8]", before, "%y: float32[B,S,8] = Gelu(%x)")


CUBES = {
    "pow": "q=Pow(%x, %three);w=Mul(%q, %c);s=Add(%x, %w);m=Mul(%s, %t)",
    "products": "q=Mul(%x, %x);v=Mul(%x, %q);w=Mul(%c, %v);s=Add(%w, %x);m=Mul(%t, %s)",
    "nested": "w=Mul(%c, %x);v=Mul(%w, %x);q=Mul(%v, %x);s=Add(%x, %q);m=Mul(%s, %t)",
    "factored": "q=Mul(%x, %x);w=Mul(%q, %c);s=Add(%w, %one);u=Mul(%x, %t);m=Mul(%u, %s)",
}


@pytest.mark.parametrize("cube", CUBES.values(), ids=CUBES)
@pytest.mark.parametrize(
    "ending", ["h=Mul(%x, %half);y=Mul(%h, %p)", "h=Mul(%p, %half);y=Mul(%x, %h)"]
)
def test_tanh_gelu_is_fused(cube: str, ending: str) -> None:
    before = gelu_of(f"{cube};e=Tanh(%m);p=Add(%e, %one);{ending}")
    expected = '%y: float32[B,S,8] = Gelu{approximate="tanh"}(%x)'
    check(FuseGelu(), "%x: float32[B,S,8]", before, expected)


def test_tanh_gelu_is_fused_after_algebra() -> None:
    terms = CUBES["pow"] + ";e=Tanh(%m);p=Add(%e, %one);h=Mul(%x, %half);y=Mul(%h, %p)"
    graph = graph_of(gelu_of(terms), "%x: float32[B,S,8]")
    apply([SimplifyAlgebra(), EliminateCommonSubexpressions(), FuseGelu(), EliminateDead()], graph)
    expected = '%y: float32[B,S,8] = Gelu{approximate="tanh"}(%x)'
    assert canonical(graph) == canonical(graph_of(expected, "%x: float32[B,S,8]"))


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        (ERF + ";y=Mul(%x, %p)", "the factor is 1"),
        ("a=Mul(%x, %t);e=Erf(%a);p=Add(%e, %one);h=Mul(%half, %p);y=Mul(%x, %h)", "Erf is of"),
        (ERF + ";h=Mul(%half, %p);g=Mul(%x, %h);y=Add(%g, %a)", "used elsewhere"),
        (
            "w=Mul(%x, %c);s=Add(%x, %w);m=Mul(%s, %t);e=Tanh(%m);p=Add(%e, %one);"
            "h=Mul(%x, %half);y=Mul(%h, %p)",
            "Tanh is not of",
        ),
    ],
)
def test_near_gelu_reports_reason(terms: str, reason: str) -> None:
    check_miss(FuseGelu(), "%x: float32[B,S,8]", gelu_of(terms), reason)


@pytest.mark.parametrize(
    ("argument", "product", "expected"),
    [
        ("%x", "Mul(%x, %s)", "Swish(%x)"),
        ("%x", "Mul(%s, %x)", "Swish(%x)"),
        ("%a", "Mul(%x, %s)", "Swish{alpha=1.5}(%x)"),
        ("%d", "Mul(%s, %x)", "Swish{alpha=0.5}(%x)"),
    ],
    ids=["silu", "other order", "scaled", "divided"],
)
def test_swish_is_fused(argument: str, product: str, expected: str) -> None:
    check(
        [EliminateDead(), FuseSwish()],
        "%x: float32[B,S,8]",
        swish_of(argument, product),
        f"%y: float32[B,S,8] = {expected}",
    )


@pytest.mark.parametrize(
    ("argument", "product"),
    [("%x", "Mul(%x, %a)"), ("%t", "Mul(%x, %s)"), ("%x", "Mul(%s, %s)"), ("%v", "Mul(%x, %s)")],
    ids=["no sigmoid", "of something else", "squared", "shifted"],
)
def test_near_swish_is_kept(argument: str, product: str) -> None:
    graph = graph_of(swish_of(argument, product), "%x: float32[B,S,8]")
    before = canonical(graph)
    apply([FuseSwish()], graph)
    assert canonical(graph) == before


def test_swish_with_reused_sigmoid_is_kept() -> None:
    graph = graph_of(
        "%s: float32[B,S,8] = Sigmoid(%x) %p: float32[B,S,8] = Mul(%x, %s)\n"
        "%y: float32[B,S,8] = Add(%p, %s)",
        "%x: float32[B,S,8]",
    )
    before = canonical(graph)
    apply([FuseSwish()], graph)
    assert canonical(graph) == before


def swish_of(argument: str, product: str) -> str:
    return f"""const %c: float32[] = 1.5
    const %two: float32[] = 2.0
    %a: float32[B,S,8] = Mul(%x, %c)
    %d: float32[B,S,8] = Div(%x, %two)
    %t: float32[B,S,8] = Tanh(%x)
    %v: float32[B,S,8] = Sub(%x, %two)
    %s: float32[B,S,8] = Sigmoid({argument})
    %y: float32[B,S,8] = {product}"""
