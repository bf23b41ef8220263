"""Builds the ONNX model of a Hugging Face checkpoint folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from clrt.importer.huggingface.checkpoint import Checkpoint
from clrt.importer.huggingface.config import read_config
from clrt.importer.huggingface.encoder import Encoder
from clrt.importer.huggingface.heads import Output, head_outputs
from clrt.importer.huggingface.writer import GraphWriter

_OPSET = 20
_IR_VERSION = 10


def build_model(folder: Path) -> tuple[onnx.ModelProto, dict[str, NDArray[Any]]]:
    """Builds the inference graph of a BERT-family encoder from its checkpoint.

    The graph reads input_ids, attention_mask and, where the family has them, token_type_ids. Its
    outputs are those of the head that config.json names (logits; start_logits and end_logits),
    last_hidden_state, and pooler_output where the checkpoint holds a pooler.

    Args:
        folder: A folder with config.json and model.safetensors (or its sharded form).

    Returns:
        The model, and the weights that its nodes name but its initializers leave out: read-only
        views of the mapped files, or copies where they had to be converted to float32.

    Raises:
        ModelError: A file or tensor is missing, damaged or of the wrong shape.
        UnsupportedError: The model is of another family or uses an option not built here.
    """
    config = read_config(folder)
    writer = GraphWriter(Checkpoint(folder, config.architecture or "AutoModel"))
    encoder = Encoder(writer, config)
    hidden = encoder.hidden_states()
    pooled = encoder.pooled(hidden) if encoder.has_pooler else None
    outputs = head_outputs(encoder, hidden, pooled)
    outputs.append(Output("last_hidden_state", hidden, ("batch", "sequence", config.hidden)))
    if pooled is not None:
        outputs.append(Output("pooler_output", pooled, ("batch", config.hidden)))
    return _make_model(writer, encoder.input_names, outputs), dict(writer.weights)


def inline_weights(proto: onnx.ModelProto, weights: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """Returns a self-contained copy of a model of `build_model`, for other ONNX tools.

    Args:
        proto: The model.
        weights: The weights it names.

    Returns:
        A copy that holds the weights as initializers; it must stay below protobuf's 2 GB.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()
    )
    return model


def _make_model(
    writer: GraphWriter, input_names: list[str], outputs: list[Output]
) -> onnx.ModelProto:
    for output in outputs:
        writer.rename(output.value, output.name)
    graph = helper.make_graph(
        writer.nodes,
        "encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in input_names
        ],
        [
            helper.make_tensor_value_info(output.name, TensorProto.FLOAT, list(output.dims))
            for output in outputs
        ],
        initializer=writer.constants,
    )
    return helper.make_model(
        graph,
        producer_name="clrt",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", _OPSET)],
    )
