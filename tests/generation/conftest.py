"""Text generators shared by all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clrt.generation.text_generator import TextGenerator
from tests.generation.text_folders import END, make_generator, write_texts


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """A generator without end-of-text tokens and without a chat template."""
    folder = write_texts(tmp_path_factory.mktemp("endless"), template=None)
    with make_generator(folder, sequences=8) as made:
        yield made


@pytest.fixture(scope="session")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """A generator with a chat template, whose texts end with <|im_end|>."""
    folder = write_texts(tmp_path_factory.mktemp("chatting"), [END])
    with make_generator(folder, context=640) as made:
        yield made
