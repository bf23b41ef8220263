"""Exports small models with random weights by Optimum; the folder is argument 1."""

import sys
from pathlib import Path

import torch
from optimum.exporters.onnx import onnx_export_from_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "the", "cat", "kitten", "dog", "sleeps", "naps"]
WORDS += ["barks", "on", "sill", "by", "window"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = BertConfig(vocab_size=len(WORDS), intermediate_size=64, max_position_embeddings=64, **SMALL)
T5 = T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
T5.decoder_start_token_id = 0
WHISPER = WhisperConfig(
    vocab_size=60,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_source_positions=1500,
    max_target_positions=40,
    num_mel_bins=16,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
    suppress_tokens=[],
    begin_suppress_tokens=[],
)
MODELS = {
    "bert": ("feature-extraction", lambda: BertModel(BERT)),
    "answers": ("question-answering", lambda: BertForQuestionAnswering(BERT)),
    "vit": (
        "image-classification",
        lambda: ViTForImageClassification(
            ViTConfig(image_size=32, patch_size=8, intermediate_size=64, num_labels=5, **SMALL)
        ),
    ),
    "ctc": (
        "automatic-speech-recognition",
        lambda: Wav2Vec2ForCTC(
            Wav2Vec2Config(
                vocab_size=20,
                intermediate_size=64,
                conv_dim=(16, 16),
                conv_stride=(5, 4),
                conv_kernel=(10, 4),
                num_conv_pos_embeddings=16,
                num_conv_pos_embedding_groups=4,
                **SMALL,
            )
        ),
    ),
    "gpt2": (
        "text-generation-with-past",
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=2,
                                           n_head=4, bos_token_id=0, eos_token_id=0)),
    ),
    "t5": ("text2text-generation-with-past", lambda: T5ForConditionalGeneration(T5)),
    "whisper": (
        "automatic-speech-recognition-with-past",
        lambda: WhisperForConditionalGeneration(WHISPER),
    ),
}  # fmt: skip


def save_tokenizer(folder: Path) -> None:
    """One token for each word."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
    special = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep")}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, **special
    ).save_pretrained(folder)


def main(root: Path) -> None:
    for name, (task, make) in MODELS.items():
        torch.manual_seed(1)
        model = make().eval()
        if model.can_generate():
            model.generation_config.forced_decoder_ids = None
        onnx_export_from_model(model, root / name, task=task, monolith=False, do_validation=False)
    save_tokenizer(root / "bert")
    save_sentence_model(root / "sentences")


def save_sentence_model(folder: Path) -> None:
    """A folder of sentence-transformers, whose ONNX file its own backend writes."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    torch.manual_seed(1)
    BertModel(BERT).save_pretrained(folder / "torch")
    save_tokenizer(folder / "torch")
    words = Transformer(str(folder / "torch"))
    pooling = Pooling(words.get_word_embedding_dimension())
    SentenceTransformer(modules=[words, pooling], device="cpu").save(str(folder / "model"))
    made = SentenceTransformer(str(folder / "model"), backend="onnx", device="cpu")
    made.save_pretrained(str(folder / "model"))


main(Path(sys.argv[1]))
