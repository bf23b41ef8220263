"""Runs a model with an op of one's own: a function says which ONNX ops stand for it.

    python examples/own_op.py

The op `Mish` of the domain `my.ops` is x * tanh(softplus(x)). clrt fuses the three ops into one
kernel, as `explain` shows. An op with a kernel of its own is a class under `clrt/ops` and a file in
`kernels_cl`: see `docs/recipes/op.md`.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

import clrt
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)


@register_import_decomposition("my.ops", "Mish")
def _mish(builder: ImportBuilder) -> None:
    (x,) = builder.inputs
    builder.outputs = [builder("Mul", x, builder("Tanh", builder("Softplus", x)))]


def main() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    node = helper.make_node("Mish", ["x"], ["y"], domain="my.ops")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("my.ops", 1)]
    proto = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)

    model = clrt.load(proto)
    points = np.linspace(-3, 3, 7, dtype=np.float32)
    print(model.run({"x": points})["y"])
    print(model.explain({"x": points.shape}))


if __name__ == "__main__":
    main()
