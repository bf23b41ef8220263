"""Row pitch and alignment that kernels accept for strided arguments."""

from __future__ import annotations

import pytest

from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import TensorType
from clrt.kernels.spec import BufferArg, RowPitchSupport
from clrt.plan.subview_placement import _Fit, _fit, _SubviewLocation


@pytest.mark.parametrize(
    ("octets", "offset", "pitch", "fits"),
    [(False, 3, 21, True), (True, 8, 24, True), (True, 4, 24, False), (True, 8, 20, False)],
)
def test_eight_element_reads_require_aligned_offset_and_pitch(
    octets: bool, offset: int, pitch: int, fits: bool
) -> None:
    value = Value("x", TensorType(DType.FLOAT32, (3, 16)))
    arg = BufferArg(value, rows=RowPitchSupport(16, ("a_row",), octets))
    found = _fit(arg, _SubviewLocation(offset, 16, pitch), value)
    assert found == (_Fit(offset, True) if fits else "needs aligned")
