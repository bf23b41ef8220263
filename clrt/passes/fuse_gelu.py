"""GELU in primitive ops -> Gelu."""

from __future__ import annotations

import math
from dataclasses import field

from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.pointwise.table import Gelu, Mul
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import is_scalar, keeps_shape, op_name, operand_orders, scalar, scaled
from clrt.util.fast_dataclass import dataclass

_TANH_SCALE = math.sqrt(2 / math.pi)
# Factor of x^3 in the tanh approximation of GELU.
_CUBE = 0.044715
# Maximum number of nodes of a flattened product: repeated squaring grows exponentially.
_MAX_NODES = 16


@dataclass
class _FlatProduct:
    """Flattened tree of multiplications: number * product of factors.

    Attributes:
        number: Product of all constant factors.
        factors: Factors that are not constant.
        nodes: Mul and Div nodes of the tree.
    """

    number: float = 1.0
    factors: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


class FuseGelu(Pass):
    """x/2 (1 + erf(x/√2)) -> Gelu, and x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))) -> Gelu(tanh).

    Products match in any order and nesting; the cube may be Pow or a product.
    """

    name = "fuse_gelu"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Mul)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        product = _flatten(view, node)
        if len(product.factors) != 2:
            return None
        for x, other in (product.factors, product.factors[::-1]):
            one_plus = _one_plus(view, other)
            if one_plus is None:
                continue
            inner, nodes = one_plus
            argument = _argument(view, inner, x)
            if not isinstance(argument, tuple):
                return Miss(argument, node)
            if not math.isclose(product.number, 0.5, rel_tol=1e-5):
                return Miss(f"the factor is {product.number:g}, not 0.5", node)
            replaced = list(dict.fromkeys([*product.nodes, *nodes, inner, *argument[1]]))
            if not keeps_shape(x, node.output):
                return Miss("its operands broadcast", node)
            return Match(view, node, replaced_nodes=replaced, payload=(x, argument[0]))
        return None

    def rewrite(self, match: Match) -> Patch:
        x, approximate = match.payload
        build = match.builder(self.name)
        return build.patch({match.root.output: build.add(Gelu(approximate), x)})


def _flatten(view: GraphView, root: Node) -> _FlatProduct:
    """Flattens a tree of multiplications with the last node `root`.

    A factor that is a product itself is flattened if no other node reads it.
    """
    product = _FlatProduct()

    def visit(node: Node) -> None:
        product.nodes.append(node)
        pair = scaled(node)
        if pair is not None:
            product.number *= pair[1]
            descend(node, pair[0])
        elif op_name(node) == "Mul":
            for value in (node.arg(0), node.arg(1)):
                descend(node, value)

    def descend(user: Node, value: Value) -> None:
        node = value.producer
        is_private = node is not None and view.only_user(value) is user
        is_private = is_private and len(product.nodes) < _MAX_NODES
        if node is not None and is_private and (op_name(node) == "Mul" or scaled(node) is not None):
            visit(node)
        else:
            product.factors.append(value)

    visit(root)
    return product


def _one_plus(view: GraphView, value: Value) -> tuple[Node, list[Node]] | None:
    """Matches 1 + f(…), where f is Erf or Tanh.

    Returns:
        The node of f, and a list of the Add node; None for other values.
    """
    node = value.producer
    if node is None or op_name(node) != "Add" or view.only_user(value) is None:
        return None
    for one, rest in operand_orders(node):
        inner = rest.producer
        if is_scalar(one, 1.0) and op_name(inner) in ("Erf", "Tanh") and inner is not None:
            return (inner, [node]) if view.only_user(rest) is node else None
    return None


def _argument(view: GraphView, inner: Node, x: Value) -> tuple[str, list[Node]] | str:
    """Matches the argument of a GELU's Erf or Tanh.

    Args:
        view: Graph of the nodes.
        inner: Erf or Tanh node.
        x: Input of the GELU.

    Returns:
        The `approximate` attribute of Gelu ("none" for Erf, "tanh") and the nodes that compute the
        argument; a reject reason if the argument is not that of a GELU.
    """
    argument = inner.arg(0)
    root = argument.producer
    if root is None or view.only_user(argument) is not inner:
        return "the argument of its Erf or Tanh is used elsewhere, too"
    if op_name(inner) == "Erf":
        pair = scaled(root)
        if pair is None or pair[0] is not x:
            return "its Erf is not of x times a constant"
        if not math.isclose(pair[1], math.sqrt(0.5), rel_tol=1e-5):
            return f"its Erf is of {pair[1]:g} x, not of x / sqrt(2)"
        return "none", [root]
    outer = _flatten(view, root)
    if not math.isclose(outer.number, _TANH_SCALE, rel_tol=1e-5):
        return f"its Tanh is of {outer.number:g} (…), not of sqrt(2 / pi) (…)"
    sums = [v for v in outer.factors if v is not x]
    powers = 3 - (len(outer.factors) - len(sums))
    if len(sums) != 1 or powers not in (2, 3):
        return "its Tanh is not of x + 0.044715 x³"
    cubic = _cubic(view, sums[0], x, powers)
    if cubic is None:
        return "its Tanh is not of x + 0.044715 x³"
    return "tanh", [*outer.nodes, *cubic]


def _cubic(view: GraphView, value: Value, x: Value, power: int) -> list[Node] | None:
    """Matches x + 0.044715 x³ (`power` 3) or 1 + 0.044715 x² (`power` 2).

    Returns:
        The nodes that compute `value` from x; None for other values.
    """
    node = value.producer
    if node is None or op_name(node) != "Add" or view.only_user(value) is None:
        return None
    for linear, rest in operand_orders(node):
        starts = linear is x if power == 3 else is_scalar(linear, 1.0)
        if not starts or rest.producer is None:
            continue
        product = _flatten(view, rest.producer)
        exponents = [_exponent(f, x) for f in product.factors]
        nodes = [f.producer for f in product.factors if f is not x and f.producer is not None]
        if math.isclose(product.number, _CUBE, rel_tol=1e-5) and sum(exponents) == power:
            return [node, *product.nodes, *nodes]
    return None


def _exponent(value: Value, x: Value, nested: int = 0) -> float:
    """Returns n if a value is x to the power n, as Pow or a product; else NaN.

    Args:
        value: Power of x, or any other value.
        x: Base of the power.
        nested: Recursion depth; products nested deeper than 3 give NaN.
    """
    if value is x:
        return 1
    if nested > 2:
        return math.nan
    node = value.producer
    if op_name(node) == "Pow" and node is not None and node.arg(0) is x:
        exponent = scalar(node.arg(1))
        return math.nan if exponent is None else exponent
    if op_name(node) == "Mul" and node is not None:
        return sum(_exponent(v, x, nested + 1) for v in (node.arg(0), node.arg(1)))
    return math.nan
