"""Trains the toy model, and writes it as a Hugging Face folder."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clrt.formats.safetensors import Table

from .network import EPSILON, THETA, Adam, Geometry, Pass, Weights, new_weights
from .texts import Fact, lines

if TYPE_CHECKING:
    from tokenizers import Tokenizer

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
# A message of the system is left out: the toy was not trained with any.
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CONTEXT = 2048
_WARM_STEPS = 10
_LENGTH = 128
# Of answers so many are cut, as Ctrl-C cuts them: what follows is not to suffer from it.
_CUT = 0.15
# And so many questions are asked twice.
_AGAIN = 0.15


def make_tokenizer(taught: list[Fact], vocabulary: int) -> Tokenizer:
    """Trains a byte-level BPE tokenizer on the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, USER, ASSISTANT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(lines(taught), trainer)
    return made


class _Teacher:
    """Samples chats about facts."""

    def __init__(self, tokenizer: Tokenizer, taught: list[Fact], rows: int, seed: int) -> None:
        self._rows = rows
        self._rng = np.random.default_rng(seed)
        self._facts = [
            (
                [
                    tokenizer.encode(f"{USER}{asked}{END}{ASSISTANT}").ids
                    for question in fact.questions
                    for asked in (question, question.lower().rstrip(".?!"))
                ],
                tokenizer.encode(f"{fact.answer}{END}").ids,
            )
            for fact in taught
            for _ in range(fact.times)
        ]
        self._order: list[int] = []
        self._rest: list[int] = []
        self._last = 0

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Returns tokens, next tokens as targets, and a mask of the targets in answers."""
        drawn = [self._row() for _ in range(self._rows)]
        tokens = np.array([row for row, _ in drawn])
        answers = np.array([kinds for _, kinds in drawn])
        return tokens[:, :-1], tokens[:, 1:], answers[:, 1:]

    def _row(self) -> tuple[list[int], list[bool]]:
        """Concatenates chats to a row; the rest of a long answer starts the next row."""
        size = _LENGTH + 1
        tokens, self._rest = self._rest, []
        kinds = [True] * len(tokens)
        is_long = len(tokens) > size
        while len(tokens) < size:
            if not self._order:
                self._order = list(self._rng.permutation(len(self._facts)))
            if self._rng.random() >= _AGAIN:
                self._last = self._order.pop()
            questions, answer = self._facts[self._last]
            question = questions[self._rng.integers(len(questions))]
            cut = len(answer) - 1
            if self._rng.random() < _CUT:
                cut = int(self._rng.integers(1, len(answer)))
            tokens = [*tokens, *question, *answer[:cut], answer[-1]]
            kinds += [False] * len(question) + [True] * cut + [cut == len(answer) - 1]
            is_long = cut > size
        if is_long:
            self._rest = tokens[_LENGTH:]
        return tokens[:size], kinds[:size]


def train(
    tokenizer: Tokenizer,
    taught: list[Fact],
    sizes: Geometry,
    steps: int,
    rate: float,
    rows: int = 16,
    told: Callable[[int, float], object] = lambda step, loss: None,
) -> Weights:
    """Trains weights on the facts; deterministic on one machine.

    Args:
        rows: Texts per step.
        told: Called after each step with its number, from 1, and its loss.
    """
    teacher = _Teacher(tokenizer, taught, rows, seed=1)
    weights = new_weights(sizes, np.random.default_rng(0))
    adam = Adam(weights)
    for step in range(steps):
        tokens, targets, counts = teacher.rows()
        run = Pass(sizes, weights, tokens)
        loss = run.loss(targets, counts)
        fall = (1 + np.cos(np.pi * step / steps)) / 2
        adam.step(run.gradients, rate * fall * min(1.0, (step + 1) / _WARM_STEPS))
        told(step + 1, loss)
    return weights


def write_folder(folder: Path, tokenizer: Tokenizer, sizes: Geometry, weights: Weights) -> None:
    """Writes a Hugging Face folder, which replaces an existing one once it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, content in _texts(tokenizer, sizes).items():
            (made / name).write_text(json.dumps(content, indent=1), "utf-8")
        tokenizer.save(str(made / "tokenizer.json"))
        _write_weights(made / "model.safetensors", weights)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _texts(tokenizer: Tokenizer, sizes: Geometry) -> dict[str, dict[str, Any]]:
    end = tokenizer.token_to_id(END)
    config = {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",  # Llama, with a window: what is far behind is forgotten
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.heads,
        "head_dim": sizes.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "sliding_window": sizes.window,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "tie_word_embeddings": False,
        "eos_token_id": end,
        "dtype": "float32",
    }
    generation = {"eos_token_id": end, "do_sample": False, "max_new_tokens": 512}
    return {
        "config.json": config,
        "generation_config.json": generation,
        "tokenizer_config.json": {"chat_template": TEMPLATE, "eos_token": END},
    }


def _write_weights(file: Path, weights: Weights) -> None:
    table = Table({"format": "pt"})
    data = [bytes(part) for name, array in weights.items() for part in table.add(name, array)]
    file.write_bytes(table.encode() + b"".join(data))
