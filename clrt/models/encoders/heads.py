"""The task heads of encoders, by the architecture in config.json."""

from __future__ import annotations

from collections.abc import Callable

from clrt.ir.graph import Value
from clrt.models.encoders.encoder import Encoder
from clrt.ops.movement.gather import Gather

_LABELS = "classifier"
_SPANS = "qa_outputs"


def head_outputs(encoder: Encoder, hidden: Value, pooled: Value | None) -> dict[str, Value]:
    """Adds the task head that the model's architecture names.

    Args:
        encoder: The encoder under construction.
        hidden: Last hidden state of the encoder, `[batch, sequence, hidden]`.
        pooled: Output of the encoder's pooler, `[batch, hidden]`; None if there is none.

    Returns:
        Outputs of the head by name: "logits", or "start_logits" and "end_logits"; {} if the
        architecture has no known head, or the checkpoint has no weights of it (an encoder saved
        under its old architecture).
    """
    architecture = encoder.config.architecture
    for ending, make in _HEADS.items():
        if architecture.endswith(ending):
            return make(encoder, hidden, pooled)
    return {}


def _sequence_classification(
    encoder: Encoder, hidden: Value, pooled: Value | None
) -> dict[str, Value]:
    head, build, size = encoder.config.family.classifier, encoder.build, encoder.config.hidden
    if f"{head.output}.weight" not in build.source:
        return {}
    if head.dense is None:
        first = pooled if pooled is not None else encoder.pooled(hidden)
    else:
        first = build.first_token(hidden, head.dense)
        first = build.linear(first, head.dense, size, size)
        first = build.activation(first, head.activation, head.dense)
    return {"logits": build.linear(first, head.output, size, None)}


def _token_classification(encoder: Encoder, hidden: Value, _: Value | None) -> dict[str, Value]:
    if f"{_LABELS}.weight" not in encoder.build.source:
        return {}
    return {"logits": encoder.build.linear(hidden, _LABELS, encoder.config.hidden, None)}


def _question_answering(encoder: Encoder, hidden: Value, _: Value | None) -> dict[str, Value]:
    build = encoder.build
    if f"{_SPANS}.weight" not in build.source:
        return {}
    both = build.linear(hidden, _SPANS, encoder.config.hidden, 2)
    start, end = (build(_SPANS, Gather(axis=2), both, build.numbers(k)) for k in (0, 1))
    return {"start_logits": start, "end_logits": end}


def _masked_lm(encoder: Encoder, hidden: Value, _: Value | None) -> dict[str, Value]:
    config, head, build = encoder.config, encoder.config.family.masked_lm, encoder.build
    if f"{head.dense}.weight" not in build.source:
        return {}
    x = build.linear(hidden, head.dense, config.hidden, config.embedding)
    x = build.activation(x, head.activation or config.activation, head.dense)
    x = build.layer_norm(x, head.norm, config.embedding, config.epsilon)
    decoder = f"{head.decoder}.weight"
    table = decoder if decoder in build.source else encoder.word_embeddings
    bias = build.first_present(*head.biases)
    return {"logits": build.dense(x, table, bias, config.embedding, config.vocabulary)}


_HEADS: dict[str, Callable[[Encoder, Value, Value | None], dict[str, Value]]] = {
    "ForSequenceClassification": _sequence_classification,
    "ForTokenClassification": _token_classification,
    "ForQuestionAnswering": _question_answering,
    "ForMaskedLM": _masked_lm,
}
