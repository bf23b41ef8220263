"""Language model fixtures shared by the command tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clrt.generation.text_generator import TextGenerator
from tests.generation.text_folders import make_generator
from tests.unit.cli.language_models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small language model."""
    return write_model(tmp_path_factory.mktemp("models") / "llm")


@pytest.fixture(scope="module")
def generator(model: Path) -> Iterator[TextGenerator]:
    """Text generator over the `model` folder."""
    with make_generator(model) as made:
        yield made
