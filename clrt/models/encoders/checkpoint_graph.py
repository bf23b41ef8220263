"""Builds the graph of a BERT-like encoder from a Hugging Face checkpoint folder."""

from __future__ import annotations

from pathlib import Path

from clrt.ir.graph import Graph
from clrt.models.encoders.config import read_config
from clrt.models.encoders.encoder import Encoder
from clrt.models.encoders.heads import head_outputs
from clrt.models.encoders.layers import EncoderBuilder
from clrt.models.huggingface.checkpoint import Checkpoint


def import_checkpoint(folder: Path) -> Graph:
    """Builds the inference graph of a BERT-like encoder from its checkpoint.

    Inputs: input_ids, attention_mask and, if the family has them, token_type_ids. Outputs: the
    outputs of the head that config.json names (logits, or start_logits and end_logits),
    last_hidden_state, and pooler_output if the checkpoint has a pooler.

    Args:
        folder: Folder with config.json and model.safetensors (or its sharded form).

    Returns:
        The graph. Its weights are read-only views of the mapped files, or copies if they had to be
        converted to float32.

    Raises:
        ModelError: A file or tensor is missing, damaged or of the wrong shape.
        UnsupportedError: The family or an option of the model is unsupported.
    """
    config = read_config(folder)
    build = EncoderBuilder(Checkpoint(folder, config.architecture or "AutoModel"))
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
