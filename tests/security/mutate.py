"""Mutants of models: what somebody might write who wants harm, or a damaged disk."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import onnx
import xxhash
from google.protobuf.message import EncodeError
from onnx import AttributeProto, TensorProto

from clrt.container.compiled import _canonical
from clrt.ir.dtypes import DType
from clrt.ops import REGISTRY
from tests.security import seeds

TEXTS = (
    "",
    "\0",
    "a\nb",
    '"',
    "'",
    "\\",
    "0\n#define IDX_T char\n",
    '2\n__asm__ volatile("syscall");//',
    "SUM",
    "MAX",
    "nearest",
    "BRANCH_LT",
    "LEAF",
    "none",
    "ij,jk->ik",
    "...i->",
    "SAME_LOWER",
    "NOTSET",
    "bidirectional",
    "Relu",
    "%s{}{0}",
    "é\u2028",
    "x" * 100_000,
    "(a+)+$",
)
INTS = (0, 1, 2, 3, 7, 8, 65, -1, -2, 255, 10**6, 10**9, 2**31 - 1, 2**31, -(2**31), 2**63 - 1,
        -(2**63))  # fmt: skip
FLOATS = (0.0, -0.0, 0.5, -1.0, 1e-45, 1e30, 3e38, float("inf"), float("-inf"), float("nan"))
NAMES = tuple(name for _, name in REGISTRY.classes)
DOMAINS = ("", "clrt", "com.microsoft", "ai.onnx.ml", "own", "ai.onnx", "x\ny")


def _int(rng: Random) -> int:
    return rng.choice(INTS) if rng.random() < 0.7 else rng.randint(-4, 20)


def _items(rng: Random, make: Callable[[Random], Any]) -> list[Any]:
    return [make(rng) for _ in range(rng.choice((0, 1, 2, 3, 4, 9, 70)))]


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
        data = _flipped(rng, data)
    beside = seeds.external_bytes()
    return data, beside[: rng.randrange(len(beside))] if rng.random() < 0.02 else beside


def _flipped(rng: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.2 else changed)


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
            attribute.i = _int(rng)
        case AttributeProto.STRING:
            attribute.s = rng.choice((rng.choice(TEXTS).encode(), b"\xff\xfe"))
        case AttributeProto.FLOATS:
            attribute.floats.extend(_items(rng, lambda r: r.choice(FLOATS)))
        case AttributeProto.INTS:
            attribute.ints.extend(_items(rng, _int))
        case AttributeProto.STRINGS:
            attribute.strings.extend(_items(rng, lambda r: r.choice(TEXTS).encode()))
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
        items[place] = _int(rng) if field_name == "ints" else rng.choice(FLOATS)
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
            place.dim_value = _int(rng)
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
            tensor.dims[rng.randrange(len(tensor.dims))] = _int(rng)
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
        (tensor.int64_data, _int),
        (tensor.float_data, lambda r: r.choice(FLOATS)),
        (tensor.int32_data, lambda r: max(min(_int(r), 2**31 - 1), -(2**31))),
        (tensor.string_data, lambda r: r.choice(TEXTS).encode()),
    ):
        if len(items):
            items[rng.randrange(len(items))] = make(rng)
            return
    size = rng.choice((4, 8))
    raw = bytearray(tensor.raw_data)
    at = rng.randrange(0, len(raw), size)
    raw[at : at + size] = (_int(rng) % 2 ** (8 * size)).to_bytes(size, "little")[: len(raw) - at]
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
            domain, node.op_type = rng.choice(list(REGISTRY.classes))
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
            opset.version = _int(rng)
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
        entry.value = rng.choice((str(_int(rng)), *TEXTS))


def _version(rng: Random, model: onnx.ModelProto) -> None:
    model.ir_version = _int(rng)


_ONNX: Sequence[Callable[[Random, onnx.ModelProto], None]] = (
    *(_attribute_type, _attribute_value) * 4,
    *(_new_attribute, _info_type, _tensor, _operator, _inputs) * 2,
    *(_attribute_list, _names, _opset, _node_list, _graph_ends, _functions, _external, _version),
)


@dataclass
class TakenApart:
    """A compiled model taken apart."""

    metadata: dict[str, Any]
    entries: dict[str, Any]
    data: bytearray
    raw_text: bytes | None = field(default=None)

    @classmethod
    def of(cls, content: bytes) -> TakenApart:
        length = int.from_bytes(content[:8], "little")
        entries = json.loads(content[8 : 8 + length])
        return cls(entries.pop("__metadata__"), entries, bytearray(content[8 + length :]))

    def encode(self) -> bytes:
        """The file again, with the checksum of what it now holds."""
        digest = xxhash.xxh3_128(bytes(self.data))
        metadata = {k: v for k, v in self.metadata.items() if k != "digest"}
        digest.update(_canonical(metadata, self.entries))
        self.metadata["digest"] = digest.hexdigest()
        table = {"__metadata__": self.metadata, **self.entries}
        text = self.raw_text or json.dumps(table, ensure_ascii=False).encode("utf-8", "replace")
        text += b" " * (-(8 + len(text)) % 4096)
        return len(text).to_bytes(8, "little") + text + bytes(self.data)


def compiled_mutant(seed: int) -> bytes:
    """A mutated compiled model."""
    rng = Random(f"clrt {seed}")
    if rng.random() < 0.5:
        content = seeds.compiled_op(rng.randrange(seeds.compiled_ops()))
    else:
        content = seeds.compiled_seed(rng.choice(list(seeds.onnx_seeds())))
    if rng.random() < 0.05:
        return _flipped(rng, content)
    file = TakenApart.of(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        try:
            rng.choice(_COMPILED)(rng, file)
        except (IndexError, KeyError, ValueError, TypeError, AttributeError):
            continue  # there is nothing of that kind
    return file.encode()


def _entry(rng: Random, file: TakenApart) -> None:
    key = rng.choice(list(file.entries))
    entry = file.entries[key]
    shape, offsets = list(entry["shape"]), list(entry["data_offsets"])
    match rng.randrange(9):
        case 0:
            entry["dtype"] = rng.choice(("F32", "I64", "U8", "BF16", "BOOL", "F8_E4M3", "", 3))
        case 1:
            entry["shape"] = [*shape[:-1], _int(rng)]
        case 2:
            entry["shape"] = rng.choice((None, [1.0], [True], [[1]], [2**70], [1] * 70, "1", {}))
        case 3:
            offsets[rng.randrange(2)] += rng.choice((-1, 1, 4, -4, 128, 2**40, -(2**40)))
            entry["data_offsets"] = offsets
        case 4:
            entry["data_offsets"] = rng.choice(list(file.entries.values()))["data_offsets"]
        case 5:
            del file.entries[key]
        case 6:
            file.entries[rng.choice((*TEXTS, "padding/x"))] = file.entries.pop(key)
        case 7:
            entry[rng.choice(("dtype", "shape", "data_offsets", "more"))] = _json(rng, 2)
        case 8:
            mixed = shape[:]
            rng.shuffle(mixed)
            entry["shape"] = mixed


def _json(rng: Random, depth: int) -> Any:
    made = [
        lambda: rng.choice(TEXTS),
        lambda: _int(rng),
        lambda: rng.choice(FLOATS),
        lambda: rng.choice((None, True, False)),
    ]
    if depth:
        made += [
            lambda: [_json(rng, depth - 1) for _ in range(rng.randrange(3))],
            lambda: {rng.choice(TEXTS[:20]): _json(rng, depth - 1) for _ in range(2)},
        ]
    return rng.choice(made)()


def _changed_json(rng: Random, value: Any) -> Any:
    """A value with one part changed."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.8:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        if rng.random() < 0.2:
            del value[key]
        else:
            value[key] = _changed_json(rng, value[key])
        return value
    return _json(rng, 2)


