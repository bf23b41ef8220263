"""Elementwise ops, casts and quantization; importing the package sets `Pointwise.variants`."""

import clrt.ops.pointwise.fused  # noqa: F401  (sets the variants)
