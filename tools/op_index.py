"""Writes `clrt/ops/index.py`, which lists the modules of clrt.ops by what they define.

python tools/op_index.py
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import clrt.ops
from clrt.ops.decompositions.registry import DECOMPOSITIONS, DecompositionStage
from clrt.ops.module_index import class_key
from clrt.ops.registry import REGISTRY, op_title

TARGET = Path(clrt.ops.__file__).with_name("index.py")
_HEADER = '"""Modules of clrt.ops by what they define; written by `python tools/op_index.py`."""\n'
_COMMENTS = {
    "OPS": "Titles of the ops that a module registers.",
    "IMPORT_RULES": "Titles of the ops that import decompositions replace.",
    "LOWERING_RULES": "Op classes that the decompositions of planner and optimiser replace.",
    "FUSION_RULES": "Op classes of the last nodes of regions that launch fusion rules match.",
}
_LINE = 96


def index_text() -> str:
    """Returns the content of `clrt/ops/index.py`; imports all modules of clrt.ops."""
    modules = [import_module(m.name) for m in walk_packages(clrt.ops.__path__, "clrt.ops.")]
    ops = ((c.__module__, op_title(*key)) for key, c in REGISTRY.registered.items())
    replaced = [
        (stage, key, entry.rule.__module__)
        for (stage, key), entries in DECOMPOSITIONS.items()
        for entry in entries
    ]
    fused = (
        (m.__name__, class_key(cls))
        for m in modules
        for rule in getattr(m, "LAUNCH_FUSIONS", ())
        for cls in rule.last
    )
    tables = {
        "OPS": ops,
        "IMPORT_RULES": ((m, op_title(*k)) for _, k, m in replaced if isinstance(k, tuple)),
        "LOWERING_RULES": (
            (m, class_key(k))
            for stage, k, m in replaced
            if isinstance(k, type) and stage is not DecompositionStage.EXPORT
        ),
        "FUSION_RULES": fused,
    }
    return "\n".join([_HEADER, *(_table(name, pairs) for name, pairs in tables.items())])


def _table(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Returns the source of a dict of the keys of each module, separated by whitespace.

    Args:
        name: Name of the dict.
        pairs: Pairs of module and key.
    """
    keys = defaultdict(set)
    for module, key in pairs:
        keys[module.removeprefix("clrt.ops.")].add(key)
    lines = [f"# {_COMMENTS[name]}", f"{name} = {{"]
    for module, found in sorted(keys.items()):
        text = " ".join(sorted(found))
        if len(module) + len(text) < _LINE - 10:
            lines.append(f'    "{module}": "{text}",')
        else:
            wrapped = textwrap.wrap(text, _LINE - 8, break_on_hyphens=False)
            lines += [f'    "{module}": """', *(f"        {line}" for line in wrapped), '    """,']
    return "\n".join([*lines, "}\n"])


if __name__ == "__main__":
    TARGET.write_text(index_text(), "utf-8")
