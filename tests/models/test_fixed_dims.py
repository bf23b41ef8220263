"""Fixed dims: the optimized graph has no more nodes than with symbolic dims, and equal results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clrt
from clrt.cli.random_inputs import sample_inputs
from clrt.errors import InputError
from clrt.runtime.execution.signature import symbol_places
from clrt.tools.convert import Options, convert
from tests.harness import all_devices
from tests.models.fixtures import family_names, load_family

FIXED: tuple[dict[str, int], ...] = (
    {"input_ids:0": 8},
    {"sequence": 16},
    {"batch": 1, "input_ids:1": 16},
    {"batch": 8, "sequence": 16},
    {"sequence": 1},
    {"batch": 1, "sequence": 1},
)
# What both exporters of torch make of masks, positions and attention.
TEXTS = [n for n in family_names() if not n.startswith(("vit", "deit")) and "14" not in n]


@pytest.mark.parametrize("name", TEXTS)
def test_fixed_dims_add_no_nodes(name: str) -> None:
    source = load_family(name).SerializeToString()
    free = len(convert(source, Options()).graph.nodes)
    found = {str(d): len(convert(source, Options(d)).graph.nodes) for d in FIXED}
    assert max(found.values()) <= free, found


@pytest.mark.parametrize("name", ["bert_dynamo20", "gpt2_torchscript17"])
@pytest.mark.parametrize("dims", FIXED, ids=str)
def test_fixed_dims_keep_results(name: str, dims: dict[str, int]) -> None:
    source = load_family(name).SerializeToString()
    fixed = convert(source, Options(dims)).graph
    device = all_devices()[0].index
    with (
        clrt.load(fixed, device=device, optimize_level=0) as ours,
        clrt.load(source, device=device) as plain,
    ):
        shapes = {
            s.name: tuple(d if isinstance(d, int) else 3 for d in s.shape or ())
            for s in ours.inputs
        }
        feeds = sample_inputs(plain, shapes)
        feeds["attention_mask"][0, shapes["attention_mask"][1] * 2 // 3 :] = 0
        feeds["attention_mask"][0, 0] = 1
        expected, results = plain.run(feeds), ours.run(feeds)
    for key, array in expected.items():
        np.testing.assert_allclose(results[key], array, atol=2e-5 * np.abs(array).max())


def test_symbolic_dims_and_dim_errors_name_input_axes(tmp_path: Path) -> None:
    source = load_family("bert_dynamo20").SerializeToString()
    places = symbol_places(convert(source, Options({"batch": 2})).graph)
    assert list(places) == ["sequence"]
    assert places["sequence"][0] == "input_ids axis 1"
    for dims, message in (
        ({"s18": 8}, "no symbolic dim 's18'; it has batch (input_ids axis 0, attention_mask"),
        ({"input_ids:7": 8}, "has no axis 7"),
        ({"other:0": 8}, "no symbolic dim 'other:0'"),
        ({"batch": 8, "input_ids:0": 7}, "is set to both 8 and 7"),
    ):
        with pytest.raises(InputError) as caught:
            convert(source, Options(dims))
        assert message in str(caught.value)
