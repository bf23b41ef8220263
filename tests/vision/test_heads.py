"""Vision model heads: outputs decoded as their exporter specifies, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.ir.op import Array
from clrt.runtime.model.model import load
from clrt.tools.convert import Options, convert, write
from clrt.vision import Classifier, Detector, ImageEncoder, Segmenter
from clrt.vision.boxes import BoxHead, QueryHead, RawDetections, box_head, query_head
from clrt.vision.exports import read_export
from tests.harness import quick_device
from tests.vision import small_models as small

IMAGE = np.full((32, 32, 3), 90, np.uint8)
SEGMENT = {"task": "segment", "names": "{0: 'a', 1: 'b'}", "stride": "32"}


def _classify(folder: Path, logits: list[float], **config: Any) -> dict[int, float]:
    small.answering(folder / "model.onnx", {"logits": np.array([logits])})
    processor = {"image_processor_type": "ViTImageProcessor", "size": 32}
    small.write_configs(folder, processor, **config)
    with Classifier(folder, device=quick_device()) as classify:
        return {c.index: c.score for c in classify(IMAGE, top=9)}


@pytest.mark.parametrize(
    ("logits", "problem", "function"),
    [
        ([2, 1.5, -3], "multi_label_classification", "sigmoid"),
        ([-2], None, "sigmoid"),
        ([-2], "single_label_classification", "sigmoid"),
        ([-2, 7], "regression", "none"),
        ([2, 1.5, -3], "single_label_classification", "softmax"),
        ([2, 1.5, -3], None, "softmax"),
    ],
)
def test_classifier_scores_use_function_of_problem_type(
    logits: list[float], problem: str | None, function: str, tmp_path: Path
) -> None:
    found = _classify(tmp_path, logits, problem_type=problem)
    values = np.array(logits)
    powers = np.exp(values)
    made = {"sigmoid": 1 / (1 + 1 / powers), "softmax": powers / powers.sum(), "none": values}
    np.testing.assert_allclose([found[k] for k in range(len(logits))], made[function], atol=1e-5)


def test_unknown_problem_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="problem_type 'ranking'; expected one of regression"):
        _classify(tmp_path, [1, 2], problem_type="ranking")


@pytest.mark.parametrize(
    ("processor", "model_type", "classes", "pairs"),
    [
        ("Detr", "d_fine", 6, -1), ("Yolos", "", 6, -1), ("ConditionalDetr", "detr", 6, 100),
        ("DeformableDetr", "", 6, 100), ("RTDetr", "", 5, 0), ("", "table-transformer", 6, -1),
        ("ViT", "rt_detr_v2", 5, 0), ("", "lw_detr", 5, 100), ("", "", 6, -1), ("", "", 5, 0),
    ],
)  # fmt: skip
def test_query_head_is_chosen_by_processor_and_model_type(
    processor: str, model_type: str, classes: int, pairs: int
) -> None:
    labels = dict.fromkeys(range(5), "x")
    assert query_head(processor, model_type, classes, labels) == QueryHead(pairs)


@pytest.mark.parametrize(
    ("model_type", "labels", "said"),
    [("pp_doclayout_v2", 5, "model_type 'pp_doclayout_v2', whose scores"),
     ("", 0, "no config.json or preprocessor_config.json says"), ("", 3, "means 'no object'")],
)  # fmt: skip
def test_unknown_query_head_is_refused(model_type: str, labels: int, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        query_head("", model_type, 6, dict.fromkeys(range(labels), "x"))


def test_query_head_selects_best_query_class_pairs() -> None:
    """The best pairs of query and class: one per query in number, or 100."""
    rng = np.random.default_rng(0)
    logits, boxes = rng.standard_normal((30, 7)) * 3, rng.random((30, 4))
    for pairs, most in ((0, 30), (100, 100)):
        things = QueryHead(pairs).things(logits, boxes)
        scores = 1 / (1 + np.exp(-logits))
        best = np.sort(scores.ravel())[::-1][:most]
        np.testing.assert_allclose(things.scores, best)
        for box, label, score in zip(things.boxes, things.classes, things.scores, strict=True):
            query = int(np.flatnonzero(scores[:, label] == score)[0])
            x, y, w, h = boxes[query]
            np.testing.assert_allclose(box, [x - w / 2, y - h / 2, x + w / 2, y + h / 2])


def _head(properties: dict[str, str] | None, labels: int = 0, protos: int | None = None) -> BoxHead:
    names = {0: "a", **{k: "b" for k in range(1, labels)}} if labels else {}
    return box_head("output0", protos, read_export(properties or {}), names)


def _told(task: str, classes: int = 2, **more: str) -> dict[str, str]:
    named = {"task": task} if task else {}
    return {**named, "names": str({k: "n" for k in range(classes)}), "stride": "32", **more}


COLUMNS = [
    (_head(None, 2), (6, 100), 2),
    (_head(None), (9, 100), 5),
    (_head(None, 2, 32), (38, 100), 2),
    (_head(_told("detect")), (6, 100), 2),
    (_head(_told("segment"), 0, 32), (38, 100), 2),
    (_head(_told("pose", 1, kpt_shape="[17, 3]")), (56, 100), 1),
    (_head(_told("detect", 80, end2end="False", args="{'nms': False}")), (84, 8400), 80),
    (_head(_told("detect", 2, end2end="False")), (6, 6), 2),
]


@pytest.mark.parametrize(("head", "shape", "classes"), COLUMNS)
def test_box_head_reads_one_box_per_column(
    head: BoxHead, shape: tuple[int, int], classes: int
) -> None:
    """Rows after the classes (mask coefficients, keypoints) are no scores."""
    output = np.full(shape, 300.0)
    output[4 : 4 + classes] = np.linspace(0, 1, classes * shape[1]).reshape(classes, -1)
    found = head.things(output)
    assert isinstance(found, tuple)
    np.testing.assert_array_equal(found[0], np.full((shape[1], 4), 300))
    np.testing.assert_allclose(found[1], output[4 : 4 + classes], atol=1e-6)


ROWS = [
    (_head(None, 2), 0),
    (_head(None), 0),
    (_head(_told("detect", end2end="True")), 0),
    (_head(_told("detect", args="{'batch': 1, 'nms': True}", end2end="False")), 0),
    (_head(_told("segment", args="{'nms': True}"), 0, 32), 32),
    (_head(_told("pose", kpt_shape="(17, 3)", end2end="True")), 51),
]


@pytest.mark.parametrize(("head", "extra"), ROWS)
def test_end_to_end_head_reads_boxes_by_row(head: BoxHead, extra: int) -> None:
    output = np.full((300, 6 + extra), 7.5)
    output[:, 4], output[:, 5] = np.linspace(0, 1, 300), np.arange(300) % 2
    found = head.things(output)
    assert isinstance(found, RawDetections) and not found.relative
    np.testing.assert_array_equal(found.boxes, output[:, :4])
    np.testing.assert_array_equal(found.classes, output[:, 5])
    np.testing.assert_allclose(found.scores, output[:, 4], atol=1e-6)


def test_rtdetr_head_reads_relative_boxes() -> None:
    """Exports since 2026 contain one score per query, earlier ones a score per class."""
    for told, columns in (({"head": "RTDETRDecoder"}, [0.9, 1]), ({}, [0.2, 0.9])):
        about = {"description": "Ultralytics rtdetr-l model trained on coco.yaml", **told}
        head = _head(_told("detect", end2end="False", **about))
        output = np.zeros((300, 6))
        output[3] = [0.5, 0.5, 0.2, 0.4, *columns]
        found = head.things(output)
        assert isinstance(found, RawDetections) and found.relative
        best = int(found.scores.argmax())
        assert (found.classes[best], round(float(found.scores[best]), 3)) == (1, 0.9)
        np.testing.assert_allclose(found.boxes[best], [0.4, 0.3, 0.6, 0.7], atol=1e-6)


def test_yolov5_score_is_objectness_times_class_score() -> None:
    output = np.full((100, 7), 0.5)
    output[:, :4] = 40
    found = _head(_told("")).things(output)
    assert isinstance(found, tuple)
    np.testing.assert_allclose(found[1], np.full((2, 100), 0.25))


REFUSED: list[tuple[BoxHead, Array, str]] = [
    (_head(None, 1), np.zeros((56, 100)), r"\[56, 100\] per image, .* for 1 classes and 0 more"),
    (_head(None), np.full((56, 100), 9), "has 9 to 9 instead of scores"),
    (_head(None), np.zeros((25200, 85)), "which is not a supported head"),
    (_head(None, 80), np.zeros((8400, 85)), "no metadata of Ultralytics; pass labels="),
    (_head(None), np.zeros((3, 100)), "which is not a supported head"),
    (_head(None, 2), np.full((300, 6), 0.4), "the invalid class 0.4"),
    (_head(None, 2), np.full((300, 6), 2.0), "has 2 to 2 instead of scores"),
    (
        _head(_told("detect", end2end="True")),
        np.zeros((300, 38)),
        "has the task 'detect' and 2",
    ),
    (
        _head(_told("pose", kpt_shape="[17, 3]")),
        np.zeros((5, 90)),
        "and 51 more numbers per box",
    ),
]


@pytest.mark.parametrize(("head", "output", "said"), REFUSED)
def test_unknown_box_output_is_refused(head: BoxHead, output: Array, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        head.things(output)


@pytest.mark.parametrize(
    ("task", "cls", "said"),
    [
        (
            "classify",
            Detector,
            "'classify', which Detector does not support; open it by Classifier",
        ),
        ("obb", Detector, "'obb', .* no class of clrt.vision runs that"),
        ("pose", Detector, "no kpt_shape"),
        ("detect", Classifier, "open it by Detector"),
        ("segment", Segmenter, "open it by Detector"),
        ("semantic", Segmenter, "'semantic', which Segmenter does not support"),
    ],
)
def test_export_of_other_task_is_refused(task: str, cls: type, said: str, tmp_path: Path) -> None:
    outputs = {"output0": np.zeros((1, 6, 100)), "output1": np.zeros((1, 32, 8, 8))}
    path = small.answering(tmp_path / "x.onnx", outputs, _told(task), "images")
    with pytest.raises(UnsupportedError, match=said):
        cls(path, device=quick_device())


@pytest.mark.parametrize(
    ("name", "shape", "cls"),
    [("pooler_output", (1, 5), Classifier), ("image_embeds", (1, 5), Classifier),
     ("masks_queries_logits", (1, 5, 8, 8), Segmenter), ("pred_masks", (1, 5, 8, 8), Segmenter),
     ("reconstruction", (1, 3, 8, 8), Segmenter), ("last_hidden_state", (1, 9, 5), Detector),
     ("logits", (1, 5), ImageEncoder)],
)  # fmt: skip
def test_known_output_name_is_not_used_for_other_task(
    name: str, shape: tuple[int, ...], cls: Any, tmp_path: Path
) -> None:
    path = small.answering(tmp_path / "model.onnx", {name: np.zeros(shape)})
    small.write_configs(tmp_path, {"image_processor_type": "ViTImageProcessor", "size": 32})
    with pytest.raises(InputError, match=f"has no output for .* its outputs are: {name}: float32"):
        model = cls(path, device=quick_device())
        model.encode(IMAGE)


def test_ultralytics_export_runs_from_its_metadata_alone(tmp_path: Path) -> None:
    """Class names, image size and preprocessing come from metadata, also in a compiled model."""
    head = np.zeros((1, 38, 50))
    head[0, :5, 0] = [16, 16, 8, 8, 0.9]
    outputs = {"output0": head, "output1": np.zeros((1, 32, 8, 8))}
    path = small.answering(tmp_path / "x.onnx", outputs, SEGMENT, "images")
    compiled = tmp_path / "x.clrt"
    write(convert(path, Options()), compiled, [], device=quick_device().index)
    assert load(compiled, device=quick_device()).properties == SEGMENT
    for source in (path, compiled):
        with Detector(source, device=quick_device()) as detect:
            (thing,) = detect(np.zeros((16, 32, 3), np.uint8))
        assert (thing.label, thing.box) == ("a", (12, 4, 20, 12))
    told = {**_told("classify"), "imgsz": "[32, 32]"}
    path = small.answering(tmp_path / "c.onnx", {"output0": np.array([[0.3, 0.1]])}, told, "images")
    with Classifier(path, device=quick_device()) as classify:
        assert [round(c.score, 3) for c in classify(IMAGE)] == [0.3, 0.1]
        assert classify.preprocessor.fit == "shortest" and classify.preprocessor.crop == (32, 32)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{0: 'it\\'s', 1: \"a, b\", 17: 'x'}", {0: "it's", 1: "a, b", 17: "x"}),
        ("['cat', 'dog']", {0: "cat", 1: "dog"}), ("{}", {}),
        ("{0: 'a'} or 1", None), ("{'a': 0}", None), ("(" * 9999, None), ("[0: 'a']", None),
        ("{0: 'a', 1: __import__('os')}", None), ("{0: '\\x'}", None), ("", None),
    ],
)  # fmt: skip
def test_export_class_names_are_parsed_or_refused(text: str, names: dict[int, str] | None) -> None:
    properties = {"task": "detect", "names": text}
    if names is None:
        with pytest.raises(ModelError, match="metadata has names"):
            read_export(properties)
    else:
        found = read_export(properties)
        assert found is not None and found.names == names


@pytest.mark.parametrize("masked", [True, False])
def test_siglip_texts_are_padded_to_max_positions(masked: bool, tmp_path: Path) -> None:
    """With pad_token of tokenizer_config.json, whose model_input_names lists a mask or not."""
    folder = small.clip(tmp_path, one=False)
    small.write_configs(folder, model_type="siglip", text_config={}, preprocessor=small.VIT)
    names = ["input_ids", "attention_mask"] if masked else ["input_ids"]
    said = {"pad_token": "</s>", "model_input_names": names}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    with ImageEncoder(folder, device=quick_device()) as encoder:
        found = encoder.encode_text(["cat", "a photo of a dog"], normalize=False)
    ids = np.full((2, 64), 1)
    ids[0, :3], ids[1, :7] = [0, 5, 1], [0, 2, 3, 4, 2, 6, 1]
    mask = np.ones_like(ids)
    if masked:
        mask[0, 3:], mask[1, 7:] = 0, 0
    path = folder / "onnx" / "text_model.onnx"
    expected = small.oracle(path, input_ids=ids, attention_mask=mask)["text_embeds"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
