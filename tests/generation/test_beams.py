"""Beam search against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clrt
from clrt.generation.beams import BeamSearch
from clrt.generation.options import Sampling
from clrt.generation.text_generator import TextGenerator
from tests.generation.oracle_texts import BEAMS, PROMPTS
from tests.generation.text_folders import TEXTS, make_generator, pages_in_use, write_texts


@pytest.mark.parametrize("name", BEAMS)
def test_beam_search_matches_transformers(name: str, tmp_path: Path) -> None:
    prompt, count, most, ends = BEAMS[name]
    with make_generator(write_texts(tmp_path, ends)) as generator:
        found = generator.generate(
            PROMPTS[prompt], num_beams=count, num_return_sequences=count, max_new_tokens=most
        )
        assert pages_in_use(generator) == 0
    assert [list(text.tokens) for text in found] == TEXTS["beams"][name]
    assert all((text.tokens[-1] in ends) == (text.finish_reason == "stop") for text in found)


def test_beam_search_of_several_prompts_matches_single_prompts(endless: TextGenerator) -> None:
    one = endless.generate(PROMPTS["short"], num_beams=3, max_new_tokens=10, logprobs=2)
    assert isinstance(one, clrt.GeneratedText) and len(one.logprobs or ()) == 10
    scores = endless.score([*PROMPTS["short"], *one.tokens])[-10:]
    assert one.logprobs is not None
    np.testing.assert_allclose([t.logprob for t in one.logprobs], scores, atol=1e-4)
    both = endless.generate([PROMPTS["short"], "x"], num_beams=3, max_new_tokens=10, logprobs=2)
    assert both[0] == one and both[1].text == endless.tokenizer.decode(list(both[1].tokens))


def test_cancelled_beam_search_frees_cache_pages(endless: TextGenerator) -> None:
    sampling = Sampling(num_beams=2)
    search = BeamSearch(endless._scheduler, endless._model, PROMPTS["long"], sampling)
    search.cancelled = True
    with pytest.raises(clrt.CancelledError):
        search.run()
    assert pages_in_use(endless) == 0
