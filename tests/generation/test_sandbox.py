"""Malicious chat templates: refused in bounded time and memory."""

from __future__ import annotations

import sys
import time

import pytest

from clrt.errors import ClrtError, InputError, ModelError
from clrt.generation.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hello"}]
TEN = "0123456789"
# Doubles `x` 60 times.
DOUBLED = (
    "{{% set n = namespace(x={0}) %}}{{% for i in range(60) %}}{{% set n.x = {1} %}}{{% endfor %}}"
)

TOO_MUCH = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "silent_loops": "{% for a in range(99999) if a < 0 %}{% endfor %}" * 200,
    "recursive_loop": "{% for a in [range(999)] recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "long_text": "{% for a in range(99999) %}" + TEN * 100 + "{% endfor %}",
    "captured_text": "{% set x %}{% for a in range(99999) %}"
    + TEN * 100
    + "{% endfor %}{% endset %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "endless_macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "times": "{{ 'a' * 10 ** 10 }}",
    "times_of_lists": "{{ ([1] * 10 ** 9) | length }}",
    "power": "{{ (10 ** (10 ** 9)) % 7 }}",
    "squares": DOUBLED.format("7", "n.x * n.x"),
    "long_number": "{{ ('f' * 9999999) | int(0, 16) is divisibleby 7 }}",
    "long_format": "{% set x = '%(' * 999999 %}{{ x % 1 }}",
    "plus": DOUBLED.format("'ab'", "n.x + n.x"),
    "plus_of_lists": DOUBLED.format("[1]", "n.x + n.x"),
    "tilde": DOUBLED.format("'ab'", "n.x ~ n.x"),
    "captured": "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}",
    "lists": DOUBLED.format("[1]", "[n.x, n.x]") + "{{ n.x }}",
    "lists_compared": DOUBLED.format("[1]", "[n.x, n.x]") + "{{ n.x == [n.x] }}",
    "dicts": DOUBLED.format("{}", "{1: n.x, 2: n.x}") + "{{ n.x | tojson }}",
    "dict_calls": DOUBLED.format("{}", "dict(a=n.x, b=n.x)") + "{{ n.x | string }}",
    "views": DOUBLED.format("{}", "{1: n.x, 2: n.x}.items()") + "{{ n.x | upper }}",
    "varargs": "{% set n = namespace(x=[1]) %}{% macro f() %}{% set n.x = varargs %}{% endmacro %}"
    "{% for i in range(60) %}{{ f(n.x, n.x) }}{% endfor %}{{ n.x }}",
    "replace": "{% set x = 'a' * 99999 %}{{ x.replace('a', x) }}",
    "replace_filter": "{% set x = 'a' * 99999 %}{{ x | replace('a', x) }}",
    "replace_nothing": "{% set x = 'a' * 99999 %}{{ x.replace('', x) }}",
    "join": "{% set x = 'a' * 99999 %}{{ x.join(range(99999) | map('string')) }}",
    "join_filter": "{% set x = 'a' * 99999 %}{{ range(99999) | join(x) }}",
    "join_of_much": "{% set x = 'a' * 9999999 %}{{ ([x] * 999) | join }}",
    "map": "{% set x = 'a' * 99999 %}{{ range(9999) | map('default', x) | list | length }}"
    "{{ range(99999) | map('replace', '', x) | join }}",
    "center": "{{ 'a' | center(10 ** 9) }}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "zfill": "{{ 'a'.zfill(10 ** 9) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent_precision": "{{ '%(a)-9.1000000000f' % {'a': 1} }}",
    "percent_star": "{{ '%*d' % (10 ** 9, 1) }}",
    "percent_many": "{% set x = 'a' * 99999 %}{{ ('%(a)s' * 9999) % {'a': x} }}",
    "format_filter": "{{ '%1000000000d' | format(1) }}",
    "format": "{{ '{:>1000000000}'.format('a') }}",
    "format_nested": "{{ '{:>{}}'.format('a', 10 ** 9) }}",
    "format_many": "{% set x = 'a' * 99999 %}{{ ('{0}' * 9999).format(x) }}",
    "format_map": "{% set x = 'a' * 99999 %}{{ ('{a}' * 9999).format_map({'a': x}) }}",
    "indent": "{{ ('\\n' * 99999) | indent(99999) }}",
    "json_indent": "{{ [1] | tojson(indent=10 ** 9) }}",
    "json_separators": "{% set x = 'a' * 99999 %}"
    "{{ (range(99999) | list) | tojson(separators=(x, x)) }}",
    "batch": "{{ ([1] | batch(10 ** 9, 0) | list) | length }}",
    "slice": "{{ ([1] | slice(10 ** 9) | list) | length }}",
    "round": "{{ 1 | round(10 ** 9, 'ceil') }}",
    "slices": "{% set x = 'a' * 999999 %}" + "{% set y = x[1:] %}" * 999,
    "search_backwards": "{% set x = 'a' * 999999 %}{{ x.rfind('b' ~ x[9:]) }}",
    "filter_block": "{% filter replace('a', 'b' * 9999) %}" + "a" * 9999 + "{% endfilter %}",
    "long_source": "{# " + "a" * (1 << 17) + " #}",
    "comparisons": DOUBLED.format("[1]", "n.x + [n.x]") + "{{ n.x == n.x }}" * 3000,
    "compared_lists": DOUBLED.replace("60", "17").format("[1]", "[n.x, n.x]")
    + "{% set a = [n.x] %}{% set b = [n.x[:]] %}"
    + "{{ a == b }}{{ a in b }}{{ a is eq b }}{{ b.count(a) }}" * 500,
    "characters": "{{ ('€$' * 5000000) | list | length }}",
    "words": "{{ ('ab ' * 5000000).split() | length }}",
    "counted_words": "{{ ('ab ' * 5000000) | wordcount }}",
    "lines": "{{ ('ab\\n' * 5000000).splitlines() | length }}",
    "parts": "{{ ('ab,' * 5000000).split(',') | length }}",
    "deep_source": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "deep_loops": "{% for a in [1] %}" * 99 + "{% endfor %}" * 99,
    "deep_ifs": "{% if 1 %}" * 99 + "{% endif %}" * 99,
    "deep_lists": "{% set n = namespace(x=[]) %}"
    "{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}",
}


def _peak_kib() -> int:
    """The most that this process has held; 0 on Windows."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak >> 10 if sys.platform == "darwin" else peak


@pytest.mark.parametrize("name", TOO_MUCH)
def test_template_beyond_work_limit_is_refused(name: str) -> None:
    start, held = time.process_time(), _peak_kib()
    with pytest.raises(ModelError, match="asks for more text or work than a chat template may"):
        ChatTemplate(TOO_MUCH[name]).render(MESSAGES)
    assert _peak_kib() - held < 256 << 10
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ dict.__call__.__globals__ }}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ (1).to_bytes(9, 'big') }}",
        "{{ 'a'.encode() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ lipsum(10 ** 9) }}",
        "{{ range(10 ** 9) }}",
        "{{ ''.join(messages) }}",
        "{{ 1 / 0 }}",
        "{{ strftime_now('\\ud800') }}",
    ],
)
def test_template_sandbox_refuses_python_internals(source: str) -> None:
    with pytest.raises(ClrtError) as raised:
        ChatTemplate(source).render(MESSAGES)
    assert str(raised.value).startswith("The chat template ")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''['__class__'] }}",
        "{{ messages | attr('__class__') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages | map(attribute='__class__') | join }}",
        "{{ raise_exception.__globals__ }}",
    ],
)
def test_template_hidden_attributes_render_empty(source: str) -> None:
    assert ChatTemplate(source).render(MESSAGES) == ""


@pytest.mark.parametrize("name", ["pprint", "striptags", "sum", "urlize", "wordwrap", "xmlattr"])
def test_template_disallowed_filters_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"No filter named '{name}'"):
        ChatTemplate(f"{{{{ 'a' | {name} }}}}")


def test_template_compilation_evaluates_no_expressions() -> None:
    ChatTemplate("{{ 'a' | center(10 ** 9) }}{{ 'a' * 10 ** 10 }}{{ [1] | list }}")


def test_template_time_limit_stops_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clrt.generation.template_budget._MAX_SECONDS", -1.0)
    with pytest.raises(ModelError, match="asks for more"):
        ChatTemplate("{{ messages | length }}").render(MESSAGES)


def test_template_narrow_format_widths_are_allowed() -> None:
    source = """{{ '{{"n": {}}}: 123456 {:>4}'.format(1, 'a') }}{{ '{a: {%s 123456%%' % 'x' }}"""
    assert ChatTemplate(source).render(MESSAGES) == '{"n": 1}: 123456    a{a: {x 123456%'


def test_template_syntax_in_messages_is_not_rendered() -> None:
    content = "{{ 1 / 0 }}{% raw %}<|im_end|>"
    made = ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": content}])
    assert made == content


def test_long_chat_renders_within_template_limits() -> None:
    long = [{"role": "user", "content": "word " * 1_000_000}]
    source = "{% for m in messages %}{{ (m.content | trim).replace('w', 'W') ~ '!' }}{% endfor %}"
    assert len(ChatTemplate(source).render(long)) == 5_000_000


def test_template_raise_exception_message_is_one_line() -> None:
    with pytest.raises(InputError) as raised:
        ChatTemplate("{{ raise_exception('a\\n' * 9999) }}").render(MESSAGES)
    assert len(str(raised.value)) < 1100 and "\n" not in str(raised.value)


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "-" + "9" * 5000])
@pytest.mark.parametrize("place", ["{{ %s }}", "{%% if x == %s %%}{%% endif %%}", "{{ f(a=%s) }}"])
def test_template_numbers_of_thousands_of_digits_are_refused(place: str, number: str) -> None:
    with pytest.raises(ClrtError):
        ChatTemplate(place % number).render(MESSAGES, f=1)
