"""Small nets as data: architectures of transformers at toy sizes, and nets of apps.

`small_models` makes them. Nothing here needs torch.
"""

from __future__ import annotations

from typing import Any

from .small_net import Feed, SmallNet

VOCABULARY = 1000
_LENGTH = 32


def _tokens(length: int = _LENGTH, mask: bool = True) -> dict[str, Feed]:
    axes = {0: "batch", 1: "sequence"}
    feeds = {"input_ids": Feed((1, length), VOCABULARY, low=10, axes=axes)}
    ones = {"attention_mask": Feed((1, length), 2, low=1, axes=axes)}
    return feeds | ones if mask else feeds


def _image(side: int = 64) -> dict[str, Feed]:
    return {"pixel_values": Feed((1, 3, side, side), axes={0: "batch"})}


def _wave(samples: int) -> dict[str, Feed]:
    return {"input_values": Feed((1, samples), axes={0: "batch", 1: "samples"})}


def _series(name: str = "past_values", steps: int = 64, channels: int = 4) -> dict[str, Feed]:
    return {name: Feed((1, steps, channels), axes={0: "batch"})}


def _bert_sizes(width: int = 64, layers: int = 2, heads: int = 4) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 2 * width,
        "max_position_embeddings": 128,
    }


def _text(
    kind: str,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    length: int = _LENGTH,
    **more: Any,
) -> SmallNet:
    """A model of text that names its sizes as BERT does."""
    return SmallNet(kind, _tokens(length), _bert_sizes(width, layers, heads) | more)


def _decoder(kind: str, **more: Any) -> SmallNet:
    """A causal model that names its sizes as Llama does, without a cache."""
    ends = {"use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return _text(kind, **(ends | more))


def _grouped(kind: str, **more: Any) -> SmallNet:
    """A causal model whose heads share keys and values in pairs."""
    return _decoder(kind, num_key_value_heads=2, **more)


_BART_SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def _encoder(kind: str) -> SmallNet:
    """The encoder of a model that names its sizes as BART does."""
    return SmallNet(kind, _tokens(), _BART_SIZES | {"max_position_embeddings": 128}, "encoder")


def _vision(
    kind: str, width: int = 64, layers: int = 2, heads: int = 4, side: int = 64, **more: Any
) -> SmallNet:
    """A model of patches that names its sizes as ViT does."""
    config = _bert_sizes(width, layers, heads) | {"image_size": side, "patch_size": 8}
    return SmallNet(kind, _image(side), config | more)


def _levels(kind: str, side: int = 64, **config: Any) -> SmallNet:
    """A model of images whose resolution falls level by level."""
    return SmallNet(kind, _image(side), config)


def _speech(kind: str, samples: int = 4000, **more: Any) -> SmallNet:
    """A model of samples that names its sizes as wav2vec 2.0 does."""
    convolutions = {
        "conv_dim": [32, 32, 32],
        "conv_kernel": [10, 8, 4],
        "conv_stride": [5, 4, 4],
        "num_feat_extract_layers": 3,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    }
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 32,
    }
    return SmallNet(kind, _wave(samples), sizes | convolutions | more)


def _forecaster(kind: str, **more: Any) -> SmallNet:
    """The encoder of a probabilistic forecaster, which takes embedded values and times."""
    sizes = {
        "prediction_length": 8,
        "context_length": 48,
        "input_size": 1,
        "lags_sequence": [1, 2, 3],
        "num_time_features": 2,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
    }
    feeds = {"inputs_embeds": Feed((1, 48, 7), axes={0: "batch"})}
    return SmallNet(kind, feeds, sizes | more, "encoder")


