"""Renders chat messages by a model's chat template."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clrt.errors import InputError, ModelError, explain_missing_extra
from clrt.generation.messages import plain_data, plain_messages, plain_tools
from clrt.models.huggingface.model_files import file_exists, path_in, read_optional, read_text

# Maximum length of a template's error in a message, in characters.
_MAX_REASON_CHARS = 1000
_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_TOO_MUCH = (
    "asks for more text or work than a chat template may; use the model's own, or give one as text."
)


class ChatTemplate:
    """A chat template in Jinja, rendered as transformers renders it.

    A template is not trusted: it runs in a sandbox that bounds its time, memory and output
    (`clrt.generation.sandbox`).

    Args:
        source: Source of the template.
        special_tokens: Texts of special tokens by variable name, such as `bos_token`.
        origin: Name of the template in error messages.
        for_tools: Template for chats with tools; None if `source` is for such chats, too.

    Raises:
        ModelError: The source is not a valid template, or too long or complex.
        UnsupportedError: Jinja is not installed.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        origin: str = "The chat template",
        for_tools: ChatTemplate | None = None,
    ) -> None:
        with explain_missing_extra("A chat template"):
            from clrt.generation import sandbox
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self._origin = origin
        self._for_tools = for_tools
        self._render = sandbox.render_template
        try:
            self._template = sandbox.compile_template(source)
        except sandbox.TooMuchError as error:
            raise ModelError(f"{origin} {_TOO_MUCH}") from error
        except sandbox.TemplateSyntaxError as error:
            raise ModelError(
                f"{origin} is not a valid template: error at line {error.lineno}: "
                f"{_reason(error)}; download the model's own file."
            ) from error

    @property
    def tool_source(self) -> str:
        """Jinja source of the template that renders chats with tools."""
        return self.source if self._for_tools is None else self._for_tools.source

    @classmethod
    def from_folder(cls, folder: Path, name: str | None = None) -> ChatTemplate:
        """Reads the chat template of a model folder, with its special tokens.

        `chat_template.jinja` and `additional_chat_templates/*.jinja` override `chat_template` of
        tokenizer_config.json, which may be a list of named templates.

        Args:
            folder: Model folder.
            name: Name of one of several templates. None selects "default"; for chats with tools,
                it selects "tool_use" if there is one.

        Raises:
            ModelError: The folder has no chat template, or a file is damaged.
            InputError: The folder has no chat template of that name.
            UnsupportedError: Jinja is not installed.
        """
        sources = _sources(folder)
        tokens = special_tokens(folder)
        if not sources:
            raise ModelError(
                f"'{folder}' has no chat template, neither chat_template.jinja nor "
                "'chat_template' in tokenizer_config.json; give the prompt as text."
            )
        chosen = name or ("default" if "default" in sources else None)
        if chosen not in sources:
            raise InputError(
                f"'{folder}' has no chat template {chosen or 'default'!r}; it has "
                f"{', '.join(map(repr, sources))}."
            )
        source, origin = sources[chosen]
        for_tools = None
        if name is None and "tool_use" in sources:
            for_tools = cls(sources["tool_use"][0], tokens, sources["tool_use"][1])
        return cls(source, tokens, origin, for_tools)

    def render(
        self,
        messages: object,
        tools: object = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Renders a chat as prompt text.

        Args:
            messages: Messages accepted by `plain_messages`.
            tools: JSON schemas of functions that the model may call; None for none.
            add_generation_prompt: Whether the text ends with the start of an assistant message.
            variables: Values of other variables of the template, such as `enable_thinking=False`.

        Raises:
            InputError: The messages are invalid, or the template rejects them.
            ModelError: The template exceeds its budget, or is stopped by the sandbox.
        """
        if tools is not None and self._for_tools is not None:
            return self._for_tools.render(messages, tools, add_generation_prompt, **variables)
        context = {
            **self.special_tokens,
            **{k: plain_data(x, f"The variable {k}") for k, x in variables.items()},
            "messages": plain_messages(messages),
            "tools": plain_tools(tools),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        context.setdefault("documents", None)
        from clrt.generation import sandbox

        try:
            return self._render(self._template, context)
        except sandbox.TooMuchError as error:
            raise ModelError(f"{self._origin} {_TOO_MUCH}") from error
        except sandbox.SecurityError as error:
            raise ModelError(
                f"{self._origin} is not allowed by the sandbox: {_reason(error)}."
            ) from error
        except Exception as error:  # any type: the template is a program
            if type(error) is sandbox.TemplateError:
                raise InputError(
                    f"{self._origin} rejects these messages: {_reason(error)}."
                ) from error
            raise InputError(
                f"{self._origin} fails at line {_line(error)}: {_reason(error)}; check that the "
                "messages have all keys that it uses."
            ) from error


def has_template(folder: Path) -> bool:
    """Whether a model folder has a chat template.

    Raises:
        ModelError: A file is damaged.
    """
    return bool(_sources(folder))


def special_tokens(folder: Path) -> dict[str, str]:
    """Reads the texts of special tokens from a model folder, by variable name such as `bos_token`.

    Raises:
        ModelError: A file is damaged.
    """
    tokens = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_optional(folder / file)
        for name in (f"{token}_token" for token in _TOKENS):
            value = config.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and text:
                tokens[name] = text
    return tokens


def _sources(folder: Path) -> dict[str, tuple[str, str]]:
    """Reads the chat templates of a folder; returns (source, name in error messages) by name."""
    files = {"default": folder / "chat_template.jinja"}
    more = sorted(path_in(folder, "additional_chat_templates").glob("*.jinja"))
    files |= {file.stem: file for file in more}
    sources = {name: (read_text(f), f"'{f}'") for name, f in files.items() if file_exists(f)}
    config = folder / "tokenizer_config.json"
    declared = None if sources else read_optional(config).get("chat_template")
    if declared is None:
        return sources
    named = declared if isinstance(declared, list) else [{"name": "default", "template": declared}]
    for one in named:
        name, source = (one.get("name"), one.get("template")) if isinstance(one, dict) else (0, 0)
        if not isinstance(name, str) or not isinstance(source, str):
            raise ModelError(
                f"'{config}' has a chat_template that is neither a text nor a list of "
                "{'name': …, 'template': …}; download the model's own file."
            )
        sources[name] = source, f"The chat template {name!r} of '{config}'"
    return sources


def _reason(error: Exception) -> str:
    """Returns an error's message on one line without final period, at most 1000 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_MAX_REASON_CHARS].removesuffix(".")


def _line(error: Exception) -> int:
    """Returns the number of the template line that raised an error; 0 if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno or 0 for f in reversed(frames) if f.filename == "<template>"), 0)
