"""Makes `sentencepiece.json` of `tests/unit/models/tokenizers`: two models and what they answer.

    python tools/sentencepiece_cases.py

It needs the package sentencepiece, which the tests do not.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as protobuf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.unit.text.awkward import TEXTS

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "unit" / "models" / "tokenizers" / "data" / "sentencepiece.json"
CORPUS = ROOT / "tests" / "models" / "data" / "sentences.json"
# Some of what NFKC does, in the code points of a rule file; the whole table is 240 kB.
RULES = {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "ﬁ": "fi", "①": "1"}
RULES |= {"e\u0301": "é", "a\u0308": "ä"} | {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}


def train(corpus: list[str], **options: Any) -> bytes:
    """The bytes of a model."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_writer=made,
        vocab_size=700,
        character_coverage=0.99,
        minloglevel=2,
        **options,
    )
    return made.getvalue()


def case(model: bytes) -> dict[str, Any]:
    """A model's vocabulary, settings and answers."""
    proto = protobuf.ModelProto.FromString(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return {
        "tokens": [p.piece for p in proto.pieces],
        "scores": [p.score for p in proto.pieces],
        "types": [p.type for p in proto.pieces],
        "add_space_prefix": proto.normalizer_spec.add_dummy_prefix,
        "remove_extra_whitespaces": proto.normalizer_spec.remove_extra_whitespaces,
        "charsmap": base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode(),
        "ids": {text: processor.encode(text) for text in TEXTS},
    }


def main() -> None:
    """Writes the file."""
    texts = json.loads(CORPUS.read_text("utf-8"))["sentences"]
    corpus = [t for t in [*texts, *TEXTS] if t.strip() and "\0" not in t]
    rules = DATA.with_suffix(".tsv")
    lines = (
        "\t".join(" ".join(f"{ord(c):X}" for c in side) for side in rule) for rule in RULES.items()
    )
    rules.write_text("\n".join(lines) + "\n", "utf-8")
    bpe = {"model_type": "bpe", "normalization_rule_name": "identity", "byte_fallback": True}
    whole = {"remove_extra_whitespaces": False, "user_defined_symbols": ["<tool>"]}
    cases = {
        "llama": case(train(corpus, **bpe, **whole)),
        "gemma": case(train(corpus, **bpe, **whole, add_dummy_prefix=False)),
        "t5": case(
            train(corpus, model_type="unigram", normalization_rule_tsv=str(rules), pad_id=3)
        ),
    }
    rules.unlink()
    DATA.write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main()
