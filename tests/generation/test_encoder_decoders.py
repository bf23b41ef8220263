"""Encoder-decoders from Hugging Face folders: results against transformers, and cache use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import clrt
from clrt.cli.main import app
from clrt.generation.engine import DecoderEngine
from clrt.generation.options import Sampling
from clrt.generation.sampler import TokenSampler
from clrt.generation.sequences import ScheduledSequence
from clrt.generation.text_generator import TextGenerator
from tests.generation.checkpoints import DATA, Array
from tests.generation.oracle_sources import (
    BEAM_TOKENS,
    BEAMS,
    COLUMNS,
    GIVEN,
    GREEDY,
    PENALTY,
    PLACES,
    SOURCES,
    source,
    text,
)
from tests.generation.oracle_texts import VOCABULARY
from tests.generation.test_compiled_models import compiled
from tests.generation.text_folders import (
    ENCODER_TEXTS,
    END,
    computed,
    make_generator,
    pages_in_use,
    write_encoder_decoder,
)

ARRAYS = np.load(DATA / "encoder_decoders.npz")
READ = [source(length) for length in SOURCES]
# The largest difference from logits that spread by 0.1 to 10, and from states.
TOLERANCE = 1e-4
# A cache of float16 rounds keys and values to 11 bits.
HALF_TOLERANCE = 2e-2


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    with make_generator(write_encoder_decoder(tmp_path_factory.mktemp("t5"))) as made:
        yield made


def logits(engine: DecoderEngine) -> list[Array]:
    """Of the texts of all sources, which run together: in part, then by token, then the rest."""
    sources = [engine.read(given) for given in READ]
    texts = [engine.open(text(n), source=s) for n, s in zip(SOURCES, sources, strict=True)]
    sampler, found = TokenSampler(Sampling(), VOCABULARY), []
    for count in (GIVEN, 1, 1, PLACES - GIVEN - 2):
        parts = [ScheduledSequence(sequence, count, [sampler] * count) for sequence in texts]
        found.append(engine.step(parts, ["logits"])["logits"].reshape(len(texts), count, -1))
    for sequence, read in zip(texts, sources, strict=True):
        engine.close(sequence)
        engine.release(read)
    return list(np.concatenate(found, axis=1))


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ENCODER_TEXTS)
def test_encoder_decoder_matches_transformers(name: str, tmp_path: Path) -> None:
    with make_generator(write_encoder_decoder(tmp_path, name)) as generator:
        engine = generator._scheduler.engine
        for k, found in enumerate(logits(engine)):
            np.testing.assert_allclose(
                found[:, COLUMNS], ARRAYS[f"{name}/{k}/logits"], rtol=0, atol=TOLERANCE
            )
        for k, mean in enumerate(generator.embed(READ)):
            np.testing.assert_allclose(mean, ARRAYS[f"{name}/{k}/mean"], rtol=0, atol=TOLERANCE)
        answers = generator.generate(READ, max_new_tokens=GREEDY, repetition_penalty=PENALTY)
        beams = generator.generate(
            READ, num_beams=BEAMS, num_return_sequences=BEAMS, max_new_tokens=BEAM_TOKENS
        )
        assert pages_in_use(generator) == 0
    expected = ENCODER_TEXTS[name]["texts"]
    assert [list(a.tokens) for a in answers] == [texts["greedy"] for texts in expected]
    assert [a.prompt_tokens for a in answers] == list(SOURCES)
    assert [list(b.tokens) for b in beams] == [b for texts in expected for b in texts["beams"]]


def test_compiled_encoder_decoder_matches_folder(tmp_path: Path) -> None:
    file = compiled(write_encoder_decoder(tmp_path / "model", "umt5"), tmp_path / "umt5.clrt")
    with make_generator(file) as generator:
        for k, answer in enumerate(
            generator.generate(READ, max_new_tokens=20, repetition_penalty=PENALTY)
        ):
            assert list(answer.tokens) == ENCODER_TEXTS["umt5"]["texts"][k]["greedy"][:20]
        assert (generator.context, generator._model.decoder.encoder is None) == (512, False)
    with (
        make_generator(file, context=64) as generator,
        pytest.raises(clrt.InputError, match="150 tokens, and the encoder reads at most 64"),
    ):
        generator.generate(READ[2])


def test_encoder_decoder_float16_cache_matches_transformers(tmp_path: Path) -> None:
    with make_generator(write_encoder_decoder(tmp_path), cache="float16") as generator:
        for k, found in enumerate(logits(generator._scheduler.engine)):
            expected = ARRAYS[f"t5/{k}/logits"]
            np.testing.assert_allclose(found[:, COLUMNS], expected, rtol=0, atol=HALF_TOLERANCE)


def test_encoder_decoder_encodes_source_once(t5: TextGenerator) -> None:
    before = computed(t5)
    first = t5.generate(READ[2], max_new_tokens=40, num_return_sequences=3)
    # Each text has its start and all tokens but the last one.
    assert computed(t5) - before == len(READ[2]) + 3 * 40
    assert first[0].timings.prompt_tokens == len(READ[2])
    before = computed(t5)
    again = t5.generate(READ[2], max_new_tokens=40)
    assert again == first[0] and again.timings.prompt_tokens == 0
    assert computed(t5) - before == 40
    other = t5.generate(READ[1], max_new_tokens=40)
    assert other.tokens != first[0].tokens


def test_encoder_decoder_streams_match_batch(t5: TextGenerator) -> None:
    prompts = ["The quick brown fox", "Größe, naïve café", "x"]
    expected = t5.generate(prompts, max_new_tokens=12)
    streams = [t5.stream(prompt, max_new_tokens=12) for prompt in prompts]
    for stream, answer in zip(streams, expected, strict=True):
        assert "".join(stream) == answer.text == t5.tokenizer.decode(list(answer.tokens))
        assert stream.result == answer
    drawn = {"temperature": 1.0, "seed": 3, "max_new_tokens": 12}
    assert t5.generate(prompts, **drawn)[1] == t5.generate(prompts[1], **drawn)


def test_encoder_decoder_scores_match_logprobs(t5: TextGenerator) -> None:
    answers = t5.generate(READ, max_new_tokens=40, logprobs=1)
    expected = [[token.logprob for token in answer.logprobs] for answer in answers]
    found = t5.score([list(answer.tokens) for answer in answers], sources=READ)
    for score, logprobs in zip(found, expected, strict=True):
        np.testing.assert_allclose(score, logprobs, atol=TOLERANCE)
    both = t5.score([[5, 6, 7], list(answers[1].tokens)], sources=READ[1])
    assert len(both[0]) == 3
    np.testing.assert_allclose(both[1], expected[1], atol=TOLERANCE)
    assert t5.score("x", sources="y").shape == (1,)
    last = t5.embed(READ[0], pooling="last")
    assert last.shape == (48,) and not np.allclose(last, t5.embed(READ[0]))
    assert pages_in_use(t5) == 0


def test_encoder_decoder_texts_wait_for_cache_pages(
    t5: TextGenerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source of 5 pages and its text of 2 fit into 8 pages; other texts wait and restart."""
    prompts = [source(130), source(131), source(20), source(132)]
    monkeypatch.setattr(
        DecoderEngine, "_free_bytes", property(lambda e: 8 * e.cache.page_bytes - e.cache.nbytes)
    )
    with make_generator(write_encoder_decoder(tmp_path)) as small:
        found = small.generate(prompts, max_new_tokens=40)
        scores = [small.score(list(a.tokens), p) for a, p in zip(found, prompts, strict=True)]
        with pytest.raises(clrt.OutOfMemoryError):
            small.generate(source(300), max_new_tokens=2)
        assert pages_in_use(small) == 0
    monkeypatch.undo()
    assert found == t5.generate(prompts, max_new_tokens=40)
    assert [len(score) for score in scores] == [40] * 4


