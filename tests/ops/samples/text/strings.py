"""Samples of the ops of `clrt/ops/text/strings.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.text.strings import (
    RegexFullMatch,
    StringConcat,
    StringNormalizer,
    StringSplit,
    TfIdfVectorizer,
)
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(StringConcat)
def string_concat_samples(cls: type[StringConcat]) -> Iterator[Sample]:
    yield Sample(cls(), (np.array([["a"], ["ß"]]), np.array(["x", "", "日本"])))


@error_samples_of(StringConcat)
def string_concat_errors(cls: type[StringConcat]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.array(["a", "b"]), np.array(["a", "b", "c"]))), ShapeError
    yield Sample(cls(), (np.array([1]), np.array(["a"]))), ShapeError


@samples_of(StringSplit)
def string_split_samples(cls: type[StringSplit]) -> Iterator[Sample]:
    x = np.array([["a,b,,c", ""], ["d", " e , f "]])
    for op in (cls(","), cls(",", 1), cls(), cls("")):
        yield Sample(op, (x,))
    yield Sample(cls(","), (x[:0],))


@error_samples_of(StringSplit)
def string_split_errors(cls: type[StringSplit]) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(","), (np.array([1]),)), ShapeError


@samples_of(RegexFullMatch)
def regex_full_match_samples(cls: type[RegexFullMatch]) -> Iterator[Sample]:
    x = np.array([["a@b.org", "a@b"], ["", "é@x.com"]])
    for pattern in (r"\w+@\w+\.(org|com)", "[[:alnum:]@.]+", "(?i)É@X.*"):
        yield Sample(cls(pattern), (x,))


@samples_of(StringNormalizer)
def string_normalizer_samples(cls: type[StringNormalizer]) -> Iterator[Sample]:
    days = np.array(["monday", "Tuesday", "MONDAY", "été"])
    for action in ("NONE", "LOWER", "UPPER"):
        yield Sample(cls(action, True, ("monday",)), (days,))
        yield Sample(cls(action, False, ("monday", "tuesday", "été")), (days[None],))


@error_samples_of(StringNormalizer)
def string_normalizer_errors(
    cls: type[StringNormalizer],
) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.array([["a"], ["b"]]),)), ShapeError


@samples_of(TfIdfVectorizer)
def tf_idf_vectorizer_samples(cls: type[TfIdfVectorizer]) -> Iterator[Sample]:
    x = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]])
    pool = (2, 3, 5, 4, 5, 6, 7, 8, 6, 7)
    for mode in ("TF", "IDF", "TFIDF"):
        weights = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.5)
        op = cls(mode, 1, 2, 1, (0, 4), (0, 1, 2, 3, 4, 5, 6), pool, (), weights)
        yield Sample(op, (x,))
        yield Sample(op, (x[0],))
        yield Sample(op, (x[:0],))
    yield Sample(op, (x[:, :0],))
    words = cls("TF", 1, 1, 0, (0,), (1, 0), (), ("a", "b"))
    yield Sample(words, (np.array(["a", "b", "a"]),))


@error_samples_of(TfIdfVectorizer)
def tf_idf_vectorizer_errors(
    cls: type[TfIdfVectorizer],
) -> Iterator[tuple[Sample, type[Exception]]]:
    yield Sample(cls(), (np.zeros((1, 1, 1), np.int64),)), ShapeError
