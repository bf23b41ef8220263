"""Makes mutants of compiled models, and splits a compiled model into its parts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import xxhash

from clrt.formats.checksum import canonical
from clrt.ir.dtypes import DType
from clrt.ops import REGISTRY
from tests.security import seeds
from tests.security.mutation_values import FLOATS, TEXTS, any_int, flipped


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
        digest.update(canonical(metadata, self.entries))
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
        return flipped(rng, content)
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
            entry["shape"] = [*shape[:-1], any_int(rng)]
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
        lambda: any_int(rng),
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
        lambda: str(any_int(rng)),
        lambda: repr(rng.choice(FLOATS)),
        lambda: json.dumps(rng.choice(TEXTS)),
        lambda: rng.choice(("True", "False", "None", *(d.value for d in DType))),
        lambda: f"[{', '.join(_literal(rng) for _ in range(rng.randrange(4)))}]",
        lambda: (
            f"{rng.choice(list(REGISTRY.all_classes()))[1]}({any_int(rng)}, {rng.randrange(4)})"
        ),
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
    """Adds an attribute to a node of the graph's text: a field of its op's class, or 'none'."""
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
        4: rng.choice(list(REGISTRY.all_classes()))[1],
        5: rng.choice((*(d.value for d in DType), "sequence(float32[?])", "?", "...", "@", "_")),
    }[rng.randrange(6)]
    file.metadata["graph"] = text[: one.start()] + new + text[one.end() :]


def _numbers(rng: Random, file: TakenApart) -> None:
    text = file.metadata["graph"]
    found = rng.choice(list(_NUMBER.finditer(text)))
    new = str(any_int(rng))
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
            dims[place] = str(any_int(rng))
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
    """Gives a weight another dtype or shape of as many bytes.

    The header and the graph's text change alike.
    """
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
    new = (any_int(rng) % 2 ** (8 * size)).to_bytes(size, "little")
    file.data[at : at + size] = new[: len(file.data) - at]


def _double(rng: Random, file: TakenApart) -> None:
    """Appends a second entry for a tensor's key to the JSON header."""
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
