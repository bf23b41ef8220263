"""LangChain, LlamaIndex and Chroma adapters, against the encoder's own vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.errors import InputError
from tests.models.text_folders import TEXTS, make_folder, sentence_files

PROMPTS = {"query": "query : ", "document": "passage : "}
QUERY = "a dog runs"
TEXTS_HERE = [text for text in TEXTS if text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = sentence_files({"pooling_mode": "mean"}, prompts=PROMPTS)
    return make_folder(tmp_path_factory.mktemp("models") / "model", files=files)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Iterator[clrt.SentenceEncoder]:
    with clrt.SentenceEncoder(folder, device="cpu") as made:
        yield made


def nearest(encoder: clrt.SentenceEncoder) -> list[str]:
    """The texts, the most similar to the query first."""
    scores = encoder.similarity(encoder.encode_query(QUERY), encoder.encode_document(TEXTS_HERE))
    return [TEXTS_HERE[i] for i in np.argsort(-scores[0])]


def test_langchain_embeddings_match_encoder(encoder: clrt.SentenceEncoder, folder: Path) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.vectorstores import InMemoryVectorStore

    from clrt.integrations.langchain import ClrtEmbeddings

    made = ClrtEmbeddings(folder, device="cpu", batch_size=2)
    np.testing.assert_allclose(
        made.embed_documents(TEXTS_HERE), encoder.encode_document(TEXTS_HERE), atol=1e-6
    )
    np.testing.assert_allclose(made.embed_query(QUERY), encoder.encode_query(QUERY), atol=1e-6)
    assert asyncio.run(made.aembed_query(QUERY)) == made.embed_query(QUERY)
    store = InMemoryVectorStore(ClrtEmbeddings(encoder))
    store.add_texts(TEXTS_HERE)
    found = [document.page_content for document in store.similarity_search(QUERY, k=3)]
    assert found == nearest(encoder)[:3]
    with pytest.raises(InputError, match="device cannot be applied to an existing encoder"):
        ClrtEmbeddings(encoder, device="cpu")


def test_llama_index_embeddings_match_encoder(encoder: clrt.SentenceEncoder, folder: Path) -> None:
    pytest.importorskip("llama_index.core")
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode

    from clrt.integrations.llama_index import ClrtEmbedding

    made = ClrtEmbedding(folder, encoder_options={"device": "cpu"}, embed_batch_size=2)
    np.testing.assert_allclose(
        made.get_text_embedding_batch(TEXTS_HERE), encoder.encode_document(TEXTS_HERE), atol=1e-6
    )
    query = encoder.encode_query(QUERY)
    np.testing.assert_allclose(made.get_query_embedding(QUERY), query, atol=1e-6)
    np.testing.assert_allclose(asyncio.run(made.aget_query_embedding(QUERY)), query, atol=1e-6)
    nodes = [TextNode(text=text) for text in TEXTS_HERE]
    retriever = VectorStoreIndex(nodes, embed_model=made).as_retriever(similarity_top_k=3)
    found = [hit.node.get_content() for hit in retriever.retrieve(QUERY)]
    assert found == nearest(encoder)[:3]


def test_chroma_embeddings_match_encoder_and_reload(
    encoder: clrt.SentenceEncoder, folder: Path, tmp_path: Path
) -> None:
    chromadb = pytest.importorskip("chromadb")

    from clrt.integrations.chroma import ClrtEmbeddingFunction

    function: Any = ClrtEmbeddingFunction(str(folder), device="cpu")
    np.testing.assert_allclose(
        np.stack(function(TEXTS_HERE)), encoder.encode_document(TEXTS_HERE), atol=1e-6
    )
    client = chromadb.PersistentClient(str(tmp_path))
    texts = client.create_collection("texts", embedding_function=function)
    texts.add(ids=[str(i) for i in range(len(TEXTS_HERE))], documents=TEXTS_HERE)
    for collection in (texts, client.get_collection("texts")):  # made anew from what is stored
        found = collection.query(query_texts=[QUERY], n_results=3)["documents"][0]
        assert found == nearest(encoder)[:3]
    with pytest.raises(InputError, match="cannot store cache_dir"):
        ClrtEmbeddingFunction(str(folder), cache_dir=tmp_path)
