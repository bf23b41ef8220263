"""Sampling options: one-line errors, and defaults from a model folder as in transformers."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt.errors import InputError, ModelError
from clrt.generation.options import Sampling, eos_tokens


def test_default_sampling_is_greedy() -> None:
    made = Sampling()
    assert made.is_greedy and made.stop == () and made.logit_bias == {} and made.logprobs == 0


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_new_tokens", 0, "a whole number from 1."),
        ("max_new_tokens", 2.5, "a whole number from 1."),
        ("max_new_tokens", True, "a whole number from 1."),
        ("temperature", -0.1, "a number of 0 or more."),
        ("temperature", math.nan, "a number of 0 or more."),
        ("temperature", math.inf, "a number of 0 or more."),
        ("temperature", "hot", "a number of 0 or more."),
        ("top_k", -1, "a whole number from 0."),
        ("top_p", 0, "a number above 0 and at most 1."),
        ("top_p", 1.5, "a number above 0 and at most 1."),
        ("min_p", -0.5, "a number from 0 to 1."),
        ("typical_p", 2, "a number above 0 and at most 1."),
        ("repetition_penalty", 0, "a number above 0."),
        ("presence_penalty", 3, "a number from -2 to 2."),
        ("frequency_penalty", -2.5, "a number from -2 to 2."),
        ("num_return_sequences", 0, "a whole number from 1 to 65536."),
        ("num_beams", None, "a whole number from 1 to 1024."),
        ("logprobs", 21, "a whole number from 0 to 20."),
        ("seed", -1, "None or a whole number from 0 to 2**64 - 1."),
        ("stop", [""], "a text or a list of texts, none of them empty."),
        ("stop", {"a"}, "a text or a list of texts, none of them empty."),
        ("logit_bias", [1], "a mapping from token ids to numbers."),
        ("include_stop", 1, "True or False."),
    ],
)
def test_invalid_sampling_values_are_refused(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(InputError) as raised:
        Sampling(**{name: value})
    assert str(raised.value) == f"{name} is {value!r}; expected {allowed}"


def test_invalid_logit_bias_and_beam_count_are_refused() -> None:
    with pytest.raises(InputError, match=r"^logit_bias has the key -1; keys are token ids\.$"):
        Sampling(logit_bias={-1: 0.5})
    with pytest.raises(
        InputError, match=r"^logit_bias of token 3 is nan; expected a finite number"
    ):
        Sampling(logit_bias={3: math.nan})
    with pytest.raises(InputError, match="raise num_beams"):
        Sampling(num_beams=2, num_return_sequences=3)


def test_sampling_values_become_plain_python_types() -> None:
    bias = {np.int64(3): np.float32(0.5), 4: -math.inf}
    made = Sampling(top_k=np.int32(5), top_p=np.float64(1), stop="a", logit_bias=bias, seed=7)
    bias.clear()
    assert (type(made.top_k), type(made.top_p), made.stop) == (int, float, ("a",))
    assert made.logit_bias == {3: 0.5, 4: -math.inf}
    assert pickle.loads(pickle.dumps(made)) == made == dataclasses.replace(made)
    assert hash(made) == hash(dataclasses.replace(made))


def _folder(path: Path, **files: object) -> Path:
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return path


def test_folder_without_config_gives_default_sampling(tmp_path: Path) -> None:
    assert Sampling.from_folder(tmp_path) == Sampling()
    assert eos_tokens(tmp_path) == ()


def test_generation_config_sets_sampling_defaults(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": None, "repetition_penalty": 1.1}
    _folder(tmp_path, generation_config={**config, "do_sample": True, "stop_strings": ["x"]})
    made = Sampling.from_folder(tmp_path, max_new_tokens=3, top_p=0.5)
    assert made == Sampling(
        max_new_tokens=3, temperature=0.6, top_p=0.5, top_k=50, repetition_penalty=1.1, stop="x"
    )


def test_generation_config_without_do_sample_is_greedy(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "num_beams": 4, "epsilon_cutoff": 0.1}
    _folder(tmp_path, generation_config=config)
    assert Sampling.from_folder(tmp_path) == Sampling(num_beams=4)


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        ({"max_length": 20}, (20, 20)),
        ({"max_length": 20, "max_new_tokens": 5}, (0, 5)),
        ({"max_new_tokens": 5}, (0, 5)),
    ],
)
def test_generation_config_sets_length_limits(
    tmp_path: Path, config: dict[str, int], limits: tuple[int, int]
) -> None:
    _folder(tmp_path, generation_config=config)
    made = Sampling.from_folder(tmp_path)
    assert (made.max_length, made.max_new_tokens) == limits


def test_genai_max_length_sets_only_max_length(tmp_path: Path) -> None:
    _folder(tmp_path, genai_config={"search": {"max_length": 4096}})
    assert Sampling.from_folder(tmp_path) == Sampling(max_length=4096)


def test_config_json_is_used_without_generation_config(tmp_path: Path) -> None:
    _folder(tmp_path, config={"no_repeat_ngram_size": 3, "hidden_size": 8, "eos_token_id": 2})
    assert Sampling.from_folder(tmp_path) == Sampling(no_repeat_ngram_size=3)
    _folder(tmp_path, generation_config={})
    assert Sampling.from_folder(tmp_path) == Sampling()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "must hold a JSON object"),
        ({"do_sample": "yes"}, "do_sample 'yes'; expected true or false."),
        ({"do_sample": True, "top_p": 3}, "top_p is 3; expected a number above 0 and at most 1."),
        ({"num_beams": "4"}, "num_beams is '4'; expected a whole number from 1 to 1024."),
        ({"stop_strings": 3}, "stop is 3; expected a text"),
        ({"suppress_tokens": 3}, "suppress_tokens is 3; expected a list of tokens."),
        ({"suppress_tokens": [-1]}, "suppress_tokens has the token -1;"),
        ({"bad_words_ids": [[]]}, "bad_words_ids has a list without tokens;"),
        ({"bad_words_ids": [3]}, "bad_words_ids is 3; expected a list of tokens."),
        ({"forced_bos_token_id": [1]}, "forced_bos_token_id has the token [1];"),
        ({"sequence_bias": [[1]]}, "sequence_bias has [1]; each is a pair"),
        ({"sequence_bias": [[[1], "x"]]}, "sequence_bias has the number 'x';"),
        ({"no_repeat_ngram_size": 1 << 20}, "a whole number from 0 to 1024."),
        ({"early_stopping": "often"}, 'expected True, False or "never".'),
        ({"renormalize_logits": 1}, "renormalize_logits is 1; expected True or False."),
    ],
)
def test_invalid_generation_config_values_are_refused(
    tmp_path: Path, config: object, message: str
) -> None:
    _folder(tmp_path, generation_config=config)
    with pytest.raises(ModelError) as raised:
        Sampling.from_folder(tmp_path)
    assert "generation_config.json'" in str(raised.value) and message in str(raised.value)


def test_malformed_generation_config_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    for content in (b"{", b"\xff", b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(ModelError, match=r"generation_config\.json"):
            Sampling.from_folder(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(ModelError, match=r"directory|regular"):
        Sampling.from_folder(tmp_path)


def test_eos_tokens_are_read_from_configs(tmp_path: Path) -> None:
    _folder(tmp_path, config={"eos_token_id": 2})
    assert eos_tokens(tmp_path) == (2,)
    _folder(tmp_path, generation_config={"eos_token_id": [5, 4, 5]})
    assert eos_tokens(tmp_path) == (5, 4)
    for wrong in ("2", [-1], True, [[1]], 1.5):
        _folder(tmp_path, generation_config={"eos_token_id": wrong})
        with pytest.raises(ModelError, match=r"generation_config\.json' has the eos_token_id"):
            eos_tokens(tmp_path)
