"""Kernel sequences: programs that run several launches one after another, in one work-item.

A driver takes longer to start a small kernel than the kernel runs: 0.5 us on PoCL's twin, 2 to 4 us
on Intel's runtime. A row of small launches, which more cores would not speed up, can therefore
share a launch of a single work-item. It loops over the work-items of each launch.

The program is the text of each kernel, changed so that several fit into one program: the kernel
becomes a function with the work-item's indices as parameters, and the names that its source defines
get a suffix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import ClassVar

from clrt.ir.cl_code import Code
from clrt.kernels.cl_preprocessor import expanded_calls, macro_bodies
from clrt.kernels.kernel_signature import Param
from clrt.kernels.kernel_source import read_source
from clrt.kernels.spec import KernelSpec
from clrt.util.background import yield_point
from clrt.util.fast_dataclass import dataclass

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
# A kernel up to its body: name and parameters.
_KERNEL = re.compile(r"__kernel\b[^{;]*?\bvoid\s+(\w+)\s*\(([^{]*)\)\s*\{")
# Directives of conditional compilation, and braces.
_NESTING = re.compile(r"^[ \t]*#[ \t]*(if|el|endif)|([{}])", re.MULTILINE)
# Words in kernels whose work-items synchronize or share local memory.
_GROUP_WORDS = frozenset({"barrier", "__local", "async_work_group_copy", "wait_group_events"})
# A function from its specifiers to its body; attributes are removed before.
_FUNCTION = re.compile(r"\b(?:static|inline)\b[^;{}()=]*?\b(\w+)\s*\([^;{}]*\)\s*\{")
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
# Other definitions at file scope: types, tables, enumerations.
_TYPE = re.compile(r"^typedef\b[^;{]*?(\w+);|^\}\s*(\w+);", re.MULTILINE)
_TABLE = re.compile(r"^(?:static\s+)?__constant\b[^;=\[]*?\b(\w+)\s*(?:\[|=)", re.MULTILINE)
_ENUM = re.compile(r"^enum\b[^{;]*\{([^}]*)\}", re.MULTILINE)
# Body of a macro that is a single name, such as that of a function to define.
_ALIAS = re.compile(r"\s+([A-Za-z_]\w*)\s*")
# Functions of OpenCL for indices and sizes, which macros of the sequence replace.
_QUERIES = (
    "get_global_id",
    "get_global_size",
    "get_group_id",
    "get_num_groups",
    "get_local_id",
    "get_local_size",
)


@cache
def can_join(source: str, entry: str) -> bool:
    """Returns whether a kernel uses no barrier, local memory or sub-group, and so fits a sequence.

    Args:
        source: File under kernels_cl.
        entry: Name of the kernel function.
    """
    text = _plain(source)
    kernels = {kernel.entry: text[kernel.start : kernel.end] for kernel in kernels_in(text)}
    bodies: dict[str, str] = {}
    for name, body in macro_bodies(text):
        bodies[name] = bodies.get(name, "") + body
    end = len(text)
    for function in reversed(list(_FUNCTION.finditer(text))):
        bodies[function[1]] = bodies.get(function[1], "") + text[function.end() : end]
        end = function.start()
    # The words that the kernel uses, also by the macros and functions that it uses.
    used: set[str] = set()
    new = set(_WORD.findall(kernels.get(entry, "barrier")))
    while new:
        used |= new
        words = (_WORD.findall(bodies[word]) for word in new if word in bodies)
        new = {word for found in words for word in found} - used
    return used.isdisjoint(_GROUP_WORDS) and not any(w.startswith("sub_group") for w in used)


@dataclass(frozen=True)
class KernelText:
    """A kernel in a source text.

    Attributes:
        entry: Name of the kernel function.
        params: Text of the parameter list.
        start: Index of the kernel's first character.
        body: Index of the first character of its body, after the brace.
        end: Index after the brace at the end of its body.
    """

    entry: str
    params: str
    start: int
    body: int
    end: int


def kernels_in(text: str) -> Iterator[KernelText]:
    """Yields the kernels of OpenCL C source without comments.

    Of code that is compiled conditionally, only the braces of the first branch count.
    """
    for head in _KERNEL.finditer(text):
        depth, skipped, branches = 1, 0, list[bool]()
        for found in _NESTING.finditer(text, head.end()):
            if found[1] == "if":
                branches.append(False)
            elif found[1] == "endif":
                skipped -= branches.pop()
            elif found[1] == "el":  # else and elif
                skipped += not branches[-1]
                branches[-1] = True
            elif not skipped:
                depth += 1 if found[2] == "{" else -1
                if not depth:
                    yield KernelText(head[1], head[2], head.start(), head.end(), found.end())
                    break


@cache
def _plain(source: str) -> str:
    """Returns a kernel source with includes expanded and comments removed."""
    return _COMMENT.sub(" ", read_source(source))


@cache
def _defined_names(source: str) -> frozenset[str]:
    """Returns the names of functions, types, tables and enumerators that a source defines."""
    text = _ATTRIBUTE.sub(" ", _plain(source))
    names = set(_FUNCTION.findall(text))
    for replacement in expanded_calls(text):
        names.update(_FUNCTION.findall(replacement))
    for pattern in (_TYPE, _TABLE):
        names.update(name for match in pattern.finditer(text) for name in match.groups() if name)
    for enumerators in _ENUM.findall(text):
        names.update(_WORD.findall(enumerators))
    for macro, body in macro_bodies(text):
        alias = _ALIAS.fullmatch(body)
        if alias is not None and macro in names:
            names.add(alias[1])
    return frozenset(names)


@dataclass(frozen=True)
class SequencedKernel:
    """A kernel of a sequence, with the size of its work-groups.

    Attributes:
        kernel: The kernel; `can_join` holds for it.
        local_size: Work-items per work-group, per dimension.
    """

    kernel: KernelSpec
    local_size: tuple[int, ...]

    @property
    def sizes(self) -> list[str]:
        """Names of the parameters that hold the global sizes, per dimension."""
        return [f"size{axis}_" for axis in range(len(self.local_size))]

    def function(self, suffix: str) -> str:
        """Returns source that defines a function which runs the work-items of a launch.

        The function is called `run` plus suffix. Its parameters are the global sizes, then those of
        the kernel.

        Args:
            suffix: Appended to all names that the source defines.
        """
        spec, axes = self.kernel, range(len(self.local_size))
        indices = [f"item{axis}_" for axis in axes]
        loops = (
            f"for (int {i} = 0; {i} < {n}; ++{i})" for i, n in zip(indices, self.sizes, strict=True)
        )
        places = [*indices, *self.sizes]
        names = {*_defined_names(spec.source), spec.entry}
        text = _COMMENT.sub(" ", spec.text)

        pieces, at = list[str](), 0
        for kernel in kernels_in(text):
            pieces.append(text[at : kernel.start])
            at = kernel.end
            if kernel.entry == spec.entry:
                params = ", ".join([*(f"const int {p}" for p in places), kernel.params])
                pieces.append(f"static inline void {spec.entry}({params}) {{")
                pieces.append(text[kernel.body : at])
        declared, passed = _parameters(spec.signature.params, "")
        defined = {*names, *_QUERIES, *(name for name, _ in macro_bodies(text))}
        return "\n".join(
            [
                *(f"#define {name} {name}{suffix}" for name in sorted(names)),
                *self._queries(indices),
                "".join([*pieces, text[at:]]),
                # Not inlined, so that no compiler moves loads before stores of another launch.
                f"static __attribute__((noinline)) void run{suffix}(",
                ", ".join([*(f"const int {n}" for n in self.sizes), *declared]) + ") {",
                *reversed(list(loops)),
                f"{spec.entry}({', '.join([*places, *passed])});",
                "}",
                *(f"#undef {name}" for name in sorted(defined)),
                "",
            ]
        )

    def _queries(self, indices: Sequence[str]) -> list[str]:
        """Returns #defines that compute OpenCL's index and size functions from the loop variables.

        Args:
            indices: Names of the work-item's global indices, per dimension.
        """
        values = {query: "0" if query.endswith("id") else "1" for query in _QUERIES}
        for axis, local in reversed(list(enumerate(self.local_size))):
            index, groups = indices[axis], f"((size{axis}_ + {local - 1}) / {local})"
            here = index, f"{groups} * {local}", f"{index} / {local}", groups, f"{index} % {local}"
            for query, value in zip(_QUERIES, (*here, str(local)), strict=True):
                values[query] = f"((d) == {axis} ? (size_t)({value}) : {values[query]})"
        return [f"#define {query}(d) {value}" for query, value in values.items()]


def _parameters(params: Iterable[Param], prefix: str) -> tuple[list[str], list[str]]:
    """Returns the declarations of a kernel's parameters, and their names to pass them on.

    Args:
        prefix: Put in front of each name.
    """
    declared, passed = [], []
    for param in params:
        name = prefix + param.name
        if param.access is None:
            declared.append(f"const {param.type} {name}")
            passed.append(name)
        else:
            const = "const " if param.access == "read" else ""
            passed += [f"{name}_buffer", f"{name}_offset"]
            declared += [f"__global {const}{param.type} *{name}_buffer", f"const int {name}_offset"]
    return declared, passed


@dataclass(frozen=True)
class KernelSequence(KernelSpec):
    """A kernel that runs the launches of several kernels one after another, in one work-item.

    Its parameters are, for each launch, the global size per dimension, then those of its kernel.

    Attributes:
        members: Kernel of each launch.
    """

    is_optional: ClassVar[bool] = True

    members: tuple[SequencedKernel, ...] = ()

    @classmethod
    def from_kernels(cls, members: Sequence[SequencedKernel]) -> KernelSequence:
        """Returns the sequence of kernels that have the same compiler options."""
        first = members[0].kernel
        entry = Code("sequence")
        return cls("", entry, (), first.opencl_c, first.options, tuple(members))

    @property
    def text(self) -> str:
        """Program source."""
        return _text(self)


@lru_cache(maxsize=4)  # it is read twice: for the cache key, and to be compiled
def _text(sequence: KernelSequence) -> str:
    """Returns the program source of a sequence."""
    suffixes = {kernel: f"_{n}" for n, kernel in enumerate(dict.fromkeys(sequence.members))}
    functions = list[str]()
    for kernel, suffix in suffixes.items():
        functions.append(kernel.function(suffix))
        yield_point()
    params, calls = list[str](), list[str]()
    for number, member in enumerate(sequence.members):
        prefix = f"launch{number}_"
        sizes = [prefix + size for size in member.sizes]
        declared, passed = _parameters(member.kernel.signature.params, prefix)
        params += [*(f"const int {size}" for size in sizes), *declared]
        calls.append(f"  run{suffixes[member]}({', '.join([*sizes, *passed])});\n")
    return (
        "".join(functions)
        + "__kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))\n"
        + f"void {sequence.entry}({', '.join(params)}) {{\n"
        + "  mem_fence(CLK_GLOBAL_MEM_FENCE);\n".join(calls)
        + "}\n"
    )
