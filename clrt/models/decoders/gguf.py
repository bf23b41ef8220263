"""Reads decoders from GGUF files of llama.cpp."""

from __future__ import annotations

from functools import partial

from clrt.errors import ModelError, UnsupportedError
from clrt.formats.gguf.file import GgufFile
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.decoder_family import DecoderFamily, GgufForm
from clrt.models.decoders.families import ARCHITECTURES
from clrt.models.decoders.family_reader import read_family
from clrt.models.decoders.gguf_rotary import gguf_rotary
from clrt.models.decoders.gguf_values import GgufValues
from clrt.models.decoders.gguf_weights import GgufWeights

# Maximum context length in tokens, which bounds the page table: it has an entry per KV page of each
# sequence.
_MAX_PLACES = 1 << 24
_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"


def read_gguf_decoder(
    file: GgufFile, context: int | None = None
) -> tuple[DecoderConfig, GgufWeights]:
    """Returns the configuration and weights of the decoder in a GGUF file; weights are read on use.

    Args:
        context: Requested context length in tokens, which some rotary embeddings depend on; None
            for the context length in the file.

    Raises:
        ModelError: A key or a tensor is missing or wrong.
        UnsupportedError: The architecture or an option of it is unknown.
    """
    architecture = file.metadata.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{file.path} has the architecture {architecture[:80]!r}, with which clrt cannot "
            f"generate text; supported are {', '.join(sorted(ARCHITECTURES))}."
        )
    family, form = ARCHITECTURES[architecture]
    weights = GgufWeights(file, form.names_in(file.tensors))
    if not form.tied and _HEAD not in weights:
        raise ModelError(f"{file.path} has no tensor '{_HEAD}'; download the model again.")
    values = _values(file, family, form)
    interleaved = form.permuted or family.rotary == "interleaved"
    scale = values.number("attention_multiplier", 0.0, least=0.0)
    has_local = "rope_local_base_freq" in family.defaults
    decoder = read_family(
        values,
        family,
        {"family": architecture, "scale": scale or None},
        partial(gguf_rotary, values, weights, interleaved=interleaved, has_local=has_local),
        context,
        _MAX_PLACES,
        form.options,
    )
    size, name = decoder.head_size, "attention.value_length"
    if (value_size := values.integer(name, size)) != size:
        raise values.wrong(name, f"the {size} of keys", value_size)
    _check_norms(decoder, form, weights)
    _check_layers(file, decoder.layers)
    return decoder, weights


def _values(file: GgufFile, family: DecoderFamily, form: GgufForm) -> GgufValues:
    """Returns the metadata of a GGUF file, accessed by the keys that Llama's config.json has.

    Values that the file implies but does not store are added.

    Args:
        file: The opened file.
        family: Family of the decoder.
        form: How GGUF files store models of the family.

    Raises:
        ModelError: A key or the embedding table is missing or wrong.
    """
    embeddings = file.tensors.get(_EMBEDDINGS)
    if embeddings is None or len(embeddings.shape) != 2:
        what = "no tensor" if embeddings is None else "no matrix"
        raise ModelError(f"{file.path} has {what} '{_EMBEDDINGS}'; download the model again.")
    names = dict(form.keys)
    if family.fields.get("norm") == "layer":
        names["rms_norm_eps"] = "attention.layer_norm_epsilon"
    defaults = {key: family.defaults[key] for key in form.defaults}
    stored = GgufValues(file.metadata, names, defaults)
    fixed = {"vocab_size": embeddings.shape[0], **form.values_in(stored, file.tensors)}
    if "num_experts" in stored and "intermediate_size" not in stored:
        fixed["intermediate_size"] = 1  # unused: every feed-forward network has experts
    return GgufValues(file.metadata, names, defaults, fixed)


def _check_norms(decoder: DecoderConfig, form: GgufForm, weights: GgufWeights) -> None:
    """Checks that the file has the scales of the final norm and of the norms of layer 0.

    Graphs would use 1 for missing ones. Does nothing for families whose norms have no scales.

    Raises:
        ModelError: The scale of a norm is missing.
    """
    before = ["attn_norm", *([] if decoder.parallel else ["ffn_norm"])]
    after = ["post_attention_norm", "post_ffw_norm"]
    norms = {"before": before, "after": after, "both": before + after}[decoder.norms]
    names = ["output_norm.weight", *(f"blk.0.{name}.weight" for name in norms)]
    for name in names if form.scaled else ():
        if name not in weights:
            raise ModelError(f"{weights.path} has no tensor '{name}'; download the model again.")


def _check_layers(file: GgufFile, layers: int) -> None:
    """Checks that each layer has the tensors that layer 0 has.

    Raises:
        ModelError: A layer lacks a tensor that layer 0 has.
    """
    parts: dict[str, set[str]] = {}
    for name in file.tensors:
        layer, _, part = name.removeprefix("blk.").partition(".")
        parts.setdefault(layer, set()).add(part)
    first = parts.get("0", set())
    for number in range(1, layers):
        if missing := first - parts.get(str(number), set()):
            raise ModelError(
                f"{file.path} has no tensor 'blk.{number}.{min(missing)}', which its layer 0 has; "
                "download the model again."
            )
