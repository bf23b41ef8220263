"""Text generators that start from the plans of earlier processes."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from clrt.generation.open_model import _with_short_merges
from clrt.generation.text_generator import TextGenerator
from clrt.runtime.executables.stored_graph import StoredGraph
from clrt.runtime.opencl.devices import DeviceInfo
from tests.generation.test_adapter_models import adapter
from tests.generation.test_gguf_models import write_model
from tests.generation.text_folders import END, write_encoder_decoder, write_texts
from tests.harness import all_devices, name_of, quick_device

PROMPTS = [[5], [3, 4, 5, 6, 7, 8, 9], [7] * 40]
OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "temperature": 0}


@pytest.fixture(autouse=True)
def _stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_EXECUTABLES", "1")
    monkeypatch.setenv("CLRT_VERIFY", "0")


def opened(
    source: Path, folder: Path, device: DeviceInfo | None = None, **options: Any
) -> TextGenerator:
    where = (device or quick_device()).index
    return TextGenerator(source, device=where, cache_dir=folder / "cache", **options)


def store(generator: TextGenerator) -> None:
    """Writes the plans, as the process does at its end."""
    assert not isinstance(generator._scheduler.engine.model._graph, StoredGraph)
    generator._scheduler.engine.model.save_programs()


def is_closed(generator: TextGenerator) -> bool:
    """Returns whether a generator runs by stored plans alone."""
    graph = generator._scheduler.engine.model._graph
    return isinstance(graph, StoredGraph) and not graph.is_open


def answers(generator: TextGenerator) -> list[Any]:
    texts = [*generator.generate(PROMPTS, **OPTIONS), generator.generate(PROMPTS[1], **OPTIONS)]
    drawn = generator.generate(PROMPTS[1], max_new_tokens=4, temperature=1.0, seed=3)
    return [(text.text, text.tokens, text.finish_reason) for text in (*texts, drawn)]


def written(kind: str, folder: Path) -> Path:
    """Returns a model of a kind: GGUF or safetensors; with an encoder."""
    if kind == "gguf":
        return write_model(folder / "m.gguf")
    write = write_encoder_decoder if kind == "encoder" else write_texts
    return write(folder / "m", ends=[END])


@pytest.mark.parametrize(
    "kind, device",
    [*product(("gguf", "folder"), all_devices()), ("encoder", quick_device())],
    ids=lambda each: each if isinstance(each, str) else name_of(each),
)
def test_stored_plans_answer_as_planned_ones(kind: str, device: DeviceInfo, tmp_path: Path) -> None:
    source = written(kind, tmp_path)
    with opened(source, tmp_path, device) as first:
        expected = answers(first)
        store(first)
        first_model = first._model
    with opened(source, tmp_path, device) as second:
        assert answers(second) == expected
        assert is_closed(second)
        for name in ("name", "fingerprint", "context", "vocabulary", "ends", "sampling", "start"):
            assert getattr(second._model, name) == getattr(first_model, name), name
        assert (second._model.template is None) == (first_model.template is None)
        if first_model.template is not None:
            chat = [{"role": "user", "content": "b"}]
            rendered = [m.chat_template.render(chat) for m in (first_model, second._model)]
            assert rendered[0] == rendered[1]


def test_stored_plans_are_of_one_content_and_one_set_of_options(tmp_path: Path) -> None:
    source = written("folder", tmp_path)
    with opened(source, tmp_path) as first:
        expected = answers(first)
        store(first)
    lora = adapter(tmp_path / "lora")
    for options in ({"context": 48}, {"cache": "int8"}, {"lora": lora}, {"lora": [(lora, 0.5)]}):
        with opened(source, tmp_path, **options) as other:
            assert not isinstance(other._scheduler.engine.model._graph, StoredGraph)
    with opened(source, tmp_path, lora=lora) as merged:
        with_lora = answers(merged)
        store(merged)
    with opened(source, tmp_path, lora=lora) as again:
        assert answers(again) == with_lora
        assert is_closed(again)
    write_texts(source, ends=[expected[0][1][1]])  # another generation_config.json
    with opened(source, tmp_path) as changed:
        assert not is_closed(changed)
        assert [text.finish_reason for text in changed.generate([PROMPTS[0]], **OPTIONS)] == [
            "stop"
        ]


def test_steps_that_need_another_plan_open_the_model_and_are_stored(tmp_path: Path) -> None:
    source = written("gguf", tmp_path)
    with opened(source, tmp_path) as first:
        first.generate(PROMPTS[0], max_new_tokens=1, temperature=0)
        store(first)
    with opened(source, tmp_path, cache="float32") as second:
        expected = answers(second)
        second._scheduler.engine.model.save_programs()
    with opened(source, tmp_path) as third:
        assert answers(third) == expected
        assert is_closed(third)


def test_tokenizer_with_spaces_in_tokens_stays_the_same() -> None:
    for tokens in (["a", "b", "ab"], ["a ", "b", "a b"]):
        model = models.BPE({t: i for i, t in enumerate(tokens)}, [(tokens[0], tokens[1])])
        text = Tokenizer(model).to_str()
        short = _with_short_merges(text)
        assert (short == text) == (" " in tokens[0])
        assert Tokenizer.from_str(short).to_str() == text


_PLAY = """
import sys
import clrt

generator = clrt.TextGenerator(sys.argv[1], device=int(sys.argv[2]), draft=sys.argv[1])
print(*generator.generate([3, 4, 5], max_new_tokens=6, temperature=0).tokens)
heavy = ("clrt.ops", "clrt.passes", "clrt.models.onnx", "clrt.plan.specialise", "clrt.plan.make")
print(*[m for m in sys.modules if m.startswith((*heavy, "clrt.models.decoders.graph"))])
"""


def test_second_process_imports_no_ops_and_no_planning(tmp_path: Path) -> None:
    source = written("folder", tmp_path)
    environment = os.environ | {"CLRT_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", _PLAY, str(source), str(quick_device().index)]
    found = []
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(done.stdout.splitlines())
    assert found[0][0] == found[1][0]
    assert "clrt.ops.base" in found[0][1]
    assert found[1][1] == ""
