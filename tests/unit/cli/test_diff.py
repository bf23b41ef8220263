"""`clrt diff` on a small model: no deviation, and detection of an injected one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

from clrt.cli import app
from clrt.cli.console import EXIT_DIFFERS
from clrt.cli.random_inputs import sample_inputs
from clrt.cli.shapes import one_shape
from clrt.errors import InputError
from clrt.tools.diff import Diff, OnnxRuntime, Reference
from tests.models.fixtures import load_family

NAME = "/model/encoder/layer.1/attention/output/LayerNorm/LayerNormalization_output_0"


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["diff", *map(str, args)], env={"COLUMNS": "300"})


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bert.onnx"
    onnx.save(load_family("bert_torchscript17"), path)
    return path


@pytest.mark.parametrize("against", ["onnxruntime", "reference"])
def test_matching_model_reports_no_deviation(bert: Path, against: str) -> None:
    result = run(bert, "--against", against, "--shape", "input_ids=2x9", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "departs by more than 0.0001" in result.output
    for wanted in ("FusedAttention", "last_hidden_state", NAME, "float32[batch,sequence,32]"):
        assert wanted in result.output


def test_first_deviating_node_is_named(
    bert: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = OnnxRuntime.values

    def wrong(self: OnnxRuntime, feeds: Any, names: Any) -> dict[str, Any]:
        found = plain(self, feeds, names)
        found[NAME] = found[NAME] + 0.1
        found["last_hidden_state"] = found["last_hidden_state"] * 2
        return found

    monkeypatch.setattr(OnnxRuntime, "values", wrong)
    rng = np.random.default_rng(0)
    feeds = {
        "input_ids": rng.integers(0, 90, (2, 7)),
        "attention_mask": np.ones((2, 7), np.int64),
        "token_type_ids": np.zeros((2, 7), np.int64),
    }
    np.savez(tmp_path / "feeds.npz", **feeds)
    result = run(bert, "--input", tmp_path / "feeds.npz", "--device", "cpu")
    assert result.exit_code == EXIT_DIFFERS, result.output
    assert "LayerNormalization '/model/encoder/layer.1/attention/output" in result.output
    assert "last_hidden_state" not in result.output


def test_diff_compares_most_intermediate_values(bert: Path) -> None:
    with Diff(bert, Reference(bert), "cpu").model as model:
        assert sample_inputs(model, one_shape(None, model))
    found = Diff(bert, OnnxRuntime(bert), "cpu")
    found.model.close()
    assert len(found.probes) > 4 * found.alone


def test_unreadable_inputs_and_compiled_model_are_refused(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "no.npz").write_text("no")
    result = run(bert, "--input", tmp_path / "no.npz")
    assert result.exit_code == 1
    assert "cannot be read as an .npz" in result.output
    with pytest.raises(InputError, match="is a compiled model"):
        Diff(Path("model.clrt"), Reference(bert))


def test_given_inputs_are_not_reported_as_generated(bert: Path, tmp_path: Path) -> None:
    feeds = {n: np.zeros((1, 7), np.int64) for n in ("attention_mask", "token_type_ids")}
    np.savez(tmp_path / "in.npz", input_ids=np.full((1, 7), 10**6), **feeds)
    given = (bert, "--inputs", tmp_path / "in.npz", "--device", "cpu")
    result = run(*given)
    assert result.exit_code == 1 and "clrt chose" not in result.stderr, result.output
    both = run(*given, "--shape", "input_ids=1x7")
    assert "leave out --shape" in both.stderr
