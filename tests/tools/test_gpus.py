"""GPU report, without GPU compilers."""

from __future__ import annotations

from pathlib import Path

import pytest

from clrt.device.gpu_matrix_shapes import GPU_UNITS
from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.kernels.spec import KernelSpec, Launch
from clrt.models.sources import read_graph
from tests.models.onnx_text import parsed
from tools.gpus.aims import AIMS, Aim
from tools.gpus.checks import idle_faults, idle_launches, long_loops, slow_loops, steps_of
from tools.gpus.compiling import Results, programs_of, refusals
from tools.gpus.faults import Faults
from tools.gpus.figures import Figures
from tools.gpus.loops import AMD_PAIRED, Loop, main_loop
from tools.gpus.made import made_before
from tools.gpus.planning import Model, Planned, Work, plan_model, refusal
from tools.gpus.predict import Prediction, predict
from tools.gpus.profiles import profiles
from tools.gpus.report import Page
from tools.gpus.targets import (
    STRICT,
    TARGETS,
    Compiled,
    read_amd,
    read_intel,
    read_nvidia,
    resident_warps,
)
from tools.gpus.toolchain import MissingToolError, find

DATA = Path(__file__).parent / "data"
LEAST = next(p for p in profiles() if p.name == "Least of OpenCL 1.2")
NET = """
    g (float[batch, 64] x) => (float[batch, 32] y)
    <float[64, 32] w = {%s}> { p = MatMul(x, w) y = Softmax(p) }
"""
KERNEL = KernelSpec.of("movement/gather.cl", "gather")


def _read() -> Graph:
    numbers = ", ".join(str(i % 7 / 8 + 0.1) for i in range(64 * 32))
    return read_graph(parsed(NET % numbers))


def _model(batch: int = 200) -> Model:
    return Model("net", _read, lambda graph: {"x": (batch, 64)})


@pytest.fixture(scope="module")
def plans() -> list[Planned]:
    return list(plan_model(_model(), profiles()))


def _read_data(name: str) -> str:
    return (DATA / name).read_text("utf-8")


def test_gpu_profiles_are_complete() -> None:
    assert len({p.name for p in profiles()}) == len(profiles()) == 20
    for profile in profiles():
        caps = profile.caps
        assert profile.target in TARGETS and profile.source
        assert caps.kind in ("gpu", "igpu") and caps.max_work_group_size >= 256
        assert 128 << 20 <= caps.max_alloc_bytes <= caps.global_mem_bytes
        assert min(profile.flops, profile.bytes_per_s, profile.launch_s) > 0
        assert caps.matrix_shapes <= set(GPU_UNITS)
        # Units do at least twice what multiply-adds do: see the threshold `gpu_unit_gains`.
        assert (profile.unit_flops >= 2 * profile.flops) is bool(caps.matrix_shapes)


def test_small_plan_is_legal_on_every_profile(plans: list[Planned]) -> None:
    for planned in plans:
        assert planned.work and not (planned.error or planned.host or planned.illegal)
        likely = predict(planned, {})
        assert 0 < likely.perfect < likely.likely < 0.01
    assert list(refusals(plans, {})) == []


def test_predicted_time_grows_for_rows_shorter_than_wave() -> None:
    rows = (Work(KERNEL, 10_000, items, 10**9, 0) for items in (64, 7))
    full, short = (predict(Planned("net", LEAST, (work,)), {}).likely for work in rows)
    assert short / full == pytest.approx(32 / 7, rel=0.01)


def test_concurrent_reads_share_predicted_latency() -> None:
    macros = {"T_HELD": 16, "CACHE_T": Code("float")}
    kernels = (
        KernelSpec.of("attention/paged_attention_gpu.cl", "paged_attention_gpu", **more)
        for more in ({}, macros, macros | {"CACHE_T": Code("half")})
    )
    works = (Work(kernel, 1, 64, 0, 1 << 20) for kernel in kernels)
    one, four, two = (predict(Planned("net", LEAST, (work,)), {}) for work in works)
    waits = [found.likely - found.launching for found in (one, four, two)]
    assert waits[0] / waits[1] == pytest.approx(4) and waits[0] / waits[2] == pytest.approx(2)


def test_matrix_unit_time_is_predicted_from_unit_rate() -> None:
    device = next(p for p in profiles() if p.unit_flops)
    for parts, products in ((1, 1), (3, 6)):
        kernel = _unit_kernel(parts)
        planned = Planned("net", device, (Work(kernel, 1000, 256, 10**12, 10),))
        perfect = predict(planned, {}).perfect
        assert perfect == pytest.approx(10**12 * products / device.unit_flops)


