"""Small valid models that mutants are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import parser

from clrt.errors import ClrtError
from clrt.ir.graph import Graph
from clrt.ir.op import TensorType
from clrt.kernels.panel_layout import Panels
from clrt.kernels.spec import PackedWeight
from clrt.models.compiled import CompiledModel, write_compiled
from clrt.models.onnx.export.exporter import export_model
from clrt.models.onnx.importer import import_model
from clrt.ops import REGISTRY
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatMul
from clrt.passes.demote_exact_weights import DemoteExactWeights
from clrt.passes.driver import PassRunner
from clrt.passes.pipeline import optimize
from tests.harness import sample_graph
from tests.ops.samples import samples

EXTERNAL = "weights.bin"

_TEXTS = {
    "transformer": """
        <ir_version: 10, opset_import: ["": 21]>
        main (float[n,s,8] x, bool[n,s] mask) => (float[n,s,8] y, float[n,8] pooled)
        <float[8,24] w, float[24] b, float[24,8] v, float[8] g, int64[1] one = {1},
         float[1] scale = {0.5}> {
            h = MatMul(x, w)
            hb = Add(h, b)
            act = Gelu<approximate = "tanh">(hb)
            o = MatMul(act, v)
            r = Add(o, x)
            norm = LayerNormalization<axis = -1, epsilon = 1e-5>(r, g, g)
            q = Mul(norm, scale)
            kt = Transpose<perm = [0, 2, 1]>(norm)
            scores = MatMul(q, kt)
            m = Unsqueeze(mask, one)
            low = Constant<value = float {-10000.0}>()
            masked = Where(m, scores, low)
            p = Softmax<axis = -1>(masked)
            y = MatMul(p, norm)
            pooled = ReduceMean<keepdims = 0>(y, one)
        }""",
    "convolution": """
        <ir_version: 8, opset_import: ["": 17]>
        main (float[n,3,9,9] x) => (float[n,4] y, float[n,4,4,4] z)
        <float[4,3,3,3] w, float[4] b, float[4,4] f> {
            c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [1, 1]>(x, w, b)
            a = BatchNormalization<epsilon = 1e-5>(c, b, b, b, f1)
            r = Relu(a)
            m = MaxPool<kernel_shape = [3, 3], strides = [2, 2], storage_order = 0>(r)
            z = AveragePool<kernel_shape = [2, 2], auto_pad = "SAME_UPPER">(m)
            p = LpPool<kernel_shape = [2, 2], p = 2>(z)
            g = GlobalAveragePool(p)
            l = Flatten<axis = 1>(g)
            y = Gemm<alpha = 0.5, beta = 1.0, transB = 1>(l, f, b)
        }""",
    "shapes": """
        <ir_version: 8, opset_import: ["": 18]>
        main (float[n,m,4] x, int64[n] ids) => (float y, float z, int64 i, float t)
        <int64[2] first = {0, 0}, int64[2] last = {1, 9}, int64[2] axes = {0, 1},
         int64[1] two = {2}, int64 zero = {0}, int64 step = {1}, float[5,4] table> {
            s = Shape(x)
            n1 = Gather<axis = 0>(s, zero)
            u = Unsqueeze(n1, first1)
            minus = Constant<value_ints = [-1]>()
            target = Concat<axis = 0>(u, minus)
            y = Reshape<allowzero = 0>(x, target)
            part = Slice(x, first, last, axes)
            z = Pad<mode = "reflect">(part, pads)
            r = Range(zero, n1, step)
            i = Tile(r, two)
            rows = Gather(table, ids)
            wide = Expand(rows, n4)
            t = Identity(wide)
        }""",
    "control": """
        <ir_version: 8, opset_import: ["": 17]>
        main (float[n,2] x, int64 trips, bool flag) => (float y, float stacked, float z, float c)
        <bool yes = {1}, float[2] start> {
            y, stacked = Loop(trips, yes, x) <body = step (int64 i, bool go, float[n,2] h)
                => (bool go_on, float[n,2] more, float[n,2] row) {
                go_on = Identity(go)
                more = Add(h, x)
                row = Mul(more, more)
            }>
            z = If(flag) <then_branch = then () => (float[n,2] a) { a = Neg(x) },
                else_branch = other () => (float[n,2] b) { b = Exp(x) }>
            final, c = Scan(start, x) <num_scan_inputs = 1, scan_input_axes = [0],
                body = fold (float[2] state, float[2] slice) => (float[2] after, float[2] out) {
                after = Add(state, slice)
                out = Identity(after)
            }>
        }""",
    "function": """
        <ir_version: 9, opset_import: ["": 18, "own": 1]>
        main (float[n,4] x) => (float[n,4] y) {
            h = own.scaled<factor = 2.0, axis = 1>(x)
            y = own.twice(h)
        }
        <domain: "own", opset_import: ["": 18, "own": 1]>
        scaled <factor, axis> (a) => (b) {
            f = Constant<value_float: float = @factor>()
            m = Mul(a, f)
            b = Softmax<axis: int = @axis>(m)
        }
        <domain: "own", opset_import: ["": 18, "own": 1]>
        twice (a) => (b) {
            c = own.scaled<factor = 3.0, axis = 0>(a)
            b = own.scaled<factor = 3.0, axis = -1>(c)
        }""",
    "sequences": """
        <ir_version: 9, opset_import: ["": 18]>
        main (float[n,4] x, int64 at) => (float y, float z, int64 count, bool there)
        <int64 one = {1}> {
            s = SequenceConstruct(x, x)
            t = SequenceInsert(s, x, one)
            y = ConcatFromSequence<axis = 0, new_axis = 1>(t)
            parts = SplitToSequence<axis = 1, keepdims = 1>(x, one)
            z = SequenceAt(parts, at)
            count = SequenceLength(parts)
            o = Optional(x)
            there = OptionalHasElement(o)
        }""",
    "quantised": """
        <ir_version: 8, opset_import: ["": 17]>
        main (float[n,8] x) => (float y, float z)
        <int8[8,6] w, float scale = {0.05}, int8 zero = {0}, float[6] scales, int8[6] zeros,
         uint8[2,1,3,3] k> {
            q, s, p = DynamicQuantizeLinear(x)
            i = MatMulInteger(q, w, p, zero)
            f = Cast<to = 1>(i)
            y = Mul(f, s)
            d = DequantizeLinear<axis = 1>(w, scales, zeros)
            xq = QuantizeLinear(x, scale, zero)
            xd = DequantizeLinear(xq, scale, zero)
            z = MatMul(xd, d)
        }""",
    "data": """
        <ir_version: 10, opset_import: ["": 21]>
        main (float[n,6] x, int64[k,2] places, float[k] news) => (int64 i, float t, float u,
            float s, float g, float c, int64 boxes)
        <int64[1] three = {3}, int64 axis = {1}, float[1,4,4] corners, float[1,1,4] sizes,
         int64 most = {2}, float half = {0.5}, bool[6] which = {1, 0, 1, 1, 0, 1}> {
            i = NonZero(x)
            t, ti = TopK<axis = 1, largest = 1, sorted = 1>(x, three)
            u = Unique<axis = 0, sorted = 1>(x)
            s = ScatterND<reduction = "add">(x, places, news)
            g = GatherND<batch_dims = 0>(x, places)
            c = Compress<axis = 1>(x, which)
            e = CumSum<exclusive = 0, reverse = 1>(x, axis)
            boxes = NonMaxSuppression<center_point_box = 0>(corners, sizes, most, half, half)
        }""",
    "recurrent": """
        <ir_version: 8, opset_import: ["": 17]>
        main (float[s,n,3] x) => (float y, float z)
        <float[2,16,3] w, float[2,16,4] r, float[2,32] b, float[1,12,3] gw, float[1,12,4] gr> {
            y, yh, yc = LSTM<hidden_size = 4, direction = "bidirectional",
                activations = ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Tanh"]>(x, w, r, b)
            z = GRU<hidden_size = 4, linear_before_reset = 1>(x, gw, gr)
        }""",
    "texts": """
        <ir_version: 9, opset_import: ["": 20, "ai.onnx.ml": 4]>
        main (string[n] words, float[n,3] x) => (string y, bool z, string w, int64 l, float t)
        <string[1] tail = {"!"}> {
            y = StringConcat(words, tail)
            z = RegexFullMatch<pattern = "[a-z]+(b|c)*">(words)
            w, k = StringSplit<delimiter = ",", maxsplit = 2>(words)
            l = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_int64s = [1, 2],
                default_int64 = -1>(words)
            t = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_treeids = [0, 0, 0],
                nodes_nodeids = [0, 1, 2], nodes_featureids = [1, 0, 0],
                nodes_values = [0.5, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],
                nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0],
                target_treeids = [0, 0], target_nodeids = [1, 2], target_ids = [0, 0],
                target_weights = [1.0, 2.0], aggregate_function = "SUM",
                post_transform = "NONE">(x)
        }""",
    "microsoft": """
        <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        main (float[n,s,8] x) => (float y, float z, float f)
        <float[8,24] w, float[24] b, float[8] g, uint8[8,1,8] packed, float[8] scales> {
            a = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(x, w, b)
            y, m, v, u = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(a, x, g, g)
            z = com.microsoft.MatMulNBits<K = 8, N = 8, bits = 4, block_size = 16>
                (x, packed, scales)
            f = com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(x, x)
        }""",
    "reductions": """
        <ir_version: 10, opset_import: ["": 21]>
        main (float[n,6] x) => (float y, float z, float n, int64 a, float e, float r, float q)
        <int64[1] axis = {1}, float low = {-1.0}, float high = {1.0}, int64[2] sizes = {2, 9},
         float[3] samples> {
            y = ReduceLogSumExp<keepdims = 1, noop_with_empty_axes = 0>(x, axis)
            z = LpNormalization<axis = -1, p = 1>(x)
            n = Einsum<equation = "ij,kj->ik">(x, x)
            a = ArgMax<axis = 1, keepdims = 0, select_last_index = 1>(x)
            c = Clip(x, low, high)
            e = Elu<alpha = 0.5>(c)
            r = RandomNormalLike<seed = 1.0, scale = 2.0>(x)
            d = Dropout<seed = 3>(r)
            q = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, , , sizes)
        }""",
}
# Their last parts, which the texts cannot say.
_EXTRAS = {
    "convolution": {"f1": np.ones(4, np.float32)},
    "shapes": {
        "first1": np.array([0]),
        "pads": np.array([0, 1, 0, 0, 1, 0]),
        "n4": np.array([1, 4]),
    },
}


def _text_model(name: str) -> onnx.ModelProto:
    """The model of a text; what that declares without elements becomes an initializer."""
    model = parser.parse_model(_TEXTS[name])
    rng = np.random.default_rng(0)
    for info in model.graph.value_info:
        tensor = info.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        dims = tuple(d.dim_value for d in tensor.shape.dim)
        array = rng.uniform(0.1, 2, dims).astype(dtype)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
    for key, array in _EXTRAS.get(name, {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    del model.graph.value_info[:]
    return model


def _external() -> onnx.ModelProto:
    """A model two weights of which lie in another file."""
    model = _text_model("transformer")
    start = 0
    for tensor in _external_tensors(model):
        raw = onnx.numpy_helper.to_array(tensor).tobytes()
        del tensor.float_data[:]
        tensor.raw_data = b""
        tensor.data_location = onnx.TensorProto.EXTERNAL
        where = {"location": EXTERNAL, "offset": start, "length": len(raw)}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
        start += len(raw)
    return model


def _external_tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    return [t for t in model.graph.initializer if len(t.dims) == 2]


def external_bytes() -> bytes:
    """What the file holds that `external` reads."""
    tensors = _external_tensors(_text_model("transformer"))
    return b"".join(onnx.numpy_helper.to_array(t).tobytes() for t in tensors)


@cache
def onnx_seeds() -> Mapping[str, onnx.ModelProto]:
    """Models by name; a mutant is made of a copy."""
    return {"external": _external(), **{name: _text_model(name) for name in _TEXTS}}


@cache
def _op_graphs() -> Mapping[str, Callable[[], Graph]]:
    """A graph of one node for each op that has samples."""
    found: dict[str, Callable[[], Graph]] = {}
    for (domain, name), cls in REGISTRY.all_classes().items():
        sample = next(samples(cls), None)
        if sample is not None and sum(a.size for a in sample.inputs if a is not None) < 10_000:
            found[f"{domain}.{name}"] = lambda sample=sample: sample_graph(sample)
    return found


@cache
def onnx_op(index: int) -> onnx.ModelProto | None:
    """A model of one op; None where ONNX has no form of it."""
    graphs = list(_op_graphs().values())
    try:
        return export_model(graphs[index % len(graphs)]())
    except ClrtError:
        return None


@cache
def compiled_seed(name: str) -> bytes:
    """One of `onnx_seeds` as a compiled model, the weights of its products packed."""
    model = onnx.ModelProto()
    model.CopyFrom(_text_model("transformer") if name == "external" else onnx_seeds()[name])
    graph = import_model(model)
    optimize(graph, 2)
    PassRunner(graph).run(DemoteExactWeights())
    return _written(graph)


@cache
def compiled_op(index: int) -> bytes:
    """A compiled model of one op, those of clrt's own too; each second one reads constants."""
    graphs = list(_op_graphs().values())
    graph = graphs[index // 2 % len(graphs)]()
    if index % 2:
        for value in graph.inputs[1:]:
            dims = value.type.static_shape
            if dims is not None and not value.type.on_host:
                value.type = TensorType(value.dtype, dims, np.ones(dims, value.dtype.numpy))
        graph.inputs = [v for v in graph.inputs if not v.is_constant]
    return _written(graph)


def compiled_ops() -> int:
    """How many models `compiled_op` has."""
    return 2 * len(_op_graphs())


def _written(graph: Graph) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.clrt"
        shapes = [{v.name: v.dims for v in graph.inputs if v.type.is_static}]
        extras = {"encoder": None, "more": [1, "two"]}
        write_compiled(CompiledModel(graph, shapes, extras), path, "a test", _packed(graph))
        return path.read_bytes()


def _packed(graph: Graph) -> list[PackedWeight]:
    found = []
    for node in graph.nodes:
        if isinstance(node.op, (MatMul, FusedMatMul)):
            weight, swapped = node.arg(1), bool(getattr(node.op, "trans_b", 0))
            if weight.is_constant and len(weight.dims) == 2:
                k, n = weight.dims[::-1] if swapped else weight.dims
                found.append(Panels(k, n, 16, swapped).of(weight))
    return found
