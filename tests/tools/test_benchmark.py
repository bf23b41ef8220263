"""Benchmark statistics and tables; nothing is timed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from clrt.models.onnx.importer import import_model
from tools.benchmark.conv_nets import conv_nets
from tools.benchmark.convolutions import (
    TimedConvolution,
    convolution_rows,
    is_convolution,
    page,
)
from tools.benchmark.encode import encode_rows, least_cosine
from tools.benchmark.gemm import sizes
from tools.benchmark.generation import generation_rows
from tools.benchmark.goals import Goal, goals_of
from tools.benchmark.inputs import read_texts, split_text
from tools.benchmark.kernels import Timed, launch_rows
from tools.benchmark.limits import Sample, median_share
from tools.benchmark.models import model_rows
from tools.benchmark.nets import largest_error
from tools.benchmark.results import Limits, MemoryRow, ModelRow, NetRow, Report
from tools.benchmark.runtimes import ONNXRUNTIME, OPENVINO, short_platform
from tools.benchmark.small_configs import NETS, TRANSFORMERS
from tools.benchmark.small_net import draw_feeds, file_stem
from tools.benchmark.small_shipped import SHIPPED
from tools.benchmark.small_summary import BETTER, small_results, small_summaries
from tools.benchmark.tables import all_tables, goal_table
from tools.benchmark.turns import median_ratio


def test_median_ratio_is_computed_per_turn() -> None:
    # A machine that is twice as slow in the second turn is so for both.
    assert median_ratio([1.0, 2.0, 1.0], [2.0, 4.0, 2.0]) == 0.5


def test_model_rows_have_ratios_to_measured_peers() -> None:
    times = {ONNXRUNTIME: [[0.2, 0.2], [0.4, 0.4]], "clrt PoCL": [[0.1, 0.1, 0.9], [0.2, 0.2]]}
    peer, ours = model_rows("MiniLM", (8, 128), times, 30.0, {"clrt PoCL": 400.0})
    assert (ours.shape, ours.to_onnxruntime, ours.to_openvino) == ("8x128", 0.5, None)
    assert ours.median_ms == pytest.approx(150)
    assert ours.best_ms == pytest.approx(100)
    assert ours.ceiling_share == pytest.approx(30 / 0.15 / 400)
    assert (peer.to_onnxruntime, peer.ceiling_share) == (1.0, None)
    assert OPENVINO not in {peer.runtime, ours.runtime}


def test_generation_ratio_uses_best_peer_per_turn() -> None:
    speeds = {"llama.cpp": [100.0, 50.0], "OpenVINO": [80.0, 60.0], "clrt PoCL": [110.0, 60.0]}
    rows = generation_rows("m", ("decode", 128), speeds, ["llama.cpp", "OpenVINO"])
    found = {r.runtime: (r.tokens_per_s, r.to_best) for r in rows}
    assert found == {
        "llama.cpp": (75.0, None),
        "OpenVINO": (70.0, pytest.approx(1.0)),
        "clrt PoCL": (85.0, pytest.approx(1.15)),
    }
    (alone,) = generation_rows("m", ("decode", 128), {"clrt PoCL": [1.0], "llama.cpp": []}, [])
    assert alone.to_best is None


def test_largest_error_is_relative_to_output_maximum() -> None:
    peer = [np.array([1.0, -100.0], np.float32), np.array([2.0], np.float32)]
    own = [np.array([2.0, -100.0], np.float32), np.array([2.1], np.float32)]
    assert largest_error(own, peer) == pytest.approx(0.05)
    assert largest_error(peer, peer) == 0
    assert largest_error([np.array([np.nan, 1.0])], [np.array([1.0, 1.0])]) == np.inf
    assert largest_error([np.zeros(3)], [np.zeros(2)]) == np.inf


def test_median_share_is_computed_per_turn() -> None:
    turns = [Sample(1.0, gemm_gflops=100.0), Sample(2.0, gemm_gflops=50.0)]
    assert median_share(turns, 90.0, "gemm_gflops") == pytest.approx(0.9)


def test_launch_rows_group_ops_and_show_gaps() -> None:
    timed = [
        Timed("MatMul", 0.010, flops=4_000_000_000, moved_bytes=10**6),
        Timed("Softmax", 0.004, flops=0, moved_bytes=2 * 10**8),
        Timed("MatMul", 0.010, flops=4_000_000_000, moved_bytes=10**6),
    ]
    rows = launch_rows("clrt PoCL", Sample(0.025, gemm_gflops=500.0, copy_gbs=100.0), timed)
    product, softmax, between = rows
    assert (product.label, product.count, product.gflops) == ("MatMul", 2, pytest.approx(400))
    assert product.limit_share == pytest.approx(0.8)
    assert softmax.limit_share == pytest.approx(0.5)
    assert between.ms == pytest.approx(1.0)
    assert sum(r.time_share for r in rows) == pytest.approx(1)


def test_goal_uses_better_device_per_case() -> None:
    values = {"clrt PoCL": {"a": 0.7, "b": 0.9}, "clrt Intel": {"a": 0.8, "b": 0.75}}
    goal = Goal("time", 0.8, True, values)
    assert goal.headline == ("b", 0.75)
    assert goal.is_met
    assert goal.by_device == {"clrt PoCL": 0.9, "clrt Intel": 0.8}
    speed = Goal("speed", 0.8, False, values)
    assert speed.headline == ("a", 0.8)
    assert not Goal("speed", 0.81, False, values).is_met


def test_goals_show_multiply_add_floor() -> None:
    ours = ModelRow("BERT", "8x128", "clrt PoCL", 400.0, 390.0, 0.8, None, 200.0, 500.0, 0.9)
    peer = ModelRow("BERT", "8x128", ONNXRUNTIME, 500.0, 490.0, 1.0, None, 200.0, 400.0, None)
    limits = Limits("clrt PoCL", 480.0, 0.0, 500.0, 40.0, 41.0, 42.0, 41.0)
    goal, *_ = goals_of(Report(limits=[limits], models=[ours, peer]))
    assert goal.floors == {"8x128": pytest.approx(0.8)}
    goal, *_ = goals_of(Report(models=[ours, peer]))
    assert goal.floors == {}


def test_goals_list_measured_items_only() -> None:
    row = ModelRow("MiniLM", "1x16", "clrt PoCL", 2.0, 1.9, 0.97, None, 0.3, 150.0, 0.4)
    memory = MemoryRow("clrt PoCL", "8x128", 401.0, 300.0)
    report = Report(models=[row], memory=[memory])
    found = {g.name: g.is_met for g in goals_of(report)}
    assert found == {
        "MiniLM: time over ONNX Runtime's": False,
        "MiniLM: time over ONNX Runtime's, PoCL, 1x16": True,
        "Peak memory, PoCL, MiB": False,
    }
    assert goals_of(Report()) == []


def test_report_renders_as_tables_and_json() -> None:
    row = ModelRow("MiniLM", "1x16", "clrt PoCL", 2.0, 1.9, 0.97, None, 0.3, 150.0, 0.4)
    report = Report(models=[row])
    (table,) = all_tables(report)
    assert table.row_count == 1
    assert goal_table(goals_of(report)).row_count == 2
    assert json.loads(report.to_json())["models"][0]["to_onnxruntime"] == 0.97


def _small_rows(name: str, peer_ms: float, **ratios: float) -> list[NetRow]:
    peer = NetRow(name, 1, ONNXRUNTIME, peer_ms, None, None, None)
    return [
        peer,
        *(
            NetRow(name, 1, f"clrt {device}", peer_ms * ratio, ratio, None, 1e-6)
            for device, ratio in ratios.items()
        ),
    ]


def test_small_net_summaries_have_means_and_worst_of_groups() -> None:
    rows = [
        *_small_rows("BERT", 2.0, PoCL=0.5, Intel=0.25),
        *_small_rows("LSTM of 25 states, 100 steps", 0.05, PoCL=2.0, Intel=4.0),
        *_small_rows("Magika", 0.4, Intel=1.0),
        NetRow("ViT", 1, ONNXRUNTIME, 1.0, None, None, None),
    ]
    assert [r.name for r in small_results(rows)] == [
        "LSTM of 25 states, 100 steps",
        "Magika",
        "BERT",
    ]
    groups = {g.label: g for g in small_summaries(rows)}
    assert {label: g.count for label, g in groups.items()} == {
        "all": 3,
        "under 1 ms": 2,
        "0.1 ms and more": 2,
        "under 0.1 ms": 1,
        "recurrent": 1,
    }
    everything = groups["all"]
    assert everything.mean("clrt PoCL") == pytest.approx(1.0)
    assert everything.mean(BETTER) == pytest.approx((0.25 * 2.0 * 1.0) ** (1 / 3))
    assert everything.worst("clrt Intel") == (4.0, "LSTM of 25 states, 100 steps")
    assert everything.worst(BETTER) == (2.0, "LSTM of 25 states, 100 steps")


def test_small_nets_have_tables_and_goals() -> None:
    rows = [
        *_small_rows("one Add", 0.005, PoCL=3.0, Intel=2.0),
        *_small_rows("BERT", 2.0, PoCL=0.5),
    ]
    report = Report(small=rows, small_failures={"ViT, clrt PoCL": "ModelError: [x]"})
    nets, summary, failures = all_tables(report)
    assert (nets.row_count, summary.row_count, failures.row_count) == (2, 4, 1)
    met = {
        g.name.removeprefix("Small nets: time over ONNX Runtime's, "): g.is_met
        for g in goals_of(report)
    }
    assert met == {
        "PoCL": False,
        "the better": False,
        "0.1 ms and more, PoCL": True,
        "under 0.1 ms, PoCL": False,
        "under 0.1 ms, Intel": True,
        "Small nets: largest error": True,
        "A run of one Add, ms": True,
    }
    assert goal_table(goals_of(report)).row_count == len(met)


def test_small_nets_are_distinct_with_deterministic_inputs() -> None:
    assert len(TRANSFORMERS) >= 45
    assert len({file_stem(n) for n in (*NETS, *SHIPPED)}) == len(NETS) + len(SHIPPED)
    for net in (*NETS.values(), *SHIPPED.values()):
        feeds, again = draw_feeds(net.feeds), draw_feeds(net.feeds)
        assert all(np.array_equal(feeds[n], again[n]) for n in feeds)
        assert {n: f.shape for n, f in net.feeds.items()} == {n: a.shape for n, a in feeds.items()}


def test_least_cosine_is_minimum_over_rows() -> None:
    a = np.array([[1, 0], [0, 2], [1, 1]], np.float32)
    b = np.array([[3, 0], [0, 1], [1, 0]], np.float32)
    assert least_cosine(a, b) == pytest.approx(0.5**0.5)


def test_encode_rows_work_without_sentence_transformers() -> None:
    (row,) = encode_rows(10, {"clrt": 4.0}, {"clrt": [2.0, 1.0, 2.0]}, {})
    assert (row.texts_per_s, row.first_texts_per_s, row.to_torch) == (5.0, 2.5, None)


def test_texts_are_deterministic_and_of_mixed_length() -> None:
    texts = read_texts(300)
    assert texts == read_texts(300)
    assert len(set(texts)) == 300
    words = [len(t.split()) for t in texts]
    assert min(words) <= 5 and max(words) >= 100


def test_text_is_split_in_paragraphs_and_sentences() -> None:
    text = "Title\n*****\n\nThe first sentence\nis here. And here is the second one.\n\n*  *\n"
    assert list(split_text(text)) == [
        "Title *****",
        "The first sentence is here. And here is the second one.",
        "The first sentence is here.",
        "And here is the second one.",
    ]


def test_gemm_sizes_are_unique_and_odd_sizes_fit_no_tile() -> None:
    full = sizes(quick=False)
    assert len(set(full)) == len(full)
    assert len([s for s in full if s[0] == "model"]) == 5 * 4 * 4
    assert all(m % 8 and n % 16 for kind, m, n, _ in full if kind == "odd")
    assert set(sizes(quick=True)) < set(full)


def test_platforms_have_short_names() -> None:
    assert short_platform("Portable Computing Language") == "PoCL"
    assert short_platform("Intel(R) OpenCL") == "Intel"


def test_convolution_rows_use_slower_of_product_and_copy() -> None:
    def timed(geometry: str, time_s: float, gflop: float, copy_s: float) -> TimedConvolution:
        return TimedConvolution(geometry, "rows: conv_rows_cpu", time_s, gflop, 1e-3, copy_s)

    found = [
        ("A", timed("3x3", 2e-3, gflop=0.1, copy_s=1e-4)),
        ("B", timed("3x3", 2e-3, gflop=0.1, copy_s=1e-4)),
        ("A", timed("1x1", 1e-3, gflop=1e-3, copy_s=9e-4)),
    ]
    product, copy = convolution_rows("clrt PoCL", found, gemm_gflops=100.0)
    assert product.nets == (("A", 1), ("B", 1))
    assert (product.bound_by, product.share) == ("product", pytest.approx(0.5))
    assert product.gflops == pytest.approx(50)
    # 1 ms at full speed, 4/3 ms at what is asked: each of two is 2/3 ms late.
    assert product.lost_us == pytest.approx(2 * (2000 - 1000 / 0.75))
    assert (copy.bound_by, copy.share, copy.lost_us) == ("copy", pytest.approx(0.9), 0)
    text = page([product, copy], {"clrt PoCL": 100.0})
    assert "2 distinct convolutions, 1 below" in text and "A x 1, B x 1" in text


@pytest.mark.parametrize(
    ("name", "count"), [("ResNet-50", 53), ("MobileNetV2", 52), ("EfficientNet-B0", 81)]
)
def test_conv_nets_have_expected_convolution_count(name: str, count: int) -> None:
    graph = import_model(conv_nets()[name])
    assert sum(map(is_convolution, graph.nodes)) == count
    assert graph.outputs[0].shape is not None and graph.outputs[0].shape[1] == 1000
