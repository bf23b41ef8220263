"""One registry of decompositions: what ops stand for, as graphs made with a `Builder`.

A decomposition is a function of one node, with its typed inputs, and of the builder that it makes
new nodes with; it returns values for the node's outputs. For whom it is, is data: the importer asks
by the name that an op has in a file, the planner and the exporter by the class of an op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from clrt.ir.builder import Builder
from clrt.ir.graph import Names, Node, Value
from clrt.ir.op import IrOp
from clrt.ops.base import Op
from clrt.ops.node_errors import NodeErrorContext

Results: TypeAlias = "Sequence[Value | None]"
# Called with the node, or what the importer knows of one, and a builder. None leaves the node as
# it is; a result that is None is an output that clrt does not have.
Rule: TypeAlias = "Callable[[Any, Any], Results | None]"
RuleOf = TypeVar("RuleOf", bound=Rule)
Key: TypeAlias = "type[Op] | tuple[str, str]"


class DecompositionStage(Enum):
    """Who asks for a decomposition.

    IMPORT: The importer, of an op that clrt lacks in the form that a file has.
    PLANNING: The optimiser and, with numbers for all shapes, the planner.
    LOWERING: The planner alone, of an op that has no form of its own on a device.
    REPEATED: The planner, where a graph runs again and again with the same shapes.
    EXPORT: The exporter, of an op that ONNX or ONNX Runtime lacks.
    """

    IMPORT = "import"
    PLANNING = "planning"
    LOWERING = "lowering"
    REPEATED = "repeated"
    EXPORT = "export"


@dataclass(frozen=True)
class Decomposition:
    """An entry of the registry.

    Attributes:
        rule: Makes the nodes.
        before: At import, it is for opsets below this one, and there goes before the op's class.
    """

    rule: Rule
    before: int | None = None

    def apply(self, node: object, make: Builder) -> Results | None:
        """The values for the outputs of a node; None where it does not apply.

        Raises:
            ClrtError: The node is not valid, or its form is unsupported; the error names it.
        """
        with NodeErrorContext(node):
            return self.rule(node, make)


DECOMPOSITIONS: dict[tuple[DecompositionStage, Key], tuple[Decomposition, ...]] = {}
# By class the entry of the class itself or of its nearest base.
_BY_CLASS: dict[tuple[DecompositionStage, type], Decomposition | None] = {}


def register_decomposition(
    *keys: Key, audience: DecompositionStage, before: int | None = None
) -> Callable[[RuleOf], RuleOf]:
    """Decorator: the function is the decomposition of these ops, and of those derived from them."""

    def add(rule: RuleOf) -> RuleOf:
        for key in keys:
            known = DECOMPOSITIONS.get((audience, key), ())
            DECOMPOSITIONS[audience, key] = (*known, Decomposition(rule, before))
        _BY_CLASS.clear()
        return rule

    return add


def imported_as(domain: str, op_type: str, opset: int) -> Decomposition | None:
    """What the importer puts in the place of an op of that opset."""
    found = DECOMPOSITIONS.get((DecompositionStage.IMPORT, (domain, op_type)), ())
    dated = (d for d in found if d.before is not None and opset < d.before)
    return next(dated, next((d for d in found if d.before is None), None))


def imported_ops() -> set[tuple[str, str]]:
    """Domain and name of every op that the importer takes apart, at some opset."""
    keys = (key for audience, key in DECOMPOSITIONS if audience is DecompositionStage.IMPORT)
    return {key for key in keys if isinstance(key, tuple)}


def of_class(cls: type[IrOp], audience: DecompositionStage) -> Decomposition | None:
    """The decomposition of a class of ops of the IR."""
    key = audience, cls
    if key not in _BY_CLASS:
        entries = (DECOMPOSITIONS.get((audience, base)) for base in cls.__mro__)
        _BY_CLASS[key] = next((e[0] for e in entries if e), None)
    return _BY_CLASS[key]


def decompose(
    node: Node, names: Names, *audiences: DecompositionStage
) -> tuple[list[Node], list[Value]] | None:
    """The nodes that a node stands for and the values for its outputs; None where there are none.

    Args:
        names: Those that are taken; new nodes are named after the node.
        audiences: The first of them that has one for the node.

    Raises:
        ShapeError, ModelError, UnsupportedError: What the rule says of the node.
    """
    assert isinstance(node.op, Op)
    for audience in audiences:
        entry = of_class(type(node.op), audience)
        if entry is not None:
            make = Builder(names, node.name, origins=node.origins)
            results = entry.apply(node, make)
            if results is not None:
                return make.nodes, [v for v in results if v is not None]
    return None
