"""Documentation site: code runs, tables are complete, every public name is listed."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

import clrt
from clrt.cli.main import COMMANDS
from clrt.device.quirks import QUIRKS
from clrt.util import env_vars
from tests.audio.whisper_folders import write_whisper
from tests.generation.adapter_folders import small_adapter
from tests.generation.checkpoints import noise
from tests.generation.text_folders import END, write_encoder_decoder, write_texts
from tests.models.fixtures import load_family
from tests.unit.pages import ROOT, blocks, program, run
from tests.vision import small_models as small

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RECIPES = sorted((DOCS / "recipes").glob("*.md"))
# How many files a recipe touches, tests of its own aside; one for a variant is of the tests.
TOUCHED = {"op": 2, "pass": 2, "kernel-variant": 3, "device": 1}


@pytest.mark.lengthy
def test_documentation_code_runs(tmp_path: Path) -> None:
    """Provides the files that pages name: models, images."""
    onnx.save(load_family("distilbert_dynamo20"), tmp_path / "bert.onnx")
    small.clip(tmp_path / "clip", one=True)
    for name, make in (("vit", small.classifier), ("detr", small.detr)):
        make(tmp_path / name)
    small.segmenter(tmp_path / "segformer")
    for name in ("cat.jpg", "dog.png"):
        Image.fromarray(np.arange(14400, dtype=np.uint8).reshape(60, 80, 3)).save(tmp_path / name)
    for name in ("llm", "llm-small"):
        write_texts(tmp_path / name, [END])
    write_encoder_decoder(tmp_path / "t5")
    write_whisper(tmp_path / "whisper-tiny")
    module = "model.layers.0.self_attn.q_proj"
    small_adapter(tmp_path / "style", module, noise("up", (48, 2)), noise("down", (2, 48)))
    first = DOCS / "getting-started.md"
    rest = [p for p in PAGES if p != first and p not in RECIPES]
    run(tmp_path, "-c", program([first, *rest]))


def _write(root: Path, name: str, language: str, text: str) -> None:
    """Writes a file from a code block, or applies a diff whose context occurs once."""
    path = root / name
    if language != "diff":
        assert not path.exists(), name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return
    lines = text.splitlines(keepends=True)
    old = "".join(x[1:] or "\n" for x in lines if not x.startswith("+"))
    new = "".join(x[1:] or "\n" for x in lines if not x.startswith("-"))
    before = path.read_text("utf-8")
    assert before.count(old) == 1, f"{name}:\n{old}"
    path.write_text(before.replace(old, new), "utf-8")


@pytest.mark.lengthy
def test_recipe_code_and_tests_pass(tmp_path: Path) -> None:
    """Applies all recipes to a copy of the sources; the kernel-variant recipe extends the op's."""
    ignored = shutil.ignore_patterns("__pycache__", "data")
    for name in ("clrt", "kernels_cl", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    (tmp_path / "tools").mkdir()
    for name in ("pyproject.toml", "tools/op_index.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    tests = []
    for recipe, most in TOUCHED.items():
        touched = set()
        for language, name, text in blocks(DOCS / f"recipes/{recipe}.md", "py", "c", "diff"):
            _write(tmp_path, name, language, text)
            if language == "diff" or not name.startswith("tests/"):
                touched.add(name)
            elif Path(name).name.startswith("test_"):
                tests.append(name)
        assert len(touched) == most, touched
    run(tmp_path, "tools/op_index.py", root=tmp_path)
    run(tmp_path, "-c", program(RECIPES), root=tmp_path)
    pytest_here = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    run(tmp_path, *pytest_here, *tests, root=tmp_path)
    run(tmp_path, *pytest_here, "tests/ops/test_ops.py", "-k", "Mirror", root=tmp_path)


def test_each_recipe_is_tested() -> None:
    assert {p.stem for p in RECIPES} == TOUCHED.keys()


def _public() -> Iterator[tuple[str, object]]:
    """Yields every public name of the package and of its classes."""
    for name in clrt.__all__:
        made = getattr(clrt, name)
        yield name, made
        for member, value in vars(made).items() if inspect.isclass(made) else ():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                yield f"{name}.{member}", value


def test_public_names_are_in_reference() -> None:
    text = "".join(p.read_text("utf-8") for p in PAGES)
    shown = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    assert {f"clrt.{name}" for name in clrt.__all__} <= shown


def test_reference_names_are_defined_in_stated_module() -> None:
    text = "".join(p.read_text("utf-8") for p in PAGES)
    for name in re.findall(r"^::: (clrt\.\S+)$", text, re.MULTILINE):
        path, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(path), last)
        # MkDocs reads the sources, and does not follow what a module imports.
        assert path == "clrt" or getattr(found, "__module__", path) == path, name


def test_public_names_have_docstrings() -> None:
    def is_documented(made: object) -> bool:
        text = inspect.getdoc(made) or ""
        generated = is_dataclass(made) and text.startswith(f"{getattr(made, '__name__', '')}(")
        return bool(text) and not generated

    assert [name for name, made in _public() if not is_documented(made)] == []


def _first_cells(page: str, heading: str) -> set[str]:
    """Returns backticked words in the first column of the table after a heading."""
    part = (DOCS / page).read_text("utf-8").split(heading, 1)[1].split("\n#", 1)[0]
    cells = re.findall(r"^\|([^|]*)\|", part, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("page", ["follow-a-run.md", "follow-a-token.md"])
def test_walkthrough_pages_name_existing_code(page: str) -> None:
    text = (ROOT / "docs" / "internals" / page).read_text("utf-8")
    rows = re.findall(r"`([\w/]+\.py)`(?: `(\w+)`)?", text)
    assert len(rows) > 15
    for file, name in rows:
        tree = ast.parse((ROOT / "clrt" / file).read_text("utf-8"))
        assert not name or name in {getattr(node, "name", "") for node in tree.body}, (file, name)


def test_reference_tables_are_complete() -> None:
    assert _first_cells("guides/settings.md", "## Environment") == {k.name for k in env_vars.ALL}
    assert _first_cells("recipes/device.md", "## 3.") == {q.id for q in QUIRKS}
    commands = {f"clrt {name}" for name in COMMANDS} | {"clrt-convert"}
    assert _first_cells("reference/commands.md", "# Commands") == commands
    errors = {n for n in clrt.__all__ if n.endswith("Error")} - {"ClrtError"}
    assert errors == _first_cells("reference/errors.md", "# Errors")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_documentation_links_resolve(page: Path) -> None:
    """`make docs` also checks anchors and names, with MkDocs."""
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        assert link.startswith("https://") or (page.parent / link).is_file(), link
