"""Stop texts are found across pieces, and only possible stop texts are held back."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clrt.errors import InputError
from clrt.generation.stops import StopMatcher

FEW = st.text("ab", max_size=4)


def _answer(stops: list[str], text: str, include: bool) -> tuple[str, str | None]:
    """By definition: the stop text that is complete first, the longest of several."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@settings(max_examples=500, deadline=None)
@given(
    stops=st.lists(FEW.filter(bool), max_size=4),
    pieces=st.lists(FEW, max_size=8),
    include=st.booleans(),
)
def test_stop_matcher_matches_definition_for_any_pieces(
    stops: list[str], pieces: list[str], include: bool
) -> None:
    matcher = StopMatcher(stops, include=include)
    shown = ""
    for k, piece in enumerate(pieces):
        shown += matcher.push(piece)
        sofar = "".join(pieces[: k + 1])
        whole, match = _answer(stops, sofar, include)
        if match is None:
            kept = len(sofar) - len(shown)  # no more than what may start a stop text
            assert any(len(s) > kept and sofar.endswith(s[:kept]) for s in [*stops, "x"])
        else:
            assert shown == whole
    wanted = _answer(stops, "".join(pieces), include)
    assert (shown + matcher.finish(), matcher.matched) == wanted


def test_stop_text_across_tokens_is_found() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert [matcher.push(x) for x in ("Hi.", "\n", "\nUs", "ers", "\n\n", "User", ":!")] == [
        *("Hi.", "", "", "\n\nUsers", "", "", ""),
    ]
    assert matcher.matched == "\n\nUser:" and matcher.finish() == ""
    assert matcher.push("more") == ""


def test_stop_matcher_releases_held_text_at_end() -> None:
    matcher = StopMatcher(["</answer>"])
    assert (matcher.push("a</ans"), matcher.finish(), matcher.matched) == ("a", "</ans", None)


@pytest.mark.parametrize(("include", "wanted"), [(False, "a<"), (True, "a<</s>")])
def test_stop_token_ends_text(include: bool, wanted: str) -> None:
    matcher = StopMatcher(["<|"], [2, 7], include)
    assert matcher.push("a<", 1) + matcher.push("</s>", 2) == wanted
    assert matcher.matched == 2 and matcher.finish() == ""


def test_stop_token_0_ends_text() -> None:
    matcher = StopMatcher([], [0])
    assert (matcher.push("a", 1), matcher.push("b", 0), matcher.push("c", 1)) == ("a", "", "")
    assert matcher.matched == 0


def test_empty_stop_text_is_refused() -> None:
    with pytest.raises(InputError, match="A stop text is empty"):
        StopMatcher(["a", ""])


def test_stop_matcher_takes_linear_time() -> None:
    matcher = StopMatcher(["a" * 5000 + "b", "a" * 4000 + "c"])
    start = time.process_time()
    shown = "".join(matcher.push("a") for _ in range(200_000)) + matcher.finish()
    assert len(shown) == 200_000 and time.process_time() - start < 10
