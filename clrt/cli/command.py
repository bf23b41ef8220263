"""Base classes of the commands, which format help and usage errors."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Prefix that pydantic adds to messages of typer's validators.
_VALUE_ERROR = "Value error, "


class _Plain:
    """Mixin of commands: omits the type of flags in help, and pydantic's prefix in usage errors."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the command's parameters; flags get an empty metavar, so help shows no type."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
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
