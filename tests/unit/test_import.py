"""`import clrt` loads few modules and exposes exactly the public names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clrt

LATER = ("onnx", "tokenizers", "rich", "typer", "pyopencl", "tqdm", "numpy", "clrt.ops")
# Of clrt and of the standard library; it is 40.
MOST_MODULES = 80


def _modules(code: str) -> list[str]:
    """Returns the modules that code imports in a new process."""
    script = f"import sys\nbefore = set(sys.modules)\n{code}\nimport json\n"
    script += "print('\\n' + json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, list)
    return found


def test_import_clrt_loads_few_modules() -> None:
    found = _modules("import clrt")
    assert not set(LATER) & set(found)
    assert len(found) < MOST_MODULES


def test_command_with_texts_and_defaults_needs_no_validators() -> None:
    arguments = ["embed", "-m", "no such model", "a text", "--device", "cpu"]
    run = f"from clrt.cli.main import app\ntry:\n    app({arguments!r})\nexcept SystemExit: pass\n"
    found = set(_modules(run))
    assert "clrt.text.sentence_encoder" in found
    others = {"pydantic", "clrt.text.cross_encoder", "clrt.text.sparse_encoder", "clrt.ops"}
    assert not found & {*others, "clrt.text.jobs.job"}


def test_help_and_version_load_no_heavy_modules() -> None:
    run = "from clrt.cli.main import app\ntry:\n    app([{}])\nexcept SystemExit as end:\n"
    for option in ("'--help'", "'--version'", ""):
        found = _modules(run.format(option) + "    assert not end.code")
        assert not {"onnx", "tokenizers", "pyopencl", "numpy", "clrt.runtime.model.model"} & set(
            found
        )


def _write_relu(path: Path) -> None:
    from clrt.models.compiled import CompiledModel, write_compiled
    from tests.passes.helpers import graph_of

    write_compiled(CompiledModel(graph_of("%y: float32[2] = Relu(%x)", "%x: float32[2]")), path, "")


def test_compiled_model_loads_without_onnx(tmp_path: Path) -> None:
    path = tmp_path / "m.clrt"
    _write_relu(path)
    found = _modules(f"import clrt\nclrt.load({str(path)!r}, device='cpu').run([-1.0, 2.0])")
    assert "clrt.runtime.model.model" in found
    assert not {"onnx", "tokenizers", "rich", "typer", "tqdm"} & set(found)


def test_checkpoint_loads_without_onnx(tmp_path: Path) -> None:
    from tests.unit.models.encoders.checkpoints import make_config, make_tensors, write

    write(tmp_path, make_config("bert"), make_tensors("bert"))
    found = _modules(f"import clrt\nclrt.load({str(tmp_path)!r}, device='cpu')")
    assert "clrt.models.encoders" in found
    assert not {"clrt.ops.recurrent.lstm", "clrt.ops.text.strings", "clrt.ops.vision.roi_align"} & {
        *found
    }
    assert not {"onnx", "google.protobuf", "tokenizers"} & set(found)


def test_dir_lists_public_names_only() -> None:
    clrt.load  # noqa: B018  what was used once is found again
    assert sorted(dir(clrt)) == sorted([*clrt.__all__, "__version__"])
    for name in clrt.__all__:
        assert getattr(clrt, name).__module__.startswith("clrt.")
    with pytest.raises(AttributeError, match="module 'clrt' has no attribute 'nonsense'"):
        clrt.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("missing", "code", "message"),
    [
        ("tokenizers", "clrt.SentenceEncoder", r"clrt\.SentenceEncoder .*extra 'text'"),
        ("onnx", "clrt.load(b'', device='cpu')", r"An ONNX model .*extra 'onnx'"),
        (
            "rich",
            "str(clrt.load(PATH, device='cpu').explain({'x': (2,)}))",
            r"text .*extra 'cli'",
        ),
        ("typer", "import clrt.cli", r"The command line .*extra 'cli'"),
    ],
)
def test_missing_package_error_names_extra(
    tmp_path: Path, missing: str, code: str, message: str
) -> None:
    _write_relu(tmp_path / "m.clrt")
    block = (
        f"import sys, clrt\nPATH = {str(tmp_path / 'm.clrt')!r}\nsys.modules[{missing!r}] = None\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", block + code], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert re.search(message, done.stderr.strip().splitlines()[-1])
