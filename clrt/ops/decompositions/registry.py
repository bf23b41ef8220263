"""Registry of decompositions: rules that replace an op by a graph of other ops.

A rule gets one node, with typed inputs, and a builder for the new nodes; it returns values for the
node's outputs. Rules are registered per stage. The importer looks them up by the op's name in the
file; planner and exporter by op class. The modules of rules are imported at their first look-up;
those for the exporter by the exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from clrt.ir.builder import Builder
from clrt.ir.graph import Names, Node, Value
from clrt.ir.node_errors import NodeErrorContext
from clrt.ir.op import IrOp
from clrt.ops.base import Op
from clrt.ops.index import IMPORT_RULES, LOWERING_RULES
from clrt.ops.module_index import ModuleIndex, class_key
from clrt.ops.op_builder import OpBuilder
from clrt.ops.registry import op_title
from clrt.util.fast_dataclass import dataclass

Results: TypeAlias = "Sequence[Value | None]"
# Called with a node (the importer: its description of one) and a builder. Returning None leaves the
# node unchanged; None among the results is an output that clrt does not support.
Rule: TypeAlias = "Callable[[Any, Any], Results | None]"
RuleOf = TypeVar("RuleOf", bound=Rule)
Key: TypeAlias = "type[Op] | tuple[str, str]"


class DecompositionStage(Enum):
    """The stages at which decompositions are applied, each to certain nodes.

    Attributes:
        IMPORT: In the importer: ops (or forms of ops) in the file that the IR lacks.
        PLANNING: In the optimiser, and in the planner once all shapes are numbers.
        LOWERING: In the planner only: ops without kernels of their own.
        REPEATED: In the planner: ops of a graph that has run repeatedly with the same shapes.
        EXPORT: In the exporter: ops that ONNX or ONNX Runtime lacks.
        GRADIENT: In the gradient transform: ops without a rule of their own.
    """

    IMPORT = "import"
    PLANNING = "planning"
    LOWERING = "lowering"
    REPEATED = "repeated"
    EXPORT = "export"
    GRADIENT = "gradient"


@dataclass(frozen=True)
class Decomposition:
    """A registered rule that replaces nodes of an op by other nodes.

    Attributes:
        rule: Builds the replacement nodes.
        before: At import, the rule applies only to opsets below this one, and then even if the IR
            has a class for the op. None for all opsets, if the IR has no class.
    """

    rule: Rule
    before: int | None = None

    def apply(self, node: object, builder: Builder) -> Results | None:
        """Adds replacement nodes for a node.

        Args:
            node: Node to replace, named in errors: an IR node, or at import the title of a node of
                the file ("Add 'sum'").
            builder: Adds the nodes.

        Returns:
            Values for the node's outputs; None if the rule does not apply.

        Raises:
            ClrtError: The node is invalid or its form is unsupported; the error names the node.
        """
        with NodeErrorContext(node):
            return self.rule(node, builder)


DECOMPOSITIONS: dict[tuple[DecompositionStage, Key], tuple[Decomposition, ...]] = {}
# Cache per stage and class: the entry of the class or of its nearest base.
_BY_CLASS: dict[tuple[DecompositionStage, type], Decomposition | None] = {}
_IMPORT_INDEX, _LOWERING_INDEX = ModuleIndex(IMPORT_RULES), ModuleIndex(LOWERING_RULES)


def register_decomposition(
    *keys: Key, audience: DecompositionStage, before: int | None = None
) -> Callable[[RuleOf], RuleOf]:
    """Returns a decorator that registers a decomposition rule.

    Args:
        keys: Op classes (subclasses included) that the rule replaces; at import pairs of domain and
            op name.
        audience: Stage that applies the rule.
        before: At import, apply only to opsets below this one; None for all opsets.
    """

    def add(rule: RuleOf) -> RuleOf:
        for key in keys:
            known = DECOMPOSITIONS.get((audience, key), ())
            DECOMPOSITIONS[audience, key] = (*known, Decomposition(rule, before))
        _BY_CLASS.clear()
        return rule

    return add


def imported_as(domain: str, op_type: str, opset: int) -> Decomposition | None:
    """Returns the import decomposition of an op of a model file; None if there is none.

    Args:
        domain: Op domain; "" for ai.onnx.
        op_type: Op name.
        opset: Opset version of the domain in the file.
    """
    _IMPORT_INDEX.load(op_title(domain, op_type))
    entries = DECOMPOSITIONS.get((DecompositionStage.IMPORT, (domain, op_type)), ())
    versioned = (d for d in entries if d.before is not None and opset < d.before)
    return next(versioned, next((d for d in entries if d.before is None), None))


def imported_ops() -> set[tuple[str, str]]:
    """Returns domain and name of every op that has an import decomposition for some opset."""
    _IMPORT_INDEX.load_all()
    keys = (key for audience, key in DECOMPOSITIONS if audience is DecompositionStage.IMPORT)
    return {key for key in keys if isinstance(key, tuple)}


def of_class(cls: type[IrOp], audience: DecompositionStage) -> Decomposition | None:
    """Returns the decomposition of an op class at stage `audience`; None if there is none.

    If the class has none, the decomposition of its nearest base class is returned.
    """
    key = audience, cls
    if key not in _BY_CLASS:
        for base in cls.__mro__:
            _LOWERING_INDEX.load(class_key(base))
        entries = (DECOMPOSITIONS.get((audience, base)) for base in cls.__mro__)
        _BY_CLASS[key] = next((e[0] for e in entries if e), None)
    return _BY_CLASS[key]


def decompose(
    node: Node, names: Names, *audiences: DecompositionStage
) -> tuple[list[Node], list[Value]] | None:
    """Decomposes a node by the first rule that applies.

    Args:
        node: Node to replace.
        names: Names in use; new nodes are named after the node.
        audiences: Stages whose rules may apply, in order of preference.

    Returns:
        The new nodes and the values for the node's outputs; None if no rule applies.

    Raises:
        ShapeError, ModelError, UnsupportedError: The rule rejects the node.
    """
    op = node.op_as(Op)
    for audience in audiences:
        entry = of_class(type(op), audience)
        if entry is not None:
            builder = OpBuilder(names, node.name, origins=node.origins)
            results = entry.apply(node, builder)
            if results is not None:
                return builder.nodes, [v for v in results if v is not None]
    return None
