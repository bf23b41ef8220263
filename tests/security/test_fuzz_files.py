"""Mutants of model files: each is refused with an error that names the cause, or runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clrt.runtime.opencl.devices import devices
from tests.security import fuzz_files
from tests.security.fuzz_files import KINDS, Ending, chosen, end_of, endings, keep
from tests.security.mutate_executables import MODELS, Parts, StoredModel

_COUNTS = {"onnx": 500, "clrt": 500, "sizes": 100, "executables": 100}


@pytest.mark.lengthy
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_model_mutants_run_or_raise_allowed_errors(kind: str) -> None:
    """CLRT_FUZZ_SEED=4711 runs only the mutant of seed 4711."""
    seeds = chosen(int(os.environ.get("CLRT_FUZZ_FILES", _COUNTS[kind])))
    failures = [e for e in endings(kind, seeds) if not e.allowed]
    listing = [f"{e.group} (seed {e.seed}, {keep(kind, e)})" for e in failures]
    assert not failures, "\n".join(listing)


@pytest.mark.lengthy
@pytest.mark.skipif(
    not any(d.caps.simulator for d in devices()), reason="Oclgrind is not installed"
)
def test_extreme_size_mutants_access_only_their_tensors() -> None:
    """One mutant of each 45th op under Oclgrind; make fuzz-files has 500."""
    found = endings("sizes", range(0, 1800, 45), simulated=True)
    failures = [f"{e.group} (seed {e.seed}, {keep('sizes', e)})" for e in found if not e.allowed]
    assert not failures, "\n".join(failures)


@pytest.mark.lengthy
@pytest.mark.skipif(
    not any(d.caps.simulator for d in devices()), reason="Oclgrind is not installed"
)
def test_executable_mutants_run_or_raise_allowed_errors() -> None:
    """100 mutants under Oclgrind, also of code; make fuzz-files has 10,000."""
    found = endings("executables", range(100), simulated=True)
    failures = [
        f"{e.group} (seed {e.seed}, {keep('executables', e)})" for e in found if not e.allowed
    ]
    assert not failures, "\n".join(failures)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", MODELS)
def test_unmutated_executables_run(name: str, tmp_path: Path) -> None:
    stored = StoredModel.make(name, tmp_path)
    assert stored.run(stored.content) == "ran"
    assert stored.run(b"") == "planned"
    stored.executable.write_bytes(stored.content)
    Parts(stored.executable).write(stored.executable)
    assert stored.run(stored.executable.read_bytes()) == "ran"


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", ["onnx", "clrt"])
def test_unmutated_fuzz_seeds_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every mutant might be refused for a fault of its seed."""
    from tests.security import seeds

    for name, model in seeds.onnx_seeds().items():
        data = model.SerializeToString() if kind == "onnx" else seeds.compiled_seed(name)
        files = {f"m.{kind}": data, seeds.EXTERNAL: seeds.external_bytes()}
        monkeypatch.setattr(fuzz_files, "contents", lambda *_, files=files: files)
        assert end_of(kind, 0, tmp_path).how == "ran", name


def test_fuzzer_reports_errors_other_than_clrt_errors(tmp_path: Path) -> None:
    """Other exceptions, and errors of clrt that indicate a bug, are not allowed."""
    from clrt.errors import ModelError, PassError

    for error, allowed in ((ValueError, False), (PassError, False), (ModelError, True)):

        def fail(*_: object, error: type[Exception] = error, **__: object) -> None:
            raise error("for the test")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("clrt.load", fail)
            found = end_of("clrt", 0, tmp_path)
        assert (found.how, found.allowed) == (error.__name__, allowed)


def test_fuzzer_reports_crash_and_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = fuzz_files._Worker("clrt")
    worker.process.kill()
    assert worker.end(0) == Ending(0, "crash", "exit status -9", False)
    assert worker.spent
    monkeypatch.setattr(fuzz_files, "LIMIT_S", 0.1)  # it sleeps: ten times that pass
    hangs = fuzz_files._Worker("clrt", pause_s=3600.0)
    assert hangs.end(0) == Ending(0, "hang", allowed=False)
    assert hangs.spent
