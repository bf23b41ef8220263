"""Fourier transforms and complex products of com.microsoft."""

from __future__ import annotations

from clrt.errors import UnsupportedError
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)

_DOMAIN = "com.microsoft"


def _signal_axes(body: ImportBuilder, behind: int) -> list[int]:
    """Returns the axes that Rfft or Irfft transforms, in ascending order.

    Args:
        body: Builder.
        behind: Number of axes of input 0 after the transformed axes.

    Raises:
        UnsupportedError: The transform is normalized or not onesided.
    """
    if not body.attrs.get("onesided", 1) or body.attrs.get("normalized", 0):
        raise UnsupportedError("a transform that is normalized, or not onesided")
    end = body.rank_of() - behind
    count = body.count_of("signal_ndim", 1, max(end, 1))
    return list(range(end - count, end))


def _transform(
    body: ImportBuilder, x: Value, axis: int, *, inverse: int, onesided: int = 0
) -> Value:
    """Adds a DFT along an axis of x and returns its output.

    Args:
        body: Builder.
        x: Real numbers `[…, 1]`, or complex numbers `[…, 2]` as (real part, imaginary part).
        axis: Axis to transform.
        inverse: 1 for the inverse transform; 0 for the forward transform.
        onesided: 1 if the spectrum has only its first half, as for real signals; else 0.
    """
    axes = (None, body.numbers(axis))
    return body("DFT", x, *axes, inverse=inverse, onesided=onesided)


@register_import_decomposition(_DOMAIN, "Rfft")
def _rfft(body: ImportBuilder) -> None:
    *others, last = _signal_axes(body, 0)
    y = body("Unsqueeze", body.inputs[0], body.ints(-1))
    y = _transform(body, y, last, inverse=0, onesided=1)
    for axis in others:
        y = _transform(body, y, axis, inverse=0)
    body.outputs = [y]


@register_import_decomposition(_DOMAIN, "Irfft")
def _irfft(body: ImportBuilder) -> None:
    """Decomposes Irfft, the inverse Fourier transform to a real signal.

    The size of the last signal axis does not follow from the spectrum; it is assumed to be even.
    """
    *others, last = _signal_axes(body, 1)
    y = body.inputs[0]
    for axis in others:
        y = _transform(body, y, axis, inverse=1)
    y = _transform(body, y, last, inverse=1, onesided=1)
    body.outputs = [body("Squeeze", y, body.ints(-1))]


@register_import_decomposition(_DOMAIN, "ComplexMul", "ComplexMulConj")
def _complex_mul(body: ImportBuilder) -> None:
    """Decomposes ComplexMul and ComplexMulConj: elementwise products of complex numbers.

    Numbers are `[…, 2]`, (real part, imaginary part). ComplexMulConj conjugates the second factor.
    """
    (a, b), (c, d) = (
        body.node("Split", [value], 2, num_outputs=2, axis=-1) for value in body.inputs[:2]
    )
    if body.op_type == "ComplexMulConj":
        d = body("Neg", d)
    real = body("Sub", body("Mul", a, c), body("Mul", b, d))
    imaginary = body("Add", body("Mul", a, d), body("Mul", b, c))
    body.outputs = [body("Concat", real, imaginary, axis=-1)]
