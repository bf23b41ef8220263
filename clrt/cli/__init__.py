"""The `clrt` command."""

from clrt.cli.app import app

__all__ = ["app"]
