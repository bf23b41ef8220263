"""Text generators that the tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clrt.generation.text_generator import TextGenerator
from tests.generation.text_folders import END, make_generator, write_texts


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """Its texts end by their length alone; it has no chat template."""
    folder = write_texts(tmp_path_factory.mktemp("endless"), template=None)
    with make_generator(folder, sequences=8) as made:
        yield made


@pytest.fixture(scope="session")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """Texts end with <|im_end|>."""
    folder = write_texts(tmp_path_factory.mktemp("chatting"), [END])
    with make_generator(folder, context=640) as made:
        yield made
