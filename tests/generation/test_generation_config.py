"""generation_config.json: token rules against transformers, and refused keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt import Sampling, TextGenerator
from clrt.errors import InputError, UnsupportedError
from clrt.generation.generation_config import KEYS
from clrt.generation.token_rules import NextTokenRules
from tests.generation.checkpoints import DATA
from tests.generation.oracle_texts import BEAM_RULES, PROMPTS, RULE_ENDS, RULES, RULES_TOKENS
from tests.generation.text_folders import make_generator, write_texts

EXPECTED = json.loads((DATA / "rules.json").read_text(encoding="utf-8"))
# Attributes of GenerationConfig in transformers 5.23 and 4.57.
TRANSFORMERS = (
    "_from_model_config assistant_confidence_threshold assistant_early_exit "
    "assistant_ensemble_weight assistant_lookbehind bad_words_ids begin_suppress_tokens "
    "bos_token_id cache_config cache_implementation compile_config constraints "
    "continuous_batching_config decoder_start_token_id disable_compile diversity_penalty "
    "do_sample dola_layers early_stopping encoder_no_repeat_ngram_size "
    "encoder_repetition_penalty eos_token_id epsilon_cutoff eta_cutoff "
    "exponential_decay_length_penalty force_words_ids forced_bos_token_id forced_eos_token_id "
    "guidance_scale is_assistant length_penalty low_memory max_cache_len max_length "
    "max_matching_ngram_size max_new_tokens max_time min_length min_new_tokens min_p "
    "no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups "
    "num_beams num_return_sequences output_attentions output_hidden_states output_logits "
    "output_scores pad_token_id penalty_alpha prefill_chunk_size prompt_lookup_num_tokens "
    "remove_invalid_values renormalize_logits repetition_penalty return_dict_in_generate "
    "sequence_bias speculation_type stop_strings suppress_tokens target_lookbehind temperature "
    "token_healing top_h top_k top_p transformers_version typical_p use_cache use_mtp "
    "watermarking_config"
)


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with make_generator(write_texts(tmp_path_factory.mktemp("ending"), RULE_ENDS)) as made:
        yield made


def sampling_of(folder: Path, config: dict[str, Any]) -> Sampling:
    """What a generation_config.json proposes."""
    limit = {} if "max_length" in config else {"max_new_tokens": RULES_TOKENS}
    text = json.dumps({**config, **limit})
    (folder / "generation_config.json").write_text(text, encoding="utf-8")
    return Sampling.from_folder(folder)


def generated(
    endless: TextGenerator, ending: TextGenerator, folder: Path, name: str, config: dict[str, Any]
) -> list[int]:
    model = ending if "eos_token_id" in config else endless
    prompt = PROMPTS["one" if name == "forced_begin" else "short"]
    return list(model.generate(prompt, sampling=sampling_of(folder, config)).tokens)


@pytest.mark.parametrize("name", RULES)
def test_greedy_texts_with_generation_config_match_transformers(
    endless: TextGenerator, ending: TextGenerator, tmp_path: Path, name: str
) -> None:
    found = generated(endless, ending, tmp_path, name, RULES[name])
    assert found == EXPECTED["greedy"][name]


@pytest.mark.parametrize("name", EXPECTED["beams"])
def test_beams_with_generation_config_match_transformers(
    endless: TextGenerator, ending: TextGenerator, tmp_path: Path, name: str
) -> None:
    config = {**RULES, **BEAM_RULES}[name] | {"num_beams": 3}
    found = generated(endless, ending, tmp_path, name, config)
    assert found == EXPECTED["beams"][name]


def test_lookup_drafts_follow_token_rules_of_each_text(
    endless: TextGenerator, tmp_path: Path
) -> None:
    """Two texts run in one step; rules apply to the tokens of each text."""
    for name in ("ngram", "bad_words", "forced_end"):
        sampling = sampling_of(tmp_path, RULES[name])
        prompts = [PROMPTS["long"], PROMPTS["short"]]
        found = endless.generate(prompts, sampling=sampling, lookup_tokens=8)
        assert list(found[1].tokens) == EXPECTED["greedy"][name]


def test_sampled_tokens_follow_token_rules(endless: TextGenerator) -> None:
    banned = set(range(0, 450, 2))
    text = endless.generate(
        PROMPTS["short"],
        max_new_tokens=60,
        temperature=5.0,
        seed=3,
        suppress_tokens=sorted(banned),
        no_repeat_ngram_size=1,
        forced_eos_token_id=9,
    ).tokens
    assert not banned & set(text) and text[-1] == 9
    assert len({*text[:-1], *PROMPTS["short"]}) == len(text) - 1 + len(PROMPTS["short"])


def test_token_rules_that_ban_all_tokens_are_refused(endless: TextGenerator) -> None:
    for beams in (1, 2):
        with pytest.raises(InputError, match="No token can follow"):
            endless.generate(
                PROMPTS["short"], suppress_tokens=range(450), num_beams=beams, max_new_tokens=3
            )


def test_prompt_that_fills_max_length_is_refused(endless: TextGenerator) -> None:
    sampling = Sampling(max_length=len(PROMPTS["short"]))
    with pytest.raises(InputError, match="max_length allows 3 with the answer"):
        endless.generate(PROMPTS["short"], sampling=sampling)
    found = endless.generate(PROMPTS["short"], sampling=Sampling(max_length=5))
    assert len(found.tokens) == 2


def test_call_options_override_generation_config(tmp_path: Path) -> None:
    config = {"suppress_tokens": list(range(449)), "max_length": 7}
    with make_generator(write_texts(tmp_path, sampling=config)) as model:
        assert set(model.generate(PROMPTS["short"]).tokens) == {449}
        assert len(model.generate(PROMPTS["short"]).tokens) == 4
        found = model.generate(PROMPTS["short"], suppress_tokens=(), max_new_tokens=9).tokens
        assert len(found) == 9 and set(found) != {449}


def test_every_transformers_generation_key_is_handled() -> None:
    assert set(TRANSFORMERS.split()) == set(KEYS)


ACTIVE = {
    "guidance_scale": 1.5,
    "encoder_repetition_penalty": 1.2,
    "exponential_decay_length_penalty": [3, 1.1],
    "token_healing": True,
    "watermarking_config": {"bias": 2.0},
    "max_time": 3.0,
    "penalty_alpha": 0.6,
    "dola_layers": "high",
    "diversity_penalty": 0.5,
    "num_beam_groups": 2,
    "constraints": [{}],
    "force_words_ids": [[3]],
    "top_h": 0.4,
    "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.01,
}


def test_unsupported_generation_keys_are_refused_by_name(tmp_path: Path) -> None:
    assert set(ACTIVE) == {name for name, key in KEYS.items() if key.treatment == "refused"}
    for name, value in ACTIVE.items():
        config = {name: value, "do_sample": KEYS[name].drawing}
        with pytest.raises(UnsupportedError, match=rf"generation_config.json' has {name} "):
            sampling_of(tmp_path, config)
        for neutral in (None, *KEYS[name].neutral):
            sampling_of(tmp_path, {name: neutral, "do_sample": True})
        if KEYS[name].drawing:
            sampling_of(tmp_path, {name: value})


def test_explicit_sampling_bypasses_refused_generation_config(tmp_path: Path) -> None:
    config = {"guidance_scale": 3.0}
    with make_generator(write_texts(tmp_path, sampling=config)) as model:
        with pytest.raises(UnsupportedError, match=r"has guidance_scale 3\.0"):
            model.generate(PROMPTS["short"], max_new_tokens=3)
        options = Sampling(max_new_tokens=3)
        assert len(model.generate(PROMPTS["short"], sampling=options).tokens) == 3
        assert len(model.score(PROMPTS["short"])) == 2


def test_rules_for_token_ids_out_of_vocabulary_are_ignored() -> None:
    sampling = Sampling(suppress_tokens=[1, 99], bad_words_ids=[[98]], sequence_bias=[[[97], 1.0]])
    rules = NextTokenRules(sampling, [96], [0], 8)
    bits = np.unpackbits(rules.allowed([0], 40).view(np.uint8), bitorder="little")
    assert bits.tolist() == [1, 0, *[1] * 38, *[0] * 24]
    assert isinstance(clrt.Sampling(), Sampling)