_TEXT = {
    "BERT": _text("BertModel", 128, 2, length=64),
    "ALBERT": _text("AlbertModel", embedding_size=32),
    "RoBERTa": _text("RobertaModel", 96, 3, length=120),
    "DistilBERT": SmallNet(
        "DistilBertModel",
        _tokens(),
        {"vocab_size": VOCABULARY, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    ),
    "ELECTRA": _text("ElectraModel", embedding_size=32),
    "MPNet": _text("MPNetModel"),
    "DeBERTa": _text(
        "DebertaModel",
        length=64,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=32,
        type_vocab_size=0,
    ),
    "DeBERTa v2": _text(
        "DebertaV2Model",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=16,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        type_vocab_size=0,
    ),
    "FNet": SmallNet(
        "FNetModel",
        _tokens(mask=False),
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "intermediate_size": 128,
            "max_position_embeddings": _LENGTH,
            "tpu_short_seq_length": _LENGTH,
        },
    ),
    "Funnel": SmallNet(
        "FunnelModel",
        _tokens(),
        {
            "vocab_size": VOCABULARY,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
            "d_model": 64,
            "n_head": 4,
            "d_head": 16,
            "d_inner": 128,
        },
    ),
    "MobileBERT": _text(
        "MobileBertModel", 128, embedding_size=32, intra_bottleneck_size=32, intermediate_size=64
    ),
    "SqueezeBERT": _text("SqueezeBertModel", embedding_size=64),
    "ConvBERT": _text("ConvBertModel", embedding_size=32, conv_kernel_size=5),
    # Its landmarks do not fit the mask that exporters see.
    "Nystromformer encoder": SmallNet(
        "NystromformerModel",
        {"hidden_states": Feed((1, _LENGTH, 64), axes={0: "batch"})},
        {
            **_bert_sizes(),
            "segment_means_seq_len": _LENGTH,
            "num_landmarks": 8,
            "conv_kernel_size": 9,
        },
        "encoder",
    ),
    "XLNet": SmallNet(
        "XLNetModel",
        _tokens(),
        {"vocab_size": VOCABULARY, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128},
    ),
    "LayoutLM": _text("LayoutLMModel", max_2d_position_embeddings=128),
    "RoFormer": _text("RoFormerModel", embedding_size=32),
    "I-BERT": _text("IBertModel", quant_mode=False),
    "ERNIE": _text("ErnieModel", use_task_id=False),
    "RemBERT": _text("RemBertModel", input_embedding_size=32),
    "ESM": _text("EsmModel", mask_token_id=4, pad_token_id=1, position_embedding_type="rotary"),
    "ModernBERT": _text(
        "ModernBertModel",
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=3,
        sep_token_id=4,
        local_attention=16,
    ),
    "CANINE": _text(
        "CanineModel", local_transformer_stride=32, downsampling_rate=4, num_hash_buckets=128
    ),
    "CLIP text": _text("CLIPTextModel", bos_token_id=1, eos_token_id=2, pad_token_id=0),
    "T5 encoder": SmallNet(
        "T5EncoderModel",
        _tokens(),
        {
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
        },
    ),
    "BART encoder": _encoder("BartModel"),
    "Marian encoder": _encoder("MarianModel"),
    "Pegasus encoder": _encoder("PegasusModel"),
    "M2M-100 encoder": _encoder("M2M100Model"),
}
_HEADS_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4}
_DECODERS = {
    "GPT-2": _decoder("GPT2Model", length=128, **_HEADS_GPT),
    "GPT": _decoder("OpenAIGPTModel", **_HEADS_GPT),
    "GPT-Neo": _decoder(
        "GPTNeoModel", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
    ),
    "GPT-J": _decoder("GPTJModel", **_HEADS_GPT, rotary_dim=8),
    "GPT-NeoX": _decoder("GPTNeoXModel"),
    "Llama": _grouped("LlamaModel", width=128, length=128),
    "Mistral": _grouped("MistralModel", sliding_window=16),
    "Qwen2": _grouped("Qwen2Model", length=64),
    "Qwen3": _grouped("Qwen3Model", head_dim=16),
    "Gemma": _grouped("GemmaModel", head_dim=16),
    "Gemma 2": _grouped("Gemma2Model", head_dim=16, sliding_window=16),
    "Phi": _decoder("PhiModel"),
    "Phi-3": _grouped("Phi3Model"),
    "OPT": _decoder("OPTModel", ffn_dim=128, word_embed_proj_dim=64),
    "BLOOM": _decoder("BloomModel", n_layer=2, n_head=4),
    "Falcon": _decoder("FalconModel", alibi=False),
    "StableLM": _grouped("StableLmModel"),
    "Cohere": _grouped("CohereModel"),
    "OLMo": _decoder("OlmoModel"),
    "StarCoder2": _grouped("Starcoder2Model"),
    "RWKV": SmallNet(
        "RwkvModel",
        _tokens(40, mask=False),
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "use_cache": False},
    ),
    "Mamba": SmallNet(
        "MambaModel",
        _tokens(mask=False),
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "state_size": 8,
            "num_hidden_layers": 2,
            "use_cache": False,
            "use_mambapy": False,
        },
    ),
}
_FOUR: dict[str, Any] = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 128]}
_SWIN: dict[str, Any] = {
    "image_size": 64,
    "patch_size": 4,
    "embed_dim": 32,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
_PYRAMID: dict[str, Any] = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [16, 32, 48, 64],
    "num_attention_heads": [1, 2, 3, 4],
}
_VISION = {
    "ViT": _vision("ViTModel", 128, 3, side=96),
    "DeiT": _vision("DeiTModel"),
    "BEiT": _vision("BeitModel", use_absolute_position_embeddings=True),
    "DINOv2": _vision("Dinov2Model", mlp_ratio=2),
    "CLIP vision": _vision("CLIPVisionModel"),
    "SigLIP vision": _vision("SiglipVisionModel"),
    "YOLOS": _vision("YolosModel", image_size=[64, 64], num_detection_tokens=10),
    "Swin": _levels("SwinModel", **_SWIN),
    "Swin v2": _levels("Swinv2Model", **_SWIN),
    "ConvNeXt": _levels("ConvNextModel", 128, **_FOUR),
    "ConvNeXt v2": _levels("ConvNextV2Model", **_FOUR),
    "ResNet": _levels("ResNetModel", 160, embedding_size=16, **_FOUR),
    "RegNet": _levels("RegNetModel", embedding_size=16, groups_width=8, **_FOUR),
    "BiT": _levels("BitModel", embedding_size=16, num_groups=8, **_FOUR),
    "MobileNetV1": _levels("MobileNetV1Model", 128, depth_multiplier=0.25, tf_padding=False),
    "MobileNetV2": _levels("MobileNetV2Model", 160, depth_multiplier=0.35, tf_padding=False),
    "MobileViT": _levels(
        "MobileViTModel",
        image_size=64,
        hidden_sizes=[32, 48, 64],
        neck_hidden_sizes=[8, 16, 24, 32, 48, 64, 96],
        expand_ratio=2.0,
    ),
    "MobileViT v2": _levels("MobileViTV2Model", image_size=64, width_multiplier=0.25),
    "LeViT": _levels(
        "LevitModel",
        image_size=64,
        hidden_sizes=[32, 48, 64],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        drop_path_rate=0,
    ),
    "PVT": _levels("PvtModel", image_size=64, mlp_ratios=[2, 2, 2, 2], **_PYRAMID),
    "PVT v2": _levels("PvtV2Model", image_size=64, mlp_ratios=[2, 2, 2, 2], **_PYRAMID),
    "PoolFormer": _levels(
        "PoolFormerModel", 128, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64]
    ),
    "EfficientNet": _levels(
        "EfficientNetModel",
        128,
        image_size=128,
        width_coefficient=0.25,
        depth_coefficient=0.4,
        hidden_dim=320,
    ),
    "SegFormer": _levels("SegformerModel", 128, **_PYRAMID),
    "CvT": _levels("CvtModel", embed_dim=[16, 32, 64], num_heads=[1, 2, 4], depth=[1, 2, 3]),
    "FocalNet": _levels(
        "FocalNetModel",
        image_size=64,
        embed_dim=32,
        hidden_sizes=[32, 64],
        depths=[1, 1],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
    ),
}
_SOUND = {
    "wav2vec 2.0": _speech("Wav2Vec2Model", 16000),
    "HuBERT": _speech("HubertModel", 8000),
    "WavLM": _speech("WavLMModel"),
    "UniSpeech": _speech("UniSpeechModel"),
    "SEW": _speech("SEWModel", squeeze_factor=2),
    "Whisper encoder": SmallNet(
        "WhisperModel",
        {"input_features": Feed((1, 40, 400), axes={0: "batch"})},
        _BART_SIZES | {"num_mel_bins": 40, "max_source_positions": 200},
        "encoder",
    ),
    "AST": SmallNet(
        "ASTModel",
        {"input_values": Feed((1, 256, 64), axes={0: "batch"})},
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "patch_size": 16,
            "max_length": 256,
            "num_mel_bins": 64,
        },
    ),
}
_PATCHES = {"context_length": 64, "num_input_channels": 4, "patch_length": 8, "d_model": 32}
_SERIES = {
    "PatchTST": SmallNet(
        "PatchTSTModel",
        _series(),
        {
            **_PATCHES,
            "patch_stride": 8,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
        },
    ),
    "PatchTSMixer": SmallNet(
        "PatchTSMixerModel", _series(), {**_PATCHES, "patch_stride": 8, "num_layers": 2}
    ),
    "time-series transformer encoder": _forecaster("TimeSeriesTransformerModel"),
    # Neither exporter writes its random choice of queries.
    "Informer encoder, full attention": _forecaster("InformerModel", attention_type="full"),
}
TRANSFORMERS: dict[str, SmallNet] = {**_TEXT, **_DECODERS, **_VISION, **_SOUND, **_SERIES}


def _recurrent(cell: str, states: int, steps: int) -> SmallNet:
    feeds = {"x": Feed((1, steps, 40), axes={1: "steps"})}
    return SmallNet("Recurrent", feeds, {"cell": cell, "features": 40, "states": states})


OWN: dict[str, SmallNet] = {
    **{
        f"{cell} of {states} states, {steps} steps": _recurrent(cell, states, steps)
        for cell in ("LSTM", "GRU")
        for states in (25, 64, 128)
        for steps in (100, 200)
    },
    "voice detector": SmallNet("VoiceDetector", {"x": Feed((1, 576))}, {}),
    "keyword net": SmallNet("KeywordNet", {"x": Feed((1, 1, 49, 10))}, {}),
    "gestures": SmallNet("Gestures", {"x": Feed((1, 63), axes={0: "batch"})}, {}),
    "one Add": SmallNet("OneAdd", {"x": Feed((1, 16)), "y": Feed((1, 16))}, {}),
}
NETS: dict[str, SmallNet] = {**TRANSFORMERS, **OWN}
