"""Constraints: any text of allowed tokens follows the schema, regular expression or grammar."""

from __future__ import annotations

import json
import random
import re
import sys
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clrt.errors import InputError, UnsupportedError
from clrt.generation.constraints import Constraint, ConstraintTokens
from tests.generation.tokenizers_of_tests import KINDS, byte_fallback, byte_level

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Model:
    """Like a class of pydantic."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return SCHEMA


@pytest.fixture(scope="module")
def tokens() -> ConstraintTokens:
    ends = [byte_level().token_to_id(x) for x in ("</s>", "<|im_end|>")]
    return ConstraintTokens(byte_level(), ends, 450)


def _ids(mask: NDArray[np.uint32]) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def _drawn(rule: Constraint, seed: int, most: int = 400) -> list[int]:
    """Tokens drawn among those that are allowed, without the one that ends the text."""
    draw, made = random.Random(seed), []
    while not rule.is_done and len(made) < most:
        token = draw.choice(_ids(rule.allowed()))
        rule.accept(token)
        made.append(token)
    return [t for t in made if t not in rule.tokens.eos]


@pytest.mark.parametrize("size", [447, 448, 449])
def test_constraint_mask_has_one_bit_per_token(size: int) -> None:
    """The mask has ceil(size / 32) words of 32 bits."""
    end = byte_level().token_to_id("</s>")
    rule = Constraint(ConstraintTokens(byte_level(), [end], size), regex="a")
    rule.accept(byte_level().token_to_id("a"))
    assert end in _ids(rule.allowed()) and len(rule.allowed()) == -(-size // 32)


@pytest.mark.parametrize("given", [SCHEMA, json.dumps(SCHEMA), Model])
def test_constraint_by_schema_yields_valid_json(tokens: ConstraintTokens, given: object) -> None:
    for seed in range(5):
        made = _drawn(Constraint(tokens, json_schema=given), seed)
        value = json.loads(byte_level().decode(made))
        assert len(value["name"]) <= 8 and 0 <= value["age"] <= 150
        assert value.keys() <= SCHEMA["properties"].keys()


def test_constraint_by_regex_yields_matching_text(tokens: ConstraintTokens) -> None:
    for seed in range(20):
        made = _drawn(Constraint(tokens, regex=r"[a-c]{2,3}-(é|日本)+"), seed, 60)
        text = byte_level().decode(made)
        assert re.fullmatch(r"[a-c]{2,3}-(é|日本)+", text) or len(made) == 60


@pytest.mark.parametrize("grammar", ['start: "yes" | "no"', 'root ::= "yes" | "no"'])
def test_constraint_by_grammar_yields_its_texts(tokens: ConstraintTokens, grammar: str) -> None:
    texts = {byte_level().decode(_drawn(Constraint(tokens, grammar=grammar), s)) for s in range(9)}
    assert texts == {"yes", "no"}


def test_constraint_supports_byte_fallback_tokens() -> None:
    tokenizer = byte_fallback()
    tokens = ConstraintTokens(tokenizer, [tokenizer.token_to_id("</s>")])
    assert tokens.size == tokenizer.get_vocab_size()
    made = _drawn(Constraint(tokens, regex="🎉é"), 0)
    assert tokenizer.decode(made) == "🎉é"


def test_constraint_mask_follows_accepted_tokens(tokens: ConstraintTokens) -> None:
    rule = Constraint(tokens, regex="ab?")
    mask = rule.allowed()
    assert (mask.shape, mask.dtype) == ((15,), np.uint32)
    a, b = (byte_level().token_to_id(x) for x in "ab")
    assert a in _ids(mask) and b not in _ids(mask) and not rule.is_met
    rule.accept(a)
    assert rule.is_met and not rule.is_done
    assert _ids(rule.allowed()) == sorted([b, *tokens.eos])
    rule.accept(tokens.eos[1])
    assert rule.is_done and rule.is_met and rule.forced() == []
    assert _ids(rule.allowed()) == sorted(tokens.eos)
    rule.accept(tokens.eos[0])
    with pytest.raises(InputError, match=f"Token {b} violates the regex"):
        rule.accept(b)


def test_constraint_refuses_disallowed_tokens(tokens: ConstraintTokens) -> None:
    rule = Constraint(tokens, regex="ab")
    a, b = (byte_level().token_to_id(x) for x in "ab")
    for wrong in (b, -1, 449, 450, 1 << 40, tokens.eos[0]):
        with pytest.raises(InputError, match=rf"^Token {wrong} violates the regex\.$"):
            rule.accept(wrong)
    rule.accept(a)
    rule.accept(b)
    assert rule.is_done and _ids(rule.allowed()) == sorted(tokens.eos)


def test_constraint_forced_tokens_spell_fixed_prefix(tokens: ConstraintTokens) -> None:
    rule = Constraint(tokens, regex="The quick brown fox (a|b)")
    forced = rule.forced()
    assert forced and "The quick brown fox ".startswith(byte_level().decode(forced))
    for token in forced:
        rule.accept(token)
    assert not rule.is_done


def test_constraint_copy_is_independent(tokens: ConstraintTokens) -> None:
    rule = Constraint(tokens, regex="ab")
    rule.accept(byte_level().token_to_id("a"))
    other = rule.copy()
    other.accept(byte_level().token_to_id("b"))
    assert other.is_done and not rule.is_done
    rule.accept(byte_level().token_to_id("b"))
    assert rule.is_done


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "A constraint is one of json_schema, regex and grammar; none is given."),
        ({"regex": "a", "grammar": "b"}, "and grammar; regex and grammar are given."),
        ({"regex": "(a"}, "The regex is not valid: unclosed group."),
        ({"regex": 3}, "The regex is 3; expected a text."),
        ({"grammar": "start: x"}, 'The grammar is not valid: at 1(8): unknown name: "x".'),
        ({"grammar": "nonsense"}, "The grammar is not valid: Failed to convert"),
        ({"grammar": "start: " + "(" * 9999}, "The grammar is not valid: "),
        ({"json_schema": {"type": "foo"}}, "The json_schema is not valid: Invalid type: foo."),
        ({"json_schema": "{"}, "The json_schema is not JSON: Expecting property name"),
        ({"json_schema": "[" * 99999}, "The json_schema is not JSON: maximum recursion"),
        ({"json_schema": {"x": object}}, "The json_schema is not JSON: Object of type type"),
        ({"json_schema": "3"}, "The json_schema is '3'; expected a mapping, or its text."),
        (
            {"json_schema": {"not": {}}},
            'The json_schema is not valid: Unimplemented keys: ["not"].',
        ),
    ],
)
def test_invalid_constraint_arguments_are_refused(
    tokens: ConstraintTokens, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as raised:
        Constraint(tokens, **given)
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["metaspace", "word_piece", "word_ends", "bare"])
def test_constraint_refuses_tokenizer_without_byte_tokens(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="needs a tokenizer whose tokens are bytes"):
        ConstraintTokens(KINDS[kind](), [1])


def test_constraint_token_ids_out_of_range_are_refused() -> None:
    for eos, size, said in (
        ([], None, r"eos is \[\]; expected one or more ids"),
        ([9999], None, "EOS token ID 9999 is out of range"),
        ([-1], None, r"eos is \[-1\]; expected one or more ids"),
        ([1], 20, "vocab size too small; 20 vs"),
    ):
        with pytest.raises(InputError, match=said):
            ConstraintTokens(byte_level(), eos, size)


def test_constraint_without_llguidance_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(
        UnsupportedError, match=r'pip install "llguidance>=1".*its extra .constrained.'
    ):
        ConstraintTokens(byte_level(), [1])


def _chain(arrow: str, start: str, count: int) -> str:
    rules = "\n".join(f"a{i}{arrow} a{i + 1}" for i in range(count))
    return f'{start}{arrow} a0\n{rules}\na{count}{arrow} "x"\n'


def _references(count: int) -> str:
    kinds = {
        f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(count)
    }
    return json.dumps({"$ref": "#/$defs/a0", "$defs": {**kinds, f"a{count}": {"type": "null"}}})


@pytest.mark.parametrize(
    "given",
    [
        {"grammar": _chain(":", "start", 3990)},
        {"grammar": _chain(" ::=", "root", 1000)},
        {"json_schema": _references(2400)},
        {"json_schema": {"properties": {f"a{i}": {"type": "string"} for i in range(1000)}}},
    ],
    ids=["lark", "gbnf", "references", "properties"],
)
def test_large_constraint_compiles_on_small_thread_stack(
    tokens: ConstraintTokens, given: Any
) -> None:
    found: list[Any] = []

    def use() -> None:
        rule = Constraint(tokens, **given)
        found.extend([rule.copy().allowed().any(), rule.forced()])

    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=use)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert found and found[0]


@pytest.mark.parametrize(
    "given",
    [
        {"grammar": _chain(":", "start", 20_000)},
        {"grammar": _chain(" ::=", "root", 20_000)},
        {"grammar": 'start: "' + "x" * (1 << 20) + '"'},
        {"regex": "a" * 70_000},
        {"json_schema": _references(20_000)},
        {"json_schema": {"patternProperties": {f"^a{i}$": {} for i in range(1000)}}},
        {"json_schema": {"enum": ["x" * (1 << 20)]}},
    ],
    ids=["lark", "gbnf", "long", "regex", "references", "patterns", "enum"],
)
def test_too_large_constraint_is_refused(tokens: ConstraintTokens, given: Any) -> None:
    with pytest.raises(InputError, match="the maximum is"):
        Constraint(tokens, **given)
