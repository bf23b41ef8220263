"""The toy of the chat example: its gradients, its training, and chats with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clrt.generation.text_generator import TextGenerator
from examples.chat_demo.builder import make_tokenizer, train, write_folder
from examples.chat_demo.network import Geometry, Pass, new_weights
from examples.chat_demo.texts import facts, lines
from tests.harness import quick_device
from tests.unit.pages import ROOT

TAUGHT = [fact for fact in facts(("csv", "uuid", "wave")) if "\n" not in fact.answer]
SMALL = {"hidden": 48, "heads": 2, "intermediate": 96}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy that knows a few facts.

    It is trained with one thread, which NumPy has to be told before it starts: several that wait
    for each other on a busy machine take ten times as long.
    """
    folder = tmp_path_factory.mktemp("toy") / "toy"
    code = f"from {__name__} import write_toy; write_toy({str(folder)!r})"
    alone = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=os.environ | alone)
    assert [p.name for p in folder.parent.iterdir()] == ["toy"]
    return folder


def write_toy(name: str) -> None:
    """Trains it; what lies there already is replaced."""
    tokenizer = make_tokenizer(TAUGHT, 300)
    sizes = Geometry(tokenizer.get_vocab_size(), **SMALL)
    losses: list[float] = []
    told = lambda step, loss: losses.append(loss)  # noqa: E731
    weights = train(tokenizer, TAUGHT, sizes, 200, 0.01, 4, told)
    assert losses[-1] < 0.3 < losses[0], losses[-1]
    for _ in range(2):
        write_folder(Path(name), tokenizer, sizes, weights)


def test_gradients_are_those_of_differences() -> None:
    rng = np.random.default_rng(0)
    sizes = Geometry(11, hidden=8, layers=2, heads=2, intermediate=12, window=4)
    weights = new_weights(sizes, rng, np.float64)
    tokens, targets = rng.integers(0, 11, (2, 2, 7))
    counts = rng.integers(0, 2, (2, 7)) > 0

    def loss() -> float:
        return Pass(sizes, weights, tokens).loss(targets, counts)

    run = Pass(sizes, weights, tokens)
    run.loss(targets, counts)
    for name, weight in weights.items():
        place = np.unravel_index(np.abs(run.gradients[name]).argmax(), weight.shape)
        middle, step = weight[place], 1e-5
        weight[place] = middle + step
        above = loss()
        weight[place] = middle - step
        slope = (above - loss()) / (2 * step)
        weight[place] = middle
        assert run.gradients[name][place] == pytest.approx(slope, rel=1e-5), name


def test_it_says_what_it_was_taught(toy: Path) -> None:
    """clrt computes what NumPy trained: each answer comes back, in a chat of several turns too."""
    with TextGenerator(toy, device=quick_device(), context=512) as generator:
        chat = generator.chat()
        for fact in TAUGHT:
            if fact.answer.count("\n") == 0:
                assert chat.send(fact.questions[0]).text == fact.answer


def test_training_is_repeatable() -> None:
    tokenizer = make_tokenizer(TAUGHT, 300)
    sizes = Geometry(tokenizer.get_vocab_size(), **SMALL)
    one, two = (train(tokenizer, TAUGHT, sizes, 2, 0.01) for _ in range(2))
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_the_texts_are_python_s_own() -> None:
    found = "\n".join(lines(facts()))
    assert (
        "Beautiful is better than ugly." in found and "Read/write/investigate CSV files." in found
    )
    assert len(facts()) > 50 and len(facts(("no_such_module",))) == len(facts(()))