def _metadata(rng: Random, file: TakenApart) -> None:
    key = rng.choice(("nodes", "layouts", "shapes", "extras", "version", "format", "producer"))
    match rng.randrange(5):
        case 0:
            del file.metadata[key]
        case 1:
            file.metadata[key] = rng.choice((*TEXTS, "1e999", "[" * 5000, "٣", "²", 1, None, []))
        case _:
            changed = _changed_json(rng, json.loads(file.metadata[key]))
            file.metadata[key] = json.dumps(changed)


def _layouts(rng: Random, file: TakenApart) -> None:
    layouts = json.loads(file.metadata["layouts"])
    keys = [k for k in file.entries if not k.startswith("padding/")]
    name = layouts.get(next(iter(layouts), ""), "panels16:8x24")
    if rng.random() < 0.7:
        numbers = list(re.finditer(r"\d+", name))
        found = rng.choice(numbers)
        number = str(rng.choice((0, 1, 2, 8, 15, 17, 10**9, 10**30, int(found[0]) + 1)))
        name = name[: found.start()] + number + name[found.end() :]
    elif rng.random() < 0.5:
        name += ":transposed"
    else:
        name = rng.choice(TEXTS)
    layouts[rng.choice(list(layouts) or keys) if rng.random() < 0.7 else rng.choice(keys)] = name
    if rng.random() < 0.1:
        layouts.pop(rng.choice(list(layouts)))
    file.metadata["layouts"] = json.dumps(layouts)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|%[\w./:\-]+|-?\d+\.?\d*(?:e[-+]?\d+)?|[A-Za-z_][\w.]*|\S')
