"""Names, dims and messages of hostile files stay short, printable and bounded."""

from __future__ import annotations

import numpy as np
import pytest

import clrt
from clrt.errors import shown
from clrt.ir.dim_operations import maximum, parse_dim
from clrt.ir.dims import Dim, TooComplex, symbol
from clrt.ir.graph import Names
from tests.security.small_files import FLOAT, info, model, node

LONG = "n" * 10_000_000
ODD = "a\n\x1b[31mb\u202e\x00"


@pytest.mark.parametrize("name", [LONG, ODD], ids=["long", "odd"])
def test_hostile_names_are_shortened_and_escaped_in_errors(name: str) -> None:
    files = [
        model([node("Relu", [name], ["y"])]),
        model([node(name, ["x"], ["y"])]),
        model([node("Relu", ["x"], ["y"], domain=name)]),
        model([node("Add", ["x", "w"], ["y"], name=name)], w=np.ones((2, 2, 7), np.int64)),
        model([node("Relu", ["x"], ["y"])], [info(name, FLOAT, ["N"]), info(name, FLOAT, ["N"])]),
    ]
    for source in files:
        with pytest.raises(clrt.ClrtError) as caught:
            clrt.load(source, device="cpu")
        message = str(caught.value)
        assert message.isprintable() and len(message) < 2000
        assert ("nnnn…nnnn" if name == LONG else r"a\n\x1b[31mb\u202e\x00") in message


def test_long_messages_are_truncated() -> None:
    assert shown("as it is, with 'names' of é") == "as it is, with 'names' of é"
    assert len(shown("name, " * 10**6)) <= 20_000
    assert shown("two\nlines", lines=True) == "two\nlines"


@pytest.mark.parametrize(
    "text",
    [
        *("9**9**9", "9" * 30, "True", "-" * 5000 + "n", "(" * 5000 + "n" + ")" * 5000),
        *("*".join(["(n+m)"] * 20), "+".join(f"n{i}" for i in range(300)), "n+" * 200_000 + "n"),
        "max(" * 60 + "n" + "".join(f",n{i})" for i in range(60)),
    ],
    ids=lambda t: t[:20],
)
def test_hostile_dim_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a dim"):
        parse_dim(text)


def test_dim_complexity_is_limited() -> None:
    def squared(dim: Dim, times: int) -> Dim:
        for _ in range(times):
            dim = dim * dim
        return dim

    def nested(times: int) -> Dim:
        dim: Dim = symbol("n")
        for i in range(times):
            dim = maximum(dim, symbol(f"m{i}"))
        return dim

    for make in (
        lambda: squared(symbol("n") + 1, 6),
        lambda: squared(symbol("n") + symbol("m"), 6),
        lambda: squared(symbol("n") * 2**40, 1),
        lambda: nested(60),
    ):
        with pytest.raises(TooComplex):
            make()
    assert str(squared(symbol("n") + 1, 1)) == "1+2*n+n*n"
    assert str(nested(2)) == "max(max(n, m0), m1)"


@pytest.mark.timeout(60)  # it takes 0.2 s; numbers sought from the first on take minutes
def test_unique_names_are_made_in_linear_time() -> None:
    names = Names()
    assert [names.unique("n") for _ in range(3)] == ["n", "n.1", "n.2"]
    assert [names.fresh("n", "p") for _ in range(2)] == ["n/p.0", "n/p.1"]
    names.shrink(2)
    assert names.unique("n") == "n.2"
    for _ in range(60_000):
        names.unique("n")
        names.fresh("n", "p")


def test_dims_named_by_question_mark_may_differ() -> None:
    """Paddle's exporter gives this name to every unknown dim."""
    nodes = [node("Add", ["x", "b"], ["s"]), node("Concat", ["s", "x"], ["y"], axis=2)]
    inputs = [info("x", FLOAT, ["?", 3, "?", "?"]), info("b", FLOAT, ["?", 3, "?", "?"])]
    x = np.random.default_rng(0).standard_normal((1, 3, 48, 192)).astype(np.float32)
    with clrt.load(model(nodes, inputs), device="cpu") as loaded:
        found = loaded.run({"x": x, "b": x[:, :, :1, :]})["y"]
    expected = np.concatenate([x + x[:, :, :1, :], x], 2)
    np.testing.assert_array_equal(found, expected)