def _unit_kernel(parts: int) -> KernelSpec:
    storage = DType.FLOAT32.storage
    macros = {
        "T_M": 32,
        "T_N": 64,
        "T_ITEMS": 256,
        "T_SPLIT_ITEMS": 256,
        "TERMS_A": parts,
        "TERMS_B": parts,
    }
    macros |= {"A_STORAGE": storage, "B_STORAGE": storage}
    return KernelSpec.of("matmul/gemm_unit_gpu.cl", "gemm_unit_gpu", **macros)


def test_matrix_unit_prefetch_lowers_predicted_latency() -> None:
    device = next(p for p in profiles() if p.unit_flops)
    few = (Work(kernel, 1, 256, 1, 10**6) for kernel in (_unit_kernel(1), KERNEL))
    unit, other = (predict(Planned("net", device, (work,)), {}) for work in few)
    # 32 numbers of 96 rows and columns, of 4 bytes, by 256 work-items: 48 in place of 16.
    assert 3 * (unit.likely - unit.launching) == pytest.approx(other.likely - other.launching)


def test_oversized_plan_error_states_need_and_limit() -> None:
    (planned,) = plan_model(_model(1 << 20), (LEAST,))
    assert "256 MiB" in planned.error and "128 MiB" in planned.error


def test_illegal_launches_are_refused_with_reason() -> None:
    large = Launch(KERNEL, (1024,), (512,), ())
    uneven = Launch(KERNEL, (8, 9), (8, 2), ())
    assert "groups of 512 items; the device has 256" in refusal(large, LEAST.caps)
    assert "is no multiple" in refusal(uneven, LEAST.caps)
    fitting = Launch(KERNEL, (8, 8), (8, 2), ())
    assert refusal(fitting, LEAST.caps) == ""
    assert "needs 20000 bytes of local memory" in refusal(fitting, LEAST.caps, 20000)


def test_each_kernel_is_compiled_once_per_target(plans: list[Planned]) -> None:
    programs = programs_of(plans)
    assert len({(p.kernel, p.target) for p in programs}) == len(programs)
    assert {p.target for p in programs} == {p.target for p in profiles()}


def test_amd_compiler_output_is_parsed() -> None:
    made = read_amd(_read_data("amd.log"), _read_data("amd.s"))
    assert (made.registers, made.spilled, made.stack, made.occupancy) == (7, 0, 0, "16 waves")
    assert made.fits and made.loop is not None and made.loop.fused == 1
    log = _read_data("amd.log").replace(
        "ScratchSize [bytes/lane]: 0", "ScratchSize [bytes/lane]: 8"
    )
    assert not read_amd(log, "").fits


def test_ptxas_and_nvdisasm_output_is_parsed() -> None:
    log = _read_data("nvidia.log")
    made = read_nvidia(log, _read_data("nvidia.sass"), "sm_89", 256)
    assert (made.registers, made.occupancy, made.fits) == (32, "48 warps", True)
    assert made.loop is not None and made.loop.fused == 8
    assert 0.2 < made.loop.share < 0.3
    spilling = log.replace("0 bytes spill stores", "12 bytes spill stores")
    assert read_nvidia(spilling, "", "sm_89", 256).spilled == 12


def test_resident_warps_follow_registers_and_shared_memory() -> None:
    assert resident_warps("sm_80", 32, 0, 256) == 64
    assert resident_warps("sm_80", 255, 0, 256) == 8
    assert resident_warps("sm_89", 32, 48 << 10, 256) == 16


def test_intel_compiler_output_is_parsed() -> None:
    text = _read_data("simd32_dg2.asm")
    made = read_intel("a_simd32_entry_0001.asm", text)
    assert (made.registers, made.occupancy, made.fits) == (128, "SIMD32", True)
    assert made.loop is not None and made.loop.fused == 2
    assert read_intel("a_simd8_.asm", f"//.spill size 64\n{text}").spilled == 64
    assert read_intel("a_simd8_.asm", f"//.private memory size 32\n{text}").stack == 32


def test_missing_tool_error_names_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingToolError, match="CLRT_GPU_TOOLS"):
        find("no-such-compiler")


def test_dual_issue_instructions_count_as_pairs() -> None:
    pair = "\tv_dual_fmac_f32 v1, v2, v3 :: v_dual_fmac_f32 v4, v5, v6"
    lines = [".LBB0_1:", pair, "\tv_add_f32_e32 v1, v2, v3", "\ts_cbranch_scc1 .LBB0_1"]
    loop = main_loop(lines, AMD_PAIRED)
    assert loop == Loop(3, 1, 2, 4) and loop.reached == loop.filled == 0.5


def _work(groups: int, flops: int, kernel: KernelSpec = KERNEL) -> Work:
    return Work(kernel, groups, 64, flops, 4096)


def _planned(*works: Work) -> Planned:
    return Planned("net", LEAST, works, tuple((w.kernel, w.items) for w in works))


