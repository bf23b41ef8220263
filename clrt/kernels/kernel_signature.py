"""Kernel signatures: names, types and accesses of parameters, read from the sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Literal, TypeAlias, cast, get_args

from clrt.kernels.cl_preprocessor import PRIMITIVES, Interface, Tokens, read_interface
from clrt.kernels.kernel_source import read_source
from clrt.util.fast_dataclass import dataclass

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
        name: Name in the source.
        type: OpenCL C type of the number, or of the tensor's elements.
        access: "read", "write" or "update" for a tensor; None for a number.
    """

    name: str
    type: str
    access: Access | None

    @cached_property
    def itemsize(self) -> int:
        """Bytes per number, or per element of the tensor."""
        return _BYTES[self.type]


@dataclass(frozen=True)
class KernelSignature:
    """The parameters of a kernel, in the order of its source."""

    params: tuple[Param, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all parameters of the kernel."""
        return frozenset(p.name for p in self.params)


def read_signature(source: str, entry: str, defines: Mapping[str, str]) -> KernelSignature:
    """Reads the signature of a kernel from its source, with macros expanded.

    A parameter is a tensor, `IN(T, x)`, `OUT(T, x)` or `INOUT(T, x)`, or a number, `const T x`.

    Args:
        source: File under kernels_cl.
        entry: Name of the kernel function.
        defines: Macro values by name.

    Raises:
        ValueError: The source declares another kind of parameter: a bug of clrt.
    """
    try:
        params = tuple(map(_param, _split(_interface(source, entry).params(defines))))
    except (ValueError, LookupError) as error:
        raise ValueError(f"{source}: parameters of {entry}: {error}") from error
    signature = KernelSignature(params)
    if len(signature.names) != len(params):
        raise ValueError(f"{source}: {entry} has two parameters of one name")
    return signature


@cache
def _interface(source: str, entry: str) -> Interface:
    return read_interface(read_source(source), entry)


def _split(tokens: Tokens) -> list[Tokens]:
    """Splits the tokens of a parameter list at the commas outside of parentheses."""
    declarations: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == "," and not depth:
            declarations.append([])
        else:
            declarations[-1].append(token)
    return [tuple(d) for d in declarations]


def _param(declared: Tokens) -> Param:
    match declared:
        case (macro, "(", type_, ",", name, ")") if macro in PRIMITIVES and type_ in _BYTES:
            return Param(name, type_, _ACCESS[macro])
        case ("const", type_, name) if type_ in get_args(ScalarType):
            return Param(name, cast(ScalarType, type_), None)
    raise ValueError(f"'{' '.join(declared)}' is not an IN, OUT, INOUT or const number")
