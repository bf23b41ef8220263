"""`clrt chat` on a tiny model, in a pipe and in a terminal."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clrt.cli import chat
from clrt.cli.chat import ChatSession
from clrt.errors import visible
from clrt.generation.text_generator import TextGenerator
from tests.harness import quick_device
from tests.unit.cli.language_models import run, write_model

FEW = ("--max-new-tokens", "8")


def _session(generator: TextGenerator, **options: Any) -> ChatSession:
    return ChatSession(generator, "Be brief.", {"max_new_tokens": 8, **options})


def test_chat_command_prints_library_answers(model: Path, generator: TextGenerator) -> None:
    wanted = generator.chat("Be brief.", max_new_tokens=8)
    texts = [wanted.send(text).text for text in ("Hello", "/Why?")]
    result = run("chat", model, "--system", "Be brief.", *FEW, text="Hello\n\n//Why?\n/quit\nno\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == visible("".join(f"{text}\n" for text in texts), lines=True)
    lines = result.stderr.splitlines()
    assert len(lines) == 2 and all("tokens/s" in line for line in lines)
    assert "of 320 tokens of the context; cut at the maximum length" in lines[0]


def test_slash_commands_edit_chat_history(
    generator: TextGenerator, tmp_path: Path, capsys: Any
) -> None:
    talk, file = _session(generator, temperature=2.0), tmp_path / "chat.json"
    for line in ("One", "/retry", "Two", f"/save {file}", "/reset"):
        assert talk.take(line)
    assert talk.chat.messages == [{"role": "system", "content": "Be brief."}]
    saved = json.loads(file.read_text("utf-8"))
    assert [m["content"] for m in saved][1::2] == ["One", "Two"] and len(saved) == 5
    assert talk.take(f"/load {file}") and talk.chat.messages == saved
    talk.take("/system Be long.")
    assert talk.chat.messages == [{"role": "system", "content": "Be long."}, *saved[1:]]
    talk.take("/system")
    assert talk.chat.messages == saved[1:]
    capsys.readouterr()
    talk.take("/help")
    shown = capsys.readouterr().err
    assert all(f"/{name}" in shown for name in ("reset", "retry", "system", "save", "load", "quit"))
    assert not talk.take("/quit") and not talk.take(" /exit ")


def test_chat_errors_keep_history(generator: TextGenerator, capsys: Any) -> None:
    talk = _session(generator)
    for line, message in (
        ("/foo", "There is no command /foo"),
        ("/retry", "There is no message"),
        ("/save", "/save needs a file"),
        ("/load nothing.json", "'nothing.json' holds no chat messages"),
        ("x " * 400, "and the context 320"),
    ):
        assert talk.take(line)
        assert message in capsys.readouterr().err
    assert len(talk.chat.messages) == 1
    talk.take("Hello")
    before = list(talk.chat.messages)
    before[1]["content"] = talk.chat.messages[1]["content"] = "x " * 400
    talk.take("/retry")
    assert talk.chat.messages == before and "and the context 320" in capsys.readouterr().err
    talk.take("/reset")
    assert talk.take("Hello") and len(talk.chat.messages) == 3


def test_ctrl_c_stops_generation_and_keeps_chat(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pieces: list[str] = []

    def write(piece: str = "", end: str = "\n") -> None:
        pieces.append(piece)
        if len(pieces) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(chat, "echo", write)
    talk = _session(generator, max_new_tokens=200)
    assert talk.take("Hello")
    assert "; stopped" in capsys.readouterr().err
    assert talk.chat.messages[-1]["content"].startswith("".join(pieces[:2]))
    assert talk.take("Go on") and len(talk.chat.messages) == 5


def test_missing_chat_template_is_reported(tmp_path: Path) -> None:
    result = run("chat", write_model(tmp_path, template=None), text="Hello\n")
    assert result.exit_code == 1 and "has no chat template" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such terminals")
def test_ctrl_c_at_prompt_keeps_chat_open(model: Path) -> None:
    """Ctrl-C at the prompt does not end the chat."""
    here, there = os.openpty()
    # What runs tests in the background may have them ignore Ctrl-C.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = heeds + "from clrt.cli.main import app; app()"
    args = ["chat", str(model), *FEW, "--device", str(quick_device().index)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdin=there,
        stdout=there,
        stderr=there,
        start_new_session=True,
        env=os.environ | {"TERM": "dumb"},
    ) as process:
        os.close(there)
        try:
            _wait_for(here, "> ")
            os.write(here, b"Hello\n")
            assert "tokens/s" in _wait_for(here, "\n> ")
            # Between the prompt and its wait for a key readline does not see a signal.
            _wait_for(here, "/quit ends.", lambda: process.send_signal(signal.SIGINT))
            os.write(here, b"/quit\n")
            assert process.wait(60) == 0
        finally:
            process.kill()  # else the block waits for it
    os.close(here)


def _wait_for(terminal: int, end: str, act: Callable[[], object] = lambda: None) -> str:
    """Returns the output up to `end`; calls `act` after each second without output."""
    shown, stop = "", time.monotonic() + 120
    while end not in shown.replace("\r", ""):
        assert time.monotonic() < stop, shown
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 4096).decode("utf-8", "replace")
        else:
            act()
    return shown
