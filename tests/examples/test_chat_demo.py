"""Toy model of the chat example: gradients, training, and chats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clrt.generation.text_generator import TextGenerator
from examples.chat_demo.builder import make_tokenizer, train, write_folder
from examples.chat_demo.network import Geometry, Pass, new_weights
from examples.chat_demo.texts import facts, lines
from tests.harness import quick_device

TAUGHT = [fact for fact in facts(("csv", "uuid", "wave")) if "\n" not in fact.answer]
SMALL = {"hidden": 48, "heads": 2, "intermediate": 96}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains a toy model on a few facts."""
    tokenizer = make_tokenizer(TAUGHT, 300)
    sizes = Geometry(tokenizer.get_vocab_size(), **SMALL)
    losses: list[float] = []
    told = lambda step, loss: losses.append(loss)  # noqa: E731
    weights = train(tokenizer, TAUGHT, sizes, 160, 0.01, 4, told)
    assert losses[-1] < 0.1 < losses[0]
    folder = tmp_path_factory.mktemp("toy") / "toy"
    write_folder(folder, tokenizer, sizes, weights)
    write_folder(folder, tokenizer, sizes, weights)  # replaces what is there
    assert [p.name for p in folder.parent.iterdir()] == ["toy"]
    return folder


def test_gradients_match_finite_differences() -> None:
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


def test_trained_model_answers_taught_questions(toy: Path) -> None:
    """clrt runs the model that NumPy trained; each answer is returned in a multi-turn chat."""
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


def test_training_texts_come_from_python_docs() -> None:
    found = "\n".join(lines(facts()))
    assert (
        "Beautiful is better than ugly." in found and "Read/write/investigate CSV files." in found
    )
    assert len(facts()) > 50 and len(facts(("no_such_module",))) == len(facts(()))
