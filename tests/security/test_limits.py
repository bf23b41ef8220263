"""Small files that demand many resources: refused or run, in bounded time and memory.

Files that could exhaust memory are loaded in a separate process with a memory limit.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.errors import UnsupportedError
from clrt.models.sources import read_graph
from clrt.ops.text.strings import RegexFullMatch
from clrt.passes.pipeline import optimize
from tests.security.small_files import (
    BOOL,
    CASES,
    FLOAT,
    INT64,
    STRING,
    X,
    a_range,
    growing_apart,
    image,
    info,
    loop_body,
    model,
    nested_functions,
    nested_loops,
    node,
    of_text,
    summed,
)

ROOT = Path(__file__).resolve().parents[2]
# Of a case, most of which take 0.3 s.
SECONDS = 60
PEAK_BYTES = 4 << 30
ADDRESS_BYTES = 12 << 30


def _serve(names: list[str]) -> None:
    """Prints what comes of each case, in a process of its own."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    for name in names:
        print(json.dumps({"name": name}), flush=True)
        signal.alarm(SECONDS)  # ends the process
        source, feeds = CASES[name][0]()
        try:
            with clrt.load(source, device="cpu") as loaded:
                loaded.run(feeds)
            found = ""
        except clrt.ClrtError as error:
            found = f"{type(error).__name__}: {error}"
        except Exception as error:
            found = f"raw {type(error).__name__}: {error}"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"name": name, "found": found, "peak": peak}), flush=True)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What comes of each case; nothing of one that ends its process."""
    pytest.importorskip("resource")
    left, found = list(CASES), dict[str, dict[str, Any]]()
    command = [sys.executable, "-W", "ignore", "-m", __name__]
    while left:
        ended = subprocess.run(
            [*command, *left], cwd=ROOT, capture_output=True, text=True, env={**os.environ}
        )
        lines = [json.loads(x) for x in ended.stdout.splitlines() if x.startswith("{")]
        found.update({x["name"]: x for x in lines if "found" in x})
        begun = {x["name"] for x in lines}
        assert begun, ended.stderr
        left = [n for n in left if n not in begun]
    return found


@pytest.mark.timeout(1800)  # that many cases once over, in the first of them
@pytest.mark.parametrize("name", CASES)
def test_resource_demanding_file_stays_within_bounds(
    outcomes: dict[str, dict[str, Any]], name: str
) -> None:
    if name.startswith("image"):
        pytest.importorskip("PIL")
    if "pattern" in name or "tokens" in name or name == "back-reference":
        pytest.importorskip("re2")
    assert name in outcomes, f"it took over {SECONDS} s, or ended the process"
    found, expected = outcomes[name]["found"], CASES[name][1]
    assert found.startswith(expected) if expected else not found, found
    assert outcomes[name]["peak"] < PEAK_BYTES


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def change(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"CLRT_{name}", value)

    return change


def test_constant_folding_stays_within_fold_limit(limits: Callable[..., None]) -> None:
    source, _ = summed(*growing_apart(17), k=X)
    limits(FOLD_LIMIT="64KiB")
    graph = read_graph(source)
    optimize(graph)
    grown = sum(v.nbytes for v in graph.constants())
    assert 16 << 10 < grown <= (64 << 10) + 5 * X.nbytes + 64
    limits(FOLD_LIMIT="2MiB")
    graph = read_graph(source)
    optimize(graph)
    assert all(n.op.name != "Concat" for n in graph.nodes)


def test_planning_folds_within_fold_limit(limits: Callable[..., None]) -> None:
    limits(FOLD_LIMIT="1MiB")
    count = 20
    nodes = [node("Shape", ["x"], ["n"]), node("ConstantOfShape", ["n"], ["v0"])]
    nodes += [node("CumSum", [f"v{i}", "zero"], [f"v{i + 1}"]) for i in range(count)]
    nodes.append(node("Add", [f"v{count}", "x"], ["y"]))
    x = np.ones(1 << 16, np.float32)
    with clrt.load(model(nodes, zero=np.int64(0)), device="cpu") as loaded:
        np.testing.assert_array_equal(loaded.run(x)["y"], x)
        assert len(loaded.plan({"x": x.shape}).steps) >= count - 4


def test_loop_outputs_count_towards_host_limit(limits: Callable[..., None]) -> None:
    body = loop_body([node("Mul", ["x", "x"], ["t"])], ["t"], [])
    source = model(
        [node("Loop", ["n", ""], ["y"], body=body)],
        [info("x", FLOAT, ["N"]), info("n", INT64, [])],
    )
    x = np.ones(1 << 16, np.float32)
    limits(HOST_LIMIT="1MiB")
    with clrt.load(source, device="cpu") as loaded:
        assert loaded.run({"x": x, "n": np.array(4)})["y"].shape == (4, 1 << 16)
        with pytest.raises(clrt.OutOfMemoryError, match="Loop 'Loop_0': what 5 iterations keep"):
            loaded.run({"x": x, "n": np.array(1000)})
        assert loaded.run({"x": x[:9], "n": np.array(5)})["y"].shape == (5, 9)


def test_host_op_results_count_towards_host_limit(limits: Callable[..., None]) -> None:
    limits(HOST_LIMIT="1MiB")
    split = of_text("StringSplit", ["a," * 1000] + [""] * 99, delimiter=",")
    tokens = of_text(
        *("Tokenizer", ["a" * 1000] * 100, STRING, "com.microsoft"),
        **dict(mark=0, mincharnum=1, pad_value="", tokenexp="."),
    )
    for (source, feeds), text in (
        (split, "StringSplit 'StringSplit_0': 100100 texts of up to 1 characters"),
        (tokens, "Tokenizer 'Tokenizer_0': 100000 texts of up to 1 characters"),
        (
            image(1000, 1000),
            "ImageDecoder 'ImageDecoder_0': an image of 1000 x 1000 would need",
        ),
        (a_range(np.int64, 0, 10**5, 1), "Range 'Range_0': 100000 elements would need 1.5 MiB"),
    ):
        if "Image" in text:
            pytest.importorskip("PIL")
        with (
            clrt.load(source, device="cpu") as loaded,
            pytest.raises(clrt.OutOfMemoryError, match=text),
        ):
            loaded.run(feeds)


def test_long_lstm_is_not_folded() -> None:
    step = node("LSTM", ["k", "w", "r"], ["c"], hidden_size=1)
    weights = dict(w=np.ones((1, 4, 1), np.float32), r=np.ones((1, 4, 1), np.float32))
    for count, stays in ((100, False), (100_000, True)):
        source, _ = summed(step, k=np.ones((count, 1, 1), np.float32), **weights)
        graph = read_graph(source)
        optimize(graph)
        assert any(n.op.name == "LSTM" for n in graph.nodes) is stays


def test_iteration_limit_counts_nested_loops(limits: Callable[..., None]) -> None:
    source, feeds = nested_loops(3)
    limits(ITERATION_LIMIT="20")
    with clrt.load(source, device="cpu") as loaded:
        loaded.run(feeds)
        with pytest.raises(clrt.InputError, match="CLRT_ITERATION_LIMIT allows 20"):
            loaded.run({**feeds, "n": np.array(3)})
        loaded.run(feeds)


def test_inlined_functions_count_towards_node_limit(limits: Callable[..., None]) -> None:
    source, _ = nested_functions(4, 2)
    clrt.load(source, device="cpu").close()
    limits(NODE_LIMIT="20")
    with pytest.raises(clrt.ModelError, match="CLRT_NODE_LIMIT allows 20"):
        clrt.load(source, device="cpu")


def test_regex_full_match_uses_re2_syntax() -> None:
    pytest.importorskip("re2")
    texts = np.array(["été", "a1", ""])
    (found,) = RegexFullMatch(r"\p{L}+").reference(texts)
    assert found.tolist() == [True, False, False]


def test_regex_without_re2_names_package(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = lambda name, *rest: None  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    source, _ = of_text("RegexFullMatch", ["a"], BOOL, pattern="no pattern but this")
    with pytest.raises(UnsupportedError, match='pip install "google-re2'):
        clrt.load(source, device="cpu")


if __name__ == "__main__":
    _serve(sys.argv[1:])
