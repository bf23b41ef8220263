"""The class of every command: what its help and its usage errors look like."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# pydantic begins with it what a validator of typer raised.
_VALUE_ERROR = "Value error, "


class _Plain:
    """Shows no type of flags, which take no value, and usage errors without pydantic's prefix."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the parameters; the type of a flag is empty text."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return found

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses arguments.

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
    """One command."""


class CommandGroup(_Plain, TyperGroup):
    """A command that has commands."""
