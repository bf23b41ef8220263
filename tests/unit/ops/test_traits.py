"""Traits of ops: a name that no record or op declares is refused when the class is made."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from clrt.ops.base import Op
from clrt.ops.registry import REGISTRY
from clrt.ops.traits import HostTraits, InputTraits, MemoryTraits, OnnxTraits


@pytest.mark.parametrize("record", [HostTraits, InputTraits, MemoryTraits, OnnxTraits])
def test_op_traits_refuse_unknown_field(record: type) -> None:
    with pytest.raises(TypeError, match="indexes"):
        record(indexes=(0,))


@pytest.mark.parametrize("name", ["input_trait", "index_inputs", "varients", "acuracy"])
def test_op_refuses_undeclared_class_attribute(name: str) -> None:
    with pytest.raises(TypeError, match=rf"Odd\.{name} is no trait.*input_traits"):
        type("Odd", (Op,), {name: (0,)})


def test_op_may_declare_attributes_and_constants() -> None:
    @dataclass(frozen=True)
    class Fine(Op):
        axis: int = 0
        name = "Fine"
        input_traits = InputTraits(index=(1,))
        LIMIT = 3
        _cache = ()

        @property
        def twice(self) -> int:
            return 2 * self.axis

    assert Fine(2).twice == 4
    assert Fine.input_traits == InputTraits(index=(1,))
    assert Fine.memory_traits is Op.memory_traits


def test_inputs_making_nodes_host_driven_are_known_at_planning() -> None:
    for cls in REGISTRY.all_classes().values():
        traits = cls.input_traits
        assert set(traits.host_driven) <= set(traits.plan_time), cls.name
