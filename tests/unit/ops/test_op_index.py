"""Modules of ops and rules are imported on demand, and the index that lists them is up to date."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import clrt.ops
from clrt.ops.index import FUSION_RULES
from clrt.ops.launch_fusions import launch_fusions
from clrt.ops.module_index import import_all
from clrt.ops.registry import REGISTRY
from tests.unit.ops.planned_models import MODELS, planned
from tools.op_index import TARGET, index_text

OPS = Path(clrt.ops.__file__).parent


def test_op_index_matches_module_definitions() -> None:
    assert TARGET.read_text("utf-8") == index_text(), "run `python tools/op_index.py`"


@pytest.mark.parametrize("name", MODELS)
def test_plan_does_not_depend_on_imported_modules(name: str) -> None:
    import_all()
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.ops.planned_models", name],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == planned(name)


def test_launch_fusion_rules_are_sorted_and_unique() -> None:
    rules = {r for c in REGISTRY.all_classes().values() for r in launch_fusions(c)}
    assert len({r.name for r in rules}) == len(rules)
    assert {r.emit.__module__.removeprefix("clrt.ops.") for r in rules} == FUSION_RULES.keys()
    for cls in REGISTRY.all_classes().values():
        sizes = [(-r.size, r.name) for r in launch_fusions(cls)]
        assert sizes == sorted(sizes)


def test_modules_set_no_attributes_of_other_modules_classes() -> None:
    """A class must be complete once its own module, or the package around it, is imported."""
    for path in sorted(OPS.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        package = path.with_name("__init__.py").read_text("utf-8")
        defined = {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                if isinstance(target, ast.Attribute):
                    is_own = ast.unparse(target.value) in defined
                    assert is_own or f".{path.stem}  #" in package, f"{path}:{node.lineno}"


def test_unknown_op_lookup_returns_none_without_imports() -> None:
    script = (
        "import sys\nfrom clrt.ops import REGISTRY\nbefore = set(sys.modules)\n"
        "assert REGISTRY.find('', 'os') is None and REGISTRY.find('no.such', 'Op') is None\n"
        "assert set(sys.modules) == before\n"
        "assert REGISTRY.named('com.microsoft.Tokenizer').name == 'Tokenizer'\n"
        "assert 'clrt.ops.text.tokenizer' in sys.modules\n"
        "assert 'clrt.ops.text.murmur_hash3' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_concurrent_op_lookups_find_complete_classes() -> None:
    """A thread that looks an op up while another one imports its module waits for the import."""
    script = (
        "import sys, threading\nfrom clrt.ops import REGISTRY\nsys.setswitchinterval(1e-6)\n"
        "ready, failed = threading.Barrier(8), []\n"
        "def look():\n"
        "    ready.wait()\n"
        "    try:\n"
        "        cls = REGISTRY.get('', 'LSTM')\n"
        "        assert hasattr(sys.modules[cls.__module__], 'LSTM') and cls.variants\n"
        "        assert not sys.modules[cls.__module__].__spec__._initializing\n"
        "    except BaseException as error:\n"
        "        failed.append(error)\n"
        "threads = [threading.Thread(target=look) for _ in range(8)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
        "assert not failed, failed\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