_NUMBER = re.compile(r"(?<![\w\"%./])-?\d+\.?\d*(?![\w.])")


def _literal(rng: Random) -> str:
    """The text of an attribute."""
    made = [
        lambda: str(_int(rng)),
        lambda: repr(rng.choice(FLOATS)),
        lambda: json.dumps(rng.choice(TEXTS)),
        lambda: rng.choice(("True", "False", "None", *(d.value for d in DType))),
        lambda: f"[{', '.join(_literal(rng) for _ in range(rng.randrange(4)))}]",
        lambda: f"{rng.choice(list(REGISTRY.classes))[1]}({_int(rng)}, {rng.randrange(4)})",
        lambda: rng.choice(("clrt.Literal{value=nan}()", "Add(0, 1)", "clrt.Fused")),
        lambda: 'graph "g" (%a: float32[n]) { %b: float32[n] = Relu(%a) @"r" return %b as "b" }',
        lambda: "[" * 300 + "]" * 300,
    ]
    return str(rng.choice(made)())


def _attribute_text(rng: Random, file: TakenApart) -> None:
    text = file.metadata["graph"]
    found = rng.choice(list(re.finditer(r"(\w+)=([^,{}\[\]()]+|\[[^\[\]]*\])", text)))
    file.metadata["graph"] = text[: found.start(2)] + _literal(rng) + text[found.end(2) :]


def _more_attributes(rng: Random, file: TakenApart) -> None:
    """An attribute that the class of the op has, and the text not."""
    text = file.metadata["graph"]
    found = rng.choice(list(re.finditer(r"= ([\w.]+)(\{|\()", text)))
    try:
        names = list(REGISTRY.named(found[1]).__dataclass_fields__)
    except KeyError:
        return
    more = f"{rng.choice((*names, 'none'))}={_literal(rng)}"
    more = f"{{{more}, " if found[2] == "{" else f"{{{more}}}("
    file.metadata["graph"] = text[: found.start(2)] + more + text[found.end(2) :]


def _tokens(rng: Random, file: TakenApart) -> None:
    text = file.metadata["graph"]
    places = list(_TOKEN.finditer(text))
    one, other = rng.choice(places), rng.choice(places)
    new = {
        0: "",
        1: other[0],
        2: one[0] * 2,
        3: _literal(rng),
        4: rng.choice(list(REGISTRY.classes))[1],
        5: rng.choice((*(d.value for d in DType), "sequence(float32[?])", "?", "...", "@", "_")),
    }[rng.randrange(6)]
    file.metadata["graph"] = text[: one.start()] + new + text[one.end() :]


