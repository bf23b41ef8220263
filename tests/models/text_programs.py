"""Programs for the sentence-transformers API, run by that package as oracle, and by clrt.

Each takes the package and a folder to make models in, and returns an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.text_folders import PAIRS, TEXTS, TYPE, make_folder, sentence_files, sparse_files

Array = NDArray[Any]
Program = Callable[[Any, Path], Any]

PROMPTS = {"query": "query : ", "passage": "passage : "}
QUANTIZED = np.random.default_rng(0).standard_normal((120, 20)).astype(np.float32)
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


def to_array(found: Any) -> Array:
    """Converts a program's result to an array: tensors, sparse tensors, and lists of them."""
    if isinstance(found, (list, tuple)):
        return np.stack([to_array(item) for item in found])
    if getattr(found, "is_sparse", False) or type(found).__name__ == "SparseVectors":
        found = found.to_dense()
    return np.asarray(found)


def programs() -> dict[str, Program]:
    """Returns the programs by name."""
    made = [
        *_sentence_programs(),
        *_vector_programs(),
        *_pair_programs(),
        *_sparse_programs(),
    ]
    return dict(made)


def _sentences(folder: Path, package: Any, files: dict[str, Any], **options: Any) -> Any:
    family = options.pop("family", "bert")
    return package.SentenceTransformer(
        str(make_folder(folder / family, family, files=files)), device="cpu", **options
    )


def _sentence_programs() -> Iterator[tuple[str, Program]]:
    mean = sentence_files({"pooling_mode_mean_tokens": True})
    both = sentence_files({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True})
    prompted = sentence_files(
        {"pooling_mode_mean_tokens": True, "include_prompt": False},
        prompts=PROMPTS,
        default_prompt_name="passage",
    )
    small = sentence_files(
        {"pooling_mode": "mean"}, normalize=True, truncate_dim=6, prompts=PROMPTS
    )

    def encode(files: dict[str, Any], method: str = "encode", **call: Any) -> Program:
        def run(package: Any, folder: Path) -> Any:
            loaded = call.get("load", {})
            rest = {name: value for name, value in call.items() if name != "load"}
            model = _sentences(folder, package, files, **loaded)
            return getattr(model, method)(TEXTS, **rest)

        return run

    for family in ("bert", "roberta", "mpnet", "distilbert", "albert", "electra"):
        yield f"encode_{family}", encode(mean, load={"family": family})
    yield "encode_two_modes", encode(both, normalize_embeddings=True)
    yield "encode_batches", encode(mean, batch_size=2, show_progress_bar=True)
    yield "encode_normalized", encode(mean, normalize_embeddings=True)
    for precision in PRECISIONS[1:]:
        yield f"encode_{precision}", encode(mean, precision=precision)
    for method in ("encode", "encode_query", "encode_document"):
        yield f"prompts_{method}", encode(prompted, method)
        yield f"kept_{method}", encode(small, method)
        yield f"plain_{method}", encode(mean, method)
        yield f"said_{method}", encode(prompted, method, prompt="it is : ")
        yield f"named_{method}", encode(prompted, method, prompt_name="query")
    own = {"prompts": {"query": "the old ", "mine": "red "}, "default_prompt_name": "mine"}
    yield "own_prompts", encode(prompted, load=own)
    yield "own_query", encode(prompted, "encode_query", load=own)
    yield "truncated", encode(small, truncate_dim=3, normalize_embeddings=True)
    yield "truncated_at_load", encode(mean, load={"truncate_dim": 5})
    yield "max_seq_length", _short
    yield "one_string", lambda package, folder: _sentences(folder, package, mean).encode(TEXTS[0])
    yield "tokens", lambda package, folder: np.concatenate(
        [to_array(t) for t in _sentences(folder, package, mean).encode(
            TEXTS, output_value="token_embeddings")]
    )  # fmt: skip
    yield "sizes", _sizes


def _short(package: Any, folder: Path) -> Any:
    model = _sentences(folder, package, sentence_files({"pooling_mode": "mean"}))
    model.max_seq_length = 5
    return model.encode(TEXTS)


def _sizes(package: Any, folder: Path) -> Any:
    model = _sentences(folder, package, sentence_files({"pooling_mode": "mean"}, truncate_dim=6))
    sizes = [model.get_sentence_embedding_dimension(), model.get_max_seq_length()]
    with model.truncate_sentence_embeddings(4):
        sizes += [model.encode(TEXTS).shape[1], model.get_sentence_embedding_dimension()]
    return np.array([*sizes, model.encode(TEXTS).shape[1]])


