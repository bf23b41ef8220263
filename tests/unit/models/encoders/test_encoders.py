"""Encoder graphs from safetensors checkpoints, run by onnxruntime, compared with NumPy."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from clrt.ir.verify import verify
from clrt.models.encoders.checkpoint_graph import import_checkpoint
from clrt.models.huggingface.relative_buckets import relative_buckets
from clrt.ops.matmul.fused_matmul import FusedMatMul
from tests.unit.models.encoders import checkpoints
from tests.unit.models.encoders.checkpoints import (
    FAMILIES,
    HIDDEN,
    LABELS,
    POOLERS,
    PROJECTIONS,
    VOCABULARY,
    Array,
    Tensors,
    make_config,
    make_tensors,
    shard,
    write,
    write_bfloat16,
)
from tests.unit.models.encoders.huggingface_reference import (
    ACTIVATIONS,
    Reference,
    assert_close,
    assert_hidden_matches,
    make_feed,
    open_session,
    run,
)

# --- the graphs compute what the models compute --------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_matches_reference(tmp_path: Path, family: str) -> None:
    config, tensors = make_config(family), make_tensors(family)
    session = open_session(write(tmp_path, config, tensors))
    reference = Reference(config, tensors)
    for batch, length, padded in ((1, 1, False), (1, 9, False), (3, 7, True), (2, 180, True)):
        feed = make_feed(batch, length, family=family, padded=padded)
        output, hidden = run(session, feed), reference.hidden(feed)
        assert_close(output["last_hidden_state"], hidden)
        assert ("pooler_output" in output) == (family in POOLERS)
        if family in POOLERS:
            assert_close(output["pooler_output"], reference.pooled(hidden))


@pytest.mark.parametrize(
    "head",
    ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_head_matches_reference(tmp_path: Path, family: str, head: str) -> None:
    config, tensors = make_config(family, head), make_tensors(family, head)
    session = open_session(write(tmp_path, config, tensors))
    reference = Reference(config, tensors)
    feed = make_feed(3, 6, family=family, padded=True)
    output = run(session, feed)
    expected = reference.head(head, reference.hidden(feed))
    assert list(output)[: len(expected)] == list(expected)
    for name, value in expected.items():
        assert_close(output[name], value)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_encoder_activations_match_reference(tmp_path: Path, activation: str) -> None:
    config, tensors = make_config("bert", hidden_act=activation), make_tensors("bert")
    write(tmp_path, config, tensors)
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_albert_groups_share_weights(tmp_path: Path) -> None:
    config, tensors = make_config("albert", num_hidden_groups=1), make_tensors("albert")
    write(tmp_path, config, tensors)
    first = {name: value for name, value in tensors.items() if "_groups.0." in name}
    shared = {name.replace("_groups.0.", "_groups.1."): v for name, v in first.items()}
    assert_hidden_matches(tmp_path, Reference(config, tensors | shared))
    nodes = import_checkpoint(tmp_path).nodes
    matrices = [n.arg(1) for n in nodes if isinstance(n.op, FusedMatMul)]
    assert {v.name for v in matrices} <= tensors.keys()
    assert 0 < len(set(matrices)) < len(matrices)


def test_albert_projects_embeddings_of_hidden_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "NARROW", HIDDEN)
    config, tensors = make_config("albert"), make_tensors("albert")
    write(tmp_path, config, tensors)
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_electra_embeddings_of_hidden_size_need_no_projection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(PROJECTIONS, "electra")
    config = make_config("electra", embedding_size=HIDDEN)
    tensors = make_tensors("electra")
    write(tmp_path, config, tensors)
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_masked_lm_prefers_own_decoder_to_tied_embedding(tmp_path: Path) -> None:
    config, tensors = make_config("bert", "ForMaskedLM"), make_tensors("bert", "ForMaskedLM")
    own = np.full((VOCABULARY, HIDDEN), 0.25, np.float32)
    tensors["cls.predictions.decoder.weight"] = own
    tensors["cls.predictions.decoder.bias"] = np.linspace(-1, 1, VOCABULARY, dtype=np.float32)
    session = open_session(write(tmp_path, config, tensors))
    feed = make_feed(1, 4, family="bert", padded=False)
    reference = Reference(config, tensors)
    hidden = reference.hidden(feed)
    reference.t["bert.embeddings.word_embeddings.weight"] = own.astype(np.float64)
    reference.t["cls.predictions.bias"] = reference.t["cls.predictions.decoder.bias"]
    assert_close(run(session, feed)["logits"], reference.head("ForMaskedLM", hidden)["logits"])


def test_relative_buckets_are_exact_at_borders() -> None:
    distances = np.array([0, -1, -7, -8, -11, -12, -16, -127, -128, -5000, 1, 8, 5000])
    expected = [0, 1, 7, 8, 8, 9, 10, 15, 15, 15, 17, 24, 31]
    assert relative_buckets(distances, 32, 128).tolist() == expected


# --- what checkpoints may look like --------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_unprefixed_tensor_names_are_read(tmp_path: Path, family: str) -> None:
    config, tensors = make_config(family), make_tensors(family, prefixed=False)
    write(tmp_path, config, tensors)
    assert_hidden_matches(tmp_path, Reference(config, tensors, prefixed=False))


def test_gamma_and_beta_norm_names_are_read(tmp_path: Path) -> None:
    config, tensors = make_config("bert"), make_tensors("bert")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in tensors.items()
    }
    write(tmp_path, config, renamed)
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_float16_weights_are_widened(tmp_path: Path) -> None:
    config = make_config("bert")
    tensors = {name: value.astype(np.float16) for name, value in make_tensors("bert").items()}
    write(tmp_path, config, tensors)
    assert {array.dtype for array in weights_of(tmp_path, tensors).values()} == {
        np.dtype(np.float32)
    }
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_bfloat16_weights_are_widened(tmp_path: Path) -> None:
    config, tensors = make_config("bert"), make_tensors("bert")
    write(tmp_path, config, tensors)
    write_bfloat16(tmp_path / "model.safetensors", tensors)
    rounded = {n: v.astype(ml_dtypes.bfloat16).astype(np.float32) for n, v in tensors.items()}
    for name, value in weights_of(tmp_path, tensors).items():
        np.testing.assert_array_equal(value, rounded[name])
    assert_hidden_matches(tmp_path, Reference(config, rounded))


def test_sharded_checkpoint_matches_reference(tmp_path: Path) -> None:
    config, tensors = make_config("bert"), make_tensors("bert")
    shard(write(tmp_path, config, tensors))
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_masked_lm_config_without_head_weights_gives_encoder(tmp_path: Path) -> None:
    write(tmp_path, make_config("bert", "ForMaskedLM"), make_tensors("bert"))
    graph = import_checkpoint(tmp_path)
    assert graph.output_names == ["last_hidden_state", "pooler_output"]


def test_bert_without_token_types_has_two_inputs(tmp_path: Path) -> None:
    tensors = make_tensors("bert")
    del tensors["bert.embeddings.token_type_embeddings.weight"]
    graph = import_checkpoint(write(tmp_path, make_config("bert", type_vocab_size=0), tensors))
    assert [i.name for i in graph.inputs] == ["input_ids", "attention_mask"]


def test_weights_are_views_of_mapped_file(tmp_path: Path) -> None:
    write(tmp_path, make_config("bert"), make_tensors("bert"))
    stored = load_file(tmp_path / "model.safetensors")
    for name, array in weights_of(tmp_path, stored).items():
        assert not array.flags.owndata
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, stored[name])


def test_classifier_graph_declares_inputs_and_outputs(tmp_path: Path) -> None:
    config = make_config("bert", "ForSequenceClassification")
    tensors = make_tensors("bert", "ForSequenceClassification")
    graph = import_checkpoint(write(tmp_path, config, tensors))
    verify(graph)
    assert {v.name: str(v.type) for v in graph.inputs} == {
        "input_ids": "int64[batch,sequence]",
        "attention_mask": "int64[batch,sequence]",
        "token_type_ids": "int64[batch,sequence]",
    }
    assert graph.output_names == [v.name for v in graph.outputs]
    assert {v.name: str(v.type) for v in graph.outputs} == {
        "logits": f"float32[batch,{LABELS}]",
        "last_hidden_state": f"float32[batch,sequence,{HIDDEN}]",
        "pooler_output": f"float32[batch,{HIDDEN}]",
    }


def weights_of(folder: Path, tensors: Tensors) -> dict[str, Array]:
    """Returns the graph's weights; asserts that all of the checkpoint's are there."""
    constants = {v.name: v.type.numbers for v in import_checkpoint(folder).constants()}
    weights = {name: array for name in tensors if (array := constants.get(name)) is not None}
    assert weights.keys() == tensors.keys()
    return weights
