"""Base classes of the commands, which format help and usage errors."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Prefix that pydantic adds to messages of typer's validators.
_VALUE_ERROR = "Value error, "


class _PlainValues:
    """Converts the value of a parameter; passes texts, defaults and missing values on as they are.

    typer converts any value by a validator of pydantic, whose import and validators take longer
    than all else of the command line.
    """

    def __init__(self, parameter: Any) -> None:
        self._parameter, self._convert = parameter, parameter.process_value
        described = getattr(parameter, "type_descriptor", None)  # older versions have none
        of, info = (getattr(described, n, None) for n in ("annotation", "parameter_info"))
        has_parser = getattr(info, "parser", None) is not None
        self._holds_text = of in (str, list[str]) and not has_parser
        # Older versions convert values by click, which is quick.
        self._is_quick = described is None

    def __call__(self, ctx: Any, value: Any) -> Any:
        parameter = self._parameter
        several = parameter.nargs != 1 or parameter.multiple
        texts = value if several and isinstance(value, (list, tuple)) else [value]
        is_text = self._holds_text and all(type(each) is str for each in texts)
        is_default = type(value) in (type(None), bool, int, float)
        if self._is_quick or not (is_text or is_default) or (not value and parameter.required):
            return self._convert(ctx, value)
        if several:
            value = () if value is None else [*value]
        return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


class _Plain:
    """Mixin of commands: omits the type of flags in help, and pydantic's prefix in usage errors."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the command's parameters; flags get an empty metavar, so help shows no type."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            if not isinstance(parameter.process_value, _PlainValues):
                parameter.process_value = _PlainValues(parameter)
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses command-line arguments; returns the arguments that no parameter consumes.

        Raises:
            BadParameter: A value is not valid.
        """
        try:
            rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except typer.BadParameter as error:
            error.message = error.message.replace(_VALUE_ERROR, "")
            raise
        return rest


class Command(_Plain, TyperCommand):
    """A command without subcommands, with plain help and usage errors."""


class CommandGroup(_Plain, TyperGroup):
    """A command with subcommands, with plain help and usage errors."""
