"""The language model that the tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clrt.generation.text_generator import TextGenerator
from tests.generation.text_folders import make_generator
from tests.unit.cli.language_models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder."""
    return write_model(tmp_path_factory.mktemp("models") / "llm")


@pytest.fixture(scope="module")
def generator(model: Path) -> Iterator[TextGenerator]:
    """What the library makes of it."""
    with make_generator(model) as made:
        yield made