def _numbers(rng: Random, file: TakenApart) -> None:
    text = file.metadata["graph"]
    found = rng.choice(list(_NUMBER.finditer(text)))
    new = str(_int(rng))
    if rng.random() < 0.5:  # everywhere, as if the model had that size
        file.metadata["graph"] = _NUMBER.sub(lambda m: new if m[0] == found[0] else m[0], text)
    else:
        file.metadata["graph"] = text[: found.start()] + new + text[found.end() :]


def _dims(rng: Random, file: TakenApart) -> None:
    text = file.metadata["graph"]
    found = rng.choice(list(re.finditer(r": (\w+)\[([^\]]*)\]", text)))
    dims = found[2].split(",")
    place = rng.randrange(len(dims))
    match rng.randrange(5):
        case 0:
            dims[place] = rng.choice(
                ("n", "n*n", "max(n, 2)", "2*n-1", "floordiv(n, 0)", "unknown_1")
            )
        case 1:
            dims[place] = str(_int(rng))
        case 2:
            dims = dims[1:]
        case 3:
            dims = rng.choice(([*dims, "1"], ["?"], ["1"] * 70, ["(" * 500], ["n**n"]))
        case 4:
            dims[place] = "*".join(["(a+b+c)"] * 12)
    changed = f": {found[1]}[{','.join(dims)}]"
    file.metadata["graph"] = text[: found.start()] + changed + text[found.end() :]


# Of as many bytes.
_ALIKE = {
    "F32": ("int32", "I32"),
    "I64": ("float64", "F64"),
    "I32": ("float32", "F32"),
    "U8": ("bool", "BOOL"),
    "I8": ("uint8", "U8"),
}


def _retype(rng: Random, file: TakenApart) -> None:
    """A weight in another dtype or shape of as many bytes, in the header and in the text."""
    key = rng.choice([k for k in file.entries if not k.startswith("padding/")])
    entry, text = file.entries[key], file.metadata["graph"]
    found = re.search(rf": (\w+)\[([^\]]*)\] = @{re.escape(json.dumps(key))}", text)
    if found is None:
        return
    dims, dtype = found[2].split(","), found[1]
    if rng.random() < 0.5:
        dtype, code = _ALIKE[entry["dtype"]]
        entry["dtype"] = code
    else:
        rng.shuffle(dims)
        entry["shape"] = [int(d) for d in dims]
    changed = f": {dtype}[{','.join(dims)}] = @{json.dumps(key)}"
    file.metadata["graph"] = text[: found.start()] + changed + text[found.end() :]


def _elements(rng: Random, file: TakenApart) -> None:
    key = rng.choice([k for k in file.entries if not k.startswith("padding/")])
    start, stop = file.entries[key]["data_offsets"]
    size = rng.choice((1, 4, 8))
    at = rng.randrange(start, stop, size)
    new = (_int(rng) % 2 ** (8 * size)).to_bytes(size, "little")
    file.data[at : at + size] = new[: len(file.data) - at]


def _double(rng: Random, file: TakenApart) -> None:
    """A key twice."""
    key = rng.choice(list(file.entries))
    table = json.dumps({"__metadata__": file.metadata, **file.entries})
    again = json.dumps({key: {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}})
    file.raw_text = (table[:-1] + ", " + again[1:]).encode("utf-8", "replace")


def _cut(rng: Random, file: TakenApart) -> None:
    if rng.random() < 0.5:
        del file.data[rng.randrange(len(file.data)) :]
    else:
        file.data += bytes(rng.randrange(1, 300))


_COMPILED: Sequence[Callable[[Random, TakenApart], None]] = (
    *(_attribute_text, _more_attributes, _tokens, _numbers, _dims) * 4,
    *(_entry, _metadata, _layouts, _retype, _elements) * 2,
    *(_double, _cut),
)
