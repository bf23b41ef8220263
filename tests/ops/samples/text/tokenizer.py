"""Samples of the ops of `clrt/ops/text/tokenizer.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.text.tokenizer import Tokenizer
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Tokenizer)
def tokenizer_samples(cls: type[Tokenizer]) -> Iterator[Sample]:
    x = np.array([["a bcd, e", ""], ["über-all  12ab", "_x"]])
    for op in (
        cls(False, 1, "#", (" ",)),
        cls(True, 2, "", (",", " ")),
        cls(True, 1, "#", ("",)),
        cls(False, 1, "#", (), "."),
        cls(False, 2, "", (), "[a-z]|[a-z0-9]+"),
        cls(False, 1, "#", (), r"\w+"),
    ):
        yield Sample(op, (x,))
        yield Sample(op, (x[0],))
    yield Sample(cls(True, 1, "#", (" ",)), (np.array(["", " "]),))


@error_samples_of(Tokenizer)
def tokenizer_errors(cls: type[Tokenizer]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(tokenexp="."), (np.array([[["a"]]]),)), ShapeError
    yield Sample(cls(tokenexp="."), (np.array([1]),)), ShapeError
