"""Makes mutants of ONNX files, as an attacker or a damaged disk might."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import onnx
from google.protobuf.message import EncodeError
from onnx import AttributeProto, TensorProto

from clrt.ops import REGISTRY
from tests.security import seeds
from tests.security.mutation_values import DOMAINS, FLOATS, NAMES, TEXTS, any_int, flipped, some


def onnx_mutant(seed: int) -> tuple[bytes, bytes]:
    """A mutated ONNX file, and the file of external data beside it."""
    rng = Random(f"onnx {seed}")
    names = list(seeds.onnx_seeds())
    source = seeds.onnx_op(rng.randrange(10_000)) if rng.random() < 0.4 else None
    if source is None:
        source = seeds.onnx_seeds()[rng.choice(names)]
    model = onnx.ModelProto()
    model.CopyFrom(source)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        try:
            rng.choice(_ONNX)(rng, model)
        except (IndexError, ValueError, TypeError, EncodeError):
            continue  # there is nothing of that kind, or protobuf holds no such value
    data = model.SerializeToString()
    if rng.random() < 0.03:
        data = flipped(rng, data)
    beside = seeds.external_bytes()
    return data, beside[: rng.randrange(len(beside))] if rng.random() < 0.02 else beside


def _graphs(model: onnx.ModelProto) -> list[Any]:
    """The graph, those in it, and the bodies of functions."""
    found: list[Any] = []
    pending: list[Any] = [model.graph, *model.functions]
    while pending:
        graph = pending.pop()
        found.append(graph)
        pending += [a.g for n in graph.node for a in n.attribute if a.type == AttributeProto.GRAPH]
    return found


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for g in _graphs(model) for n in g.node]


def _attributes(model: onnx.ModelProto) -> list[AttributeProto]:
    return [a for n in _nodes(model) for a in n.attribute]


def _tensors(model: onnx.ModelProto) -> list[TensorProto]:
    inside = [a.t for a in _attributes(model) if a.type == AttributeProto.TENSOR]
    return [*model.graph.initializer, *inside]


def _infos(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    graphs = [g for g in _graphs(model) if isinstance(g, onnx.GraphProto)]
    return [i for g in graphs for i in (*g.input, *g.output, *g.value_info)]


def _set_attribute(rng: Random, attribute: AttributeProto, kind: int) -> None:
    name = attribute.name
    attribute.Clear()
    attribute.name, attribute.type = name, kind  # type: ignore[assignment]
    match kind:
        case AttributeProto.FLOAT:
            attribute.f = rng.choice(FLOATS)
        case AttributeProto.INT:
            attribute.i = any_int(rng)
        case AttributeProto.STRING:
            attribute.s = rng.choice((rng.choice(TEXTS).encode(), b"\xff\xfe"))
        case AttributeProto.FLOATS:
            attribute.floats.extend(some(rng, lambda r: r.choice(FLOATS)))
        case AttributeProto.INTS:
            attribute.ints.extend(some(rng, any_int))
        case AttributeProto.STRINGS:
            attribute.strings.extend(some(rng, lambda r: r.choice(TEXTS).encode()))
        case AttributeProto.TENSOR:
            dims = [rng.randint(0, 3) for _ in range(rng.randint(0, 3))]
            attribute.t.CopyFrom(onnx.helper.make_tensor("t", 1, dims, b"", raw=True))
            _change_tensor(rng, attribute.t)
        case AttributeProto.GRAPH:
            attribute.g.name = "made"


_KINDS = tuple(k for k in AttributeProto.AttributeType.values() if k < 12)


def _attribute_type(rng: Random, model: onnx.ModelProto) -> None:
    _set_attribute(rng, rng.choice(_attributes(model)), rng.choice(_KINDS))


def _attribute_value(rng: Random, model: onnx.ModelProto) -> None:
    attribute = rng.choice(_attributes(model))
    field_name = {AttributeProto.INTS: "ints", AttributeProto.FLOATS: "floats"}.get(attribute.type)
    if field_name is not None and rng.random() < 0.6:
        items = getattr(attribute, field_name)
        place = rng.randrange(len(items))
        items[place] = any_int(rng) if field_name == "ints" else rng.choice(FLOATS)
    elif attribute.type != AttributeProto.GRAPH:
        _set_attribute(rng, attribute, attribute.type)


def _attribute_list(rng: Random, model: onnx.ModelProto) -> None:
    node = rng.choice([n for n in _nodes(model) if n.attribute])
    attribute = rng.choice(node.attribute)
    match rng.randrange(4):
        case 0:
            node.attribute.remove(attribute)
        case 1:
            node.attribute.add().CopyFrom(attribute)
        case 2:
            attribute.name = rng.choice(_attributes(model)).name
        case 3:
            attribute.ref_attr_name = rng.choice(("factor", "", "none"))


def _new_attribute(rng: Random, model: onnx.ModelProto) -> None:
    """An attribute that the schema of the op has, or that of another op."""
    node = rng.choice(_nodes(model))
    name = node.op_type if rng.random() < 0.8 else rng.choice(NAMES)
    schema = onnx.defs.get_schema(name) if onnx.defs.has(name) else None
    known = list(schema.attributes) if schema is not None else ["axis", "steps", "to", "aggregate"]
    attribute = node.attribute.add(name=rng.choice(known))
    _set_attribute(rng, attribute, rng.choice(_KINDS))


def _info_type(rng: Random, model: onnx.ModelProto) -> None:
    info = rng.choice(_infos(model))
    match rng.randrange(6):
        case 0:
            info.type.tensor_type.elem_type = rng.randint(-1, 30)
        case 1:
            dims = info.type.tensor_type.shape.dim
            place = rng.choice(dims)
            place.dim_value = any_int(rng)
        case 2:
            rng.choice(info.type.tensor_type.shape.dim).dim_param = rng.choice(TEXTS)
        case 3:
            dims = info.type.tensor_type.shape.dim
            for _ in range(rng.choice((1, 1, 70))):
                dims.add(dim_value=rng.choice((1, 2)))
        case 4:
            del info.type.tensor_type.shape.dim[rng.randint(0, 1) :]
        case 5:
            info.type.Clear()
            if rng.random() < 0.6:
                info.type.sequence_type.elem_type.tensor_type.elem_type = rng.randint(0, 20)


def _change_tensor(rng: Random, tensor: TensorProto) -> None:
    match rng.randrange(6):
        case 0:
            tensor.data_type = rng.randint(-1, 30)
        case 1:
            tensor.dims[rng.randrange(len(tensor.dims))] = any_int(rng)
        case 2:
            tensor.dims.insert(0, rng.choice((1, 0, 2, -1)))
        case 3:
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        case 4:
            tensor.raw_data += bytes(rng.randrange(256) for _ in range(rng.randrange(9)))
        case 5:
            _change_elements(rng, tensor)


def _change_elements(rng: Random, tensor: TensorProto) -> None:
    for items, make in (
        (tensor.int64_data, any_int),
        (tensor.float_data, lambda r: r.choice(FLOATS)),
        (tensor.int32_data, lambda r: max(min(any_int(r), 2**31 - 1), -(2**31))),
        (tensor.string_data, lambda r: r.choice(TEXTS).encode()),
    ):
        if len(items):
            items[rng.randrange(len(items))] = make(rng)
            return
    size = rng.choice((4, 8))
    raw = bytearray(tensor.raw_data)
    at = rng.randrange(0, len(raw), size)
    raw[at : at + size] = (any_int(rng) % 2 ** (8 * size)).to_bytes(size, "little")[: len(raw) - at]
    tensor.raw_data = bytes(raw)


def _tensor(rng: Random, model: onnx.ModelProto) -> None:
    _change_tensor(rng, rng.choice(_tensors(model)))


def _names(rng: Random, model: onnx.ModelProto) -> None:
    node = rng.choice(_nodes(model))
    every = [x for n in _nodes(model) for x in (*n.input, *n.output)]
    new = rng.choice((*every, *TEXTS))
    match rng.randrange(5):
        case 0:
            node.input[rng.randrange(len(node.input))] = new
        case 1:
            node.output[rng.randrange(len(node.output))] = new
        case 2:
            node.name = new
        case 3:
            rng.choice(_infos(model)).name = new
        case 4:  # everywhere, so that the model stays valid
            old, new = rng.choice(every), rng.choice(TEXTS)
            for each in _nodes(model):
                for names in (each.input, each.output):
                    names[:] = [new if n == old else n for n in names]
            for info in (*_infos(model), *model.graph.initializer):
                info.name = new if info.name == old else info.name


def _operator(rng: Random, model: onnx.ModelProto) -> None:
    node = rng.choice(_nodes(model))
    match rng.randrange(4):
        case 0:
            node.op_type = rng.choice((*NAMES, *TEXTS))
        case 1:
            node.domain = rng.choice(DOMAINS)
        case 2:
            domain, node.op_type = rng.choice(list(REGISTRY.all_classes()))
            node.domain = domain
        case 3:
            node.op_type = rng.choice(_nodes(model)).op_type
    if node.domain and rng.random() < 0.8:
        model.opset_import.add(domain=node.domain, version=1)


def _opset(rng: Random, model: onnx.ModelProto) -> None:
    opset = rng.choice(model.opset_import)
    match rng.randrange(4):
        case 0 | 1:
            opset.version = rng.randint(0, 27)
        case 2:
            opset.version = any_int(rng)
        case 3:
            model.opset_import.remove(opset)


def _inputs(rng: Random, model: onnx.ModelProto) -> None:
    node = rng.choice(_nodes(model))
    names = rng.choice((node.input, node.input, node.output))
    match rng.randrange(5):
        case 0:
            del names[rng.randrange(len(names))]
        case 1:
            names.append(rng.choice(names))
        case 2:
            mixed = list(names)
            rng.shuffle(mixed)
            names[:] = mixed
        case 3:
            del names[:]
        case 4:
            names[rng.randrange(len(names))] = ""


def _node_list(rng: Random, model: onnx.ModelProto) -> None:
    graph = rng.choice(_graphs(model))
    node = rng.choice(graph.node)
    match rng.randrange(3):
        case 0:
            graph.node.remove(node)
        case 1:
            graph.node.add().CopyFrom(node)
        case 2:
            mixed = list(graph.node)
            rng.shuffle(mixed)
            copies = [n.SerializeToString() for n in mixed]
            del graph.node[:]
            graph.node.extend(onnx.NodeProto.FromString(c) for c in copies)


def _graph_ends(rng: Random, model: onnx.ModelProto) -> None:
    graph = rng.choice([g for g in _graphs(model) if isinstance(g, onnx.GraphProto)])
    infos = rng.choice((graph.input, graph.output))
    match rng.randrange(3):
        case 0:
            del infos[rng.randrange(len(infos))]
        case 1:
            infos.add().CopyFrom(rng.choice(infos))
        case 2:
            infos.add().CopyFrom(rng.choice(_infos(model)))


def _functions(rng: Random, model: onnx.ModelProto) -> None:
    function = rng.choice(model.functions)
    match rng.randrange(6):
        case 0:
            model.functions.remove(function)
        case 1:
            model.functions.add().CopyFrom(function)
        case 2:
            function.node.add(op_type=function.name, domain=function.domain,
                              input=list(function.input), output=["again"])  # fmt: skip
        case 3:
            function.attribute.append(rng.choice(("factor", "none", "axis")))
        case 4:
            del function.output[:]
        case 5:
            function.name, function.domain = rng.choice((("Softmax", ""), ("Fused", "clrt")))


def _external(rng: Random, model: onnx.ModelProto) -> None:
    tensor = rng.choice(_tensors(model))
    if not tensor.external_data:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=seeds.EXTERNAL)
    entry = rng.choice(tensor.external_data)
    if entry.key == "location":
        entry.value = rng.choice(("../x", "/etc/passwd", "/dev/zero", ".", *TEXTS))
    else:
        entry.value = rng.choice((str(any_int(rng)), *TEXTS))


def _version(rng: Random, model: onnx.ModelProto) -> None:
    model.ir_version = any_int(rng)


_ONNX: Sequence[Callable[[Random, onnx.ModelProto], None]] = (
    *(_attribute_type, _attribute_value) * 4,
    *(_new_attribute, _info_type, _tensor, _operator, _inputs) * 2,
    *(_attribute_list, _names, _opset, _node_list, _graph_ends, _functions, _external, _version),
)
