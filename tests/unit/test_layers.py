"""Each folder imports only what its line lists: the layers of ARCHITECTURE.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "clrt"

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "knobs": {"errors"},
    "ir": {"errors"},
    "device": {"errors"},
    "kernels": {"errors", "ir", "device"},
    "ops": {"errors", "ir", "device", "kernels"},
    "container": {"errors", "files", "ir", "kernels", "ops"},
    "importer": {"errors", "container", "ir", "ops"},
    "exporter": {"errors", "files", "ir", "ops"},
    "passes": {"errors", "knobs", "ir", "device", "ops"},
    "tuning": {"errors", "knobs", "device", "kernels"},
    "plan": {"errors", "ir", "device", "kernels", "ops", "tuning"},
    "runtime": {"", "errors", "knobs", "ir", "device", "kernels", "ops", "plan"},
    "profiling": {"errors", "ir", "kernels", "plan", "runtime"},
    "inspection": {"errors", "ir", "device", "kernels", "ops", "passes", "tuning", "plan"},
    # The pooling graph is IR, so that pooling runs through the same passes and kernels.
    "text": {"errors", "container", "ir", "ops", "model", "signature"},
}
ONLY_IN = {
    "onnx": {"importer", "exporter", "sources"},
    "pyopencl": {"runtime"},
    "tokenizers": {"text"},
    "google": {"importer"},
    "xxhash": {"container"},
    "typer": {"cli"},
    "rich": {"cli", "inspection", "profiling"},
}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{a.name}" for a in node.names)


def _files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def _layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_stay_in_their_layer(path: Path) -> None:
    layer = _layer(path)
    for name in _imports(path):
        top, *rest = name.split(".")
        if top == "clrt" and layer in ALLOWED:
            target = rest[0] if rest else ""
            is_part = (ROOT / target).exists() or (ROOT / f"{target}.py").exists()
            assert (target if is_part else "") in ALLOWED[layer] | {layer}, name
        if top in ONLY_IN and layer not in ("model", "__init__"):
            assert layer in ONLY_IN[top], name
