"""The `clrt` and `clrt-convert` commands."""

from clrt.errors import UnsupportedError, explain_missing_extra

try:
    with explain_missing_extra("The command line"):
        from clrt.cli.main import app
except UnsupportedError as error:
    raise SystemExit(f"Error: {error}") from None

__all__ = ["app"]
