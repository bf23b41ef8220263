"""The `clrt` command."""

from clrt.cli.main import app

__all__ = ["app"]
