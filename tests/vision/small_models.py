"""Vision models with random weights, in Hugging Face folder layouts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from clrt.ir.op import Array

LABELS = {"0": "cat", "1": "dog", "2": "boat", "3": "sheep", "4": "tree"}
VIT = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 48}}


class Graph:
    """Nodes and weights of a model to be."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """A random weight."""
        return self.constant(self.rng.standard_normal(shape).astype(np.float32) * scale)

    def constant(self, array: Array) -> str:
        """A weight."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A node, and the name of its output."""
        name = name or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def save(
        self,
        path: Path,
        inputs: Mapping[str, tuple[int, Sequence[Any]]],
        outputs: Mapping[str, Sequence[Any]],
    ) -> Path:
        """Writes the model; inputs are by name dtype and dims."""
        values = [helper.make_tensor_value_info(n, t, d) for n, (t, d) in inputs.items()]
        results = [helper.make_tensor_value_info(n, 1, d) for n, d in outputs.items()]
        graph = helper.make_graph(self.nodes, "small", values, results, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)
        return path


def pixel_values(*dims: Any) -> dict[str, tuple[int, Sequence[Any]]]:
    """The input of images."""
    return {"pixel_values": (TensorProto.FLOAT, dims or ("n", 3, "h", "w"))}


def write_configs(folder: Path, preprocessor: Any = VIT, **config: Any) -> Path:
    """The files beside a model."""
    (folder / "config.json").write_text(json.dumps({"id2label": LABELS, **config}))
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


def _features(graph: Graph, width: int) -> str:
    """`[n, width]` of images of any size."""
    x = graph.add("Conv", "pixel_values", graph.weight(width, 3, 8, 8), strides=[8, 8])
    return graph.add("Flatten", graph.add("GlobalAveragePool", graph.add("Relu", x)))


def classifier(folder: Path, *dims: Any) -> Path:
    """Writes the folder of a ViT that scores 5 classes; returns the folder."""
    graph = Graph(1)
    graph.add("MatMul", _features(graph, 16), graph.weight(16, 5), name="logits")
    batch = dims[0] if dims else "n"
    path = folder / "onnx" / "model.onnx"
    graph.save(path, pixel_values(*dims), {"logits": [batch, 5]})
    return write_configs(folder)


def detr(folder: Path, kind: str = "Detr") -> Path:
    """Writes the folder of a detector that finds 12 boxes; returns the folder.

    Args:
        folder: The folder.
        kind: Prefix of the image processor's class. For "Detr", logits are of 5 classes and "no
            object"; else of 5 classes, independent of each other.
    """
    graph, classes = Graph(2), 6 if kind == "Detr" else 5
    x = _features(graph, 16)
    shapes = {"logits": classes, "pred_boxes": 4}
    for name, size in shapes.items():
        flat = graph.add("MatMul", x, graph.weight(16, 12 * size))
        shape = graph.constant(np.array([-1, 12, size]))
        last = graph.add("Reshape", flat, shape, name="logits" if name == "logits" else "")
        if name == "pred_boxes":
            graph.add("Sigmoid", last, name=name)
    graph.save(
        folder / "model.onnx",
        {**pixel_values(), "pixel_mask": (TensorProto.INT64, ["n", 64, 64])},
        {n: ["n", 12, s] for n, s in shapes.items()},
    )
    detr_config = {"image_processor_type": f"{kind}ImageProcessor",
                   "size": {"shortest_edge": 40, "longest_edge": 64}}  # fmt: skip
    return write_configs(folder, detr_config, model_type="detr")


def yolo(path: Path, edge: int = 64) -> Path:
    """One head of 5 classes and edge^2 / 64 anchors whose boxes overlap much."""
    graph, side = Graph(3), edge // 8
    x = graph.add("Conv", "images", graph.weight(9, 3, 8, 8), strides=[8, 8])
    x = graph.add("Reshape", x, graph.constant(np.array([1, 9, side * side])))
    boxes, scores = "boxes", "scores"
    graph.nodes.append(helper.make_node(
        "Split", [x, graph.constant(np.array([4, 5]))], [boxes, scores], axis=1))  # fmt: skip
    boxes = graph.add("Mul", graph.add("Sigmoid", boxes), graph.constant(np.float32(edge / 2)))
    graph.add("Concat", boxes, graph.add("Sigmoid", scores), axis=1, name="output0")
    inputs = {"images": (TensorProto.FLOAT, [1, 3, edge, edge])}
    return graph.save(path, inputs, {"output0": [1, 9, side * side]})


