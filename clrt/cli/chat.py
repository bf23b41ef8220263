"""The command `clrt chat`: a chat with a language model in a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clrt.cli.adapters import LoraOption
from clrt.cli.console import echo, say_error, stderr
from clrt.cli.ctrl_c import ending_by_interrupt
from clrt.cli.sampling import (
    SEVERAL,
    CacheOption,
    ContextOption,
    DraftOption,
    LanguageModelArgument,
    SystemOption,
    given_options,
    open_generator,
    speeds,
    with_sampling,
)
from clrt.cli.shapes import DeviceOption
from clrt.errors import ClrtError, InputError, counted
from clrt.generation.chat import Chat
from clrt.generation.result import GeneratedText
from clrt.generation.text_generator import TextGenerator
from clrt.util.table_text import PlainText

# Default maximum tokens per answer; the models' own defaults are for completions, and cut answers.
_MAX_ANSWER_TOKENS = 2048
# Prompt and answer tokens of the warm-up; draft tokens start once step times are measured.
_WARM_TOKENS, _WARM_ANSWER = 24, 8
_ENDINGS = {"length": "; cut at the maximum length", "cancelled": "; stopped"}


@with_sampling(*SEVERAL)
def chat(
    model: LanguageModelArgument,
    system: SystemOption = None,
    lora: LoraOption = None,
    context: ContextOption = None,
    cache: CacheOption = "float32",
    draft: DraftOption = None,
    device: DeviceOption = None,
    **sampling: Any,
) -> None:
    """Chat with a language model in a terminal.

    /help lists the commands. Ctrl-C stops an answer, Ctrl-D ends the chat. Sampling options default
    to the model's own.
    """
    options = {"max_new_tokens": _MAX_ANSWER_TOKENS, **given_options(sampling)}
    with open_generator(model, device, context, cache, lora, draft) as generator:
        talk = ChatSession(generator, system, options)
        if sys.stdin is not None and sys.stdin.isatty():
            with stderr().status("Warming up; the first time on a device takes longest."):
                _warm_up(generator)
            _note(f"{Path(model).name} on {generator.device.name}; /help lists the commands.")
        for line in typed_lines():
            if not talk.take(line):
                break


def _warm_up(generator: TextGenerator) -> None:
    """Runs a short generation, which compiles the kernels and plans of prompts and answers."""
    tokens = [0] * max(min(_WARM_TOKENS, generator.context - _WARM_ANSWER), 1)
    generator.generate(tokens, max_new_tokens=_WARM_ANSWER, num_return_sequences=1, num_beams=1)


class ChatSession:
    """Interactive chat: handles typed messages and commands, line by line.

    Args:
        generator: The language model.
        system: System message; None for none.
        options: Sampling options of `TextGenerator.chat`.

    Raises:
        InputError: The model has no chat template, or an option is out of range.
    """

    def __init__(
        self, generator: TextGenerator, system: str | None, options: Mapping[str, Any]
    ) -> None:
        self._generator = generator
        self._options = options
        self.chat: Chat = generator.chat(system, **options)

    def take(self, line: str) -> bool:
        """Handles one line: a message, or a command that begins with "/". Prints errors of clrt.

        A line that begins with "//" is a message that begins with "/". An empty line does nothing.

        Args:
            line: The typed line.

        Returns:
            False if the line ends the chat, else True.
        """
        text = line.strip()
        if not text:
            return True
        try:
            if not text.startswith("/"):
                self._answer({"role": "user", "content": text})
            elif text.startswith("//"):
                self._answer({"role": "user", "content": text[1:]})
            else:
                name, _, rest = text.partition(" ")
                return self._command(name, rest.strip())
        except ClrtError as error:
            say_error(str(error))
        return True

    def _command(self, name: str, rest: str) -> bool:
        """Runs a command such as "/save" with its argument; returns False if it ends the chat."""
        if name in ("/quit", "/exit"):
            return False
        commands: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/reset": self._reset,
            "/retry": self._retry,
            "/save": self._save,
            "/load": self._load,
            "/system": self._system,
        }
        if name not in commands:
            raise InputError(f"There is no command {name}; /help lists them.")
        commands[name](rest)
        return True

    def _help(self, rest: str) -> None:
        for line in (
            "/reset        starts over, with the system message only",
            "/retry        answers the last message again",
            "/system TEXT  changes the system message; without TEXT removes it",
            "/save FILE    writes the messages as JSON",
            "/load FILE    continues from saved messages",
            "/quit         ends the chat, as Ctrl-D does",
            "//…           a message that begins with /",
            "Ctrl-C        stops an answer",
        ):
            _note(line)

    def _reset(self, rest: str) -> None:
        self.chat.reset()
        _note("The chat begins anew.")

    def _retry(self, rest: str) -> None:
        """Answers the last user message again; restores the messages if that fails."""
        messages = self.chat.messages
        asked = [k for k, m in enumerate(messages) if m["role"] == "user"]
        if not asked:
            raise InputError("There is no message to answer again.")
        last = messages[asked[-1]]
        kept = list(messages)
        del messages[asked[-1] :]
        try:
            self._answer(last)
        except ClrtError:
            self.chat.messages = kept
            raise

    def _save(self, rest: str) -> None:
        self.chat.save(_file(rest, "/save"))
        _note(f"{counted(len(self.chat.messages), 'message')} saved.")

    def _load(self, rest: str) -> None:
        self.chat.load(_file(rest, "/load"))
        _note(f"{counted(len(self.chat.messages), 'message')} loaded.")

    def _system(self, rest: str) -> None:
        said = [m for m in self.chat.messages if m["role"] != "system"]
        self.chat = self._generator.chat(rest or None, **self._options)
        self.chat.messages += said
        _note("The system's message is changed." if rest else "There is no system's message now.")

    def _answer(self, message: Mapping[str, Any]) -> None:
        """Streams the model's answer to a message to standard output, then prints its speed.

        Args:
            message: Message with the keys "role" and "content".
        """
        with self.chat.stream(message) as chunks, ending_by_interrupt(chunks):
            try:
                for chunk in chunks:
                    echo(chunk, end="")
                answer: GeneratedText = chunks.result
            finally:
                echo()
        if answer.timings is not None:
            used = answer.prompt_tokens + len(answer.tokens)
            usage = f"; {used} of {self._generator.context} tokens of the context"
            _note(speeds(answer.timings) + usage + _ENDINGS.get(answer.finish_reason, ""))


def typed_lines() -> Iterator[str]:
    """Yields the lines of standard input; a terminal shows a prompt and keeps a history."""
    if sys.stdin is None:
        return
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with contextlib.suppress(ImportError):  # Windows has no readline.
        import readline  # noqa: F401  input() uses it
    while True:
        try:
            yield input("> ")
        except EOFError:
            echo()
            return
        except KeyboardInterrupt:
            echo()
            _note("Ctrl-D or /quit ends.")


def _file(rest: str, command: str) -> str:
    if not rest:
        raise InputError(f"{command} needs a file; write {command} FILE.")
    return rest


def _note(text: str) -> None:
    stderr().print(PlainText(text, style="dim"), soft_wrap=True)
