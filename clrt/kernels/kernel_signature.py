"""The parameters of kernels, as their sources declare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, TypeAlias, cast, get_args

from clrt.kernels.cl_preprocessor import PRIMITIVES, Interface, Tokens, read_interface
from clrt.kernels.kernel_source import read_source

Access: TypeAlias = Literal["read", "write", "update"]
ScalarType: TypeAlias = Literal["int", "uint", "long", "float"]

_ACCESS: dict[str, Access] = {"IN": "read", "OUT": "write", "INOUT": "update"}
_BYTES = {
    **dict.fromkeys(("char", "uchar"), 1),
    **dict.fromkeys(("short", "ushort", "half"), 2),
    **dict.fromkeys(("int", "uint", "float"), 4),
    **dict.fromkeys(("long", "ulong", "double"), 8),
}


@dataclass(frozen=True)
class Param:
    """One parameter of a kernel.

    Attributes:
        type: Of the number, or of the elements of a tensor.
        access: What the kernel does with a tensor; None where the parameter is a number.
    """

    name: str
    type: str
    access: Access | None

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _BYTES[self.type]


@dataclass(frozen=True)
class KernelSignature:
    """The parameters of a kernel, in their order."""

    params: tuple[Param, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """Of all parameters."""
        return frozenset(p.name for p in self.params)


def read_signature(source: str, entry: str, defines: Mapping[str, str]) -> KernelSignature:
    """What a kernel declares under some defines.

    A parameter is a tensor, `IN(T, x)`, `OUT(T, x)` or `INOUT(T, x)`, or a number, `const T x`.

    Raises:
        ValueError: A source declares something else: a bug of clrt.
    """
    try:
        found = tuple(map(_param, _split(_interface(source, entry).params(defines))))
    except (ValueError, LookupError) as error:
        raise ValueError(f"{source}: parameters of {entry}: {error}") from error
    signature = KernelSignature(found)
    if len(signature.names) != len(found):
        raise ValueError(f"{source}: {entry} has two parameters of one name")
    return signature


@cache
def _interface(source: str, entry: str) -> Interface:
    return read_interface(read_source(source), entry)


def _split(tokens: Tokens) -> list[Tokens]:
    """The declarations between the commas that stand in no parentheses."""
    found: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == "," and not depth:
            found.append([])
        else:
            found[-1].append(token)
    return [tuple(f) for f in found]


def _param(declared: Tokens) -> Param:
    match declared:
        case (macro, "(", type_, ",", name, ")") if macro in PRIMITIVES and type_ in _BYTES:
            return Param(name, type_, _ACCESS[macro])
        case ("const", type_, name) if type_ in get_args(ScalarType):
            return Param(name, cast(ScalarType, type_), None)
    raise ValueError(f"'{' '.join(declared)}' is no IN, OUT, INOUT or const number")