def segmenter(folder: Path) -> Path:
    """Writes a Segformer's folder and returns it.

    The model computes logits of 5 classes at a quarter of the image's height and width.
    """
    graph = Graph(4)
    x = graph.add("Conv", "pixel_values", graph.weight(8, 3, 4, 4), strides=[4, 4])
    graph.add("Conv", graph.add("Relu", x), graph.weight(5, 8, 3, 3), pads=[1] * 4, name="logits")
    graph.save(folder / "model.onnx", pixel_values(), {"logits": ["n", 5, "h4", "w4"]})
    config = {"image_processor_type": "SegformerImageProcessor",
              "size": {"height": 64, "width": 64}}  # fmt: skip
    return write_configs(folder, config)


def _image_part(graph: Graph) -> str:
    return graph.add("MatMul", _features(graph, 16), graph.weight(16, 6), name="image_embeds")


def _text_part(graph: Graph) -> str:
    """The mean of the rows of tokens that count."""
    rows = graph.add("Gather", graph.weight(16, 6), "input_ids")
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask = graph.add("Unsqueeze", mask, graph.constant(np.array([2])))
    total = graph.add("ReduceSum", graph.add("Mul", rows, mask), graph.constant(np.array([1])),
                      keepdims=0)  # fmt: skip
    count = graph.add("ReduceSum", mask, graph.constant(np.array([1])), keepdims=0)
    return graph.add("Div", total, count, name="text_embeds")


TEXT_INPUTS = {n: (TensorProto.INT64, ["b", "s"]) for n in ("input_ids", "attention_mask")}


def clip(folder: Path, one: bool) -> Path:
    """Writes a CLIP model's folder and returns it.

    Args:
        folder: The folder.
        one: Whether the image and text parts share a model file.
    """
    images, texts = ("image_embeds", ["n", 6]), ("text_embeds", ["b", 6])
    graph = Graph(5)
    _image_part(graph)
    if one:
        _text_part(graph)
        inputs = {**TEXT_INPUTS, **pixel_values()}
        graph.save(folder / "onnx" / "model.onnx", inputs, dict([texts, images]))
    else:
        graph.save(folder / "onnx" / "vision_model.onnx", pixel_values(), dict([images]))
        graph = Graph(6)
        _text_part(graph)
        graph.save(folder / "onnx" / "text_model.onnx", TEXT_INPUTS, dict([texts]))
    _write_tokenizer(folder)
    config = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32},
              "crop_size": 32}  # fmt: skip
    text_config = {"max_position_embeddings": 5}
    return write_configs(folder, config, model_type="clip", text_config=text_config)


WORDS = ["<s>", "</s>", "a", "photo", "of", "cat", "dog", "boat"]


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({w: k for k, w in enumerate(WORDS)}, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def oracle(path: Path, **inputs: Array) -> dict[str, Array]:
    """What ONNX Runtime computes."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    taken = {i.name for i in session.get_inputs()}
    found = session.run(names, {n: a for n, a in inputs.items() if n in taken})
    return dict(zip(names, found, strict=True))


def answering(
    path: Path,
    outputs: Mapping[str, Array],
    properties: Mapping[str, str] | None = None,
    images: str = "pixel_values",
    edge: int = 32,
) -> Path:
    """A model that gives the same outputs for every image, with an exporter's metadata."""
    graph = Graph(7)
    low = graph.add("ReduceMin", images, keepdims=0)
    nothing = graph.add("Mul", low, graph.constant(np.float32(0)))
    for name, array in outputs.items():
        graph.add("Add", graph.constant(array.astype(np.float32)), nothing, name=name)
    inputs = {images: (TensorProto.FLOAT, [1, 3, edge, edge])}
    graph.save(path, inputs, {n: a.shape for n, a in outputs.items()})
    if properties:
        model = onnx.load(path)
        helper.set_model_props(model, dict(properties))
        onnx.save(model, path)
    return path