def test_encoder_decoder_rebuilds_cache_after_device_error(
    t5: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = t5.generate(READ[1], max_new_tokens=30)
    stream = t5.stream(READ[1], max_new_tokens=30)
    next(stream)
    run, engine = t5._scheduler.engine.model.run, t5._scheduler.engine
    with monkeypatch.context() as patched:

        def fails(*args: Any, **options: Any) -> Any:
            run(*args, **options)
            raise clrt.DeviceError("The driver fails.")

        patched.setattr(engine.model, "run", fails)
        with pytest.raises(clrt.DeviceError):
            t5.embed("x")
    assert stream.result.tokens == expected.tokens
    assert pages_in_use(t5) == 0


def test_generate_command_matches_encoder_decoder(tmp_path: Path) -> None:
    folder = write_encoder_decoder(tmp_path / "model", "mt5", [END])
    given = ["generate", str(folder), "The quick brown fox", "--max-new-tokens", "9", "--json"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    with make_generator(folder) as generator:
        answer = generator.generate("The quick brown fox", max_new_tokens=9)
        assert generator.generate("x", max_new_tokens=6, regex="[0-9]{6}").text.isdigit()
    assert json.loads(result.stdout)["tokens"] == list(answer.tokens)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda g: g.generate([3] * 513), clrt.InputError, "513 tokens, and the encoder reads"),
        (lambda g: g.generate(""), clrt.InputError, "The prompt has no tokens"),
        (lambda g: g.generate([450]), clrt.InputError, "embeddings of 0 to 449"),
        (lambda g: g.score("x"), clrt.InputError, "has an encoder; give its inputs as sources"),
        (lambda g: g.score("x", ["y", "z"]), clrt.InputError, "2 sources for 1 texts"),
        (lambda g: g.score([3] * 513, "y"), clrt.InputError, "513 tokens, and the context 512"),
        (
            lambda g: g.perplexity("xyz"),
            clrt.UnsupportedError,
            "`perplexity` works only for models",
        ),
        (
            lambda g: g.save_cache("x", "xyz"),
            clrt.UnsupportedError,
            "`save_cache` works only for models",
        ),
        (lambda g: g.load_cache("x"), clrt.UnsupportedError, "`load_cache` works only for models"),
        (lambda g: g.chat(), clrt.InputError, "has no chat template"),
    ],
)
def test_encoder_decoder_invalid_calls_are_refused(
    t5: TextGenerator, call: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call(t5)
    assert pages_in_use(t5) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_start_token_id": None}, "has no decoder_start_token_id; add it"),
        ({"decoder_start_token_id": "0"}, "decoder_start_token_id '0'; expected the id of a token"),
        ({"decoder_start_token_id": 450}, "begins texts with token 450"),
        ({"relative_attention_num_buckets": 6}, "a multiple of 4"),
        ({"relative_attention_max_distance": 4}, "a whole number above 4"),
        ({"num_decoder_layers": 3}, "decoder.block.2"),
        ({"num_layers": 4}, "encoder.block.3"),
    ],
)
def test_encoder_decoder_invalid_configs_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = write_encoder_decoder(tmp_path)
    (folder / "generation_config.json").unlink()
    config = {**ENCODER_TEXTS["t5"]["config"], **change}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(clrt.ModelError, match=message):
        make_generator(folder)