def test_idle_launches_are_faults_only_if_costly() -> None:
    small, large = _planned(_work(1, 1000)), _planned(_work(1, 10**9), _work(4, 10**9))
    (idle,) = idle_launches(small, {})
    assert "save less" in idle.reason and idle.launches == 1
    assert list(idle_faults([small], Results())) == []
    (line,) = idle_faults([large], Results())
    assert "net on Least of OpenCL 1.2" in line and "1 launch of 1 or more groups" in line


def test_long_loops_of_single_groups_are_reported() -> None:
    work = _work(1, 2 * 64 * 8 * 5000)
    assert steps_of(work, Loop(20, 8, 8)) == 5000
    assert steps_of(work, None) == 4096 // 4 // 64
    results = Results({(KERNEL, "sm_80"): Compiled(loop=Loop(20, 8, 8))})
    (line,) = long_loops([_planned(work)], results)
    assert "gather: 5000 steps" in line
    assert list(long_loops([_planned(_work(2, work.flops))], results)) == []


def test_main_loops_below_floor_are_reported() -> None:
    tile = KernelSpec.of("matmul/gemm_gpu.cl", "gemm_gpu", T_RM=8, T_RN=8, T_TK=16)
    small = KernelSpec.of("matmul/gemm_gpu.cl", "gemm_gpu", T_RM=4, T_RN=4, T_TK=16)
    results = Results({(k, "sm_89"): Compiled(loop=Loop(10, 7, 7)) for k in (tile, small)})
    (line,) = slow_loops(results)
    assert "T_RM=8" in line and "70 %, less than 80 %" in line


def test_gpu_regressions_of_launches_and_occupancy_are_reported(tmp_path: Path) -> None:
    fine = Results({(KERNEL, "sm_80"): Compiled(16, 0, 0, 0, "64 warps", Loop(10, 8, 8))})
    poor = Results({(KERNEL, "sm_80"): Compiled(16, 8, 0, 0, "32 warps", Loop(10, 5, 5))})
    before = Figures.of([_planned(_work(4, 10**9))], fine)
    before.write(tmp_path / "gpus.json")
    kept = Figures.read(tmp_path / "gpus.json")
    assert kept.models == before.models and kept.kernels == before.kernels
    assert list(before.worse_than(kept)) == []
    after = Figures.of([_planned(_work(4, 10**9), _work(1, 10**9))], poor)
    assert list(after.worse_than(kept)) == [
        "net on Least of OpenCL 1.2: 2 launches, 1 before",
        "net on Least of OpenCL 1.2: 1 idle launches, 0 before",
        f"net on Least of OpenCL 1.2: {_likely(after)} likely µs, {_likely(before)} before",
        "gather on sm_80: 8 bytes spilled or of stack, 0 before",
        "gather on sm_80: 32 occupancy, 64 before",
        "gather on sm_80: 50 % of the main loop, 80 before",
    ]
    assert list(before.worse_than(after)) == []
    assert Figures.read(tmp_path / "none.json").models == {}


def _likely(figures: Figures) -> int:
    return figures.models["net"][LEAST.name][-1]


def test_gpu_target_times_exclude_launch_overhead() -> None:
    found = Prediction(perfect=1e-3, likely=1.6e-3, launching=2e-4, idle=0)
    assert Aim("net", 1.5).reached(found) == ("1.4 ms", True)
    assert Aim("net", times=1.3).reached(found) == ("1.4", False)
    assert len({a.model for a in AIMS}) == len(AIMS)


def test_compiled_results_are_cached(tmp_path: Path) -> None:
    made = Compiled(16, 0, 0, 0, "64 warps", Loop(10, 8, 8))

    def fail() -> Compiled:
        raise AssertionError("compiled again")

    assert made_before(KERNEL, "sm_80", 64, lambda: made, tmp_path) == made
    assert made_before(KERNEL, "sm_80", 64, fail, tmp_path) == made
    plain = Compiled()
    assert made_before(KERNEL, STRICT, 64, lambda: plain, tmp_path) == plain
    assert made_before(KERNEL, STRICT, 64, fail, tmp_path) == plain


def test_gpu_page_lists_faults() -> None:
    results = Results(
        {(KERNEL, STRICT): Compiled(), (KERNEL, "skl"): Compiled(128, 64, 0, 0, "SIMD8")}
    )
    faults = Faults(errors=["gather on dg2: no"], refused=["net: refused"], worse=["net: slow"])
    page = str(Page((LEAST,), (_planned(_work(1, 10)),), results, faults))
    assert list(faults.lines()) == ["gather on dg2: no", "net: refused", "net: slow"]
    for line in ("- gather on dg2: no", "- net: refused", "- net: slow", "**128 · SIMD8**"):
        assert line in page
