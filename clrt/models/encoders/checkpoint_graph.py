"""The graph of a Hugging Face checkpoint folder."""

from __future__ import annotations

from pathlib import Path

from clrt.ir.graph import Graph
from clrt.models.encoders.config import read_config
from clrt.models.encoders.encoder import Encoder
from clrt.models.encoders.heads import head_outputs
from clrt.models.encoders.layers import LayerBuilder
from clrt.models.huggingface.checkpoint import Checkpoint


def import_checkpoint(folder: Path) -> Graph:
    """Returns the inference graph of a BERT-family encoder, from its checkpoint.

    The graph reads input_ids, attention_mask and, where the family has them, token_type_ids. Its
    outputs are those of the head that config.json names (logits; start_logits and end_logits),
    last_hidden_state, and pooler_output where the checkpoint holds a pooler.

    Args:
        folder: A folder with config.json and model.safetensors (or its sharded form).

    Returns:
        The graph. Its weights are read-only views of the mapped files, or copies where they had
        to be converted to float32.

    Raises:
        ModelError: A file or tensor is missing, damaged or of the wrong shape.
        UnsupportedError: The model is of another family or uses an option not built here.
    """
    config = read_config(folder)
    build = LayerBuilder(Checkpoint(folder, config.architecture or "AutoModel"))
    encoder = Encoder(build, config)
    hidden = encoder.hidden_states()
    pooled = encoder.pooled(hidden) if encoder.has_pooler else None
    outputs = head_outputs(encoder, hidden, pooled)
    outputs["last_hidden_state"] = hidden
    if pooled is not None:
        outputs["pooler_output"] = pooled
    for name, value in outputs.items():
        value.name = name
    return build.graph("encoder", encoder.inputs, outputs.values())
