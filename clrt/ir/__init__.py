"""Intermediate representation (IR): dtypes, dims, graph, patch, verifier, text form."""

import clrt.ir.dim_operations  # noqa: F401 (registers them in `dims.OPERATIONS`)
from clrt.ir.dims import Dim, Shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Patch, Value
from clrt.ir.op import Array, IrOp, TensorType

__all__ = [
    "Array",
    "DType",
    "Dim",
    "Graph",
    "IrOp",
    "Names",
    "Node",
    "Patch",
    "Shape",
    "TensorType",
    "Value",
]
