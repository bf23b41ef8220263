"""Words with several meanings are kept out of the names of modules, classes and class variables.

Each may name one thing, or occur in a fixed term of the field; these names are listed here.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import clrt

PACKAGE = Path(clrt.__file__).parent
# Words that name nothing.
UNUSED = (
    *("alike", "apart", "facts", "given", "kind", "lane", "made", "narrow", "own", "part"),
    *("place", "room", "settle", "settled", "taken", "told", "turn", "turned", "way", "wide"),
)
# What a word may name, and the names that have it.
WORDS: dict[str, dict[str, str]] = {
    "level": {"in ONNX Runtime": "GraphOptimizationLevel"},
    "line": {"of a message": "_message_lines"},
    "found": {"no result of a search": "NotFound"},
    "piece": {"of a word, as BERT's tokenizer has it": "WordPieceStage"},
    "record": {
        "tuning record": "TuningRecord tuning_records",
        "block of a GGUF tensor": "GgufRecordLayout gguf_record_layout",
    },
    "share": {"memory or a row": "ShareGatherWeights share_gather_weights"},
    "small": {
        "few rows (M)": "SmallMConfig SmallMThresholds gemm_small_m_cpu",
        "few bits": "small_float_types",
    },
    "step": {
        "of a plan": "DeviceStep HostStep StepRecorder StepTime steps",
        "of a decoder": "DecodeStepProbe DecodeStepRunner decode_step_probe decode_step_runner",
        "of a sequence": "Int8TimeStepLaunches TimeStepLaunches time_step_launches",
    },
    "unit": {
        "matrix unit": "MatrixUnitConfig MatrixUnitThresholds cpu_matrix_units "
        "gemm_matrix_unit_gpu gpu_matrix_units",
        "unit of work": "WorkUnit WorkUnitRows WorkUnitStatus work_units",
    },
    "word": {"status word": "StatusWord", "of a text": "EndOfWordStage WordPieceStage"},
}


@functools.cache
def names() -> dict[str, str]:
    """Returns each name with the file that defines it."""
    return dict(_read_names())


def _read_names() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        yield path.stem, file
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield node.name, file
                for line in node.body:
                    if isinstance(line, ast.AnnAssign) and "ClassVar" in ast.unparse(
                        line.annotation
                    ):
                        yield ast.unparse(line.target), file


def words(name: str) -> set[str]:
    """Returns the words of a name in lower case: those of `MatrixUnit2` are matrix and unit."""
    return {w.lower() for w in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)}


@pytest.mark.parametrize("word", [*WORDS, *UNUSED])
def test_ambiguous_word_in_names_has_listed_meaning(word: str) -> None:
    meanings = WORDS.get(word, {})
    listed = set(" ".join(meanings.values()).split())
    having = {name: file for name, file in names().items() if words(name) & {word, f"{word}s"}}
    strangers = {name: file for name, file in having.items() if name not in listed}
    assert not strangers, f"{word!r} may name {list(meanings)}"
    assert listed <= set(having)