def _vector_programs() -> Iterator[tuple[str, Program]]:
    left, right = QUANTIZED[:30], QUANTIZED[60:90]
    limits = np.stack((QUANTIZED.min(0) - 1, QUANTIZED.max(0) + 1))
    for precision in PRECISIONS:
        yield (
            f"quantized_{precision}",
            (lambda package, _, p=precision: package.quantize_embeddings(QUANTIZED, p)),
        )
    for precision in ("int8", "uint8"):
        yield (
            f"calibrated_{precision}",
            (
                lambda package, _, p=precision: package.quantize_embeddings(
                    left, p, calibration_embeddings=right
                )
            ),
        )
        yield (
            f"ranged_{precision}",
            (lambda package, _, p=precision: package.quantize_embeddings(left, p, ranges=limits)),
        )

    def similar(name: str) -> Program:
        def run(package: Any, folder: Path) -> Any:
            files = sentence_files({"pooling_mode": "mean"}, similarity_fn_name=name)
            model = _sentences(folder, package, files)
            assert model.similarity_fn_name == name
            table = to_array(model.similarity(left, right))
            alike = to_array(model.similarity_pairwise(left, right))
            model.similarity_fn_name = "cosine"
            one = to_array(model.similarity(left[0], right))
            return np.concatenate([table, alike[None], one])

        return run

    for name in SIMILARITIES:
        yield f"similarity_{name}", similar(name)
    yield (
        "search",
        lambda package, _: [
            [[hit["corpus_id"], hit["score"]] for hit in hits]
            for hits in package.util.semantic_search(
                left, right, top_k=4, query_chunk_size=7, corpus_chunk_size=11
            )
        ],
    )
    yield (
        "communities",
        lambda package, _: np.concatenate(
            package.util.community_detection(QUANTIZED, threshold=0.3, min_community_size=4)
        ),
    )
    yield "paraphrases", _paraphrases


def _paraphrases(package: Any, _: Path) -> Any:
    return np.array(package.util.paraphrase_mining_embeddings(_as_given(package, QUANTIZED))[:40])


def _as_given(package: Any, array: Array) -> Any:
    """An array where the package takes one; sentence-transformers' mining takes tensors alone."""
    if package.__name__ != "sentence_transformers":
        return array
    import torch

    return torch.from_numpy(array)


def _pair_programs() -> Iterator[tuple[str, Program]]:
    def scored(method: Callable[[Any], Any], **made: Any) -> Program:
        def run(package: Any, folder: Path) -> Any:
            loaded = made.get("load", {})
            rest = {name: value for name, value in made.items() if name != "load"}
            where = make_folder(folder / "pairs", head="ForSequenceClassification", **rest)
            return method(package.CrossEncoder(str(where), device="cpu", **loaded))

        return run

    def predict(**call: Any) -> Callable[[Any], Any]:
        return lambda model: model.predict(PAIRS, **call)

    identity = "torch.nn.modules.linear.Identity"
    for family in ("bert", "roberta", "mpnet", "distilbert", "albert", "electra"):
        yield f"pairs_{family}", scored(predict(), family=family, labels=1)
    yield "pairs_untyped", scored(predict(), types=False)
    yield "pairs_five", scored(predict(batch_size=3))
    yield "pairs_softmax", scored(predict(apply_softmax=True))
    older = {"sbert_ce_default_activation_function": identity}
    yield "pairs_older", scored(predict(), labels=1, **older)
    newer = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}
    yield "pairs_newer", scored(predict(), labels=1, **newer)
    whole = {"activation_fn": identity, "prompts": {"q": "query : "}, "default_prompt_name": "q"}
    kept = {"config_sentence_transformers.json": {"model_type": "CrossEncoder", **whole}}
    kept["modules.json"] = [{"idx": 0, "name": "0", "path": "", "type": f"{TYPE}Transformer"}]
    task = {"transformer_task": "sequence-classification", "module_output_name": "scores"}
    way = {"method": "forward", "method_output_name": "logits"}
    kept["sentence_bert_config.json"] = {**task, "modality_config": {"text": way}}
    yield "pairs_kept", scored(predict(), labels=1, files=kept)
    yield "pairs_short", scored(predict(), labels=1, load={"max_length": 9})
    yield "pairs_one", scored(lambda model: model.predict(PAIRS[1]), labels=1)
    yield (
        "pairs_ranked",
        scored(
            lambda model: [
                [hit["corpus_id"], hit["score"], TEXTS.index(hit["text"])]
                for hit in model.rank(TEXTS[0], TEXTS[1:], top_k=4, return_documents=True)
            ],
            labels=1,
        ),
    )


def _sparse_programs() -> Iterator[tuple[str, Program]]:
    def sparse(method: Callable[[Any], Any], files: Any = None, family: str = "bert") -> Program:
        def run(package: Any, folder: Path) -> Any:
            where = make_folder(folder / "sparse", family, "ForMaskedLM", files=files)
            return method(package.SparseEncoder(str(where), device="cpu"))

        return run

    def encode(model: Any) -> Any:
        return model.encode(TEXTS, batch_size=3)

    for family in ("bert", "distilbert", "roberta", "mpnet"):
        yield f"sparse_{family}", sparse(encode, family=family)
    for strategy in ("max", "sum"):
        for activation in ("relu", "log1p_relu"):
            files = sparse_files(strategy, activation, prompts=PROMPTS, max_active_dims=9)
            yield f"sparse_{strategy}_{activation}", sparse(encode, files)
    yield "sparse_query", sparse(lambda m: m.encode_query(TEXTS), files)
    yield "sparse_few", sparse(lambda m: m.encode(TEXTS, max_active_dims=4))
    yield "sparse_similar", sparse(lambda m: m.similarity(encode(m), encode(m)))
    yield "sparse_one", sparse(lambda m: m.encode(TEXTS[0]))
    yield "sparse_decoded", sparse(_decoded)
    yield "sparse_shared", sparse(lambda m: m.intersection(m.encode(TEXTS[0]), encode(m)))
    yield "sparse_ratio", sparse(lambda m: list(m.sparsity(encode(m)).values()))


def _decoded(model: Any) -> Any:
    library = model.tokenizer
    find = getattr(library, "token_to_id", None) or library.convert_tokens_to_ids
    rows = model.decode(model.encode(TEXTS, batch_size=3), top_k=3)
    return [[find(token), number] for row in rows for token, number in row]
